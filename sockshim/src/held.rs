//! Engine sockets in use by a call.

use crate::table::{Entry, Kind, Local, Tables, entry, tables};
use core::sync::atomic::Ordering::{AcqRel, Acquire};
use toe_core::app::Sock;

/// An engine socket in use by one call: it is not closed before this is dropped.
pub struct Held {
    pub tables: &'static Tables,
    pub local: &'static Local,
    pub sock: Sock<'static>,
    pub hybrid: bool,
    /// The descriptor it was reached by.
    pub fd: i32,
    index: usize,
}

/// The engine socket behind `fd`, if it is one.
#[inline]
pub fn get(fd: i32) -> Option<Held> {
    let e = entry(fd);
    match e.kind() {
        Kind::Engine | Kind::Hybrid => hold(fd, e),
        _ => None,
    }
}

/// As [`get`], but not for hybrid listeners, whose options and names are the kernel's.
#[inline]
pub fn engine(fd: i32) -> Option<Held> {
    let e = entry(fd);
    if e.kind() == Kind::Engine { hold(fd, e) } else { None }
}

/// As [`engine`], but not for relayed sockets either, whose data calls are the placeholder's.
#[inline]
pub fn stream(fd: i32) -> Option<Held> {
    engine(fd).filter(|h| !h.sock.relayed())
}

/// As [`get`], but not for relayed sockets.
#[inline]
pub fn unrelayed(fd: i32) -> Option<Held> {
    get(fd).filter(|h| !h.sock.relayed())
}

fn hold(fd: i32, mut e: Entry) -> Option<Held> {
    crate::fork::check_process();
    let tables = tables()?;
    loop {
        let index = e.local_index();
        let local = tables.locals.get(index)?;
        if local.refs.fetch_update(AcqRel, Acquire, |r| (r > 0).then_some(r + 1)).is_ok() {
            if entry(fd) == e
                && let Some(sock) = local.sock()
            {
                return Some(Held { tables, local, sock, hybrid: e.kind() == Kind::Hybrid, fd, index });
            }
            tables.unref(index);
        }
        let now = entry(fd);
        if now == e || !matches!(now.kind(), Kind::Engine | Kind::Hybrid) {
            return None;
        }
        e = now;
    }
}

/// Counts a waiting call until it is dropped.
pub struct Waiting<'a>(&'a Local);

impl Held {
    /// This call is about to wait.
    pub fn waiting(&self) -> Waiting<'_> {
        self.local.waiters.fetch_add(1, AcqRel);
        Waiting(self.local)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiters.fetch_sub(1, AcqRel);
    }
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        self.tables.unref(self.index);
    }
}
