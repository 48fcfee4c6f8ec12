//! Who uses which local port: bound and listening sockets, and how many connections (TIME-WAIT included) stand on each
//! local address. Decides EADDRINUSE as Linux's `inet_csk_bind_conflict` does.

use crate::hash::{Map, Secret};
use core::net::IpAddr;
use toe_core::{RegionId, SockId};

/// A socket of some region.
pub(crate) type SockRef = (RegionId, SockId);

/// A local address and port reserved by a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bind {
    /// Which socket.
    pub owner: SockRef,
    /// Address; unspecified: all of its family (and IPv4 too if `::` without `v6only`).
    pub ip: IpAddr,
    /// IPV6_V6ONLY.
    pub v6only: bool,
    /// SO_REUSEADDR.
    pub reuseaddr: bool,
    /// SO_REUSEPORT, and for whom.
    pub reuseport: Option<u32>,
    /// A listener.
    pub listening: bool,
}

impl Bind {
    /// Would a packet to `ip` belong here? How exactly: 3 this address, 2 its family's wildcard, 1 IPv6's for IPv4.
    fn score(&self, ip: IpAddr) -> u8 {
        if self.ip == ip {
            return 3;
        }
        match (self.ip.is_unspecified(), self.ip.is_ipv4() == ip.is_ipv4()) {
            (true, true) => 2,
            (true, false) if self.ip.is_ipv6() && !self.v6only => 1,
            _ => 0,
        }
    }

    fn overlaps(&self, other: &Bind) -> bool {
        if self.ip.is_unspecified() && other.ip.is_unspecified() {
            let dual = |b: &Bind| b.ip.is_ipv6() && !b.v6only;
            return self.ip.is_ipv4() == other.ip.is_ipv4() || dual(self) || dual(other);
        }
        self.score(other.ip) > 0 || other.score(self.ip) > 0
    }
}

#[derive(Default)]
struct PortUse {
    binds: Vec<Bind>,
    /// Connections by local address: those whose socket had SO_REUSEADDR, and the others.
    conns: Vec<(IpAddr, [u32; 2])>,
}

/// All ports.
pub(crate) struct Ports(Map<u16, PortUse>);

impl Ports {
    pub(crate) fn new(secret: Secret) -> Ports {
        Ports(Map::with_hasher(secret))
    }

    /// May `bind` have `port`? With `to_listen`, the stricter check of listen(2).
    pub(crate) fn conflicts(&self, port: u16, bind: &Bind, to_listen: bool) -> bool {
        let Some(used) = self.0.get(&port) else { return false };
        let clash = |b: &Bind| {
            let share_addr = bind.reuseaddr && b.reuseaddr && !b.listening;
            let share_port = bind.reuseport.is_some() && bind.reuseport == b.reuseport;
            b.owner != bind.owner && b.overlaps(bind) && !share_addr && !share_port
        };
        if to_listen {
            return used.binds.iter().any(|b| b.listening && clash(b));
        }
        used.binds.iter().any(clash)
            || used.conns.iter().any(|(ip, n)| bind.score(*ip) > 0 && (n[0] > 0 || n[1] > 0 && !bind.reuseaddr))
    }

    pub(crate) fn bind(&mut self, port: u16, bind: Bind) {
        self.0.entry(port).or_default().binds.push(bind);
    }

    pub(crate) fn unbind(&mut self, port: u16, owner: SockRef) {
        if let Some(used) = self.0.get_mut(&port) {
            used.binds.retain(|b| b.owner != owner);
            self.tidy(port);
        }
    }

    pub(crate) fn set_listening(&mut self, port: u16, owner: SockRef, listening: bool) {
        if let Some(b) = self.0.get_mut(&port).and_then(|u| u.binds.iter_mut().find(|b| b.owner == owner)) {
            b.listening = listening;
        }
    }

    /// Is the port reserved by any socket (so that no ephemeral port may be it)?
    pub(crate) fn reserved(&self, port: u16) -> bool {
        self.0.get(&port).is_some_and(|u| !u.binds.is_empty())
    }

