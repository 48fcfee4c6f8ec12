//! Waiting for the daemon: spin for about as long as a wake-up would cost, then arm, look again, and sleep in a futex.
//!
//! The sleep covers two words: the one the daemon wakes (`rx_wait` or `tx_wait`), and the daemon page's `alive`, a robust
//! futex that the kernel changes when the daemon dies. Without a time-out the sleep is `futex_waitv`, which a signal ends with EINTR or
//! which the kernel restarts, as the handler's SA_RESTART says. With a time-out it is plain FUTEX_WAIT in slices,
//! which a handled signal always ends with EINTR: just what Linux's `sock_intr_errno` does for SO_RCVTIMEO.

#![allow(unsafe_code)]

use super::Link;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::fence;
use rustix::io::Errno;
use rustix::thread::futex::{self, ClockId, Flags, Timespec, Wait, WaitFlags, WaitPtr, WaitvFlags};

/// Nanoseconds of `CLOCK_MONOTONIC`.
pub fn now_ns() -> u64 {
    let t = clock();
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

fn clock() -> Timespec {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec that lives here.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    Timespec { tv_sec: t.tv_sec, tv_nsec: t.tv_nsec }
}

/// Why a wait ended without what it waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A signal handler ran.
    Interrupted,
    /// The deadline has passed.
    TimedOut,
    /// The daemon is gone.
    Dead,
}

/// How long to spin before sleeping; adapts. One for a process.
pub struct SpinPolicy {
    budget_ns: AtomicU32,
    max_ns: AtomicU32,
}

/// Below this the spin is only one look.
const MIN_SPIN_NS: u32 = 2_000;

impl SpinPolicy {
    /// Spins at most `max_ns` (about the cost of a wake-up across cores).
    pub const fn new(max_ns: u32) -> SpinPolicy {
        SpinPolicy { budget_ns: AtomicU32::new(max_ns), max_ns: AtomicU32::new(max_ns) }
    }

    /// Time to spin now.
    pub fn budget_ns(&self) -> u64 {
        self.budget_ns.load(Relaxed).into()
    }

    /// Says how a wait went: its whole length, spinning and sleeping. One that a full spin would have caught makes the next spin
    /// longer; a longer one halves it, so that an idle app is quiet.
    pub fn waited(&self, ns: u64) {
        let (budget, max) = (self.budget_ns.load(Relaxed), self.max_ns.load(Relaxed));
        let next = if ns <= 2 * u64::from(max) { (budget * 2).max(MIN_SPIN_NS) } else { budget / 2 };
        self.budget_ns.store(next.min(max), Relaxed);
    }
}

impl Link {
    /// Waits until `ready()`, at most until `deadline` (`CLOCK_MONOTONIC` nanoseconds). `word` is what the daemon wakes
    /// after making `ready()` true.
    pub fn wait(&self, word: &AtomicU32, deadline: Option<u64>, mut ready: impl FnMut() -> bool) -> Result<(), Stop> {
        let start = now_ns();
        if self.spin(start, &mut ready)? {
            self.spin.waited(now_ns().saturating_sub(start));
            return Ok(());
        }
        let result = loop {
            word.store(1, SeqCst);
            fence(SeqCst);
            if ready() {
                break Ok(());
            }
            if self.dead() {
                self.pass_on_death();
                break Err(Stop::Dead);
            }
            let slept = match deadline {
                None => self.sleep(word),
                Some(at) => self.sleep_until(word, at),
            };
            match slept {
                Ok(()) => {}
                // What we waited for may have come together with the signal.
                Err(stop) => break if ready() { Ok(()) } else { Err(stop) },
            }
        };
        self.spin.waited(now_ns().saturating_sub(start));
        result
    }

    fn spin(&self, start: u64, ready: &mut impl FnMut() -> bool) -> Result<bool, Stop> {
        let budget = self.spin.budget_ns();
        loop {
            if ready() {
                return Ok(true);
            }
            if self.dead() {
                return Err(Stop::Dead);
            }
            if now_ns().saturating_sub(start) >= budget {
                return Ok(false);
            }
            rustix::thread::sched_yield();
        }
    }

    /// Sleeps while `word` is 1 and the daemon lives. `Ok`: look again.
    fn sleep(&self, word: &AtomicU32) -> Result<(), Stop> {
        let alive = &self.page.get().alive;
        let mut waiters = [Wait::new(), Wait::new()];
        for (w, (word, value)) in waiters.iter_mut().zip([(word, 1), (alive, self.alive_word())]) {
            w.val = u64::from(value);
            w.uaddr = WaitPtr::new(word.as_ptr().cast());
            w.flags = WaitFlags::SIZE_U32;
        }
        match futex::waitv(&waiters, WaitvFlags::empty(), None, ClockId::Monotonic) {
            Err(Errno::INTR) => Err(Stop::Interrupted),
            Err(Errno::NOSYS | Errno::PERM | Errno::ACCESS) => self.sleep_slice(word, FALLBACK_SLICE_NS),
            _ => Ok(()),
        }
    }

    fn sleep_until(&self, word: &AtomicU32, deadline: u64) -> Result<(), Stop> {
        let left = deadline.saturating_sub(now_ns());
        if left == 0 {
            return Err(Stop::TimedOut);
        }
        self.sleep_slice(word, left.min(TIMED_SLICE_NS))
    }

    fn sleep_slice(&self, word: &AtomicU32, ns: u64) -> Result<(), Stop> {
        let slice = Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
        match futex::wait(word, Flags::empty(), 1, Some(&slice)) {
            Err(Errno::INTR) => Err(Stop::Interrupted),
            _ => Ok(()),
        }
    }
}

/// Longest sleep without a look at `alive` where `futex_waitv` is missing (Linux before 5.16, some sandboxes).
const FALLBACK_SLICE_NS: u64 = 200_000_000;
/// The same for waits with a time-out.
const TIMED_SLICE_NS: u64 = 500_000_000;

/// A deadline that never comes. Unlike none at all it makes every handled signal end the wait.
pub const FAR: u64 = u64::MAX;

/// The moment `ms` milliseconds from now; `None` for 0, which means for ever.
pub fn deadline_ms(ms: u32) -> Option<u64> {
    (ms != 0).then(|| now_ns() + u64::from(ms) * 1_000_000)
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
        p.waited(60_000);
        assert_eq!(p.budget_ns(), u64::from(MIN_SPIN_NS));
        for _ in 0..10 {
            p.waited(1_000);
        }
        assert_eq!(p.budget_ns(), 50_000);
    }
}
