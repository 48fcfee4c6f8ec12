//! Raw system calls: usable before libc is set up, inside allocators and signal handlers, and without touching errno.
//!
//! The functions are safe to call although the kernel may write memory through their arguments, because the shim only ever
//! passes on what the program itself passed to the hooked function, or buffers of its own that live through the call.

#![allow(unsafe_code)]

use rustix::io::Errno;

/// One system call; `-errno` on failure.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn call(nr: libc::c_long, a: [usize; 6]) -> isize {
    let ret: isize;
    // SAFETY: see the module's comment; the clobbers are those of the x86-64 system call convention.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") nr as isize => ret,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    ret
}

/// One system call; `-errno` on failure.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub fn call(nr: libc::c_long, a: [usize; 6]) -> isize {
    let ret: isize;
    // SAFETY: see the module's comment; the registers are those of the arm64 system call convention.
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") nr as usize,
            inlateout("x0") a[0] as isize => ret,
            in("x1") a[1], in("x2") a[2], in("x3") a[3], in("x4") a[4], in("x5") a[5],
            options(nostack),
        );
    }
    ret
}

/// `sys!(SYS_read, fd, buf, len)`: a raw call with up to six arguments, each cast to `usize`.
macro_rules! sys {
    ($nr:ident $(, $arg:expr)* $(,)?) => {{
        let mut args = [0usize; 6];
        let given: &[usize] = &[$($arg as usize),*];
        args[..given.len()].copy_from_slice(given);
        $crate::sys::call(libc::$nr, args)
    }};
}
pub(crate) use sys;

/// What a libc function returns for a raw result: -1 and errno, or the value.
#[inline]
pub fn libc_ret(raw: isize) -> isize {
    if (-4095..0).contains(&raw) {
        set_errno(-raw as i32);
        return -1;
    }
    raw
}

/// The same for an outcome of ours.
#[inline]
pub fn ret(outcome: Result<usize, Errno>) -> isize {
    match outcome {
        Ok(n) => n as isize,
        Err(e) => {
            set_errno(e.raw_os_error());
            -1
        }
    }
}

/// A raw result as a `Result`.
#[inline]
pub fn check(raw: isize) -> Result<usize, Errno> {
    if (-4095..0).contains(&raw) { Err(Errno::from_raw_os_error(-raw as i32)) } else { Ok(raw as usize) }
}

/// Sets this thread's errno.
pub fn set_errno(e: i32) {
    // SAFETY: libc gives the address of this thread's errno.
    unsafe { *libc::__errno_location() = e };
}

/// Process id, from the kernel.
pub fn getpid() -> u32 {
    sys!(SYS_getpid) as u32
}

/// Closes a descriptor of ours.
pub fn close(fd: i32) {
    if fd >= 0 {
        sys!(SYS_close, fd);
    }
}

/// Maps zeroed private memory; null if there is none.
pub fn map(len: usize) -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let p = sys!(SYS_mmap, 0, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1isize, 0);
    if (-4095..0).contains(&p) { core::ptr::null_mut() } else { p as *mut u8 }
}

/// Gives [`map`]ped memory back.
pub fn unmap(p: *mut u8, len: usize) {
    sys!(SYS_munmap, p, len);
}

/// SIGPIPE to this thread, as a write to a closed socket does.
pub fn raise_sigpipe() {
    sys!(SYS_tgkill, getpid(), toe_core::app::lock::tid(), libc::SIGPIPE);
}

/// A process-private lock, for short sections. Not reentrant; `try_lock` fails rather than wait for itself.
pub struct Lock(core::sync::atomic::AtomicU32);

/// Held until dropped.
pub struct LockGuard<'a>(&'a Lock);

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use rustix::thread::futex::{self, Flags};

impl Lock {
    /// Unlocked.
    pub const fn new() -> Lock {
        Lock(AtomicU32::new(0))
    }

    /// Waits for it.
    pub fn lock(&self) -> LockGuard<'_> {
        self.acquire();
        LockGuard(self)
    }

    /// Takes it without a guard; for `fork`.
    pub fn acquire(&self) {
        if self.0.compare_exchange(0, 1, Acquire, Relaxed).is_ok() {
            return;
        }
        for _ in 0..100 {
            if self.0.load(Relaxed) == 0 && self.0.compare_exchange(0, 1, Acquire, Relaxed).is_ok() {
                return;
            }
            core::hint::spin_loop();
        }
        while self.0.swap(2, Acquire) != 0 {
            let _ = futex::wait(&self.0, Flags::PRIVATE, 2, None);
        }
    }

    /// Gives it back without a guard.
    pub fn release(&self) {
        if self.0.swap(0, Release) == 2 {
            let _ = futex::wake(&self.0, Flags::PRIVATE, 1);
        }
    }
}

impl Drop for LockGuard<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}
