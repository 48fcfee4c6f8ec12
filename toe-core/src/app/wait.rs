//! Waiting for the daemon: spin for about as long as a wake-up would cost, then arm, look again, and sleep in a futex.
//!
//! The sleep covers two words: the one the daemon wakes (`rx_wait` or `tx_wait`), and the daemon page's `alive`, a robust
//! futex that the kernel changes when the daemon dies. Without a time-out the sleep is `futex_waitv`, which a signal ends with EINTR or
//! which the kernel restarts, as the handler's SA_RESTART says. With a time-out it is plain FUTEX_WAIT in slices,
//! which a handled signal always ends with EINTR: just what Linux's `sock_intr_errno` does for SO_RCVTIMEO.

#![allow(unsafe_code)]

use super::Link;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, SeqCst};
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

/// A way to end other threads' waits before their time (the shim's `pthread_cancel`).
pub struct Interrupts {
    epoch: AtomicU32,
    asked: fn() -> bool,
}

impl Interrupts {
    /// `asked` says whether the calling thread is to stop waiting.
    pub const fn new(asked: fn() -> bool) -> Interrupts {
        Interrupts { epoch: AtomicU32::new(0), asked }
    }

    /// 0 until the first [`Interrupts::raise`].
    #[inline(always)]
    pub fn epoch(&self) -> u32 {
        self.epoch.load(Acquire)
    }

    /// Lets all waiting threads ask. (Those with a time-out do so within half a second.)
    pub fn raise(&self) {
        // Never 0 again.
        self.epoch.fetch_add(2, SeqCst);
        self.epoch.fetch_or(1, SeqCst);
        let _ = futex::wake(&self.epoch, Flags::PRIVATE, i32::MAX as u32);
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
            let epoch = self.interrupts.map_or(0, Interrupts::epoch);
            if ready() {
                break Ok(());
            }
            if self.dead() {
                self.pass_on_death();
                break Err(Stop::Dead);
            }
            if epoch != 0 && self.interrupts.is_some_and(|i| (i.asked)()) {
                break Err(Stop::Interrupted);
            }
            let slept = match deadline {
                None => self.sleep(word, epoch),
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

    /// Sleeps while `word` is 1, the daemon lives, and nobody interrupts. `Ok`: look again.
    fn sleep(&self, word: &AtomicU32, epoch: u32) -> Result<(), Stop> {
        let alive = &self.page.get().alive;
        let mut waiters = [Wait::new(), Wait::new(), Wait::new()];
        let interrupts = self.interrupts.map(|i| (&i.epoch, epoch, WaitFlags::SIZE_U32 | WaitFlags::PRIVATE));
        let words = [(word, 1, WaitFlags::SIZE_U32), (alive, self.alive_word(), WaitFlags::SIZE_U32)];
        let mut count = 0;
        for (w, (word, value, flags)) in waiters.iter_mut().zip(words.into_iter().chain(interrupts)) {
            w.val = u64::from(value);
            w.uaddr = WaitPtr::new(word.as_ptr().cast());
            w.flags = flags;
            count += 1;
        }
        match futex::waitv(&waiters[..count], WaitvFlags::empty(), None, ClockId::Monotonic) {
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
