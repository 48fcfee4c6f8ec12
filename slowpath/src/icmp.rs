//! ICMP errors that quote a TCP segment of ours.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use etherparse::{Icmpv4Type, Icmpv6Type, SlicedPacket, TransportSlice, icmpv4, icmpv6};
use toe_core::SeqNr;
use toe_core::flow::FlowKey;

/// What the error says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// The connection, from our side.
    pub key: FlowKey,
    /// Sequence number of the quoted segment.
    pub seq: SeqNr,
    /// errno as Linux maps it.
    pub errno: i32,
    /// Path MTU, for "fragmentation needed" and "packet too big".
    pub mtu: Option<u16>,
}

/// Reads an ICMP or ICMPv6 error; anything else is `None`.
pub fn parse(frame: &[u8]) -> Option<IcmpError> {
    let packet = SlicedPacket::from_ethernet(frame).ok()?;
    let (errno, mtu, quoted) = match packet.transport? {
        TransportSlice::Icmpv4(icmp) => {
            let (errno, mtu) = v4_error(&icmp.icmp_type())?;
            (errno, mtu, icmp.payload().to_vec())
        }
        TransportSlice::Icmpv6(icmp) => {
            let (errno, mtu) = v6_error(&icmp.icmp_type())?;
            (errno, mtu, icmp.payload().to_vec())
        }
        _ => return None,
    };
    let (key, seq) = quoted_segment(&quoted)?;
    Some(IcmpError { key, seq, errno, mtu })
}

fn v4_error(t: &Icmpv4Type) -> Option<(i32, Option<u16>)> {
    use icmpv4::DestUnreachableHeader as D;
    Some(match t {
        Icmpv4Type::DestinationUnreachable(D::FragmentationNeeded { next_hop_mtu }) => {
            (libc::EMSGSIZE, Some(*next_hop_mtu))
        }
        Icmpv4Type::DestinationUnreachable(D::Port | D::Protocol) => (libc::ECONNREFUSED, None),
        Icmpv4Type::DestinationUnreachable(D::Network | D::NetworkUnknown | D::NetworkProhibited) => {
            (libc::ENETUNREACH, None)
        }
        Icmpv4Type::DestinationUnreachable(_) | Icmpv4Type::TimeExceeded(_) => (libc::EHOSTUNREACH, None),
        _ => return None,
    })
}

fn v6_error(t: &Icmpv6Type) -> Option<(i32, Option<u16>)> {
    use icmpv6::DestUnreachableCode as D;
    Some(match t {
        Icmpv6Type::PacketTooBig { mtu } => (libc::EMSGSIZE, Some((*mtu).min(65_535) as u16)),
        Icmpv6Type::DestinationUnreachable(D::Port) => (libc::ECONNREFUSED, None),
        Icmpv6Type::DestinationUnreachable(D::NoRoute) => (libc::ENETUNREACH, None),
        Icmpv6Type::DestinationUnreachable(D::Prohibited) => (libc::EACCES, None),
        Icmpv6Type::DestinationUnreachable(_) | Icmpv6Type::TimeExceeded(_) => (libc::EHOSTUNREACH, None),
        _ => return None,
    })
}

/// The quoted packet: its IP header and at least the first eight bytes of TCP.
fn quoted_segment(ip: &[u8]) -> Option<(FlowKey, SeqNr)> {
    let (src, dst, tcp): (IpAddr, IpAddr, &[u8]) = match ip.first()? >> 4 {
        4 => {
            let len = usize::from(ip[0] & 15) * 4;
            let header = ip.get(..20)?;
            let addr = |at: usize| Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]);
            (header[9] == 6).then_some(())?;
            (addr(12).into(), addr(16).into(), ip.get(len..)?)
        }
        6 => {
            let header = ip.get(..40)?;
            let addr =
                |at: usize| header.get(at..at + 16).and_then(|b| <[u8; 16]>::try_from(b).ok()).map(Ipv6Addr::from);
            (header[6] == 6).then_some(())?;
            (addr(8)?.into(), addr(24)?.into(), ip.get(40..)?)
        }
        _ => return None,
    };
    let head = tcp.first_chunk::<8>()?;
    let port = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let key = FlowKey { local_ip: src, remote_ip: dst, local_port: port(0), remote_port: port(2) };
    Some((key, SeqNr(u32::from_be_bytes([head[4], head[5], head[6], head[7]]))))
}
