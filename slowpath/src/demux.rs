//! Where a frame belongs that no fast path core knew: an installed flow of another core, a handshake, TIME-WAIT, a listener,
//! smoltcp's interface, or nothing.

use crate::engine::SlowPath;
use crate::reply;
use crate::routes::usable;
use crate::time_wait::Verdict;
use toe_core::flow::{FlowKey, is_shared};
use toe_core::msg::Down;
use toe_core::nic::{RxCsum, RxMeta};
use toe_core::wire::{self, ETH_LEN, ETHERTYPE_IPV4, ETHERTYPE_IPV6, PROTO_TCP, ParseError, Segment, checksum, flags};
use toe_core::{CoreId, Instant, NicId};

const ETHERTYPE_ARP: u16 = 0x0806;
const PROTO_ICMP: u8 = 1;
const PROTO_ICMPV6: u8 = 58;

/// A received frame and where it came from.
pub(crate) struct Received {
    pub core: CoreId,
    /// Index of the link.
    pub nic: usize,
    pub frame: Vec<u8>,
    pub meta: RxMeta,
}

impl SlowPath {
    /// A frame from a fast path core.
    pub(crate) fn punt(&mut self, core: CoreId, nic: NicId, frame: Vec<u8>, meta: RxMeta, now: Instant) {
        let Some(nic) = self.nic_index(nic) else { return };
        let rx = Received { core, nic, frame, meta };
        match wire::parse(&rx.frame) {
            Ok(seg) => self.segment(rx, &seg, now),
            Err(ParseError::NotTcp) => self.other(rx, now),
            Err(ParseError::Malformed) => self.counters.in_errs += 1,
        }
    }

    fn segment(&mut self, rx: Received, seg: &Segment, now: Instant) {
        let (ours, theirs) = (seg.key.local_ip, seg.key.remote_ip);
        // From outside nobody speaks as one of us (RFC 1812 §5.3.8).
        let forged = !self.nics[rx.nic].setup.local && self.routing.is_own(theirs);
        if !self.routing.takes(rx.nic, ours) || !usable(theirs) || forged {
            self.counters.wrong_address += 1;
            return;
        }
        if rx.meta.csum == RxCsum::Unchecked && !wire::verify_checksum(&rx.frame, seg) {
            self.counters.in_errs += 1;
            return;
        }
        if let Some(owner) = self.flows.get(&seg.key).map(|f| f.core) {
            return self.inject(owner, rx);
        }
        if self.half.contains_key(&seg.key) {
            return self.half_segment(rx, seg, now);
        }
        let floor = match self.time_wait.judge(seg, now, &mut self.challenge) {
            None => None,
            Some(Verdict::Ignore) => return,
            Some(Verdict::Answer(frame)) => return self.transmit(rx.core, rx.nic, frame),
            Some(Verdict::NewConnection(floor)) => Some(floor),
        };
        let opens = seg.has(flags::SYN) && !seg.has(flags::ACK | flags::RST);
        match self.listener_for(&seg.key).filter(|_| opens) {
            Some(listener) => self.open_passive(&rx, seg, listener, floor, now),
            // A new SYN over TIME-WAIT to nobody: let TIME-WAIT stand.
            None if floor.is_some() => {}
            None => self.reset(&rx, seg),
        }
    }

    fn listener_for(&self, key: &FlowKey) -> Option<crate::ports::SockRef> {
        let listener = self.ports.listener(key.local_ip, key.local_port, |n| self.secret.reuseport(key, n))?;
        // It may be another one than when connect(2) was called.
        let trusted = || self.half.get(&key.reversed()).is_some_and(|h| self.trusts(h.owner, listener));
        (!is_shared(key.local_ip) || trusted()).then_some(listener)
    }

    /// Hands a frame to the core that has its flow.
    pub(crate) fn inject(&mut self, owner: CoreId, rx: Received) {
        self.counters.injected += 1;
        let nic = self.nics[rx.nic].setup.id;
        self.down(owner, Down::Inject { nic, frame: rx.frame, meta: rx.meta });
    }

    /// Answers a segment that belongs to nothing (RFC 9293 §3.10.7.1).
    pub(crate) fn reset(&mut self, rx: &Received, seg: &Segment) {
        if let Some(frame) = reply::reset_for(&rx.frame, seg) {
            self.counters.out_rsts += 1;
            self.transmit(rx.core, rx.nic, frame);
        }
    }

    /// Everything that is no plain TCP segment.
    fn other(&mut self, rx: Received, now: Instant) {
        let ethertype = u16_at(&rx.frame, 12);
        match ethertype {
            Some(ETHERTYPE_ARP) => self.neighbour_news(rx, now),
            Some(ETHERTYPE_IPV4) => self.other_v4(rx, now),
            Some(ETHERTYPE_IPV6) => self.other_v6(rx, now),
            _ => self.counters.unknown_protocols += 1,
        }
    }

    fn other_v4(&mut self, rx: Received, now: Instant) {
        let Some(ip) = rx.frame.get(ETH_LEN..).filter(|ip| ip.len() >= 20 && ip[0] >> 4 == 4) else {
            self.counters.in_errs += 1;
            return;
        };
        let header = usize::from(ip[0] & 0xf) * 4;
        let fragment = u16_at(ip, 6).is_none_or(|w| w & 0x3fff != 0);
        match (ip[9], ip.get(header).copied()) {
            (PROTO_ICMP, Some(8)) if !fragment => self.feed_smoltcp(rx, now),
            (PROTO_ICMP, Some(3 | 4 | 11 | 12)) if !fragment => self.icmp_v4(&rx, header, now),
            // smoltcp would answer a segment that it has no socket for with a RST, so it must never see one.
            (PROTO_TCP, _) if !fragment && header > 20 => self.without_ip_options(rx, header, now),
            _ => self.counters.unknown_protocols += 1,
        }
    }