    /// The listener for a connection to `ip`: the most exact; among equals, `pick(n)`.
    pub(crate) fn listener(&self, ip: IpAddr, port: u16, pick: impl Fn(usize) -> usize) -> Option<SockRef> {
        let binds = &self.0.get(&port)?.binds;
        let candidates = || binds.iter().filter(|b| b.listening);
        let best = candidates().map(|b| b.score(ip)).max().filter(|&s| s > 0)?;
        let equals = candidates().filter(|b| b.score(ip) == best).count();
        candidates().filter(|b| b.score(ip) == best).nth(pick(equals)).map(|b| b.owner)
    }

    /// A connection begins on a local address.
    pub(crate) fn connection(&mut self, ip: IpAddr, port: u16, reuse: bool) {
        let conns = &mut self.0.entry(port).or_default().conns;
        let at = conns.iter().position(|c| c.0 == ip).unwrap_or_else(|| {
            conns.push((ip, [0; 2]));
            conns.len() - 1
        });
        conns[at].1[usize::from(reuse)] += 1;
    }

    /// It is over, TIME-WAIT included.
    pub(crate) fn connection_over(&mut self, ip: IpAddr, port: u16, reuse: bool) {
        let Some(used) = self.0.get_mut(&port) else { return };
        if let Some(c) = used.conns.iter_mut().find(|c| c.0 == ip) {
            c.1[usize::from(reuse)] = c.1[usize::from(reuse)].saturating_sub(1);
        }
        used.conns.retain(|c| c.1 != [0; 2]);
        self.tidy(port);
    }

    fn tidy(&mut self, port: u16) {
        if self.0.get(&port).is_some_and(|u| u.binds.is_empty() && u.conns.is_empty()) {
            self.0.remove(&port);
        }
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(n: u32, ip: &str, reuseaddr: bool) -> Bind {
        Bind {
            owner: (RegionId(1), SockId(n)),
            ip: ip.parse().unwrap(),
            v6only: false,
            reuseaddr,
            reuseport: None,
            listening: false,
        }
    }

    #[test]
    fn linux_conflict_rules() {
        let mut p = Ports::new(Secret::new([1; 16]));
        p.bind(80, bind(1, "10.0.0.1", true));
        assert!(p.conflicts(80, &bind(2, "10.0.0.1", false), false));
        assert!(!p.conflicts(80, &bind(2, "10.0.0.2", false), false));
        assert!(p.conflicts(80, &bind(2, "0.0.0.0", false), false));
        assert!(p.conflicts(80, &bind(2, "::", false), false));
        assert!(!p.conflicts(80, &Bind { v6only: true, ..bind(2, "::", false) }, false));
        assert!(!p.conflicts(80, &bind(2, "0.0.0.0", true), false));
        p.set_listening(80, (RegionId(1), SockId(1)), true);
        assert!(p.conflicts(80, &bind(2, "10.0.0.1", true), false));
        p.unbind(80, (RegionId(1), SockId(1)));
        p.bind(80, Bind { reuseport: Some(7), listening: true, ..bind(3, "::", false) });
        assert!(!p.conflicts(80, &Bind { reuseport: Some(7), ..bind(4, "::", false) }, true));
        assert!(p.conflicts(80, &Bind { reuseport: Some(8), ..bind(4, "::", false) }, false));
        let v4 = "10.0.0.1".parse().unwrap();
        assert_eq!(p.listener(v4, 80, |_| 0), Some((RegionId(1), SockId(3))));
        p.bind(80, Bind { listening: true, ..bind(5, "0.0.0.0", false) });
        assert_eq!(p.listener(v4, 80, |_| 0), Some((RegionId(1), SockId(5))));
        assert_eq!(p.listener(v4, 81, |_| 0), None);
    }

    #[test]
    fn connections_and_time_wait_hold_the_port() {
        let mut p = Ports::new(Secret::new([1; 16]));
        let ip: IpAddr = "10.0.0.1".parse().unwrap();
        p.connection(ip, 80, true);
        assert!(p.conflicts(80, &bind(2, "0.0.0.0", false), false));
        assert!(!p.conflicts(80, &bind(2, "0.0.0.0", true), false));
        p.connection(ip, 80, false);
        assert!(p.conflicts(80, &bind(2, "0.0.0.0", true), false));
        assert!(!p.reserved(80));
        p.connection_over(ip, 80, false);
        p.connection_over(ip, 80, true);
        assert!(p.is_empty());
    }
}
