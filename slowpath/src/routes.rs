//! Which link, source address and next hop a destination has. Strong host model (RFC 1122 §3.3.4.2): a packet to an
//! address of ours is taken only from the link that carries the address, or from the local link.

use crate::setup::{NicSetup, Route};
use core::net::IpAddr;

/// A way to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    /// Index of the link.
    pub nic: usize,
    /// Source address.
    pub src: IpAddr,
    /// Neighbour to ask for.
    pub next: IpAddr,
}

struct Entry {
    prefix: (IpAddr, u8),
    nic: usize,
    via: Option<IpAddr>,
}

/// The forwarding table.
pub(crate) struct Routing {
    /// Longest prefix first.
    table: Vec<Entry>,
    /// Our addresses, and the link of each.
    own: Vec<(IpAddr, u8, usize)>,
    local: Option<usize>,
}

impl Routing {
    pub(crate) fn new(nics: &[NicSetup], routes: &[Route]) -> Routing {
        let mut own = Vec::new();
        for (i, nic) in nics.iter().enumerate() {
            own.extend(nic.addrs.iter().filter(|(ip, _)| usable(*ip)).map(|&(ip, len)| (ip, limit(ip, len), i)));
        }
        let connected = own.iter().map(|&(ip, len, nic)| Entry { prefix: (ip, len), nic, via: None });
        let mut table: Vec<Entry> = connected.filter(|e| !nics[e.nic].local).collect();
        for r in routes {
            let by = table.iter().find(|e| e.via.is_none() && covers(e.prefix, r.via)).map(|e| e.nic);
            if let Some(nic) = by {
                let prefix = (r.prefix.0, limit(r.prefix.0, r.prefix.1));
                table.push(Entry { prefix, nic, via: Some(r.via) });
            }
        }
        table.sort_by_key(|e| core::cmp::Reverse(e.prefix.1));
        Routing { table, own, local: nics.iter().position(|n| n.local) }
    }

    /// Is it an address of this daemon?
    pub(crate) fn is_own(&self, ip: IpAddr) -> bool {
        self.own.iter().any(|o| o.0 == ip)
    }

    /// Is a packet to `ip` ours if it comes in on link `nic`?
    pub(crate) fn takes(&self, nic: usize, ip: IpAddr) -> bool {
        if self.local == Some(nic) { self.is_own(ip) } else { self.own.iter().any(|o| o.0 == ip && o.2 == nic) }
    }

    /// Addresses that link `nic` answers for, with the prefix that smoltcp needs. On the local link everything is near.
    pub(crate) fn addresses(&self, nic: usize) -> Vec<(IpAddr, u8)> {
        let mut all: Vec<(IpAddr, u8)> = if self.local == Some(nic) {
            self.own.iter().map(|o| (o.0, 0)).collect()
        } else {
            self.own.iter().filter(|o| o.2 == nic).map(|o| (o.0, o.1)).collect()
        };
        all.sort_unstable();
        all.dedup_by_key(|a| a.0);
        all
    }

    /// Routes with a gateway over link `nic`.
    pub(crate) fn gateways(&self, nic: usize) -> impl Iterator<Item = ((IpAddr, u8), IpAddr)> + '_ {
        self.table.iter().filter(move |e| e.nic == nic).filter_map(|e| Some((e.prefix, e.via?)))
    }

    /// The way to `dst`, from `bound` if the socket has a source address. `up` tells which links are up.
    pub(crate) fn find(&self, dst: IpAddr, bound: Option<IpAddr>, up: impl Fn(usize) -> bool) -> Option<Hop> {
        if self.is_own(dst) {
            let src = bound.unwrap_or(dst);
            return self.local.map(|nic| Hop { nic, src, next: dst });
        }
        let carries = |nic: usize| bound.is_none_or(|b| self.own.iter().any(|o| o.0 == b && o.2 == nic));
        let entry = self.table.iter().find(|e| covers(e.prefix, dst) && up(e.nic) && carries(e.nic))?;
        let next = entry.via.unwrap_or(dst);
        let src = bound.or_else(|| self.source(entry.nic, next))?;
        Some(Hop { nic: entry.nic, src, next })
    }

    /// RFC 6724 rule 8 in short: the address whose network holds the next hop, else the first of the family.
    fn source(&self, nic: usize, next: IpAddr) -> Option<IpAddr> {
        let of_nic = || self.own.iter().filter(|o| o.2 == nic && o.0.is_ipv4() == next.is_ipv4());
        of_nic().find(|o| covers((o.0, o.1), next)).or_else(|| of_nic().next()).map(|o| o.0)
    }
}

