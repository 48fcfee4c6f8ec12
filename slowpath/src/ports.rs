//! Who has which local port: binds, listeners, connections, TIME-WAIT.

use core::net::{IpAddr, SocketAddr};
use std::collections::HashMap;
use toe_core::shm::app_flags;
use toe_core::{RegionId, SockId};

/// A bound socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Bound address (unspecified: wildcard).
    pub addr: SocketAddr,
    /// Owner.
    pub region: RegionId,
    /// Owner.
    pub sock: SockId,
    /// `app_flags` at bind time: REUSEADDR, REUSEPORT, V6ONLY.
    pub flags: u32,
    /// Accepting.
    pub listening: bool,
}

impl Binding {
    /// Would a packet to `ip` reach this binding?
    pub fn matches(&self, ip: IpAddr) -> bool {
        let any = self.addr.ip().is_unspecified();
        match (self.addr.ip(), ip) {
            (IpAddr::V6(_), IpAddr::V4(_)) => any && self.flags & app_flags::V6ONLY == 0,
            (IpAddr::V4(_), IpAddr::V6(_)) => false,
            (ours, ip) => any || ours == ip,
        }
    }

    fn overlaps(&self, addr: SocketAddr, flags: u32) -> bool {
        let other = Binding { addr, flags, ..*self };
        self.matches(addr.ip())
            || other.matches(self.addr.ip())
            || (self.addr.ip().is_unspecified() && addr.ip().is_unspecified() && self.addr.is_ipv4() == addr.is_ipv4())
    }

    fn tolerates(&self, flags: u32) -> bool {
        let both = self.flags & flags;
        both & app_flags::REUSEPORT != 0 || (both & app_flags::REUSEADDR != 0 && !self.listening)
    }
}

/// All ports.
#[derive(Default)]
pub struct Ports {
    bound: HashMap<u16, Vec<Binding>>,
    /// Connections (TIME-WAIT included) by local address and port.
    used: HashMap<(IpAddr, u16), u32>,
}

impl Ports {
    /// Reserves an address; `false`: in use.
    pub fn bind(&mut self, binding: Binding) -> bool {
        let (port, flags) = (binding.addr.port(), binding.flags);
        let list = self.bound.entry(port).or_default();
        let clash = list.iter().any(|b| b.overlaps(binding.addr, flags) && !b.tolerates(flags));
        let reuse = flags & (app_flags::REUSEADDR | app_flags::REUSEPORT) != 0;
        if clash || (!reuse && self.used.contains_key(&(binding.addr.ip(), port))) {
            return false;
        }
        list.push(binding);
        true
    }

    /// A bound socket starts to listen; `false`: another one listens there already.
    pub fn listen(&mut self, region: RegionId, sock: SockId, port: u16, flags: u32) -> bool {
        let Some(list) = self.bound.get_mut(&port) else { return false };
        let Some(i) = list.iter().position(|b| (b.region, b.sock) == (region, sock)) else { return false };
        let addr = list[i].addr;
        let clash = list.iter().enumerate().any(|(j, b)| {
            j != i && b.listening && b.overlaps(addr, flags) && b.flags & flags & app_flags::REUSEPORT == 0
        });
        list[i].listening |= !clash;
        !clash
    }

    /// Gives a binding back.
    pub fn unbind(&mut self, region: RegionId, sock: SockId, port: u16) {
        if let Some(list) = self.bound.get_mut(&port) {
            list.retain(|b| (b.region, b.sock) != (region, sock));
            if list.is_empty() {
                self.bound.remove(&port);
            }
        }
    }

    /// The listener for a packet to `ip:port`: an exact address before a wildcard; among several (SO_REUSEPORT) by `hash`.
    pub fn listener(&self, ip: IpAddr, port: u16, hash: u64) -> Option<Binding> {
        let list = self.bound.get(&port)?;
        let fits =
            |exact: bool| move |b: &&Binding| b.listening && b.matches(ip) && (b.addr.ip().is_unspecified() != exact);
        let pick = |exact: bool| {
            let n = list.iter().filter(fits(exact)).count();
            (n > 0).then(|| list.iter().filter(fits(exact)).nth((hash % n as u64) as usize).copied()).flatten()
        };
        pick(true).or_else(|| pick(false))
    }

    /// Is the port bound by anybody?
    pub fn is_bound(&self, port: u16) -> bool {
        self.bound.contains_key(&port)
    }

    /// A connection starts to use a local address.
    pub fn use_addr(&mut self, addr: SocketAddr) {
        *self.used.entry((addr.ip(), addr.port())).or_default() += 1;
    }

    /// It no longer does.
    pub fn unuse_addr(&mut self, addr: SocketAddr) {
        if let Some(n) = self.used.get_mut(&(addr.ip(), addr.port())) {
            *n -= 1;
            if *n == 0 {
                self.used.remove(&(addr.ip(), addr.port()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(addr: &str, sock: u32, flags: u32) -> Binding {
        Binding { addr: addr.parse().unwrap(), region: RegionId(1), sock: SockId(sock), flags, listening: false }
    }

    #[test]
    fn wildcards_overlap_and_reuse_is_mutual() {
        let mut p = Ports::default();
        assert!(p.bind(binding("127.77.0.1:80", 1, 0)));
        assert!(!p.bind(binding("0.0.0.0:80", 2, 0)));
        assert!(!p.bind(binding("0.0.0.0:80", 2, app_flags::REUSEADDR)));
        assert!(p.bind(binding("127.77.0.2:80", 3, 0)));
        assert!(p.bind(binding("[::]:81", 4, 0)) && !p.bind(binding("0.0.0.0:81", 5, 0)));
        assert!(p.bind(binding("[::]:82", 4, app_flags::V6ONLY)) && p.bind(binding("0.0.0.0:82", 5, 0)));
        p.unbind(RegionId(1), SockId(1), 80);
        assert!(p.bind(binding("127.77.0.1:80", 6, app_flags::REUSEADDR)));
        assert!(p.bind(binding("127.77.0.1:80", 7, app_flags::REUSEADDR)));
        assert!(p.listen(RegionId(1), SockId(6), 80, app_flags::REUSEADDR));
        assert!(!p.listen(RegionId(1), SockId(7), 80, app_flags::REUSEADDR));
    }

    #[test]
    fn exact_listeners_win() {
        let mut p = Ports::default();
        let reuse = app_flags::REUSEADDR;
        assert!(p.bind(binding("0.0.0.0:80", 1, reuse)) && p.bind(binding("127.77.0.1:80", 2, reuse)));
        assert!(p.listen(RegionId(1), SockId(2), 80, reuse));
        assert_eq!(p.listener("127.77.0.1".parse().unwrap(), 80, 9).unwrap().sock, SockId(2));
        assert!(p.listener("127.77.0.2".parse().unwrap(), 80, 9).is_none());
    }
}
