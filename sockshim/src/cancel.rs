//! `pthread_cancel`: the hooks are cancellation points where libc's functions are (POSIX.1-2017, XSH 2.9.5).
//!
//! A thread that is cancelled unwinds its stack. No value of ours that has something to undo may be on it then, so it happens in two
//! places only: in [`call`], around a system call of which the hooks' callers hold nothing, and in [`point`], outside
//! the hook, after its waits have ended as if by a signal. Functions on the way are not `extern "C"`: these stop what unwinds.

#![allow(unsafe_code)]

use crate::ctx;
use crate::table::MAX_LINKS;
use core::cell::Cell;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use core::sync::atomic::{AtomicU32, fence};
use libc::c_int;
use rustix::thread::futex::{self, Flags, Timespec};
use toe_core::app::wait::Interrupts;

const ASYNCHRONOUS: c_int = 1;
const ENABLE: c_int = 0;
const DISABLE: c_int = 1;

// With panics that abort, the compiler must not watch these calls: its way of watching would stop the unwinding.
#[cfg(panic = "unwind")]
unsafe extern "C-unwind" {
    fn pthread_setcanceltype(new: c_int, old: *mut c_int) -> c_int;
    fn pthread_testcancel();
}
#[cfg(not(panic = "unwind"))]
unsafe extern "C" {
    fn pthread_setcanceltype(new: c_int, old: *mut c_int) -> c_int;
    fn pthread_testcancel();
}
unsafe extern "C" {
    fn pthread_setcancelstate(new: c_int, old: *mut c_int) -> c_int;
}

/// What the engine's waits listen to.
pub static INTERRUPTS: Interrupts = Interrupts::new(asked);

/// Threads that were cancelled and have not been seen to act on it; 0: free.
static TARGETS: [AtomicUsize; 256] = [const { AtomicUsize::new(0) }; 256];
static NEXT: AtomicUsize = AtomicUsize::new(0);
/// Wake-ups that may still be passed on, see [`pass_on`].
static PASSES: AtomicU32 = AtomicU32::new(0);
const MAX_PASSES: u32 = 64;
/// Counts threads that were reached.
static REACHED: AtomicU32 = AtomicU32::new(0);
const PASS_NS: i64 = 2_000_000;

thread_local! {
    /// A wait of this thread ended because it was cancelled.
    static ENDED: Cell<bool> = const { Cell::new(false) };
}

fn me() -> usize {
    // SAFETY: this thread's handle, a number.
    unsafe { libc::pthread_self() as usize }
}

/// Has this thread been cancelled, and does it allow it now?
fn asked() -> bool {
    if !TARGETS.iter().any(|t| t.load(Acquire) == me()) {
        return false;
    }
    let mut state = ENABLE;
    // SAFETY: sets the state of this thread, and sets it back.
    unsafe {
        pthread_setcancelstate(DISABLE, &raw mut state);
        pthread_setcancelstate(state, core::ptr::null_mut());
    }
    let yes = state == ENABLE;
    if yes {
        ENDED.set(true);
    }
    yes
}

/// To be asked before a sleep in the kernel's poll, after what would end it is armed.
#[inline]
pub fn due() -> bool {
    INTERRUPTS.epoch() != 0 && asked()
}

/// One of several sleepers on one epoll descriptor was woken for nothing: another was meant, perhaps. The kernel wakes one at a
/// time, the latest first; so the wake-up is passed on, and we stay out of the others' way until the right one was reached,
/// but not for long.
pub fn pass_on(poke: impl FnOnce()) {
    let reached = REACHED.load(Acquire);
    if passing() {
        poke();
        let limit = Timespec { tv_sec: 0, tv_nsec: PASS_NS };
        let _ = futex::wait(&REACHED, Flags::PRIVATE, reached, Some(&limit));
    }
}

/// Was a thread cancelled a short while ago? Then who takes a wake-up that is not for it leaves another behind.
pub fn passing() -> bool {
    PASSES.load(Relaxed) != 0 && PASSES.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)).is_ok()
}

fn forget_me() {
    TARGETS.iter().for_each(|t| {
        let _ = t.compare_exchange(me(), 0, AcqRel, Relaxed);
    });
    REACHED.fetch_add(1, AcqRel);
    let _ = futex::wake(&REACHED, Flags::PRIVATE, i32::MAX as u32);
}

/// Makes `hook` a cancellation point.
#[inline(always)]
pub fn point<R: PartialEq + From<i8>>(mut hook: impl FnMut() -> R) -> R {
    loop {
        if INTERRUPTS.epoch() != 0 {
            // SAFETY: nothing of ours is on the stack.
            unsafe { pthread_testcancel() };
        }
        let r = hook();
        if INTERRUPTS.epoch() == 0 || r != R::from(-1) || !ENDED.replace(false) {
            return r;
        }
        // Goes on with the test above. Should that come back, it was another thread of the same handle, long gone.
        forget_me();
    }
}

/// A system call that may block, as a cancellation point: for descriptors that are the kernel's. Asynchronous
/// cancellation for the time of the call, as in libc before 2.41.
#[inline(never)]
pub fn call(nr: libc::c_long, args: [usize; 6]) -> isize {
    if single_threaded() {
        return crate::sys::call(nr, args);
    }
    let mut old = 0;
    // SAFETY: this thread's cancellation type, set and set back; no value with a destructor is in this frame, nor in
    // that of a hook that passes a call on.
    unsafe { pthread_setcanceltype(ASYNCHRONOUS, &raw mut old) };
    let r = crate::sys::call(nr, args);
    // SAFETY: as above.
    unsafe { pthread_setcanceltype(old, core::ptr::null_mut()) };
    r
}

/// libc knows of no other thread (glibc 2.32).
#[cfg(target_env = "gnu")]
#[inline(always)]
fn single_threaded() -> bool {
    unsafe extern "C" {
        static __libc_single_threaded: core::ffi::c_char;
    }
    // SAFETY: a byte that libc writes when threads are made.
    unsafe { (&raw const __libc_single_threaded).read_volatile() != 0 }
}

#[cfg(not(target_env = "gnu"))]
fn single_threaded() -> bool {
    false
}

/// `block!(SYS_read, fd, …)`: as `sys!`, a cancellation point.
macro_rules! block {
    ($nr:ident $(, $arg:expr)* $(,)?) => {{
        let mut args = [0usize; 6];
        let given: &[usize] = &[$($arg as usize),*];
        args[..given.len()].copy_from_slice(given);
        $crate::cancel::call(libc::$nr, args)
    }};
}
pub(crate) use block;

#[unsafe(no_mangle)]
extern "C" fn pthread_cancel(thread: libc::pthread_t) -> c_int {
    let Some(cancel) = crate::real::real!(pthread_cancel: extern "C" fn(libc::pthread_t) -> c_int) else {
        return libc::ENOSYS;
    };
    // Known before libc acts on it: the thread may be gone right after.
    let target = thread as usize;
    let free = TARGETS.iter().find(|t| t.compare_exchange(0, target, SeqCst, Relaxed).is_ok());
    if free.is_none() {
        TARGETS[NEXT.fetch_add(1, Relaxed) % TARGETS.len()].store(target, SeqCst);
    }
    let outcome = cancel(thread);
    if outcome == 0 {
        PASSES.store(MAX_PASSES, Relaxed);
        INTERRUPTS.raise();
        fence(SeqCst);
        (0..MAX_LINKS).filter_map(ctx::link).for_each(|link| link.poke_all());
    }
    outcome
}
