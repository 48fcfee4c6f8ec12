//! `IndexPool`: lock-free LIFO of small numbers in shared memory.
//!
//! The head carries a tag against ABA. An app can scribble over the links and so lose or repeat its own entries; it can
//! not make the daemon loop (bounded tries) or touch anything out of range (every index is checked).

use super::layout::IndexPool;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

/// Compare-and-swap tries before giving up; more than any honest contention needs.
const MAX_TRIES: usize = 1 << 16;

impl<const N: usize> IndexPool<N> {
    /// Takes the entry freed last, or a fresh one.
    #[inline]
    pub fn pop(&self) -> Option<u32> {
        let mut head = self.head.load(Acquire);
        for _ in 0..MAX_TRIES {
            let index = (head as u32).checked_sub(1);
            let Some(index) = index.filter(|&i| (i as usize) < N) else {
                return self.pop_fresh();
            };
            let next = self.next[index as usize].load(Relaxed);
            match self.head.compare_exchange_weak(head, bump(head, next), AcqRel, Acquire) {
                Ok(_) => {
                    self.used.fetch_add(1, Relaxed);
                    return Some(index);
                }
                Err(now) => head = now,
            }
        }
        None
    }

    fn pop_fresh(&self) -> Option<u32> {
        let got = self.fresh.fetch_update(AcqRel, Acquire, |f| ((f as usize) < N).then_some(f + 1)).ok()?;
        self.used.fetch_add(1, Relaxed);
        Some(got)
    }

    /// Gives `index` back. `false`: not a valid index, or the pool's owner is fighting us; the entry is lost to it.
    #[inline]
    pub fn push(&self, index: u32) -> bool {
        if index as usize >= N {
            return false;
        }
        let mut head = self.head.load(Acquire);
        for _ in 0..MAX_TRIES {
            self.next[index as usize].store(head as u32, Relaxed);
            match self.head.compare_exchange_weak(head, bump(head, index + 1), AcqRel, Acquire) {
                Ok(_) => {
                    self.used.fetch_sub(1, Relaxed);
                    return true;
                }
                Err(now) => head = now,
            }
        }
        false
    }
}

/// The next head: tag + 1, `first` = index + 1 of the first entry.
fn bump(head: u64, first: u32) -> u64 {
    ((head >> 32).wrapping_add(1) << 32) | u64::from(first)
}
