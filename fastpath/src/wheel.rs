//! A hierarchical timing wheel: one entry for each flow, O(1) to set, nothing to do for a flow without a timer.
//!
//! Time is cut into ticks of 1 ms. An entry whose tick differs from the current one first in 6-bit digit `l` waits on level `l`
//! in the slot of that digit. Therefore all entries of a level share the digits above with the current tick, slots never
//! wrap, and the lowest set bit of the lowest non-empty level is what comes next. When time reaches a slot of a higher level,
//! its entries move down.

use toe_core::Instant;

const DIGIT: u32 = 6;
const SLOTS: usize = 1 << DIGIT;
/// 42 bits of milliseconds: 139 years.
const LEVELS: usize = 7;
const TICK_NS: u64 = 1_000_000;
const LAST_TICK: u64 = (1 << (DIGIT as usize * LEVELS)) - 1;

const NIL: u32 = u32::MAX;
/// List number of entries that are due, after those of the slots.
const DUE: u16 = (LEVELS * SLOTS) as u16;
const NO_LIST: u16 = u16::MAX;

#[derive(Clone, Copy)]
struct Node {
    next: u32,
    prev: u32,
    list: u16,
    tick: u64,
}

const IDLE: Node = Node { next: NIL, prev: NIL, list: NO_LIST, tick: 0 };

/// See the module. Entries are named by small numbers (flow numbers).
pub(crate) struct Wheel {
    tick: u64,
    occupied: [u64; LEVELS],
    heads: [u32; LEVELS * SLOTS + 1],
    nodes: Vec<Node>,
}

impl Wheel {
    pub fn new() -> Wheel {
        Wheel { tick: 0, occupied: [0; LEVELS], heads: [NIL; LEVELS * SLOTS + 1], nodes: Vec::new() }
    }

    /// Makes `key` come out of [`pop`](Self::pop) once, not before `at`; an earlier setting that comes first stays (whoever is
    /// called early looks at its own deadlines and sets the wheel again).
    pub fn schedule(&mut self, key: u32, at: Instant) {
        let tick = at.0.div_ceil(TICK_NS).min(LAST_TICK);
        if key as usize >= self.nodes.len() {
            self.nodes.resize(key as usize + 1, IDLE);
        }
        let node = &mut self.nodes[key as usize];
        if node.list != NO_LIST && node.tick <= tick {
            return;
        }
        self.cancel(key);
        self.place(key, tick);
    }

    /// Forgets `key`.
    pub fn cancel(&mut self, key: u32) {
        let Some(&node) = self.nodes.get(key as usize) else { return };
        if node.list == NO_LIST {
            return;
        }
        match node.prev {
            NIL => self.heads[usize::from(node.list)] = node.next,
            prev => self.nodes[prev as usize].next = node.next,
        }
        if node.next != NIL {
            self.nodes[node.next as usize].prev = node.prev;
        }
        if self.heads[usize::from(node.list)] == NIL && node.list != DUE {
            self.occupied[usize::from(node.list) / SLOTS] &= !(1 << (usize::from(node.list) % SLOTS));
        }
        self.nodes[key as usize] = IDLE;
    }

    /// One entry whose time has come by `now`, which never runs backwards.
    pub fn pop(&mut self, now: Instant) -> Option<u32> {
        let now = (now.0 / TICK_NS).min(LAST_TICK);
        while self.heads[usize::from(DUE)] == NIL {
            match self.upcoming() {
                Some((list, tick)) if tick <= now => self.reach(list, tick),
                _ => {
                    self.tick = self.tick.max(now);
                    return None;
                }
            }
        }
        let key = self.heads[usize::from(DUE)];
        self.cancel(key);
        Some(key)
    }

    /// When [`pop`](Self::pop) has something to do next (perhaps only moving entries down a level).
    pub fn next(&self) -> Option<Instant> {
        if self.heads[usize::from(DUE)] != NIL {
            return Some(Instant(self.tick * TICK_NS));
        }
        self.upcoming().map(|(_, tick)| Instant(tick * TICK_NS))
    }

    /// The slot that comes first, and its first tick.
    fn upcoming(&self) -> Option<(usize, u64)> {
        let level = self.occupied.iter().position(|&o| o != 0)?;
        let slot = self.occupied[level].trailing_zeros();
        let shift = DIGIT * level as u32;
        let above = self.tick >> (shift + DIGIT) << (shift + DIGIT);
        Some((level * SLOTS + slot as usize, above | u64::from(slot) << shift))
    }

    /// Time has reached a slot: its entries are due or move down.
    fn reach(&mut self, list: usize, tick: u64) {
        self.tick = tick;
        while self.heads[list] != NIL {
            let key = self.heads[list];
            let at = self.nodes[key as usize].tick;
            self.cancel(key);
            self.place(key, at);
        }
    }

    fn place(&mut self, key: u32, tick: u64) {
        let list = if tick <= self.tick {
            DUE
        } else {
            let level = ((tick ^ self.tick).ilog2() / DIGIT) as usize;
            let slot = (tick >> (DIGIT * level as u32)) as usize % SLOTS;
            self.occupied[level] |= 1 << slot;
            (level * SLOTS + slot) as u16
        };
        let first = self.heads[usize::from(list)];
        if first != NIL {
            self.nodes[first as usize].prev = key;
        }
        self.heads[usize::from(list)] = key;
        self.nodes[key as usize] = Node { next: first, prev: NIL, list, tick };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Debug)]
    enum Op {
        Set(u32, u64),
        Cancel(u32),
        Pass(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        let span = prop_oneof![0u64..70, 0u64..5_000, 0u64..20_000_000];
        prop_oneof![
            (0u32..20, span.clone()).prop_map(|(k, t)| Op::Set(k, t)),
            (0u32..20).prop_map(Op::Cancel),
            span.prop_map(Op::Pass),
        ]
    }

    proptest! {
        #[test]
        fn fires_what_a_sorted_map_would(ops in proptest::collection::vec(op(), 1..80)) {
            let (mut wheel, mut model, mut now) = (Wheel::new(), BTreeMap::<u32, u64>::new(), 0u64);
            for op in ops {
                match op {
                    Op::Set(k, after) => {
                        let at = now + after;
                        wheel.schedule(k, Instant::from_millis(at));
                        let known = model.entry(k).or_insert(at);
                        *known = (*known).min(at);
                    }
                    Op::Cancel(k) => {
                        wheel.cancel(k);
                        model.remove(&k);
                    }
                    Op::Pass(ms) => now += ms,
                }
                if let (Some(next), Some(&first)) = (wheel.next(), model.values().min()) {
                    prop_assert!(next.millis() <= first);
                }
                prop_assert_eq!(wheel.next().is_none(), model.is_empty());
                let mut fired: Vec<u32> = std::iter::from_fn(|| wheel.pop(Instant::from_millis(now))).collect();
                fired.sort();
                let due: Vec<u32> = model.iter().filter(|e| *e.1 <= now).map(|e| *e.0).collect();
                prop_assert_eq!(&fired, &due);
                model.retain(|_, at| *at > now);
            }
        }
    }

    #[test]
    fn the_end_of_time_is_no_trap() {
        let mut w = Wheel::new();
        w.schedule(0, Instant(u64::MAX));
        assert!(w.next().is_some());
        assert_eq!(w.pop(Instant::from_millis(1 << 40)), None);
        assert_eq!(w.pop(Instant(u64::MAX)), Some(0));
    }
}
