//! Bytes that both ends know: a function of seed and position, so that a byte out of place never passes for another.

use std::str::FromStr;

/// Length of the repeated pattern, a prime: no chunk, segment or buffer size divides it.
const PATTERN: usize = 1_048_583;

/// How bytes are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Each 8 bytes are a hash of seed and position: nothing repeats.
    Prng,
    /// [`PATTERN`] such bytes repeated: made once and sent from memory, so that making and comparing cost next to nothing.
    Pattern,
}

impl FromStr for Kind {
    type Err = ();
    fn from_str(s: &str) -> Result<Kind, ()> {
        match s {
            "prng" => Ok(Kind::Prng),
            "pattern" => Ok(Kind::Pattern),
            _ => Err(()),
        }
    }
}

/// One direction of one connection.
pub struct Data {
    seed: u64,
    pattern: Vec<u8>,
    scratch: Vec<u8>,
}

/// SplitMix64's finaliser over a counter.
fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Data {
    /// `direction` 0: client to server.
    pub fn new(kind: Kind, seed: u64, connection: u32, direction: u8) -> Data {
        let seed = mix(seed ^ mix(u64::from(connection) << 8 | u64::from(direction)));
        let mut data = Data { seed, pattern: Vec::new(), scratch: Vec::new() };
        if kind == Kind::Pattern {
            let mut pattern = vec![0; PATTERN];
            data.fill(0, &mut pattern);
            data.pattern = pattern;
        }
        data
    }

    /// The bytes at `pos`, at most `max` of them, at least one.
    pub fn at(&mut self, pos: u64, max: usize) -> &[u8] {
        if self.pattern.is_empty() {
            let mut scratch = std::mem::take(&mut self.scratch);
            scratch.resize(max, 0);
            self.fill(pos, &mut scratch);
            self.scratch = scratch;
            return &self.scratch;
        }
        let start = (pos % PATTERN as u64) as usize;
        &self.pattern[start..PATTERN.min(start + max)]
    }

    /// Compares bytes received at `pos` and returns the position of the first wrong one.
    pub fn check(&mut self, mut pos: u64, mut bytes: &[u8]) -> Result<(), u64> {
        while !bytes.is_empty() {
            let want = self.at(pos, bytes.len());
            let n = want.len();
            if want != &bytes[..n] {
                let bad = want.iter().zip(bytes).position(|(a, b)| a != b).unwrap_or(0);
                return Err(pos + bad as u64);
            }
            pos += n as u64;
            bytes = &bytes[n..];
        }
        Ok(())
    }

    fn fill(&self, pos: u64, out: &mut [u8]) {
        let skip = (pos % 8) as usize;
        let (head, body) = out.split_at_mut(((8 - skip) % 8).min(out.len()));
        let first = mix(self.seed.wrapping_add(pos / 8)).to_le_bytes();
        head.copy_from_slice(&first[skip..skip + head.len()]);
        let mut word = self.seed.wrapping_add(pos.div_ceil(8));
        for piece in body.chunks_mut(8) {
            piece.copy_from_slice(&mix(word).to_le_bytes()[..piece.len()]);
            word = word.wrapping_add(1);
        }
    }
}

/// A hash of a byte stream that does not depend on how it was cut: the sum of each byte times an odd weight of its place.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Hash {
    /// Bytes seen.
    pub count: u64,
    /// Sum modulo 2^64.
    pub sum: u64,
}

impl Hash {
    /// Adds bytes of that kind. Of the repeated pattern only the number counts: it is compared anyway, and a measurement
    /// should not be one of hashing.
    pub fn add_kind(&mut self, kind: Kind, bytes: &[u8]) {
        match kind {
            Kind::Prng => self.add(bytes),
            Kind::Pattern => self.count += bytes.len() as u64,
        }
    }

    /// Adds the bytes that follow.
    pub fn add(&mut self, bytes: &[u8]) {
        let skip = (self.count % 8) as usize;
        let (head, body) = bytes.split_at(((8 - skip) % 8).min(bytes.len()));
        let mut word = self.count / 8;
        if !head.is_empty() {
            let mut le = [0; 8];
            le[skip..skip + head.len()].copy_from_slice(head);
            self.sum = self.sum.wrapping_add(u64::from_le_bytes(le).wrapping_mul(weight(word)));
            word += 1;
        }
        let mut words = body.chunks_exact(8);
        for w in &mut words {
            let w = u64::from_le_bytes(w.try_into().unwrap_or_default());
            self.sum = self.sum.wrapping_add(w.wrapping_mul(weight(word)));
            word += 1;
        }
        let mut le = [0; 8];
        le[..words.remainder().len()].copy_from_slice(words.remainder());
        self.sum = self.sum.wrapping_add(u64::from_le_bytes(le).wrapping_mul(weight(word)));
        self.count += bytes.len() as u64;
    }
}

fn weight(word: u64) -> u64 {
    mix(word) | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_hash_do_not_depend_on_cuts() {
        for kind in [Kind::Prng, Kind::Pattern] {
            let mut whole = vec![];
            let mut d = Data::new(kind, 7, 3, 1);
            while whole.len() < 3_000_000 {
                let piece = d.at(whole.len() as u64, 3_000_000 - whole.len()).to_vec();
                whole.extend(piece);
            }
            let mut hash = Hash::default();
            hash.add(&whole);
            let (mut cut, mut pos, mut step) = (Hash::default(), 0, 1);
            while pos < whole.len() {
                let end = whole.len().min(pos + step);
                assert_eq!(d.check(pos as u64, &whole[pos..end]), Ok(()));
                cut.add(&whole[pos..end]);
                (pos, step) = (end, step % 4099 + 3);
            }
            assert_eq!(hash, cut);
            whole[2_000_000] ^= 1;
            assert_eq!(d.check(0, &whole), Err(2_000_000));
            let mut other = Hash::default();
            other.add(&whole);
            assert_ne!(hash, other);
        }
    }
}
