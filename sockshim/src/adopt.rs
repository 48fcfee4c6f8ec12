//! Engine sockets that came from elsewhere: inherited over `exec`, or received in a message.

#![allow(unsafe_code)]

use crate::ctx;
use crate::keep::{each_open_fd, is_marked, is_placeholder};
use crate::log::say;
use crate::offload;
use crate::table::{Entry, Kind, entry, tables};
use core::sync::atomic::Ordering::Relaxed;
use libc::c_int;
use rustix::fd::BorrowedFd;
use toe_core::app::Sock;
use toe_core::shm::{SockState, app_flags};

/// Runs before the program does. A program that inherits nothing pays for one look at its descriptors.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    if ctx::enabled() {
        crate::hooks_exec::resolve();
        each_open_fd(come_in);
    }
}

/// Adopts the socket behind `fd`, if it is the placeholder of a kept one.
pub fn come_in(fd: c_int) {
    if entry(fd).kind() == Kind::None && is_placeholder(fd) && is_marked(fd) && ctx::init() {
        let outcome = take_up(fd);
        say!("fd {fd}: {}", if outcome.is_some() { "adopted" } else { "a placeholder of no use" });
    }
}

fn take_up(fd: c_int) -> Option<()> {
    let t = tables()?;
    // Further descriptors of the same socket.
    let new = match t.share_by_cookie(offload::cookie(fd)) {
        Some(e) => e,
        None => first_of(fd)?,
    };
    t.enter(fd, new);
    Some(())
}

fn first_of(fd: c_int) -> Option<Entry> {
    // SAFETY: the program's descriptor, open during its call or before it starts.
    let (n, id) = ctx::adopt(unsafe { BorrowedFd::borrow_raw(fd) })?;
    let sock = Sock::of(ctx::link(n)?, id)?;
    let v6 = sock.slot.app_flags.load(Relaxed) & app_flags::INET6 != 0;
    let Some(new) = tables()?.new_local(n, id, v6, Kind::Engine) else {
        sock.release();
        return None;
    };
    if sock.state() == SockState::Established {
        tables()?.connected(new);
    }
    Some(new)
}
