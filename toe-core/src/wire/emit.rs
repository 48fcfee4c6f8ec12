//! Writing a segment's headers, Ethernet to TCP options, into one contiguous buffer.

use super::{ETH_LEN, PROTO_TCP, TcpOptions, checksum};
use crate::flow::FlowKey;
use crate::seq::SeqNr;
use core::net::IpAddr;

/// Largest header: Ethernet, IPv6, TCP with 40 bytes of options.
pub const MAX_HEADER: usize = ETH_LEN + 40 + 60;

/// What goes into the TCP and IP headers. `key` is from our side: local = source.
#[derive(Clone, Debug)]
pub struct TcpFields {
    /// 4-tuple.
    pub key: FlowKey,
    /// Sequence number.
    pub seq: SeqNr,
    /// Acknowledgment number.
    pub ack: SeqNr,
    /// Flags.
    pub flags: u8,
    /// Window field as on the wire.
    pub window: u16,
    /// Urgent pointer.
    pub urgent: u16,
    /// Options.
    pub options: TcpOptions,
    /// TTL or hop limit.
    pub ttl: u8,
    /// TOS or traffic class, ECN bits included.
    pub tos: u8,
    /// IPv4 identification (RFC 6864: any value will do with DF set).
    pub ident: u16,
}

/// A header ready to send.
pub struct Header {
    bytes: [u8; MAX_HEADER],
    len: u8,
    /// Where the TCP header starts.
    pub l4_offset: u16,
}

impl Header {
    /// The header's bytes.
    #[inline(always)]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Writes the headers of a segment with `payload`. With `offload` the checksum field gets the pseudo-header's sum only
/// (the link completes it); else it is complete.
pub fn emit(l2: &[u8; ETH_LEN], f: &TcpFields, payload: &[&[u8]], offload: bool) -> Header {
    let payload_len: usize = payload.iter().map(|p| p.len()).sum();
    let mut options = [0; 40];
    let options_len = f.options.emit(&mut options);
    let tcp_len = 20 + options_len;
    let mut h = Header { bytes: [0; MAX_HEADER], len: 0, l4_offset: 0 };
    h.bytes[..ETH_LEN].copy_from_slice(l2);
    let ip_len = emit_ip(&mut h.bytes[ETH_LEN..], f, tcp_len + payload_len);
    let l4 = ETH_LEN + ip_len;
    h.l4_offset = l4 as u16;
    h.len = (l4 + tcp_len) as u8;

    let tcp = &mut h.bytes[l4..l4 + tcp_len];
    tcp[0..2].copy_from_slice(&f.key.local_port.to_be_bytes());
    tcp[2..4].copy_from_slice(&f.key.remote_port.to_be_bytes());
    tcp[4..8].copy_from_slice(&f.seq.0.to_be_bytes());
    tcp[8..12].copy_from_slice(&f.ack.0.to_be_bytes());
    tcp[12] = (tcp_len as u8 / 4) << 4;
    tcp[13] = f.flags;
    tcp[14..16].copy_from_slice(&f.window.to_be_bytes());
    tcp[18..20].copy_from_slice(&f.urgent.to_be_bytes());
    tcp[20..].copy_from_slice(&options[..options_len]);
    let pseudo = checksum::pseudo(f.key.local_ip, f.key.remote_ip, PROTO_TCP, tcp_len + payload_len);
    let sum = if offload {
        checksum::fold(pseudo)
    } else {
        !checksum::fold(checksum::add_pieces(checksum::add(pseudo, tcp), payload))
    };
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    h
}

fn emit_ip(out: &mut [u8], f: &TcpFields, l4_len: usize) -> usize {
    match (f.key.local_ip, f.key.remote_ip) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let ip: &mut [u8; 20] = (&mut out[..20]).try_into().expect("20 bytes");
            ip[0] = 0x45;
            ip[1] = f.tos;
            ip[2..4].copy_from_slice(&((20 + l4_len) as u16).to_be_bytes());
            ip[4..6].copy_from_slice(&f.ident.to_be_bytes());
            ip[6] = 0x40; // DF: path MTU discovery (RFC 1191)
            ip[8] = f.ttl;
            ip[9] = PROTO_TCP;
            ip[12..16].copy_from_slice(&src.octets());
            ip[16..20].copy_from_slice(&dst.octets());
            let sum = !checksum::ipv4_header(ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            20
        }
        (src, dst) => {
            let octets = |ip: IpAddr| match ip {
                IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
                IpAddr::V6(a) => a.octets(),
            };
            let ip = &mut out[..40];
            ip[0] = 0x60 | f.tos >> 4;
            ip[1] = f.tos << 4;
            ip[4..6].copy_from_slice(&(l4_len as u16).to_be_bytes());
            ip[6] = PROTO_TCP;
            ip[7] = f.ttl;
            ip[8..24].copy_from_slice(&octets(src));
            ip[24..40].copy_from_slice(&octets(dst));
            40
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Timestamps, parse, verify_checksum};
    use super::*;
    use proptest::prelude::*;

    fn fields(v6: bool, seq: u32, flags: u8) -> TcpFields {
        let ip = |n: u8| if v6 { format!("fd77::{n}") } else { format!("127.77.0.{n}") }.parse().unwrap();
        TcpFields {
            key: FlowKey { local_ip: ip(1), remote_ip: ip(2), local_port: 40_000, remote_port: 80 },
            seq: SeqNr(seq),
            ack: SeqNr(77),
            flags,
            window: 500,
            urgent: 0,
            options: TcpOptions { timestamps: Some(Timestamps { val: 5, ecr: 6 }), ..Default::default() },
            ttl: 64,
            tos: 0x10,
            ident: 9,
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(v6: bool, seq: u32, flags: u8, payload in proptest::collection::vec(any::<u8>(), 0..3000), cut in any::<prop::sample::Index>()) {
            let f = fields(v6, seq, flags);
            let l2 = if v6 { [0,0,0,0,0,2, 0,0,0,0,0,1, 0x86,0xdd] } else { [0,0,0,0,0,2, 0,0,0,0,0,1, 8,0] };
            let cut = cut.index(payload.len() + 1);
            let h = emit(&l2, &f, &[&payload[..cut], &payload[cut..]], false);
            let frame = [h.as_slice(), &payload].concat();
            let s = parse(&frame).unwrap();
            prop_assert!(verify_checksum(&frame, &s));
            prop_assert_eq!(s.key, f.key.reversed());
            prop_assert_eq!((s.seq, s.ack, s.flags, s.window), (f.seq, f.ack, f.flags, f.window));
            prop_assert_eq!(&s.options, &f.options);
            prop_assert_eq!(&frame[s.payload_offset..s.payload_offset + s.payload_len], &payload[..]);
            let p = etherparse::SlicedPacket::from_ethernet(&frame).unwrap();
            let Some(etherparse::TransportSlice::Tcp(t)) = p.transport else { panic!("etherparse saw no TCP") };
            prop_assert_eq!(t.sequence_number(), seq);
        }

        #[test]
        fn any_frame_parses_or_is_refused(frame in proptest::collection::vec(any::<u8>(), 0..200), v6: bool) {
            let mut frame = frame;
            if frame.len() > 34 {
                frame[12..14].copy_from_slice(if v6 { &[0x86, 0xdd] } else { &[8, 0] });
                frame[14] = if v6 { 0x60 } else { 0x45 };
                frame[if v6 { 20 } else { 23 }] = 6;
            }
            if let Ok(s) = parse(&frame) {
                prop_assert!(s.payload_offset + s.payload_len <= frame.len());
            }
        }
    }
}
