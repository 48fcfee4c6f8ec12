//! `DaemonPage::alive`: a robust futex that tells every sleeping app that the daemon is gone, however it went.
//!
//! The kernel keeps for each thread a list of futex words. When the thread ends (the main thread: with the process), it
//! sets FUTEX_OWNER_DIED in those that hold the thread's id and wakes one waiter; that one wakes the others.
//!
//! `unsafe`: get_robust_list and set_robust_list, and the list itself.

#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use toe_core::shm::DaemonPageMap;

/// Bit of a futex word: somebody may sleep on it.
const FUTEX_WAITERS: u32 = 0x8000_0000;
/// Bit of a futex word: its owner died.
const FUTEX_OWNER_DIED: u32 = 0x4000_0000;

/// `struct robust_list` of the kernel.
#[repr(C)]
struct Link {
    next: *mut Link,
}

/// `struct robust_list_head` of the kernel, and its one entry.
#[repr(C)]
struct Head {
    list: Link,
    /// From an entry to its futex word.
    futex_offset: libc::c_long,
    list_op_pending: *mut Link,
    entry: Link,
}

/// Bytes of `struct robust_list_head`.
const HEAD_LEN: usize = std::mem::offset_of!(Head, entry);

/// While this lives, `alive` says so. Belongs to the thread that made it, which should be the process's main thread.
pub struct Alive {
    page: Arc<DaemonPageMap>,
    /// Never freed: see `drop`.
    head: *mut Head,
    previous: *mut libc::c_void,
    previous_len: usize,
    _not_send: PhantomData<*const ()>,
}

impl Alive {
    /// Declares the daemon alive, in the name of the calling thread. The C library's robust mutexes stop working in this
    /// thread; nothing here uses any.
    pub fn declare(page: Arc<DaemonPageMap>) -> io::Result<Alive> {
        let (mut previous, mut previous_len) = (ptr::null_mut::<libc::c_void>(), 0usize);
        // SAFETY: 0 is the calling thread; both pointers are to locals.
        let got = unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &mut previous, &mut previous_len) };
        if got != 0 {
            return Err(io::Error::last_os_error());
        }
        let head = Box::into_raw(Box::new(Head {
            list: Link { next: ptr::null_mut() },
            futex_offset: 0,
            list_op_pending: ptr::null_mut(),
            entry: Link { next: ptr::null_mut() },
        }));
        let word = &page.get().alive;
        // SAFETY: `head` was just allocated and is ours alone until the kernel hears of it.
        unsafe {
            let (first, entry) = (&raw mut (*head).list, &raw mut (*head).entry);
            (*first).next = entry;
            (*entry).next = first; // the end of the list is its head
            (*head).futex_offset = (word.as_ptr() as isize).wrapping_sub(entry as isize) as libc::c_long;
        }
        word.store(rustix::thread::gettid().as_raw_nonzero().get() as u32 | FUTEX_WAITERS, SeqCst);
        // SAFETY: the head stays allocated; the word stays mapped as long as this value (`page`), or the process.
        let set = unsafe { libc::syscall(libc::SYS_set_robust_list, head, HEAD_LEN) };
        if set != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Alive { page, head, previous, previous_len, _not_send: PhantomData })
    }
}

impl Drop for Alive {
    /// An orderly end: what the kernel would have done, and the thread's former list back.
    fn drop(&mut self) {
        let word = &self.page.get().alive;
        word.store(FUTEX_OWNER_DIED, SeqCst);
        let _ = rustix::thread::futex::wake(word, rustix::thread::futex::Flags::empty(), i32::MAX as u32);
        // SAFETY: the former head is the C library's and lives as long as the thread. If the kernel refused it, our head must
        // stay: it is emptied and leaked then.
        unsafe {
            if libc::syscall(libc::SYS_set_robust_list, self.previous, self.previous_len) == 0 {
                drop(Box::from_raw(self.head));
            } else {
                (*self.head).list.next = &raw mut (*self.head).list;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::futex::{Flags, wait};
    use std::io::{Read, Write};
    use std::sync::atomic::AtomicU32;

    /// Sleeps on `word` as long as it reads `value`, then says what it reads.
    fn sleep(word: &AtomicU32, value: u32) -> u32 {
        while word.load(SeqCst) == value {
            let _ = wait(word, Flags::empty(), value, None);
        }
        word.load(SeqCst)
    }

    #[test]
    fn an_orderly_end_wakes_sleepers() {
        let page = Arc::new(DaemonPageMap::create().unwrap());
        let alive = Alive::declare(page.clone()).unwrap();
        let word = page.get().alive.load(SeqCst);
        assert_ne!(word & FUTEX_WAITERS, 0);
        std::thread::scope(|s| {
            let sleepers: Vec<_> = (0..3).map(|_| s.spawn(|| sleep(&page.get().alive, word))).collect();
            drop(alive);
            for sleeper in sleepers {
                assert_eq!(sleeper.join().unwrap(), FUTEX_OWNER_DIED);
            }
        });
    }

    #[test]
    fn a_killed_process_wakes_a_sleeper() {
        let page = Arc::new(DaemonPageMap::create().unwrap());
        let (mut told, mut tell) = std::io::pipe().unwrap();
        // SAFETY: the child makes only system calls and plain memory accesses before it is killed, except for one small
        // allocation in `declare`; the C library keeps its allocator usable across fork.
        let child = unsafe { libc::fork() };
        if child == 0 {
            if let Ok(_alive) = Alive::declare(page.clone()) {
                let _ = tell.write_all(&[1]);
                loop {
                    // SAFETY: sleeps until a signal comes.
                    unsafe { libc::pause() };
                }
            }
            // SAFETY: ends the child without running anything of the test's.
            unsafe { libc::_exit(1) };
        }
        assert!(child > 0);
        drop(tell);
        told.read_exact(&mut [0]).expect("the child declares itself alive");
        let word = page.get().alive.load(SeqCst);
        assert_eq!(word, child as u32 | FUTEX_WAITERS);
        let end = std::thread::scope(|s| {
            let sleeper = s.spawn(|| sleep(&page.get().alive, word));
            let mut status = 0;
            // SAFETY: the child is ours and not yet waited for.
            unsafe {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, &mut status, 0);
            }
            sleeper.join().unwrap()
        });
        assert_eq!(end, FUTEX_OWNER_DIED | FUTEX_WAITERS);
    }
}
