//! `ReadySet`: who wants attention. Many set, one drains.
//!
//! A set bit is reported at least once after it was set: the setter goes leaf → mid → top, the drainer top → mid → leaf,
//! each step one atomic read-modify-write, so a member set during a drain is either seen by it or leaves `top` non-zero.

use super::layout::{MAX_SOCKS, ReadySet};
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

impl ReadySet {
    /// Adds `i`; `true` if it was not in the set. Out of range is ignored.
    #[inline]
    pub fn set(&self, i: u32) -> bool {
        let i = i as usize;
        if i >= MAX_SOCKS {
            return false;
        }
        let (leaf, mid) = (i / 64, i / 4096);
        let new = self.leaf[leaf].fetch_or(1 << (i % 64), SeqCst) & (1 << (i % 64)) == 0;
        let mid_bit = 1 << (leaf % 64);
        if self.mid[mid].load(SeqCst) & mid_bit == 0 {
            self.mid[mid].fetch_or(mid_bit, SeqCst);
        }
        if self.top.load(SeqCst) & (1 << mid) == 0 {
            self.top.fetch_or(1 << mid, SeqCst);
        }
        new
    }

    /// Removes `i`; `true` if it was in the set.
    #[inline]
    pub fn take(&self, i: u32) -> bool {
        let i = i as usize;
        i < MAX_SOCKS && self.leaf[i / 64].fetch_and(!(1 << (i % 64)), SeqCst) & (1 << (i % 64)) != 0
    }

    /// Nothing set? (A member being set right now may be missed; its setter's kick follows.)
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.top.load(SeqCst) == 0
    }

    /// Where the last thread that kicked ran, as far as it said.
    pub fn cpu(&self) -> Option<usize> {
        self.cpu.load(Relaxed).checked_sub(1).map(|cpu| cpu as usize)
    }

    /// Says where a kicking thread runs.
    #[inline]
    pub fn set_cpu(&self, cpu: usize) {
        let word = (cpu as u32).wrapping_add(1);
        if self.cpu.load(Relaxed) != word {
            self.cpu.store(word, Relaxed);
        }
    }

    /// Takes out every member and hands it to `f`; returns how many.
    pub fn drain(&self, mut f: impl FnMut(u32)) -> usize {
        let mut count = 0;
        if self.is_empty() {
            return 0;
        }
        for mid in bits(self.top.swap(0, SeqCst) & 0xffff) {
            for leaf in bits(self.mid[mid as usize].swap(0, SeqCst)) {
                let leaf = mid * 64 + leaf;
                for bit in bits(self.leaf[leaf as usize].swap(0, SeqCst)) {
                    f(leaf * 64 + bit);
                    count += 1;
                }
            }
        }
        count
    }
}

/// Positions of the ones in `word`.
pub fn bits(mut word: u64) -> impl Iterator<Item = u32> {
    core::iter::from_fn(move || {
        (word != 0).then(|| {
            let bit = word.trailing_zeros();
            word &= word - 1;
            bit
        })
    })
}
