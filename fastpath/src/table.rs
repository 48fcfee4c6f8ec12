//! Finding flows: by 4-tuple for segments, by number for messages and timers, by socket for kicks.

use crate::flow::Flow;
use hashbrown::HashTable;
use std::hash::{Hash, Hasher};
use toe_core::FlowId;
use toe_core::flow::FlowKey;

/// All flows of one core.
pub struct FlowTable {
    flows: Vec<Option<Box<Flow>>>,
    by_key: HashTable<(FlowKey, FlowId)>,
    seed: u64,
}

/// Multiply-fold hash keyed by a secret seed: a peer that picks ports cannot steer flows into one bucket.
struct Seeded(u64);

impl Hasher for Seeded {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.write_u64(u64::from(b));
        }
    }

    fn write_u32(&mut self, v: u32) {
        self.write_u64(u64::from(v));
    }

    fn write_u128(&mut self, v: u128) {
        self.write_u64(v as u64);
        self.write_u64((v >> 64) as u64);
    }

    fn write_u64(&mut self, v: u64) {
        let wide = u128::from(self.0 ^ v) * 0x9E37_79B9_7F4A_7C15;
        let mixed = u128::from(wide as u64) * u128::from((wide >> 64) as u64 | 1);
        self.0 = (mixed as u64) ^ ((mixed >> 64) as u64) ^ v.rotate_left(23);
    }
}

impl FlowTable {
    /// An empty table.
    pub fn new(seed: u64) -> FlowTable {
        FlowTable { flows: Vec::new(), by_key: HashTable::new(), seed }
    }

    fn hash(&self, key: &FlowKey) -> u64 {
        let mut h = Seeded(self.seed);
        key.hash(&mut h);
        h.finish()
    }

    /// The flow of a 4-tuple.
    #[inline]
    pub fn find(&self, key: &FlowKey) -> Option<FlowId> {
        self.by_key.find(self.hash(key), |e| e.0 == *key).map(|e| e.1)
    }

    /// A flow by number.
    #[inline]
    pub fn get(&mut self, id: FlowId) -> Option<&mut Flow> {
        self.flows.get_mut(id.index())?.as_deref_mut()
    }

    /// Adds a flow; `false` if its number or 4-tuple is taken.
    pub fn insert(&mut self, flow: Box<Flow>) -> bool {
        let (id, key) = (flow.id, flow.key);
        if self.get(id).is_some() || self.find(&key).is_some() {
            return false;
        }
        if self.flows.len() <= id.index() {
            self.flows.resize_with(id.index() + 1, || None);
        }
        self.flows[id.index()] = Some(flow);
        let (hash, seed) = (self.hash(&key), self.seed);
        self.by_key.insert_unique(hash, (key, id), |e| {
            let mut h = Seeded(seed);
            e.0.hash(&mut h);
            h.finish()
        });
        true
    }

    /// Takes a flow out.
    pub fn remove(&mut self, id: FlowId) -> Option<Box<Flow>> {
        let flow = self.flows.get_mut(id.index())?.take()?;
        let hash = self.hash(&flow.key);
        if let Ok(entry) = self.by_key.find_entry(hash, |e| e.1 == id) {
            entry.remove();
        }
        Some(flow)
    }

    /// Number of flows.
    pub fn len(&self) -> usize {
        self.by_key.len()
    }
}
