//! ICMP and ICMPv6 errors that concern our connections (RFC 1122 §4.2.3.9, RFC 5927, RFC 1191, RFC 8201).
//!
//! Believed only if the quoted segment is one that we may have in flight. An established connection is never ended by
//! one: hard and soft errors alike are kept for the day the connection times out, as Linux does. A handshake of ours ends
//! at once; one of a peer's only for errors that say that the peer cannot be reached.

use crate::demux::{Received, u16_at};
use crate::engine::SlowPath;
use crate::errno::*;
use crate::flows::headers;
use crate::half::Role;
use core::net::IpAddr;
use core::sync::atomic::Ordering::Relaxed;
use toe_core::flow::FlowKey;
use toe_core::msg::Down;
use toe_core::wire::{ETH_LEN, PROTO_TCP, checksum};
use toe_core::{Instant, SeqNr};

/// Least path MTU believed (Linux: ip_rt_min_pmtu; RFC 8200 §5).
const MIN_MTU_V4: u32 = 552;
const MIN_MTU_V6: u32 = 1280;
/// RFC 1191 §7: what to try when a router does not say.
const PLATEAUS: [u32; 9] = [32_000, 17_914, 8166, 4352, 2002, 1492, 1006, 576, 552];

/// What the error means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// The next hop's MTU; 0: not said.
    TooBig(u32),
    /// errno; `far`: the peer or its network cannot be reached.
    Error { errno: i32, far: bool },
}

/// The segment of ours that an error quotes.
struct Quote {
    key: FlowKey,
    seq: SeqNr,
    /// Length of the IP packet quoted.
    total: u32,
}

impl SlowPath {
    /// ICMP in an IPv4 packet with a header of `header` bytes.
    pub(crate) fn icmp_v4(&mut self, rx: &Received, header: usize, now: Instant) {
        let ip = &rx.frame[ETH_LEN..];
        let end = u16_at(ip, 2).map_or(0, usize::from);
        let Some(icmp) = ip.get(header..end).filter(|i| i.len() >= 8 + 28) else {
            self.counters.icmp_in_errors += 1;
            return;
        };
        if checksum::fold(checksum::add(0, icmp)) != 0xffff {
            self.counters.icmp_in_errors += 1;
            return;
        }
        let Some(meaning) = meaning_v4(icmp) else { return };
        if let Some(quote) = quote_v4(&icmp[8..]) {
            self.icmp(rx.nic, quote, meaning, now);
        }
    }

    /// ICMPv6 directly behind the IPv6 header.
    pub(crate) fn icmp_v6(&mut self, rx: &Received, now: Instant) {
        let ip = &rx.frame[ETH_LEN..];
        let end = 40 + u16_at(ip, 4).map_or(0, usize::from);
        let addr = |at: usize| ip.get(at..at + 16).and_then(|b| <[u8; 16]>::try_from(b).ok()).map(IpAddr::from);
        let parts = addr(8).zip(addr(24)).zip(ip.get(40..end).filter(|i| i.len() >= 8 + 48));
        let Some(((src, dst), icmp)) = parts else {
            self.counters.icmp_in_errors += 1;
            return;
        };
        if checksum::fold(checksum::add(checksum::pseudo(src, dst, 58, icmp.len()), icmp)) != 0xffff {
            self.counters.icmp_in_errors += 1;
            return;
        }
        let Some(meaning) = meaning_v6(icmp) else { return };
        if let Some(quote) = quote_v6(&icmp[8..]) {
            self.icmp(rx.nic, quote, meaning, now);
        }
    }

    fn icmp(&mut self, nic: usize, quote: Quote, meaning: Meaning, now: Instant) {
        if !self.routing.takes(nic, quote.key.local_ip) {
            return;
        }
        self.counters.icmp_in_errors_taken += 1;
        if self.flows.contains_key(&quote.key) {
            self.icmp_flow(&quote, meaning);
        } else if let Some(half) = self.half.get(&quote.key) {
            // Nothing but the SYN is in flight.
            if half.sent == 0 || quote.seq != half.iss {
                return;
            }
            self.icmp_half(quote.key, meaning, now);
        }
    }

    fn icmp_half(&mut self, key: FlowKey, meaning: Meaning, now: Instant) {
        let Some(mut half) = self.half.remove(&key) else { return };
        match (half.role, meaning) {
            (Role::Active, Meaning::Error { errno, .. }) => return self.over(half, errno),
            (Role::Passive, Meaning::Error { far: true, .. }) => return self.over(half, 0),
            (Role::Passive, Meaning::Error { errno, .. }) => half.soft_error = errno,
            // No SYN is larger than any link's MTU.
            (_, Meaning::TooBig(_)) => {}
        }
        self.keep(half, now);
    }

