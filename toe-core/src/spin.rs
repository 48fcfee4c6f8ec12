//! How long a waiter looks before it sleeps: one policy for app threads and for the daemon's workers.
//!
//! A chain of waiters (app, fast path, fast path, app) has two steady states: all awake, or each asleep until the one before
//! wakes it. It returns from the second to the first only if a waiter spins for as long as a round in which all the others had to be
//! woken. So the longest spin is [`CHAIN`] wake-ups.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

/// Wake-ups in the longest round between two apps behind two daemons.
pub const CHAIN: u32 = 4;

/// How long to spin before sleeping; adapts to what waits were worth.
pub struct SpinPolicy {
    budget_ns: AtomicU32,
    max_ns: AtomicU32,
}

/// Below this a spin is only one look.
const MIN_SPIN_NS: u32 = 2_000;

impl SpinPolicy {
    /// Spins at most `max_ns`.
    pub const fn new(max_ns: u32) -> SpinPolicy {
        SpinPolicy { budget_ns: AtomicU32::new(max_ns), max_ns: AtomicU32::new(max_ns) }
    }

    /// Time to spin now.
    #[inline(always)]
    pub fn budget_ns(&self) -> u64 {
        self.budget_ns.load(Relaxed).into()
    }

    /// Says how a wait went: its whole length, spinning and sleeping. One that a full spin would have caught makes the next spin
    /// longer; a longer one halves it, so that whoever has little to do is quiet.
    #[inline]
    pub fn waited(&self, ns: u64) {
        let (budget, max) = (self.budget_ns.load(Relaxed), self.max_ns.load(Relaxed));
        let next = if ns <= u64::from(max) { (budget * 2).max(MIN_SPIN_NS) } else { budget / 2 };
        self.budget_ns.store(next.min(max), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spinning_adapts() {
        let p = SpinPolicy::new(50_000);
        for _ in 0..20 {
            p.waited(10_000_000);
        }
        assert_eq!(p.budget_ns(), 0);
        p.waited(40_000);
        assert_eq!(p.budget_ns(), u64::from(MIN_SPIN_NS));
        for _ in 0..10 {
            p.waited(1_000);
        }
        assert_eq!(p.budget_ns(), 50_000);
        p.waited(60_000);
        assert_eq!(p.budget_ns(), 25_000);
    }

    #[test]
    fn never_spins_if_told_so() {
        let p = SpinPolicy::new(0);
        p.waited(0);
        assert_eq!(p.budget_ns(), 0);
    }
}
