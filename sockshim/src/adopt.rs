//! Engine sockets that came from elsewhere: inherited over `exec`, or received in a message.

#![allow(unsafe_code)]

use crate::ctx;
use crate::keep::{each_open_fd, is_marked, is_placeholder};
use crate::log::say;
use crate::offload;
use crate::table::{Entry, Kind, entry, get, tables};
use core::sync::atomic::Ordering::Relaxed;
use libc::c_int;
use rustix::fd::BorrowedFd;
use toe_core::app::Sock;
use toe_core::app::adopt::Claim;
use toe_core::shm::{SockState, app_flags};

/// Runs before the program does. A program that inherits nothing pays for one look at its descriptors.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    if ctx::enabled() {
        crate::hooks_exec::resolve();
        crate::image::remember();
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

/// The same for a descriptor that came in a message: the daemon waits for it to arrive, even where the socket is known.
pub fn receive(fd: c_int) {
    if entry(fd).kind() != Kind::None || !is_placeholder(fd) || !is_marked(fd) {
        return;
    }
    come_in(fd);
    // SAFETY: the program's descriptor, open during its call.
    let claim = Claim::Placeholder(unsafe { BorrowedFd::borrow_raw(fd) });
    if let Some(held) = get(fd) {
        let _ = held.sock.link.adopt_too(claim);
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
    let (n, id) = ctx::adopt(Claim::Placeholder(unsafe { BorrowedFd::borrow_raw(fd) }))?;
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
