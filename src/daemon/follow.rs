//! Where an unpinned worker runs: on the CPU of the app that it serves.
//!
//! With fewer CPUs than apps and workers some of them take turns on one. An app and its own worker do that best: they hand over with a
//! yield instead of a wake-up across cores, and what one has copied the other finds in its cache. (Measured on two CPUs: 64-byte
//! round trip 8.7 µs against 10 to 84, one flow 44 Gb/s against 16.) The scheduler cannot know; so the worker follows the app.

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::time::Duration;
use toe_core::Instant;

/// Kicks looked at before each decision.
const WINDOW: u32 = 64;
/// Fewer kicks than a window in this time are not worth a move: each finds a sleeper, wherever it sleeps.
const DENSE: Duration = Duration::from_millis(20);
/// Without a dense window for so long, the scheduler decides again.
const FORGET: Duration = Duration::from_millis(100);

/// Counts kicks by where they come from.
struct Tally {
    since: Instant,
    kicks: u32,
    /// How many of them came from `cpu`; majority vote of Boyer and Moore.
    votes: u32,
    cpu: usize,
}

impl Tally {
    fn new(now: Instant) -> Tally {
        Tally { since: now, kicks: 0, votes: 0, cpu: 0 }
    }

    /// One more; the CPU that sent at least about three quarters of a dense window, when it ends.
    fn count(&mut self, cpu: usize, now: Instant) -> Option<usize> {
        match self.votes {
            0 => (self.cpu, self.votes) = (cpu, 1),
            _ if self.cpu == cpu => self.votes += 1,
            _ => self.votes -= 1,
        }
        self.kicks += 1;
        if self.kicks < WINDOW {
            return None;
        }
        let ended = core::mem::replace(self, Tally::new(now));
        let clear = ended.votes >= WINDOW / 2 && now.since(ended.since) < DENSE;
        clear.then_some(ended.cpu)
    }
}

/// Moves the thread that owns it.
pub struct Follow {
    /// Where the thread may run.
    allowed: CpuSet,
    tally: Tally,
    /// Moved there then.
    placed: Option<(usize, Instant)>,
}

impl Follow {
    /// For the calling thread. `None`: there is no choice to make.
    pub fn new(now: Instant) -> Option<Follow> {
        let allowed = sched_getaffinity(None).ok().filter(|set| set.count() > 1)?;
        Some(Follow { allowed, tally: Tally::new(now), placed: None })
    }

    /// An app kicked from `cpu`.
    pub fn kicked(&mut self, cpu: usize, now: Instant) {
        let Some(cpu) = self.tally.count(cpu, now) else { return };
        if !matches!(self.placed, Some((at, _)) if at == cpu) && cpu < CpuSet::MAX_CPU && self.allowed.is_set(cpu) {
            let mut one = CpuSet::new();
            one.set(cpu);
            if sched_setaffinity(None, &one).is_err() {
                return;
            }
        }
        self.placed = Some((cpu, now));
    }

    /// The thread is about to sleep.
    pub fn idle(&mut self, now: Instant) {
        if self.placed.is_some_and(|(_, since)| now.since(since) >= FORGET) {
            let _ = sched_setaffinity(None, &self.allowed);
            self.placed = None;
        }
    }
}

/// CPU of the calling thread.
pub fn here() -> u32 {
    sched_getcpu() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(tally: &mut Tally, step: Duration, cpu_of: impl Fn(u32) -> usize) -> Option<usize> {
        let mut now = tally.since;
        (0..WINDOW)
            .filter_map(|i| {
                now += step;
                tally.count(cpu_of(i), now)
            })
            .next()
    }

    #[test]
    fn a_clear_and_dense_majority_decides() {
        let mut t = Tally::new(Instant(0));
        let dense = Duration::from_micros(10);
        assert_eq!(window(&mut t, dense, |_| 3), Some(3));
        assert_eq!(window(&mut t, dense, |i| usize::from(i % 8 == 0)), Some(0));
        assert_eq!(window(&mut t, dense, |i| i as usize % 2), None, "both alike");
        assert_eq!(window(&mut t, Duration::from_millis(1), |_| 3), None, "not dense");
    }

    #[test]
    fn follows_and_forgets() {
        let Some(mut follow) = Follow::new(Instant(0)) else { return };
        let allowed = follow.allowed;
        let last = (0..CpuSet::MAX_CPU).rfind(|&c| allowed.is_set(c)).unwrap();
        (0..WINDOW).for_each(|_| follow.kicked(last, Instant(1)));
        assert_eq!(here() as usize, last);
        follow.idle(Instant(2));
        assert_eq!(sched_getaffinity(None).unwrap().count(), 1, "still dense");
        follow.idle(Instant(1) + FORGET);
        assert_eq!(sched_getaffinity(None).unwrap(), allowed);
    }
}
