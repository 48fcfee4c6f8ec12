//! Reading a received frame: Ethernet, IPv4 or IPv6 without extension headers, TCP.

use super::{ETH_LEN, ETHERTYPE_IPV4, ETHERTYPE_IPV6, PROTO_TCP, TcpOptions, be16, be32, checksum, flags};
use crate::flow::FlowKey;
use crate::seq::SeqNr;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// ECN field of the IP header (RFC 3168).
pub type Ecn = u8;

/// Why a frame is not a plain TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// ARP, ICMP, UDP, IP options, extension headers, fragments: the slow path's affair.
    #[error("not a plain TCP segment")]
    NotTcp,
    /// Lengths that contradict each other, or a bad IPv4 header checksum: drop and count.
    #[error("malformed")]
    Malformed,
}

/// A TCP segment as received. `key` is from our side: local = destination.
#[derive(Clone, Debug)]
pub struct Segment {
    /// 4-tuple.
    pub key: FlowKey,
    /// Sequence number.
    pub seq: SeqNr,
    /// Acknowledgment number; meaningful with the ACK flag.
    pub ack: SeqNr,
    /// [`flags`].
    pub flags: u8,
    /// Window field as on the wire.
    pub window: u16,
    /// Urgent pointer field.
    pub urgent: u16,
    /// Options.
    pub options: TcpOptions,
    /// Where the TCP header starts in the frame.
    pub l4_offset: usize,
    /// Where the payload starts in the frame.
    pub payload_offset: usize,
    /// Payload length in bytes (Ethernet padding excluded).
    pub payload_len: usize,
    /// ECN bits of the IP header.
    pub ecn: Ecn,
    /// TTL or hop limit.
    pub ttl: u8,
}

impl Segment {
    /// Any of these flags set?
    #[inline(always)]
    pub fn has(&self, mask: u8) -> bool {
        self.flags & mask != 0
    }

    /// SEG.LEN: payload plus SYN plus FIN (RFC 9293 §3.3.1).
    #[inline(always)]
    pub fn len(&self) -> u32 {
        self.payload_len as u32 + u32::from(self.has(flags::SYN)) + u32::from(self.has(flags::FIN))
    }

    /// Occupies no sequence space?
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// First sequence number after the segment.
    #[inline(always)]
    pub fn end(&self) -> SeqNr {
        self.seq + self.len()
    }
}

/// Reads a frame's headers. The payload and the TCP checksum are not looked at.
#[inline]
pub fn parse(frame: &[u8]) -> Result<Segment, ParseError> {
    if frame.len() < ETH_LEN + 20 {
        return Err(ParseError::NotTcp);
    }
    match be16(frame, 12) {
        ETHERTYPE_IPV4 => parse_v4(frame),
        ETHERTYPE_IPV6 => parse_v6(frame),
        _ => Err(ParseError::NotTcp),
    }
}

#[inline]
fn parse_v4(frame: &[u8]) -> Result<Segment, ParseError> {
    let (ip, header) = match frame[ETH_LEN..].first_chunk::<20>() {
        Some(header) => (&frame[ETH_LEN..], header),
        None => return Err(ParseError::Malformed),
    };
    // Version 4 without options, not a fragment (more-fragments clear, offset zero).
    if ip[0] != 0x45 || ip[9] != PROTO_TCP || be16(ip, 6) & 0x3fff != 0 {
        return Err(ParseError::NotTcp);
    }
    let total = usize::from(be16(ip, 2));
    if total > ip.len() || total < 40 || checksum::ipv4_header(header) != 0xffff {
        return Err(ParseError::Malformed);
    }
    let addr = |at: usize| IpAddr::V4(Ipv4Addr::from(be32(ip, at)));
    parse_tcp(&frame[..ETH_LEN + total], ETH_LEN + 20, addr(12), addr(16), ip[1] & 3, ip[8])
}

#[inline]
fn parse_v6(frame: &[u8]) -> Result<Segment, ParseError> {
    let ip = &frame[ETH_LEN..];
    if ip.len() < 40 || ip[0] >> 4 != 6 || ip[6] != PROTO_TCP {
        return Err(ParseError::NotTcp);
    }
    let total = 40 + usize::from(be16(ip, 4));
    if total > ip.len() || total < 60 {
        return Err(ParseError::Malformed);
    }
    let addr = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&ip[at..at + 16]);
        IpAddr::V6(Ipv6Addr::from(octets))
    };
    let tclass = (be16(ip, 0) >> 4) as u8;
    parse_tcp(&frame[..ETH_LEN + total], ETH_LEN + 40, addr(8), addr(24), tclass & 3, ip[7])
}

#[inline]
fn parse_tcp(
    frame: &[u8],
    l4_offset: usize,
    src: IpAddr,
    dst: IpAddr,
    ecn: Ecn,
    ttl: u8,
) -> Result<Segment, ParseError> {
    let tcp = &frame[l4_offset..];
    if tcp.len() < 20 {
        return Err(ParseError::Malformed);
    }
    let header_len = usize::from(tcp[12] >> 4) * 4;
    if header_len < 20 || header_len > tcp.len() {
        return Err(ParseError::Malformed);
    }
    Ok(Segment {
        key: FlowKey { local_ip: dst, remote_ip: src, local_port: be16(tcp, 2), remote_port: be16(tcp, 0) },
        seq: SeqNr(be32(tcp, 4)),
        ack: SeqNr(be32(tcp, 8)),
        flags: tcp[13],
        window: be16(tcp, 14),
        urgent: be16(tcp, 18),
        options: if header_len == 20 { TcpOptions::default() } else { TcpOptions::parse(&tcp[20..header_len]) },
        l4_offset,
        payload_offset: l4_offset + header_len,
        payload_len: tcp.len() - header_len,
        ecn,
        ttl,
    })
}

/// Is the TCP checksum of a parsed frame right?
#[inline]
pub fn verify_checksum(frame: &[u8], seg: &Segment) -> bool {
    let end = seg.payload_offset + seg.payload_len;
    let len = end - seg.l4_offset;
    let sum = checksum::pseudo(seg.key.remote_ip, seg.key.local_ip, PROTO_TCP, len);
    checksum::fold(checksum::add(sum, &frame[seg.l4_offset..end])) == 0xffff
}
