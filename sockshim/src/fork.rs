//! `fork`: by `pthread_atfork`, so that every caller of libc's fork is served and libc's own handlers run. Children of a bare
//! `clone` or `_Fork` are noticed by a page that the kernel wipes in them. Children of `vfork` share our memory until they exec: they
//! must not change the tables.

#![allow(unsafe_code)]

use crate::ctx;
use crate::epqueue;
use crate::sys::{self, sys};
use crate::table::{MAX_LINKS, Tables, tables};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32};
use toe_core::app::fork::ChildLink;
use toe_core::app::lock;

/// One word that reads 1 in the process that set it up, 0 in a child that nobody prepared.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());

/// What the parent prepared; written with all locks held.
struct Prepared(core::cell::UnsafeCell<[Option<ChildLink>; MAX_LINKS]>);

// SAFETY: only touched between prepare and parent/child, with `REGISTERING` and the epoll lock held.
unsafe impl Sync for Prepared {}

static PREPARED: Prepared = Prepared(core::cell::UnsafeCell::new([None; MAX_LINKS]));

/// Registers the handlers and makes the page. Once.
pub fn install() -> bool {
    static DONE: AtomicU32 = AtomicU32::new(0);
    if DONE.swap(1, AcqRel) != 0 {
        return true;
    }
    let page = sys::map(4096).cast::<AtomicU32>();
    if !page.is_null() && sys!(SYS_madvise, page, 4096, libc::MADV_WIPEONFORK) == 0 {
        // SAFETY: a fresh mapping of our own, aligned, never unmapped.
        unsafe { (*page).store(1, Release) };
        PAGE.store(page, Release);
    }
    // SAFETY: three handlers that live as long as the process.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) == 0 }
}

fn page() -> Option<&'static AtomicU32> {
    // SAFETY: null, or the mapping made by `install`.
    unsafe { PAGE.load(Acquire).as_ref() }
}

/// Called before a socket is used: adopts the process if it is a child that nobody prepared.
#[inline(always)]
pub fn check_process() {
    if let Some(p) = page()
        && p.load(Relaxed) == 0
    {
        adopt_self();
    }
}

/// Is this a `vfork` child, running on its parent's memory? It costs a system call; asked only where tables would change.
pub fn borrowed_memory() -> bool {
    page().is_some_and(|p| p.load(Relaxed) == 1) && sys::getpid() != ctx::OWNER.load(Relaxed)
}

extern "C" fn prepare() {
    let Some(t) = tables() else { return };
    check_process();
    ctx::REGISTERING.acquire();
    epqueue::LOCK.acquire();
    // SAFETY: both locks are held.
    prepare_links(t, unsafe { &mut *PREPARED.0.get() });
}

fn prepare_links(t: &'static Tables, prepared: &mut [Option<ChildLink>; MAX_LINKS]) {
    for (n, slot) in prepared.iter_mut().enumerate() {
        let Some(link) = ctx::link(n) else { continue };
        *slot =
            t.open_socks(n, link).next().is_some().then(|| link.prepare_child(t.open_socks(n, link)).ok()).flatten();
    }
}

extern "C" fn parent() {
    if tables().is_none() {
        return;
    }
    for n in 0..MAX_LINKS {
        // SAFETY: the locks taken in `prepare` are still held.
        let child = unsafe { (*PREPARED.0.get())[n].take() };
        if let (Some(link), Some(child)) = (ctx::link(n), child) {
            link.leave_to_child(child);
        }
    }
    epqueue::LOCK.release();
    ctx::REGISTERING.release();
}

extern "C" fn child() {
    let Some(t) = tables() else { return };
    lock::forget_tid();
    // SAFETY: the only thread of the child.
    become_child(t, unsafe { &mut *PREPARED.0.get() });
    epqueue::LOCK.release();
    ctx::REGISTERING.release();
}

fn become_child(t: &'static Tables, prepared: &mut [Option<ChildLink>; MAX_LINKS]) {
    for (n, slot) in prepared.iter_mut().enumerate() {
        let Some(link) = ctx::link(n) else { continue };
        t.swap(link.control_fd(), crate::table::Entry(0));
        link.become_child(slot.take());
        ctx::protect(link);
    }
    ctx::OWNER.store(sys::getpid(), Relaxed);
    if let Some(p) = page() {
        p.store(1, Release);
    }
    ctx::forget_current();
    t.recount();
}

/// A child made behind our back: as after `fork`, but only now.
#[cold]
fn adopt_self() {
    let Some(t) = tables() else { return };
    lock::forget_tid();
    let mut prepared = [None; MAX_LINKS];
    prepare_links(t, &mut prepared);
    become_child(t, &mut prepared);
}
