//! Descriptors: close, dup, fcntl.

#![allow(unsafe_code)]

use crate::cancel::block;
use crate::fork::borrowed_memory;
use crate::hooks_life::fresh;
use crate::sys::{self, libc_ret, sys};
use crate::table::{Entry, Kind, cand, entry, get, tables};
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::{Acquire, Release};
use libc::{FILE, c_int, c_uint};
use toe_core::shm::app_flags;

pub fn close(fd: c_int) -> c_int {
    match take_entry(fd) {
        Kind::Internal => {
            sys::set_errno(libc::EBADF);
            -1
        }
        _ => libc_ret(block!(SYS_close, fd)) as c_int,
    }
}

/// Before the kernel closes `fd`: takes it out of the table, so that the number is free for others. The shim's own stay.
fn take_entry(fd: c_int) -> Kind {
    let kind = entry(fd).kind();
    if kind == Kind::None || kind == Kind::Internal || borrowed_memory() {
        return if kind == Kind::Internal && !borrowed_memory() { kind } else { Kind::None };
    }
    crate::fork::check_process();
    if let Some(t) = tables() {
        let e = t.swap(fd, Entry(0));
        t.drop_entry(fd, e);
    }
    kind
}

#[unsafe(no_mangle)]
extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const CLOEXEC: c_int = 4;
    let Some(t) = tables().filter(|_| flags & CLOEXEC == 0) else {
        return libc_ret(sys!(SYS_close_range, first, last, flags)) as c_int;
    };
    // The kernel closes the ranges between our own descriptors.
    let shared = borrowed_memory();
    let (mut from, mut outcome) = (first, 0);
    let mut close_up_to = |from: c_uint, to: c_uint| {
        let r = sys!(SYS_close_range, from, to, flags);
        if r < 0 {
            outcome = r;
        }
    };
    t.each(|fd, e| {
        let n = fd as c_uint;
        if n < first || n > last {
            return;
        }
        if e.kind() == Kind::Internal {
            // In a vfork child they are closed by exec.
            if n > from {
                close_up_to(from, n - 1);
            }
            from = n + 1;
        } else if !shared {
            take_entry(fd);
        }
    });
    if from <= last {
        close_up_to(from, last);
    }
    libc_ret(outcome) as c_int
}

#[unsafe(no_mangle)]
extern "C" fn closefrom(first: c_int) {
    close_range(first.max(0) as c_uint, c_uint::MAX, 0);
}

/// `new` is now another number for `old`'s socket.
fn copied(old: c_int, new: c_int) {
    let e = entry(old);
    if borrowed_memory() {
        return;
    }
    let Some(t) = tables() else { return };
    match e.kind() {
        Kind::Engine | Kind::Hybrid => {
            // Held, so that the socket is not closed between share and enter.
            let Some(_held) = get(old) else { return fresh(new) };
            t.share(e);
            t.enter(new, e);
        }
        Kind::Candidate => {
            t.mark(old, cand::DUP);
            t.enter(new, entry(old));
        }
        Kind::Epoll => {
            t.share(e);
            t.enter(new, e);
        }
        Kind::None | Kind::Internal => fresh(new),
    }
}

#[unsafe(no_mangle)]
extern "C" fn dup(fd: c_int) -> c_int {
    let new = sys!(SYS_dup, fd);
    if new >= 0 {
        copied(fd, new as c_int);
    }
    libc_ret(new) as c_int
}

fn dup_to(old: c_int, new: c_int, flags: Option<c_int>) -> c_int {
    if entry(new).kind() == Kind::Internal && old != new && !borrowed_memory() && !crate::internal::make_room(new) {
        // The program wants a number that is ours, and ours has nowhere to go.
        sys::set_errno(libc::EBUSY);
        return -1;
    }
    let r = match flags {
        Some(f) => sys!(SYS_dup3, old, new, f),
        // dup2 to itself only checks; dup3 would refuse.
        None if old == new => match sys!(SYS_fcntl, old, libc::F_GETFD) {
            e if e < 0 => e,
            _ => new as isize,
        },
        None => sys!(SYS_dup3, old, new, 0),
    };
    if r >= 0 && old != new {
        copied(old, new);
    }
    libc_ret(r) as c_int
}

#[unsafe(no_mangle)]
extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    dup_to(old, new, None)
}

#[unsafe(no_mangle)]
extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    dup_to(old, new, Some(flags))
}

/// fcntl takes its third argument in the register of a third argument, whether the caller passed one or not.
#[unsafe(no_mangle)]
extern "C" fn fcntl(fd: c_int, cmd: c_int, arg: usize) -> c_int {
    let kind = entry(fd).kind();
    match cmd {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            let new = sys!(SYS_fcntl, fd, cmd, arg);
            if new >= 0 {
                copied(fd, new as c_int);
            }
            libc_ret(new) as c_int
        }
        libc::F_SETFL if matches!(kind, Kind::Engine | Kind::Hybrid) => set_status(fd, arg),
        libc::F_GETFL if kind == Kind::Hybrid => {
            let mut status = sys!(SYS_fcntl, fd, cmd, 0);
            if status >= 0 && get(fd).is_some_and(|h| !h.sock.nonblocking()) {
                status &= !(libc::O_NONBLOCK as isize);
            }
            libc_ret(status) as c_int
        }
        _ => libc_ret(sys!(SYS_fcntl, fd, cmd, arg)) as c_int,
    }
}

fn set_status(fd: c_int, arg: usize) -> c_int {
    let Some(h) = get(fd) else { return libc_ret(sys!(SYS_fcntl, fd, libc::F_SETFL, arg)) as c_int };
    let keep = if h.hybrid { libc::O_NONBLOCK as usize } else { 0 };
    let r = sys!(SYS_fcntl, fd, libc::F_SETFL, arg | keep);
    if r >= 0 {
        h.sock.set_flag(app_flags::NONBLOCK, arg as c_int & libc::O_NONBLOCK != 0, false);
    }
    libc_ret(r) as c_int
}

#[unsafe(no_mangle)]
extern "C" fn fcntl64(fd: c_int, cmd: c_int, arg: usize) -> c_int {
    fcntl(fd, cmd, arg)
}

type Fclose = extern "C" fn(*mut FILE) -> c_int;

/// libc's fclose closes the descriptor without calling `close`.
#[unsafe(no_mangle)]
extern "C" fn fclose(stream: *mut FILE) -> c_int {
    static REAL: AtomicPtr<libc::c_void> = AtomicPtr::new(core::ptr::null_mut());
    if REAL.load(Acquire).is_null() {
        // SAFETY: a lookup by name; libc exports fclose.
        REAL.store(unsafe { libc::dlsym(libc::RTLD_NEXT, c"fclose".as_ptr()) }, Release);
    }
    // SAFETY: the program's stream.
    let fd = unsafe { libc::fileno(stream) };
    if fd >= 0 && entry(fd).kind() != Kind::None {
        // What is still in the buffer goes out while the socket is known. (fclose reports what fails now once more.)
        // SAFETY: the program's stream.
        unsafe { libc::fflush(stream) };
        take_entry(fd);
    }
    // SAFETY: fclose has this type.
    let real: Fclose = unsafe { core::mem::transmute(REAL.load(Acquire)) };
    real(stream)
}
