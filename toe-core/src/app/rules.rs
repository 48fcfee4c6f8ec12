//! Which stack a bind, connect or listen uses: the first rule of the region that matches. 127.0.0.1 and ::1 are the kernel's
//! as well, whatever a rule says: there the engine serves beside it, or not at all.

use super::Why;
use crate::flow::is_shared;
use crate::shm::{MAX_RULES, RegionHeader, ShmRule};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::Ordering::{Acquire, Relaxed};

/// What the socket is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Role {
    Connect,
    Listen,
}

/// What a rule says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// This engine.
    Engine,
    /// Kernel and engine: a listener is both's; a connection is the engine's if it has a listener there.
    Shared,
    /// The kernel's TCP.
    Kernel,
    /// ENETUNREACH: the address is the engine's, but must not fall through to the kernel.
    Refuse,
}

impl Role {
    fn bit(self) -> u32 {
        match self {
            Role::Connect => 1,
            Role::Listen => 2,
        }
    }
}

/// IPv4 addresses in IPv6 clothes (`::ffff:a.b.c.d`) are IPv4 addresses.
pub fn plain(addr: SocketAddr) -> SocketAddr {
    match addr.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), addr.port()),
        IpAddr::V6(_) => addr,
    }
}

/// Connecting to the wildcard address means this host.
pub fn to_self(a: SocketAddr) -> SocketAddr {
    match a {
        SocketAddr::V4(v) if v.ip().is_unspecified() => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), v.port()),
        SocketAddr::V6(v) if v.ip().is_unspecified() => SocketAddr::new(Ipv6Addr::LOCALHOST.into(), v.port()),
        other => other,
    }
}

/// Decides for one address. No rule: the kernel.
pub fn decide(header: &RegionHeader, role: Role, addr: SocketAddr) -> Action {
    let addr = plain(addr);
    match first(header, role, addr).map(action) {
        Some(Action::Engine) if is_shared(addr.ip()) => match header.loopback.load(Relaxed) {
            0 => Action::Kernel,
            _ => Action::Shared,
        },
        Some(other) => other,
        None => Action::Kernel,
    }
}

/// Why [`decide`] says kernel.
pub fn why_kernel(header: &RegionHeader, role: Role, addr: SocketAddr) -> Why {
    // A rule that nobody wrote only says what addresses the engine has.
    let written = |r: &ShmRule| r.origin.load(Relaxed) != u32::MAX;
    if first(header, role, plain(addr)).is_some_and(written) { Why::Rule } else { Why::Address }
}

fn first(header: &RegionHeader, role: Role, addr: SocketAddr) -> Option<&ShmRule> {
    live(header, role, addr.port()).find(|rule| rule_covers(rule, addr.ip()))
}

/// Decides for a listener on the wildcard address: does any engine address get connections to `port`?
pub fn decide_wildcard(header: &RegionHeader, port: u16, v4: bool, v6: bool) -> Action {
    for rule in live(header, Role::Listen, port) {
        let family = rule.family.load(Relaxed);
        if (family == 4 && !v4) || (family == 6 && !v6) {
            continue;
        }
        match action(rule) {
            Action::Engine => return Action::Engine,
            // A rule for a part of the addresses says nothing of the others.
            _ if rule.prefix_len.load(Relaxed) == 0 => return Action::Kernel,
            _ => {}
        }
    }
    Action::Kernel
}

fn live(header: &RegionHeader, role: Role, port: u16) -> impl Iterator<Item = &ShmRule> {
    let len = (header.rules_len.load(Acquire) as usize).min(MAX_RULES);
    header.rules[..len].iter().filter(move |r| {
        let ports = r.port_lo.load(Relaxed)..=r.port_hi.load(Relaxed);
        r.roles.load(Relaxed) & role.bit() != 0 && (ports.contains(&u32::from(port)) || port == 0)
    })
}

fn action(rule: &ShmRule) -> Action {
    match rule.action.load(Relaxed) {
        1 => Action::Engine,
        3 => Action::Refuse,
        _ => Action::Kernel,
    }
}

fn rule_covers(rule: &ShmRule, ip: IpAddr) -> bool {
    let mut octets = [0u8; 16];
    let family = match ip {
        IpAddr::V4(ip) => {
            octets[..4].copy_from_slice(&ip.octets());
            4
        }
        IpAddr::V6(ip) => {
            octets = ip.octets();
            6
        }
    };
    let wanted = rule.family.load(Relaxed);
    if wanted != 0 && wanted != family {
        return false;
    }
    let mut left = rule.prefix_len.load(Relaxed).min(if family == 4 { 32 } else { 128 });
    for (word, ours) in rule.prefix.iter().zip(octets.chunks_exact(4)) {
        let word = u32::from_be_bytes(word.load(Relaxed).to_ne_bytes());
        let ours = u32::from_be_bytes([ours[0], ours[1], ours[2], ours[3]]);
        let take = left.min(32);
        let mask = if take == 0 { 0 } else { u32::MAX << (32 - take) };
        if (word ^ ours) & mask != 0 {
            return false;
        }
        left -= take;
    }
    true
}
