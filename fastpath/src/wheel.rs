//! Hierarchical timing wheel: four levels of 64 slots, ticks of 2^20 ns (about 1 ms), 4.8 hours in all; what is
//! further off waits in the last level and is put again. Starting a timer is O(1), an idle wheel costs nothing, and
//! the next event is found by bit scans.
//!
//! Entries are never cancelled: who fires looks at its own deadline and goes back in if it has moved.

use toe_core::{FlowId, Instant};

const TICK_SHIFT: u32 = 20;
const LEVELS: usize = 4;
const SLOT_BITS: u32 = 6;
const SLOTS: u64 = 1 << SLOT_BITS;

/// The wheel.
pub struct Wheel {
    slots: Vec<Vec<(FlowId, u64)>>,
    occupied: [u64; LEVELS],
    /// All ticks below this have fired.
    now: u64,
    scratch: Vec<(FlowId, u64)>,
}

impl Default for Wheel {
    fn default() -> Wheel {
        Wheel { slots: vec![Vec::new(); LEVELS * SLOTS as usize], occupied: [0; LEVELS], now: 0, scratch: Vec::new() }
    }
}

impl Wheel {
    /// Fires `id` at the first tick not before `at`.
    pub fn insert(&mut self, id: FlowId, at: Instant) {
        let tick = (at.0 >> TICK_SHIFT) + u64::from(at.0 & ((1 << TICK_SHIFT) - 1) != 0);
        self.put(id, tick.max(self.now));
    }

    fn put(&mut self, id: FlowId, tick: u64) {
        let horizon = self.now + (1 << (SLOT_BITS * LEVELS as u32)) - 1;
        let place = tick.min(horizon);
        // The level is that of the highest digit in which `place` differs from now.
        let level = ((63 - ((place ^ self.now) | 1).leading_zeros()) / SLOT_BITS).min(LEVELS as u32 - 1);
        let slot = (place >> (SLOT_BITS * level)) % SLOTS;
        self.slots[level as usize * SLOTS as usize + slot as usize].push((id, tick));
        self.occupied[level as usize] |= 1 << slot;
    }

    /// The first tick at which something is to be done, with its level and slot.
    fn next_slot(&self) -> Option<(u64, usize, u64)> {
        let mut best: Option<(u64, usize, u64)> = None;
        for level in 0..LEVELS {
            if self.occupied[level] == 0 {
                continue;
            }
            let shift = SLOT_BITS * level as u32;
            let digit = (self.now >> shift) % SLOTS;
            // Slots at or after the current digit, then those of the next turn.
            let ahead = self.occupied[level].rotate_right(digit as u32).trailing_zeros() as u64;
            let turn = (self.now >> shift) + ahead;
            let tick = (turn << shift).max(self.now);
            if best.is_none_or(|b| tick < b.0 || (tick == b.0 && level > b.1)) {
                best = Some((tick, level, turn % SLOTS));
            }
        }
        best
    }

    /// When to call [`advance`](Self::advance) next: never later than the first timer.
    pub fn next(&self) -> Option<Instant> {
        self.next_slot().map(|(tick, ..)| Instant(tick << TICK_SHIFT))
    }

    /// Fires everything due at `now`.
    pub fn advance(&mut self, now: Instant, mut fire: impl FnMut(FlowId)) {
        let tick = now.0 >> TICK_SHIFT;
        while let Some((at, level, slot)) = self.next_slot().filter(|s| s.0 <= tick) {
            self.now = self.now.max(at);
            self.occupied[level] &= !(1 << slot);
            let index = level * SLOTS as usize + slot as usize;
            let mut due = core::mem::replace(&mut self.slots[index], core::mem::take(&mut self.scratch));
            for (id, deadline) in due.drain(..) {
                if deadline <= tick { fire(id) } else { self.put(id, deadline) }
            }
            self.scratch = due;
        }
        self.now = self.now.max(tick);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TICK: u64 = 1 << TICK_SHIFT;

    proptest! {
        #[test]
        fn fires_once_and_in_time(
            timers in proptest::collection::vec(0u64..40_000_000, 1..50),
            steps in proptest::collection::vec(1u64..3_000_000, 1..50),
        ) {
            let mut wheel = Wheel::default();
            let mut pending: Vec<(u32, u64)> = Vec::new();
            for (i, &t) in timers.iter().enumerate() {
                wheel.insert(FlowId(i as u32), Instant(t * TICK));
                pending.push((i as u32, t));
            }
            let mut now = 0;
            for step in steps.iter().copied().chain([50_000_000]) {
                now += step;
                if let Some((_, first)) = pending.iter().min_by_key(|p| p.1) {
                    prop_assert!(wheel.next().unwrap().0 <= first * TICK);
                }
                let mut fired = vec![];
                wheel.advance(Instant(now * TICK), |id| fired.push(id.0));
                for id in &fired {
                    let at = pending.iter().position(|p| p.0 == *id).expect("fired once");
                    prop_assert!(pending.swap_remove(at).1 <= now);
                }
                prop_assert!(pending.iter().all(|p| p.1 > now), "late timer");
            }
            prop_assert!(pending.is_empty() && wheel.next().is_none());
        }
    }
}