/// Can a link have this address?
pub(crate) fn usable(ip: IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(a) if a.is_broadcast());
    !(ip.is_unspecified() || ip.is_multicast() || broadcast)
}

fn limit(ip: IpAddr, len: u8) -> u8 {
    len.min(if ip.is_ipv4() { 32 } else { 128 })
}

/// Does `prefix` hold `ip`?
fn covers((net, len): (IpAddr, u8), ip: IpAddr) -> bool {
    let word = |ip: IpAddr| match ip {
        IpAddr::V4(a) => u128::from(u32::from(a)) << 96,
        IpAddr::V6(a) => u128::from(a),
    };
    net.is_ipv4() == ip.is_ipv4() && (len == 0 || (word(net) ^ word(ip)) >> (128 - u32::from(len)) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use toe_core::NicId;
    use toe_core::nic::NicCaps;

    fn ip(s: &str) -> IpAddr {
        s.parse().unwrap()
    }

    fn nic(id: u8, local: bool, addrs: &[(&str, u8)]) -> NicSetup {
        let caps = NicCaps { mac: [2, 0, 0, 0, 0, id], mtu: 1500, tso_max: 0, tx_csum: false, queues: 1 };
        let addrs = addrs.iter().map(|(a, l)| (ip(a), *l)).collect();
        NicSetup { id: NicId(id), name: format!("n{id}"), caps, up: true, local, addrs }
    }

    #[test]
    fn longest_prefix_own_addresses_and_bound_sources() {
        let nics = [
            nic(0, false, &[("10.0.0.1", 24), ("fd00::1", 64)]),
            nic(1, false, &[("10.1.0.1", 16), ("224.0.0.1", 4)]),
            nic(2, true, &[]),
        ];
        let routes = [
            Route { prefix: (ip("0.0.0.0"), 0), via: ip("10.0.0.254") },
            Route { prefix: (ip("10.2.0.0"), 16), via: ip("10.1.0.9") },
            Route { prefix: (ip("10.3.0.0"), 16), via: ip("10.9.0.9") },
        ];
        let r = Routing::new(&nics, &routes);
        let hop = |d: &str| r.find(ip(d), None, |_| true).map(|h| (h.nic, h.src, h.next));
        assert_eq!(hop("10.0.0.7"), Some((0, ip("10.0.0.1"), ip("10.0.0.7"))));
        assert_eq!(hop("10.2.3.4"), Some((1, ip("10.1.0.1"), ip("10.1.0.9"))));
        assert_eq!(hop("10.3.3.4"), Some((0, ip("10.0.0.1"), ip("10.0.0.254"))));
        assert_eq!(hop("10.1.0.1"), Some((2, ip("10.1.0.1"), ip("10.1.0.1"))));
        assert_eq!(hop("fd01::1"), None);
        assert_eq!(r.find(ip("8.8.8.8"), Some(ip("10.1.0.1")), |_| true), None);
        assert_eq!(r.find(ip("10.1.0.7"), None, |n| n != 1).map(|h| h.nic), Some(0));
        assert!(r.takes(2, ip("fd00::1")) && r.takes(0, ip("fd00::1")) && !r.takes(1, ip("fd00::1")));
        assert!(!r.is_own(ip("224.0.0.1")));
    }
}
