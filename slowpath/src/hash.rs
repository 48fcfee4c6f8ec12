//! Keyed hashing (SipHash-2-4): tables that a peer can fill, initial sequence numbers, ephemeral ports. The key is the
//! daemon's secret, handed in; nothing here asks the system for randomness.

use core::hash::{BuildHasher, Hash, Hasher};
use core::net::IpAddr;
use toe_core::flow::FlowKey;
use toe_core::{Instant, SeqNr};

/// The 128-bit key.
#[derive(Clone, Copy)]
pub(crate) struct Secret(u64, u64);

/// What a hash is for; a part of its input, so that one use tells nothing about another.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Use {
    Isn = 1,
    Port = 2,
    Timestamp = 3,
    ReusePort = 4,
}

impl Secret {
    pub(crate) fn new(key: [u8; 16]) -> Secret {
        let half = |b: &[u8]| b.iter().rev().fold(0u64, |w, &x| w << 8 | u64::from(x));
        Secret(half(&key[..8]), half(&key[8..]))
    }

    fn of(&self, what: Use, key: &FlowKey) -> u64 {
        let mut h = self.build_hasher();
        h.write_u8(what as u8);
        key.hash(&mut h);
        h.finish()
    }

    /// RFC 6528 §3: ISN = M + F(4-tuple, secret), M a clock of 4 µs.
    pub(crate) fn isn(&self, key: &FlowKey, now: Instant) -> SeqNr {
        SeqNr((now.micros() / 4) as u32) + self.of(Use::Isn, key) as u32
    }

    /// RFC 7323 §5.4: what a flow adds to the millisecond clock; constant for a 4-tuple, so that its timestamps go on
    /// growing from one connection to the next (RFC 6191).
    pub(crate) fn timestamp_offset(&self, key: &FlowKey) -> u32 {
        self.of(Use::Timestamp, key) as u32
    }

    /// RFC 6056 §3.3.3: F(local, remote, remote port, secret).
    pub(crate) fn port_offset(&self, local: IpAddr, remote: IpAddr, remote_port: u16) -> u32 {
        let key = FlowKey { local_ip: local, remote_ip: remote, local_port: 0, remote_port };
        self.of(Use::Port, &key) as u32
    }

    /// Which of several SO_REUSEPORT listeners takes this connection.
    pub(crate) fn reuseport(&self, key: &FlowKey, among: usize) -> usize {
        (self.of(Use::ReusePort, key) % among.max(1) as u64) as usize
    }
}

impl BuildHasher for Secret {
    type Hasher = Sip;

    fn build_hasher(&self) -> Sip {
        let Secret(k0, k1) = *self;
        Sip {
            v: [
                k0 ^ u64::from_be_bytes(*b"somepseu"),
                k1 ^ u64::from_be_bytes(*b"dorandom"),
                k0 ^ u64::from_be_bytes(*b"lygenera"),
                k1 ^ u64::from_be_bytes(*b"tedbytes"),
            ],
            word: 0,
            len: 0,
        }
    }
}

/// SipHash-2-4 state.
pub(crate) struct Sip {
    v: [u64; 4],
    /// Bytes not yet a whole word, lowest first.
    word: u64,
    len: u64,
}

impl Sip {
    fn round(&mut self) {
        let [a, b, c, d] = &mut self.v;
        *a = a.wrapping_add(*b);
        *b = b.rotate_left(13) ^ *a;
        *a = a.rotate_left(32);
        *c = c.wrapping_add(*d);
        *d = d.rotate_left(16) ^ *c;
        *a = a.wrapping_add(*d);
        *d = d.rotate_left(21) ^ *a;
        *c = c.wrapping_add(*b);
        *b = b.rotate_left(17) ^ *c;
        *c = c.rotate_left(32);
    }

    fn absorb(&mut self, word: u64) {
        self.v[3] ^= word;
        self.round();
        self.round();
        self.v[0] ^= word;
    }
}

impl Hasher for Sip {
    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.word |= u64::from(b) << (8 * (self.len % 8));
            self.len += 1;
            if self.len.is_multiple_of(8) {
                let word = core::mem::take(&mut self.word);
                self.absorb(word);
            }
        }
    }

    fn finish(&self) -> u64 {
        let mut s = Sip { v: self.v, word: self.word, len: self.len };
        s.absorb(s.word | s.len << 56);
        s.v[2] ^= 0xff;
        (0..4).for_each(|_| s.round());
        s.v[0] ^ s.v[1] ^ s.v[2] ^ s.v[3]
    }
}

/// A map keyed by something a peer chooses.
pub(crate) type Map<K, V> = hashbrown::HashMap<K, V, Secret>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_vector() {
        // Appendix A of the SipHash paper: key 00..0f, input 00..0e.
        let s = Secret::new(core::array::from_fn(|i| i as u8));
        let mut h = s.build_hasher();
        h.write(&core::array::from_fn::<u8, 15, _>(|i| i as u8));
        assert_eq!(h.finish(), 0xa129_ca61_49be_45e5);
    }

    #[test]
    fn isns_differ_by_tuple_and_grow_with_time() {
        let s = Secret::new([7; 16]);
        let ip = "127.77.0.1".parse().unwrap();
        let key = |p| FlowKey { local_ip: ip, remote_ip: ip, local_port: p, remote_port: 80 };
        let at = |p, us: u64| s.isn(&key(p), Instant(us * 1000));
        assert_ne!(at(1, 0), at(2, 0));
        // 250,000 a second (RFC 6528 §3): one each 4 µs.
        assert_eq!(at(1, 1_000_000) - at(1, 0), 250_000);
        assert_ne!(Secret::new([8; 16]).isn(&key(1), Instant::ZERO), at(1, 0));
    }
}