    fn icmp_flow(&mut self, quote: &Quote, meaning: Meaning) {
        let Some(flow) = self.flows.get_mut(&quote.key) else { return };
        let Some(slot) = self.regions.get(&flow.sock.0).and_then(|r| r.region.sock(flow.sock.1)) else { return };
        // RFC 5927 §4.1: only what is in flight, SND.UNA <= SEQ < SND.NXT (the FIN counts one).
        let (acked, sent) = (slot.tx_head.load(Relaxed), slot.tx_sent.load(Relaxed));
        let in_flight = sent.wrapping_sub(acked).min(u64::from(u32::MAX - 1)) as u32 + 1;
        if !quote.seq.in_window(flow.iss + 1 + acked as u32, in_flight) {
            return;
        }
        match meaning {
            Meaning::Error { errno, .. } => slot.soft_error.store(errno as u32, Relaxed),
            Meaning::TooBig(said) => {
                let mtu = if said == 0 { plateau(quote.total) } else { said };
                let mtu = floor(mtu, quote.key.local_ip);
                let mss = mtu.saturating_sub(headers(quote.key.local_ip) as u32).min(0xffff) as u16;
                if mss < flow.mss {
                    flow.mss = mss;
                    let (core, id) = (flow.core, flow.id);
                    self.counters.path_mtu_changes += 1;
                    self.down(core, Down::SetMss(id, mss));
                }
            }
        }
    }
}

fn floor(mtu: u32, ip: IpAddr) -> u32 {
    mtu.max(if ip.is_ipv4() { MIN_MTU_V4 } else { MIN_MTU_V6 })
}

fn plateau(total: u32) -> u32 {
    PLATEAUS.into_iter().find(|&p| p < total).unwrap_or(MIN_MTU_V4)
}

/// Linux's icmp_err_convert.
fn meaning_v4(icmp: &[u8]) -> Option<Meaning> {
    let error = |errno, far| Some(Meaning::Error { errno, far });
    match (icmp[0], icmp[1]) {
        (3, 4) => Some(Meaning::TooBig(u32::from(u16_at(icmp, 6)?))),
        (3, 0 | 6 | 9 | 11) => error(ENETUNREACH, icmp[1] == 0),
        (3, 2) => error(ENOPROTOOPT, true),
        (3, 3) => error(ECONNREFUSED, false),
        (3, 5) => error(EOPNOTSUPP, false),
        (3, 1 | 7 | 8 | 10 | 12..=15) => error(EHOSTUNREACH, icmp[1] == 1),
        (11, _) => error(EHOSTUNREACH, false),
        (12, _) => error(EPROTO, false),
        _ => None, // source quench (RFC 6633) and what has no meaning
    }
}

/// Linux's icmpv6_err_convert.
fn meaning_v6(icmp: &[u8]) -> Option<Meaning> {
    let error = |errno, far| Some(Meaning::Error { errno, far });
    match (icmp[0], icmp[1]) {
        (1, 0) => error(ENETUNREACH, true),
        (1, 1 | 5 | 6) => error(EACCES, false),
        (1, 2 | 3) => error(EHOSTUNREACH, true),
        (1, 4) => error(ECONNREFUSED, false),
        (2, _) => Some(Meaning::TooBig(u32::from_be_bytes([icmp[4], icmp[5], icmp[6], icmp[7]]).max(MIN_MTU_V6))),
        (3, _) => error(EHOSTUNREACH, false),
        (4, _) => error(EPROTO, false),
        _ => None,
    }
}

fn quote_v4(ip: &[u8]) -> Option<Quote> {
    let header = usize::from(ip[0] & 0xf) * 4;
    if ip[0] >> 4 != 4 || header < 20 || ip[9] != PROTO_TCP || u16_at(ip, 6)? & 0x1fff != 0 {
        return None;
    }
    let addr = |at: usize| Some(IpAddr::from(<[u8; 4]>::try_from(ip.get(at..at + 4)?).ok()?));
    quote(addr(12)?, addr(16)?, ip.get(header..)?, u32::from(u16_at(ip, 2)?))
}

fn quote_v6(ip: &[u8]) -> Option<Quote> {
    if ip[0] >> 4 != 6 || ip[6] != PROTO_TCP {
        return None;
    }
    let addr = |at: usize| Some(IpAddr::from(<[u8; 16]>::try_from(ip.get(at..at + 16)?).ok()?));
    quote(addr(8)?, addr(24)?, ip.get(40..)?, 40 + u32::from(u16_at(ip, 4)?))
}

fn quote(local_ip: IpAddr, remote_ip: IpAddr, tcp: &[u8], total: u32) -> Option<Quote> {
    let seq = u32::from(u16_at(tcp, 4)?) << 16 | u32::from(u16_at(tcp, 6)?);
    let key = FlowKey { local_ip, remote_ip, local_port: u16_at(tcp, 0)?, remote_port: u16_at(tcp, 2)? };
    Some(Quote { key, seq: SeqNr(seq), total })
}
