//! Numbers that an off-path attacker must not guess: initial sequence numbers (RFC 6528) and ephemeral ports (RFC 6056).

use core::hash::{Hash, Hasher};
use core::net::IpAddr;
use std::hash::DefaultHasher;
use toe_core::flow::FlowKey;
use toe_core::{Instant, SeqNr};

/// A keyed hash (SipHash with the secret fed first).
pub struct Secret([u8; 16]);

impl Secret {
    /// From random bytes.
    pub fn new(bytes: [u8; 16]) -> Secret {
        Secret(bytes)
    }

    fn hash(&self, purpose: u8, what: impl Hash) -> u64 {
        let mut h = DefaultHasher::new();
        self.0.hash(&mut h);
        h.write_u8(purpose);
        what.hash(&mut h);
        h.finish()
    }

    /// ISN = M + F(4-tuple, secret), M a 4 µs clock (RFC 6528 §3).
    pub fn isn(&self, key: &FlowKey, now: Instant) -> SeqNr {
        SeqNr((now.micros() / 4) as u32) + self.hash(1, key) as u32
    }

    /// Where the search for an ephemeral port starts (RFC 6056 §3.3.3).
    pub fn port_offset(&self, local: IpAddr, remote: IpAddr, port: u16) -> u32 {
        self.hash(2, (local, remote, port)) as u32
    }

    /// Timestamp offset of a connection, so that clocks cannot be compared between connections (RFC 7323 §7.1).
    pub fn ts_offset(&self, key: &FlowKey) -> u32 {
        self.hash(3, (key.local_ip, key.remote_ip)) as u32
    }

    /// Choice among listeners that share a port.
    pub fn spread(&self, key: &FlowKey) -> u64 {
        self.hash(4, key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(port: u16) -> FlowKey {
        let ip = |n| IpAddr::from([127, 77, 0, n]);
        FlowKey { local_ip: ip(1), remote_ip: ip(2), local_port: port, remote_port: 80 }
    }

    #[test]
    fn isn_grows_with_time_and_differs_by_tuple() {
        let s = Secret::new([7; 16]);
        let (a, b) = (s.isn(&key(1), Instant(0)), s.isn(&key(1), Instant::from_millis(4)));
        assert_eq!(b - a, 1000);
        assert_ne!(s.isn(&key(2), Instant(0)), a);
        assert_ne!(Secret::new([8; 16]).isn(&key(1), Instant(0)), a);
    }
}
