//! One link as smoltcp sees it: an `Interface` for each handful of addresses (smoltcp holds eight), which answers ARP, NDP
//! and echo, and resolves neighbours for the handshakes.

use crate::device::Scratch;
use crate::half::HalfOpen;
use crate::hash::{Map, Secret};
use crate::routes::Routing;
use crate::setup::NicSetup;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use smoltcp::iface::{Config, Interface, Route, SocketSet};
use smoltcp::wire::{EthernetAddress, IpCidr};
use toe_core::flow::FlowKey;
use toe_core::nic::NicCaps;
use toe_core::wire::checksum;
use toe_core::{Duration, Instant};

/// Addresses of one interface: smoltcp's eight, less a link-local one.
const ADDRS_EACH: usize = 7;
/// Between two questions for one neighbour (RFC 1122 §2.3.2.1, RFC 4861 RETRANS_TIMER).
pub(crate) const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Neighbours whose last question we remember.
const MAX_ASKED: usize = 1024;
/// Neighbours whose move we would notice.
const MAX_MACS: usize = 4096;

struct Port {
    iface: Interface,
    addrs: Vec<IpAddr>,
}

/// A link.
pub(crate) struct NicState {
    pub setup: NicSetup,
    ports: Vec<Port>,
    /// Handshakes that wait for a neighbour.
    pub waiting: hashbrown::HashSet<FlowKey, Secret>,
    asked: Map<IpAddr, Instant>,
    /// Ethernet addresses that flows use, by neighbour.
    pub macs: Map<IpAddr, [u8; 6]>,
    none: SocketSet<'static>,
}

fn smol(now: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros(now.micros().min(i64::MAX as u64) as i64)
}

fn unicast(mac: [u8; 6]) -> smoltcp::wire::HardwareAddress {
    let mac = [mac[0] & 0xfe, mac[1], mac[2], mac[3], mac[4], mac[5]];
    EthernetAddress(mac).into()
}

fn link_local(mac: [u8; 6]) -> Ipv6Addr {
    // RFC 4291 appendix A: modified EUI-64.
    let w = |a: u8, b: u8| u16::from(a) << 8 | u16::from(b);
    let m = mac;
    Ipv6Addr::new(0xfe80, 0, 0, 0, w(m[0] ^ 2, m[1]), w(m[2], 0xff), w(0xfe, m[3]), w(m[4], m[5]))
}

fn cidr(ip: IpAddr, len: u8) -> IpCidr {
    IpCidr::new(ip.into(), len)
}

impl NicState {
    pub(crate) fn new(setup: NicSetup, index: usize, routing: &Routing, secret: Secret, seed: u64) -> NicState {
        let mut scratch = Scratch { rx: None, tx: Vec::new(), mtu: setup.caps.mtu };
        let addresses = routing.addresses(index);
        let mut ports = Vec::new();
        for chunk in addresses.chunks(ADDRS_EACH) {
            let mut config = Config::new(unicast(setup.caps.mac));
            config.random_seed = seed ^ (index as u64) << 32 ^ ports.len() as u64;
            let mut iface = Interface::new(config, &mut scratch, smol(Instant::ZERO));
            iface.update_ip_addrs(|list| {
                // Neighbours ask from their link-local address (RFC 4861 §7.2.2), so there must be a way back to it.
                if !setup.local && chunk.iter().any(|a| a.0.is_ipv6()) {
                    let _ = list.push(cidr(link_local(setup.caps.mac).into(), 64));
                }
                for &(ip, len) in chunk {
                    let _ = list.push(cidr(ip, len));
                }
            });
            iface.routes_mut().update(|list| {
                for ((net, len), via) in routing.gateways(index) {
                    let route =
                        Route { cidr: cidr(net, len), via_router: via.into(), preferred_until: None, expires_at: None };
                    let _ = list.push(route);
                }
            });
            ports.push(Port { iface, addrs: chunk.iter().map(|a| a.0).collect() });
        }
        NicState {
            setup,
            ports,
            waiting: hashbrown::HashSet::with_hasher(secret),
            asked: Map::with_hasher(secret),
            macs: Map::with_hasher(secret),
            none: SocketSet::new(Vec::new()),
        }
    }

    /// The interface that has address `ip`.
    pub(crate) fn port_of(&self, ip: IpAddr) -> Option<usize> {
        self.ports.iter().position(|p| p.addrs.contains(&ip))
    }

    /// New abilities after a link change.
    pub(crate) fn set_caps(&mut self, caps: NicCaps) {
        if caps.mac != self.setup.caps.mac {
            self.ports.iter_mut().for_each(|p| p.iface.set_hardware_addr(unicast(caps.mac)));
        }
        self.setup.caps = caps;
        // Whoever is on the other side now may have other Ethernet addresses.
        self.ports.iter_mut().for_each(|p| p.iface.update_ip_addrs(|_| ()));
        self.asked.clear();
    }

