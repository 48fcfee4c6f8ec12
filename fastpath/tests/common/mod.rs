//! What the tests of the fast path share: an app that uses the socket slots, a link in virtual time, a stand-in for the slow
//! path's decisions.
#![allow(dead_code)]

pub mod app;
pub mod host;
pub mod link;
pub mod script;

/// SplitMix64: small, seeded, good enough to disturb a link and to fill a stream.
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// True in `n` of 1000 cases.
    pub fn permille(&mut self, n: u64) -> bool {
        self.below(1000) < n
    }
}

/// Byte `pos` of the stream `seed`: both ends compute it, so every byte is checked at its place.
pub fn stream_byte(seed: u64, pos: u64) -> u8 {
    let word = Rng(seed ^ (pos / 8).wrapping_mul(0x2545_f491_4f6c_dd1d)).next();
    (word >> (pos % 8 * 8)) as u8
}