    fn other_v6(&mut self, rx: Received, now: Instant) {
        let ip = rx.frame.get(ETH_LEN..).filter(|ip| ip.len() >= 44 && ip[0] >> 4 == 6);
        match ip.map(|ip| (ip[6], ip[40])) {
            None => self.counters.in_errs += 1,
            Some((PROTO_ICMPV6, 128)) => self.feed_smoltcp(rx, now),
            Some((PROTO_ICMPV6, 135 | 136)) => self.neighbour_news(rx, now),
            Some((PROTO_ICMPV6, 1..=4)) => self.icmp_v6(&rx, now),
            Some(_) => self.counters.unknown_protocols += 1,
        }
    }

    /// A TCP segment in an IPv4 packet with options, which nobody here acts on: the same without them.
    fn without_ip_options(&mut self, rx: Received, header: usize, now: Instant) {
        let total = u16_at(&rx.frame, ETH_LEN + 2).map_or(0, usize::from);
        let whole = header <= total && ETH_LEN + total <= rx.frame.len();
        if !whole || checksum::fold(checksum::add(0, &rx.frame[ETH_LEN..ETH_LEN + header])) != 0xffff {
            self.counters.in_errs += 1;
            return;
        }
        let mut frame = rx.frame[..ETH_LEN + 20].to_vec();
        frame.extend_from_slice(&rx.frame[ETH_LEN + header..ETH_LEN + total]);
        frame[ETH_LEN] = 0x45;
        frame[ETH_LEN + 2..ETH_LEN + 4].copy_from_slice(&((total - header + 20) as u16).to_be_bytes());
        frame[ETH_LEN + 10..ETH_LEN + 12].copy_from_slice(&[0, 0]);
        let sum = !checksum::fold(checksum::add(0, &frame[ETH_LEN..ETH_LEN + 20]));
        frame[ETH_LEN + 10..ETH_LEN + 12].copy_from_slice(&sum.to_be_bytes());
        match wire::parse(&frame) {
            Ok(seg) => self.segment(Received { frame, ..rx }, &seg, now),
            Err(_) => self.counters.in_errs += 1,
        }
    }

    /// ARP or neighbour discovery: smoltcp answers and learns, then the handshakes that wait for a neighbour try again.
    fn neighbour_news(&mut self, rx: Received, now: Instant) {
        let nic = rx.nic;
        if let Some((ip, mac)) = announced(&rx.frame) {
            self.neighbour_moved(nic, ip, mac);
        }
        self.feed_smoltcp(rx, now);
        self.wake_waiting(nic, now);
    }

    fn feed_smoltcp(&mut self, rx: Received, now: Instant) {
        self.nics[rx.nic].input(&rx.frame, now, &mut self.scratch);
        for frame in core::mem::take(&mut self.scratch.tx) {
            self.transmit(rx.core, rx.nic, frame);
        }
    }

    /// A neighbour that flows use has another Ethernet address now.
    fn neighbour_moved(&mut self, nic: usize, ip: core::net::IpAddr, mac: [u8; 6]) {
        let known = self.nics[nic].macs.get_mut(&ip);
        let Some(known) = known.filter(|m| **m != mac && mac[0] & 1 == 0) else { return };
        *known = mac;
        let mut l2 = [0; ETH_LEN];
        l2[..6].copy_from_slice(&mac);
        l2[6..12].copy_from_slice(&self.nics[nic].setup.caps.mac);
        let kind = if ip.is_ipv4() { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 };
        l2[12..].copy_from_slice(&kind.to_be_bytes());
        // The one place that looks at all flows: a neighbour changes its address about never.
        let moved: Vec<_> =
            self.flows.values().filter(|f| f.nic == nic && f.next == ip).map(|f| (f.core, f.id)).collect();
        for (core, id) in moved {
            self.down(core, Down::SetL2(id, l2));
        }
    }
}

/// Big-endian 16 bits, if there.
pub(crate) fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*b.get(at)?, *b.get(at + 1)?]))
}

/// Who announces which Ethernet address: the sender of an ARP packet, or the target of a neighbour advertisement.
fn announced(frame: &[u8]) -> Option<(core::net::IpAddr, [u8; 6])> {
    let bytes = |at: usize, n: usize| frame.get(at..at + n);
    if u16_at(frame, 12)? == ETHERTYPE_ARP {
        let ip: [u8; 4] = bytes(28, 4)?.try_into().ok()?;
        return Some((core::net::IpAddr::from(ip), bytes(22, 6)?.try_into().ok()?));
    }
    let option = ETH_LEN + 40 + 24;
    if frame.get(ETH_LEN + 40) != Some(&136) || frame.get(ETH_LEN + 7) != Some(&255) || bytes(option, 2)? != [2, 1] {
        return None;
    }
    let ip: [u8; 16] = bytes(ETH_LEN + 48, 16)?.try_into().ok()?;
    Some((core::net::IpAddr::from(ip), bytes(option + 2, 6)?.try_into().ok()?))
}
