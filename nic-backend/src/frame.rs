//! Looking into frames: where a TCP or UDP checksum stands, and completing it.

use std::net::IpAddr;
use toe_core::wire::{ETH_LEN, ETHERTYPE_IPV4, ETHERTYPE_IPV6, PROTO_TCP, checksum};

const PROTO_UDP: u8 = 17;

fn be16(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*b.get(at)?, *b.get(at + 1)?]))
}

/// The layer 4 part of an unfragmented IP packet.
struct L4 {
    src: IpAddr,
    dst: IpAddr,
    protocol: u8,
    start: usize,
    end: usize,
}

fn l4_v4(frame: &[u8]) -> Option<L4> {
    let ip = frame.get(ETH_LEN..)?;
    let header = usize::from(ip.first()? & 15) * 4;
    let total = usize::from(be16(ip, 2)?);
    let fragment = be16(ip, 6)? & 0x3fff != 0;
    if ip[0] >> 4 != 4 || header < 20 || total < header || total > ip.len() || fragment {
        return None;
    }
    let addr = |at: usize| <[u8; 4]>::try_from(&ip[at..at + 4]).ok().map(IpAddr::from);
    Some(L4 { src: addr(12)?, dst: addr(16)?, protocol: ip[9], start: ETH_LEN + header, end: ETH_LEN + total })
}

fn l4_v6(frame: &[u8]) -> Option<L4> {
    let ip = frame.get(ETH_LEN..)?;
    let total = 40 + usize::from(be16(ip, 4)?);
    if ip.len() < 40 || ip[0] >> 4 != 6 || total > ip.len() {
        return None;
    }
    let addr = |at: usize| <[u8; 16]>::try_from(&ip[at..at + 16]).ok().map(IpAddr::from);
    Some(L4 { src: addr(8)?, dst: addr(24)?, protocol: ip[6], start: ETH_LEN + 40, end: ETH_LEN + total })
}

/// Computes the TCP or UDP checksum of a frame whose checksum is vouched for, and may therefore be only the
/// pseudo-header's sum. Frames that are neither stay as they are.
pub fn complete_checksum(frame: &mut [u8]) {
    let l4 = match be16(frame, 12) {
        Some(ETHERTYPE_IPV4) => l4_v4(frame),
        Some(ETHERTYPE_IPV6) => l4_v6(frame),
        _ => None,
    };
    let Some(L4 { src, dst, protocol, start, end }) = l4 else { return };
    let (field, minimum) = match protocol {
        PROTO_TCP => (16, 20),
        PROTO_UDP => (6, 8),
        _ => return,
    };
    if end - start < minimum {
        return;
    }
    let segment = &mut frame[start..end];
    segment[field..field + 2].fill(0);
    let sum = checksum::add(checksum::pseudo(src, dst, protocol, segment.len()), segment);
    let sum = match !checksum::fold(sum) {
        0 if protocol == PROTO_UDP => 0xffff, // RFC 768: zero means "no checksum"
        sum => sum,
    };
    segment[field..field + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Puts a gathered frame together in `out` (cleared first).
pub fn gather(out: &mut Vec<u8>, header: &[u8], payload: &[&[u8]]) {
    out.clear();
    out.extend_from_slice(header);
    for piece in payload {
        out.extend_from_slice(piece);
    }
}

/// Length of a gathered frame.
pub fn gathered_len(header: &[u8], payload: &[&[u8]]) -> usize {
    header.len() + payload.iter().map(|p| p.len()).sum::<usize>()
}

#[cfg(test)]
pub(crate) mod testing {
    use toe_core::flow::FlowKey;
    use toe_core::wire::{Header, TcpFields, TcpOptions, emit};

    /// A TCP data segment's header for `payload`.
    pub fn tcp_header(v6: bool, payload: &[&[u8]], offload: bool) -> Header {
        let ip = |n: u8| if v6 { format!("fd77::{n}") } else { format!("127.77.0.{n}") }.parse().unwrap();
        let fields = TcpFields {
            key: FlowKey { local_ip: ip(1), remote_ip: ip(2), local_port: 4000, remote_port: 80 },
            seq: toe_core::SeqNr(7),
            ack: toe_core::SeqNr(9),
            flags: 0x18,
            window: 1000,
            urgent: 0,
            options: TcpOptions::default(),
            ttl: 64,
            tos: 0,
            ident: 1,
        };
        let ethertype = if v6 { [0x86, 0xdd] } else { [8, 0] };
        let mut l2 = [2; 14];
        l2[12..].copy_from_slice(&ethertype);
        emit(&l2, &fields, payload, offload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use toe_core::wire::{parse, verify_checksum};

    proptest! {
        #[test]
        fn offloaded_checksums_are_completed(v6: bool, payload in proptest::collection::vec(any::<u8>(), 0..3000)) {
            let header = testing::tcp_header(v6, &[&payload], true);
            let mut frame = Vec::new();
            gather(&mut frame, header.as_slice(), &[&payload]);
            complete_checksum(&mut frame);
            prop_assert!(verify_checksum(&frame, &parse(&frame).unwrap()));
        }

        #[test]
        fn any_bytes_are_survived(mut frame in proptest::collection::vec(any::<u8>(), 0..120), v6: bool) {
            if frame.len() > 14 {
                frame[12..15].copy_from_slice(if v6 { &[0x86, 0xdd, 0x60] } else { &[8, 0, 0x45] });
            }
            complete_checksum(&mut frame);
        }
    }
}