    /// Lets smoltcp open `half`'s connection.
    pub(crate) fn connect(&mut self, half: &mut HalfOpen) -> bool {
        self.ports.get_mut(half.port).is_some_and(|p| half.connect(p.iface.context()))
    }

    /// Polls one handshake with at most one received frame; the answers lie in `scratch.tx`.
    pub(crate) fn poll_half(&mut self, half: &mut HalfOpen, rx: Option<Vec<u8>>, now: Instant, scratch: &mut Scratch) {
        scratch.rx = rx;
        scratch.mtu = self.setup.caps.mtu;
        if let Some(p) = self.ports.get_mut(half.port) {
            p.iface.poll(smol(now), scratch, &mut half.set);
        }
    }

    /// ARP, NDP, echo: every interface of the link looks at it; the answers lie in `scratch.tx`.
    pub(crate) fn input(&mut self, frame: &[u8], now: Instant, scratch: &mut Scratch) {
        scratch.mtu = self.setup.caps.mtu;
        for p in &mut self.ports {
            scratch.rx = Some(frame.to_vec());
            p.iface.poll(smol(now), scratch, &mut self.none);
        }
    }

    /// A question for neighbour `next` is due (and is now taken as asked).
    pub(crate) fn may_ask(&mut self, next: IpAddr, now: Instant) -> bool {
        if self.asked.get(&next).is_some_and(|&at| now.since(at) < ASK_AGAIN) {
            return false;
        }
        self.note_asked(next, now);
        true
    }

    /// On the local link `next` is one of us: smoltcp learns it without a question, which it would not answer for ::1.
    pub(crate) fn introduce(&mut self, src: IpAddr, next: IpAddr, now: Instant, scratch: &mut Scratch) {
        let mac = self.setup.caps.mac;
        let answer = match (src, next) {
            _ if !self.setup.local || !self.may_ask(next, now) => return,
            (IpAddr::V4(src), IpAddr::V4(next)) => arp(2, mac, next, mac, src),
            (IpAddr::V6(src), IpAddr::V6(next)) => {
                // RFC 4861 §4.4: override.
                let body = [&[136, 0, 0, 0, 0x20, 0, 0, 0][..], &next.octets(), &[2, 1], &mac].concat();
                ndisc(mac, mac, next, src, body)
            }
            _ => return,
        };
        self.input(&answer, now, scratch);
        scratch.tx.clear();
    }

    /// Flows go to neighbour `next` by this Ethernet address.
    pub(crate) fn note_mac(&mut self, next: IpAddr, mac: [u8; 6]) {
        if self.macs.len() >= MAX_MACS {
            self.macs.clear();
        }
        self.macs.insert(next, mac);
    }

    pub(crate) fn note_asked(&mut self, next: IpAddr, now: Instant) {
        if self.asked.len() >= MAX_ASKED {
            self.asked.clear();
        }
        self.asked.insert(next, now);
    }

    /// Our own ARP request or neighbour solicitation: smoltcp asks for one neighbour a second and interface only.
    pub(crate) fn question(&self, src: IpAddr, next: IpAddr) -> Option<Vec<u8>> {
        let mac = self.setup.caps.mac;
        match (src, next) {
            (IpAddr::V4(src), IpAddr::V4(next)) => {
                let mut request = arp(1, mac, src, [0xff; 6], next);
                // Nobody's: it is what we ask for.
                request[32..38].fill(0);
                Some(request)
            }
            (IpAddr::V6(src), IpAddr::V6(next)) => Some(solicitation(mac, src, next)),
            _ => None,
        }
    }
}

/// RFC 826: from `mac`, who is `sender`, to the station `to`.
fn arp(op: u8, mac: [u8; 6], sender: Ipv4Addr, to: [u8; 6], target: Ipv4Addr) -> Vec<u8> {
    let head = [&to[..], &mac, &[8, 6, 0, 1, 8, 0, 6, 4, 0, op]].concat();
    [&head[..], &mac, &sender.octets(), &to, &target.octets()].concat()
}

/// RFC 4861 §4.3.
fn solicitation(mac: [u8; 6], src: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
    let t = target.octets();
    let dst = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(t[13]), u16::from_be_bytes([t[14], t[15]]));
    let body = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &t, &[1, 1], &mac].concat();
    ndisc(mac, [0x33, 0x33, 0xff, t[13], t[14], t[15]], src, dst, body)
}

/// A neighbour discovery message, its checksum filled in.
fn ndisc(mac: [u8; 6], to: [u8; 6], src: Ipv6Addr, dst: Ipv6Addr, mut body: Vec<u8>) -> Vec<u8> {
    let sum = !checksum::fold(checksum::add(checksum::pseudo(src.into(), dst.into(), 58, body.len()), &body));
    body[2..4].copy_from_slice(&sum.to_be_bytes());
    let ip = [&[0x60, 0, 0, 0, 0, body.len() as u8, 58, 255][..], &src.octets(), &dst.octets()].concat();
    [&to[..], &mac, &[0x86, 0xdd], &ip, &body].concat()
}
