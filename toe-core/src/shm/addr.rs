//! Socket addresses in shared memory.

use super::layout::ShmAddr;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use core::sync::atomic::Ordering::Relaxed;

impl ShmAddr {
    /// Writes an address. The caller publishes it (a later release store of a request number or state).
    pub fn store(&self, addr: Option<SocketAddr>) {
        let (family, port, ip, scope) = match addr {
            None => (0, 0, [0; 16], 0),
            Some(SocketAddr::V4(a)) => {
                let mut ip = [0; 16];
                ip[..4].copy_from_slice(&a.ip().octets());
                (4, a.port(), ip, 0)
            }
            Some(SocketAddr::V6(a)) => (6, a.port(), a.ip().octets(), a.scope_id()),
        };
        for (word, bytes) in self.ip.iter().zip(ip.chunks_exact(4)) {
            word.store(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]), Relaxed);
        }
        self.port.store(port.into(), Relaxed);
        self.scope.store(scope, Relaxed);
        self.family.store(family, Relaxed);
    }

    /// Reads an address, each word once.
    pub fn load(&self) -> Option<SocketAddr> {
        let mut ip = [0u8; 16];
        for (bytes, word) in ip.chunks_exact_mut(4).zip(&self.ip) {
            bytes.copy_from_slice(&word.load(Relaxed).to_ne_bytes());
        }
        let port = self.port.load(Relaxed) as u16;
        match self.family.load(Relaxed) {
            4 => {
                let ip = IpAddr::V4(Ipv4Addr::new(ip[0], ip[1], ip[2], ip[3]));
                Some(SocketAddr::new(ip, port))
            }
            6 => Some(SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, self.scope.load(Relaxed)))),
            _ => None,
        }
    }
}
