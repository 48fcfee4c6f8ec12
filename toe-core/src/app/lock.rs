//! Locks in shared memory, between the threads of all processes that hold a socket. The word is the owner's thread id, so
//! that a lock whose owner died can be taken over; [`WAITERS`] says that somebody sleeps on it.

use core::cell::Cell;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use rustix::thread::futex::{self, Flags, Timespec};

/// Somebody sleeps in a futex on the lock word.
pub const WAITERS: u32 = 1 << 31;
/// Tries, with `sched_yield` between them, before sleeping.
const YIELDS: u32 = 64;
/// A sleeper looks this often whether the owner is still alive.
const OWNER_CHECK_NS: i64 = 50_000_000;

thread_local! {
    static TID: Cell<u32> = const { Cell::new(0) };
}

/// This thread's id, from the kernel once. After `fork` call [`forget_tid`].
#[inline]
pub fn tid() -> u32 {
    TID.with(|t| {
        if t.get() == 0 {
            t.set(rustix::thread::gettid().as_raw_nonzero().get() as u32);
        }
        t.get()
    })
}

/// In a forked child: the remembered id is the parent's.
pub fn forget_tid() {
    TID.with(|t| t.set(0));
}

/// Held until dropped.
pub struct Guard<'a>(&'a AtomicU32);

/// Takes `word`. `None`: this thread holds it already (a signal handler interrupted its own call).
#[inline]
pub fn lock(word: &AtomicU32) -> Option<Guard<'_>> {
    let me = tid();
    if word.compare_exchange(0, me, Acquire, Relaxed).is_ok() {
        return Some(Guard(word));
    }
    contended(word, me).then(|| Guard(word))
}

/// Takes `word` if it is free: for a process that must not wait for what an app does.
pub fn try_lock(word: &AtomicU32) -> Option<Guard<'_>> {
    word.compare_exchange(0, tid(), Acquire, Relaxed).is_ok().then(|| Guard(word))
}

#[cold]
fn contended(word: &AtomicU32, me: u32) -> bool {
    // Once we have slept, others may sleep too without our knowing: keep the bit.
    let mut keep = 0;
    for round in 0u64.. {
        let now = word.load(Relaxed);
        if now & !WAITERS == me {
            return false;
        }
        if now & !WAITERS == 0 {
            if word.compare_exchange(now, me | keep | (now & WAITERS), AcqRel, Relaxed).is_ok() {
                return true;
            }
            continue;
        }
        if round < u64::from(YIELDS) {
            rustix::thread::sched_yield();
            continue;
        }
        keep = WAITERS;
        if now & WAITERS == 0 && word.compare_exchange(now, now | WAITERS, AcqRel, Relaxed).is_err() {
            continue;
        }
        let slice = Timespec { tv_sec: 0, tv_nsec: OWNER_CHECK_NS };
        let slept = futex::wait(word, Flags::empty(), now | WAITERS, Some(&slice));
        if slept == Err(rustix::io::Errno::TIMEDOUT) && !alive(now & !WAITERS) {
            // Only one of those who see the dead owner gets it.
            if word.compare_exchange(now | WAITERS, me | WAITERS, AcqRel, Relaxed).is_ok() {
                return true;
            }
        }
    }
    false
}

fn alive(tid: u32) -> bool {
    match rustix::process::Pid::from_raw(tid as i32) {
        Some(pid) => rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH),
        None => false,
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.0.swap(0, AcqRel) & WAITERS != 0 {
            let _ = futex::wake(self.0, Flags::empty(), 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excludes_and_knows_itself() {
        let (word, count) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..2_000 {
                        let _held = lock(&word).unwrap();
                        let seen = count.load(Relaxed);
                        if seen % 64 == 0 {
                            rustix::thread::sched_yield();
                        }
                        count.store(seen + 1, Relaxed);
                    }
                });
            }
        });
        assert_eq!(count.load(Relaxed), 8_000);
        let held = lock(&word).unwrap();
        assert!(lock(&word).is_none());
        drop(held);
        assert_eq!(word.load(Relaxed), 0);
    }

    #[test]
    fn a_dead_owner_is_replaced() {
        let gone = std::thread::spawn(tid).join().unwrap();
        let word = AtomicU32::new(gone);
        assert!(lock(&word).is_some());
    }
}
