//! Flow lookup: a slab of flows by number, and a hash table from 4-tuple to number.

use crate::flow::Flow;
use core::net::IpAddr;
use hashbrown::HashTable;
use toe_core::FlowId;
use toe_core::flow::FlowKey;

/// Most flows of one core; numbers beyond are refused at installation.
pub(crate) const MOST_FLOWS: usize = 1 << 20;

/// All flows of one core.
pub(crate) struct FlowTable {
    by_key: HashTable<FlowId>,
    flows: Vec<Option<Box<Flow>>>,
    hasher: KeyHasher,
}

impl FlowTable {
    pub fn new(seed: u64) -> FlowTable {
        FlowTable { by_key: HashTable::new(), flows: Vec::new(), hasher: KeyHasher::new(seed) }
    }

    /// Flows installed.
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// The flow of a 4-tuple.
    #[inline]
    pub fn lookup(&self, key: &FlowKey) -> Option<FlowId> {
        let same = |id: &FlowId| matches!(&self.flows[id.index()], Some(f) if f.key == *key);
        self.by_key.find(self.hasher.hash(key), same).copied()
    }

    /// A flow by number.
    #[inline]
    pub fn get(&mut self, id: FlowId) -> Option<&mut Flow> {
        self.flows.get_mut(id.index())?.as_deref_mut()
    }

    /// Adds a flow; gives it back if its number or 4-tuple is taken, or the number out of range.
    pub fn insert(&mut self, flow: Box<Flow>) -> Result<(), Box<Flow>> {
        let at = flow.id.index();
        if at >= MOST_FLOWS || self.lookup(&flow.key).is_some() || matches!(self.flows.get(at), Some(Some(_))) {
            return Err(flow);
        }
        if at >= self.flows.len() {
            self.flows.resize_with(at + 1, || None);
        }
        let (id, hash) = (flow.id, self.hasher.hash(&flow.key));
        self.flows[at] = Some(flow);
        let rehash = |id: &FlowId| self.flows[id.index()].as_ref().map_or(0, |f| self.hasher.hash(&f.key));
        self.by_key.insert_unique(hash, id, rehash);
        Ok(())
    }

    /// Takes a flow out.
    pub fn remove(&mut self, id: FlowId) -> Option<Box<Flow>> {
        let flow = self.flows.get_mut(id.index())?.take()?;
        if let Ok(entry) = self.by_key.find_entry(self.hasher.hash(&flow.key), |other| *other == id) {
            entry.remove();
        }
        Some(flow)
    }
}

/// SipHash-1-3 over the 4-tuple: without the seed nobody can choose keys that collide.
struct KeyHasher {
    k0: u64,
    k1: u64,
}

impl KeyHasher {
    fn new(seed: u64) -> KeyHasher {
        // Two key words out of one seed: SplitMix64's finaliser.
        let mix = |mut z: u64| {
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        KeyHasher { k0: mix(seed), k1: mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15)) }
    }

    #[inline]
    fn hash(&self, key: &FlowKey) -> u64 {
        let mut s = Sip([
            self.k0 ^ 0x736f_6d65_7073_6575,
            self.k1 ^ 0x646f_7261_6e64_6f6d,
            self.k0 ^ 0x6c79_6765_6e65_7261,
            self.k1 ^ 0x7465_6462_7974_6573,
        ]);
        match (key.local_ip, key.remote_ip) {
            (IpAddr::V4(a), IpAddr::V4(b)) => s.word(u64::from(u32::from(a)) << 32 | u64::from(u32::from(b))),
            (a, b) => [a, b].into_iter().map(bits).for_each(|w| {
                s.word((w >> 64) as u64);
                s.word(w as u64);
            }),
        }
        s.word(u64::from(key.local_port) << 16 | u64::from(key.remote_port));
        s.finish()
    }
}

fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(a) => a.to_ipv6_mapped().into(),
        IpAddr::V6(a) => a.into(),
    }
}

struct Sip([u64; 4]);

impl Sip {
    #[inline(always)]
    fn word(&mut self, w: u64) {
        self.0[3] ^= w;
        self.round();
        self.0[0] ^= w;
    }

    #[inline(always)]
    fn finish(mut self) -> u64 {
        self.0[2] ^= 0xff;
        (0..3).for_each(|_| self.round());
        self.0[0] ^ self.0[1] ^ self.0[2] ^ self.0[3]
    }

    #[inline(always)]
    fn round(&mut self) {
        let [a, b, c, d] = &mut self.0;
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn hashes_spread_and_depend_on_the_seed() {
        let key = |n: u32| FlowKey {
            local_ip: "127.77.0.1".parse().unwrap(),
            remote_ip: IpAddr::V4((0x7f4d_0000 + n).into()),
            local_port: 80,
            remote_port: (n % 7) as u16,
        };
        let (a, b) = (KeyHasher::new(1), KeyHasher::new(2));
        let low: HashSet<u64> = (0..4096).map(|n| a.hash(&key(n)) & 0xffff).collect();
        // 4096 balls into 65,536 bins: about 3970 bins are hit.
        assert!(low.len() > 3900, "{}", low.len());
        assert!((0..100).all(|n| a.hash(&key(n)) != b.hash(&key(n))));
    }
}
