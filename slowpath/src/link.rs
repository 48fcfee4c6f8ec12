//! One link as the slow path sees it: smoltcp's `Interface` over a device that only collects frames.
//!
//! smoltcp answers ARP, NDP and ICMP echo here, and finds neighbours. Each half-open connection brings a socket set
//! of its own to `poll`, so that no other connection costs anything.

use crate::config::NicSetup;
use core::net::IpAddr;
use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::phy::{Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr};
use std::collections::VecDeque;
use toe_core::nic::NicCaps;
use toe_core::{Instant, NicId};

/// Engine time as smoltcp's.
pub fn smol_time(now: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros(now.micros() as i64)
}

/// A link.
pub struct Link {
    /// Position in the configuration.
    pub id: NicId,
    /// Name in the configuration.
    pub name: String,
    /// Abilities.
    pub caps: NicCaps,
    /// Up?
    pub up: bool,
    /// Our addresses, with prefix lengths.
    pub addrs: Vec<(IpAddr, u8)>,
    /// Leads to ourselves.
    pub local: bool,
    /// smoltcp's part.
    pub iface: Interface,
    /// Frames on their way in and out of it.
    pub port: Port,
}

impl Link {
    /// A link with smoltcp's interface on it; `all_addrs` are the addresses a local link answers for.
    pub fn new(setup: NicSetup, all_addrs: &[(IpAddr, u8)], routes: &[crate::Route], seed: u64) -> Link {
        let mut port = Port { mtu: setup.caps.mtu, rx: VecDeque::new(), tx: Vec::new() };
        let mut config = Config::new(HardwareAddress::Ethernet(EthernetAddress(setup.caps.mac)));
        config.random_seed = seed ^ u64::from(setup.id.0) << 32;
        let mut iface = Interface::new(config, &mut port, smol_time(Instant::ZERO));
        let addrs = if setup.local { all_addrs } else { &setup.addrs };
        iface.update_ip_addrs(|list| {
            for &(ip, len) in addrs.iter().take(list.capacity()) {
                let _ = list.push(IpCidr::new(ip.into(), len));
            }
        });
        for route in routes.iter().filter(|r| setup.addrs.iter().any(|&a| contains(a, r.via))) {
            let (ip, len) = route.prefix;
            iface.routes_mut().update(|table| {
                let _ = table.push(smoltcp::iface::Route {
                    cidr: IpCidr::new(ip.into(), len),
                    via_router: route.via.into(),
                    preferred_until: None,
                    expires_at: None,
                });
            });
        }
        Link {
            id: setup.id,
            name: setup.name,
            caps: setup.caps,
            up: setup.up,
            addrs: setup.addrs,
            local: setup.local,
            iface,
            port,
        }
    }

    /// Hands smoltcp one frame (none: only what it has to send) and collects what it sends.
    pub fn poll(&mut self, now: Instant, frame: Option<&[u8]>, sockets: &mut SocketSet<'_>) -> Vec<Vec<u8>> {
        self.port.rx.extend(frame.map(<[u8]>::to_vec));
        self.iface.poll(smol_time(now), &mut self.port, sockets);
        self.port.rx.clear();
        core::mem::take(&mut self.port.tx)
    }

    /// Largest TCP payload before options that the link carries in one packet to `ip`'s family (RFC 6691).
    pub fn mss(&self, ip: IpAddr) -> u16 {
        let headers = if ip.is_ipv4() { 40 } else { 60 };
        self.caps.mtu.saturating_sub(headers).clamp(64, 65_535 - headers) as u16
    }
}

/// Does the prefix hold `ip`?
pub fn contains((prefix, len): (IpAddr, u8), ip: IpAddr) -> bool {
    match (prefix, ip) {
        (IpAddr::V4(p), IpAddr::V4(i)) => {
            len == 0 || (u32::from(p) ^ u32::from(i)).checked_shr(32 - u32::from(len)).unwrap_or(0) == 0
        }
        (IpAddr::V6(p), IpAddr::V6(i)) => {
            len == 0 || (u128::from(p) ^ u128::from(i)).checked_shr(128 - u32::from(len)).unwrap_or(0) == 0
        }
        _ => false,
    }
}

/// The device: two lists.
pub struct Port {
    mtu: usize,
    rx: VecDeque<Vec<u8>>,
    tx: Vec<Vec<u8>>,
}

/// A received frame.
pub struct Rx(Vec<u8>);

/// Room for a frame to send.
pub struct Tx<'a>(&'a mut Vec<Vec<u8>>);

impl RxToken for Rx {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let r = f(&mut frame);
        self.0.push(frame);
        r
    }
}

impl Device for Port {
    type RxToken<'a> = Rx;
    type TxToken<'a> = Tx<'a>;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(Rx, Tx<'_>)> {
        Some((Rx(self.rx.pop_front()?), Tx(&mut self.tx)))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Tx<'_>> {
        Some(Tx(&mut self.tx))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut caps = DeviceCapabilities::default();
        caps.medium = Medium::Ethernet;
        caps.max_transmission_unit = 14 + self.mtu;
        caps.checksum = ChecksumCapabilities::default();
        // TCP goes through `translate`, which checks on the way in and computes on the way out.
        caps.checksum.tcp = Checksum::None;
        caps
    }
}
