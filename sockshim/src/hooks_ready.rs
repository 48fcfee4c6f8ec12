//! poll, select, epoll.

#![allow(unsafe_code)]

use crate::cancel::block;
use crate::epqueue;
use crate::epset;
use crate::epwait::{self, Wait};
use crate::hooks_life::fresh;
use crate::poll::{Space, any_ours, poll_some};
use crate::sys::{self, libc_ret, ret, sys};
use crate::table::{Kind, engine, entry, tables};
use crate::user;
use core::sync::atomic::Ordering::SeqCst;
use libc::{
    POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, c_int, c_long, c_void, epoll_event, fd_set, nfds_t, pollfd,
    timespec, timeval,
};
use rustix::io::Errno;
use toe_core::app::wait::now_ns;

/// A deadline from a span of time.
pub fn after(seconds: i64, nanos: i64) -> Result<Option<u64>, Errno> {
    if seconds < 0 || !(0..1_000_000_000).contains(&nanos) {
        return Err(Errno::INVAL);
    }
    let span = (seconds as u64).saturating_mul(1_000_000_000).saturating_add(nanos as u64);
    // No look at the clock for "not at all".
    Ok(Some(if span == 0 { 0 } else { now_ns().saturating_add(span) }))
}

fn after_ms(ms: c_int) -> Option<u64> {
    match ms {
        0 => Some(0),
        ms if ms < 0 => None,
        ms => Some(now_ns() + ms as u64 * 1_000_000),
    }
}

/// Most descriptors of one poll that we look through; the kernel refuses more than RLIMIT_NOFILE itself.
const MAX_POLL: nfds_t = crate::table::MAX_FDS as nfds_t;

fn slice<'a>(fds: *mut pollfd, n: nfds_t) -> &'a mut [pollfd] {
    if n > MAX_POLL || too_many(n) || user::writable(fds, n as usize * size_of::<pollfd>()).is_err() || fds.is_null() {
        return &mut [];
    }
    // SAFETY: the program's array of `n` entries, and it is there.
    unsafe { core::slice::from_raw_parts_mut(fds, n as usize) }
}

/// More than RLIMIT_NOFILE? Few enough are not worth a system call.
fn too_many(n: nfds_t) -> bool {
    let mut limit = [u64::MAX; 2];
    if n > 64 {
        sys!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, 0, limit.as_mut_ptr());
    }
    n > limit[0]
}

pub fn poll(fds: *mut pollfd, n: nfds_t, ms: c_int) -> c_int {
    if !any_ours(slice(fds, n)) {
        let ts = [i64::from(ms / 1000), i64::from(ms % 1000) * 1_000_000];
        let tsp = if ms < 0 { core::ptr::null() } else { ts.as_ptr() };
        return libc_ret(block!(SYS_ppoll, fds, n, tsp, 0, 8)) as c_int;
    }
    ret(poll_some(slice(fds, n), after_ms(ms), core::ptr::null())) as c_int
}

pub fn ppoll(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const c_void) -> c_int {
    // SAFETY: the program's time-out, if any. (The kernel would write what is left of it; libc's ppoll hides that.)
    let span = unsafe { timeout.as_ref() };
    if !any_ours(slice(fds, n)) {
        let mut copy = span.map(|t| [t.tv_sec, t.tv_nsec]);
        let tsp = copy.as_mut().map_or(core::ptr::null_mut(), |t| t.as_mut_ptr());
        return libc_ret(block!(SYS_ppoll, fds, n, tsp, mask, 8)) as c_int;
    }
    let deadline = match span.map(|t| after(t.tv_sec, t.tv_nsec)).unwrap_or(Ok(None)) {
        Ok(d) => d,
        Err(e) => return ret(Err(e)) as c_int,
    };
    ret(poll_some(slice(fds, n), deadline, mask)) as c_int
}

pub fn __poll_chk(fds: *mut pollfd, n: nfds_t, ms: c_int, room: usize) -> c_int {
    fortify(n, room);
    poll(fds, n, ms)
}

pub fn __ppoll_chk(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const c_void, room: usize) -> c_int {
    fortify(n, room);
    ppoll(fds, n, timeout, mask)
}

fn fortify(n: nfds_t, room: usize) {
    if room / size_of::<pollfd>() < n as usize {
        // SAFETY: ends the process, as `__chk_fail` does.
        unsafe { libc::abort() };
    }
}

/// The three sets of select, as words of bits.
#[derive(Clone, Copy)]
struct Sets([*mut c_long; 3]);

const WORD: usize = c_long::BITS as usize;

impl Sets {
    fn has(&self, which: usize, fd: usize) -> bool {
        let set = self.0[which];
        // SAFETY: the program's sets hold at least `nfds` bits.
        !set.is_null() && unsafe { *set.add(fd / WORD) } & 1 << (fd % WORD) != 0
    }

    fn put(&self, which: usize, fd: usize, on: bool) {
        let set = self.0[which];
        if set.is_null() {
            return;
        }
        // SAFETY: as in `has`.
        unsafe {
            let word = set.add(fd / WORD);
            *word = if on { *word | 1 << (fd % WORD) } else { *word & !(1 << (fd % WORD)) };
        }
    }

    fn members(&self, nfds: usize) -> impl Iterator<Item = usize> + '_ {
        (0..nfds).filter(|&fd| (0..3).any(|w| self.has(w, fd)))
    }

    /// Are any engine sockets in them? Sets that are not there are the kernel's to complain of.
    fn any_ours(&self, nfds: usize) -> bool {
        let mut any = false;
        let there = |&set: &*mut c_long| set.is_null() || user::writable(set, nfds.div_ceil(8)).is_ok();
        if tables().is_some() && self.0.iter().all(there) {
            for fd in self.members(nfds) {
                match entry(fd as c_int).kind() {
                    Kind::Engine | Kind::Hybrid => any = true,
                    Kind::Epoll => epset::watched(fd as c_int),
                    _ => {}
                }
            }
        }
        any
    }
}

/// What select's three sets ask for in poll's terms, and what counts as ready for each (Linux's POLLIN_SET and so on).
const ASK: [i16; 3] = [POLLIN, POLLOUT, POLLPRI];
const READY: [i16; 3] = [POLLIN | POLLHUP | POLLERR, POLLOUT | POLLERR, POLLPRI];

fn select_some(nfds: usize, sets: Sets, deadline: Option<u64>, mask: *const c_void) -> Result<usize, Errno> {
    let mut fds = Space::<pollfd, 64>::new(sets.members(nfds).count())?;
    for fd in sets.members(nfds) {
        let events = (0..3).filter(|&w| sets.has(w, fd)).fold(0, |e, w| e | ASK[w]);
        fds.push(pollfd { fd: fd as c_int, events, revents: 0 });
    }
    loop {
        poll_some(fds.all(), deadline, mask)?;
        if fds.all().iter().any(|p| p.revents & POLLNVAL != 0) {
            return Err(Errno::BADF);
        }
        let hit = |p: &pollfd, w: usize| sets.has(w, p.fd as usize) && p.revents & READY[w] != 0;
        let count = fds.all().iter().map(|p| (0..3).filter(|&w| hit(p, w)).count()).sum();
        // poll also ends for a hang-up that nobody asked about (only a write set): wait on, without that descriptor.
        if count == 0 && deadline.is_none_or(|d| d > now_ns()) {
            for p in fds.all().iter_mut().filter(|p| p.revents != 0) {
                p.fd = -1;
            }
            continue;
        }
        for p in fds.all().iter().filter(|p| p.fd >= 0) {
            for (w, ready) in READY.iter().enumerate() {
                if sets.has(w, p.fd as usize) {
                    sets.put(w, p.fd as usize, p.revents & ready != 0);
                }
            }
        }
        return Ok(count);
    }
}

pub fn select(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *mut timeval) -> c_int {
    let sets = Sets([r.cast(), w.cast(), e.cast()]);
    if n < 0 || !sets.any_ours(n as usize) {
        return raw_select(n, [r, w, e], timeout);
    }
    // SAFETY: the program's time-out, if any.
    let span = unsafe { timeout.as_mut() };
    let deadline = match &span {
        None => Ok(None),
        Some(t) if t.tv_sec < 0 || t.tv_usec < 0 => Err(Errno::INVAL),
        Some(t) => after(t.tv_sec + t.tv_usec / 1_000_000, t.tv_usec % 1_000_000 * 1000),
    };
    let outcome = deadline.and_then(|d| {
        let outcome = select_some(n as usize, sets, d, core::ptr::null());
        if let (Some(t), Some(d)) = (span, d) {
            let left = d.saturating_sub(if d == 0 { 0 } else { now_ns() });
            (t.tv_sec, t.tv_usec) = ((left / 1_000_000_000) as i64, (left % 1_000_000_000 / 1000) as i64);
        }
        outcome
    });
    ret(outcome) as c_int
}

/// The kernel's select, by pselect6, which every architecture has. It writes back what is left of the time.
fn raw_select(n: c_int, sets: [*mut fd_set; 3], timeout: *mut timeval) -> c_int {
    // SAFETY: the program's time-out, if any.
    let span = unsafe { timeout.as_mut() };
    let mut ts = [0i64; 2];
    let mut tsp = core::ptr::null_mut();
    if let Some(t) = &span {
        if t.tv_sec < 0 || t.tv_usec < 0 {
            return ret(Err(Errno::INVAL)) as c_int;
        }
        ts = [t.tv_sec + t.tv_usec / 1_000_000, t.tv_usec % 1_000_000 * 1000];
        tsp = ts.as_mut_ptr();
    }
    let r = block!(SYS_pselect6, n, sets[0], sets[1], sets[2], tsp, 0);
    if let Some(t) = span {
        (t.tv_sec, t.tv_usec) = (ts[0], ts[1] / 1000);
    }
    libc_ret(r) as c_int
}

pub fn pselect(
    n: c_int,
    r: *mut fd_set,
    w: *mut fd_set,
    e: *mut fd_set,
    timeout: *const timespec,
    mask: *const c_void,
) -> c_int {
    let sets = Sets([r.cast(), w.cast(), e.cast()]);
    // SAFETY: the program's time-out, if any.
    let span = unsafe { timeout.as_ref() };
    if n < 0 || !sets.any_ours(n as usize) {
        let mut copy = span.map(|t| [t.tv_sec, t.tv_nsec]);
        let tsp = copy.as_mut().map_or(core::ptr::null_mut(), |t| t.as_mut_ptr());
        let masked = [mask as usize, 8];
        return libc_ret(block!(SYS_pselect6, n, r, w, e, tsp, masked.as_ptr())) as c_int;
    }
    let deadline = span.map(|t| after(t.tv_sec, t.tv_nsec)).unwrap_or(Ok(None));
    ret(deadline.and_then(|d| select_some(n as usize, sets, d, mask))) as c_int
}

#[unsafe(no_mangle)]
extern "C" fn epoll_create(size: c_int) -> c_int {
    if size <= 0 {
        sys::set_errno(libc::EINVAL);
        return -1;
    }
    epoll_create1(0)
}

#[unsafe(no_mangle)]
extern "C" fn epoll_create1(flags: c_int) -> c_int {
    let fd = sys!(SYS_epoll_create1, flags);
    if fd >= 0 {
        fresh(fd as c_int);
    }
    libc_ret(fd) as c_int
}

#[unsafe(no_mangle)]
extern "C" fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    match (entry(fd).kind(), tables()) {
        (Kind::Engine, Some(t)) if engine(fd).is_some_and(|h| h.sock.relayed()) => {
            epset::hand_over(t, fd);
            libc_ret(sys!(SYS_epoll_ctl, epfd, op, fd, event)) as c_int
        }
        (Kind::Engine | Kind::Hybrid | Kind::Candidate, Some(t)) => {
            ret(epset::control(t, epfd, op, fd, event)) as c_int
        }
        _ => {
            let r = sys!(SYS_epoll_ctl, epfd, op, fd, event);
            if r == 0 && op == libc::EPOLL_CTL_ADD {
                epset::nested_in(fd);
            }
            libc_ret(r) as c_int
        }
    }
}

/// `Some`: the set has engine sockets in it.
fn epoll_ours(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    deadline: impl FnOnce() -> Result<Option<u64>, Errno>,
    mask: *const c_void,
) -> Option<c_int> {
    const MAX_EVENTS: c_int = i32::MAX / size_of::<epoll_event>() as c_int;
    let (t, number) = epset::ours(epfd)?;
    if !(1..=MAX_EVENTS).contains(&max) {
        return Some(ret(Err(Errno::INVAL)) as c_int);
    }
    if let Err(e) = user::writable(events, size_of::<epoll_event>()) {
        return Some(ret(Err(e)) as c_int);
    }
    crate::fork::check_process();
    // SAFETY: the program's array of `max` events; only written.
    let out = unsafe { core::slice::from_raw_parts_mut(events, max as usize) };
    let outcome = deadline().and_then(|deadline| epwait::wait(t, number, epfd, out, &Wait { deadline, mask }));
    Some(ret(outcome) as c_int)
}

pub fn epoll_wait(epfd: c_int, events: *mut epoll_event, max: c_int, ms: c_int) -> c_int {
    epoll_pwait(epfd, events, max, ms, core::ptr::null())
}

/// The kernel's wait for a set with nothing of ours. It may get something meanwhile: then what our own entries report is not for
/// the program, and the wait goes on here.
fn raw_epoll(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    deadline: Option<u64>,
    mask: *const c_void,
    call: impl FnOnce() -> isize,
) -> c_int {
    if tables().is_none() {
        return libc_ret(call()) as c_int;
    }
    epset::refresh_nested();
    epqueue::RAW_WAITERS.fetch_add(1, SeqCst);
    // One more look, now that we are counted.
    let mut ours = epset::ours(epfd).is_some();
    let mut r = if ours { 0 } else { call() };
    epqueue::RAW_WAITERS.fetch_sub(1, SeqCst);
    ours |= r > 0 && epset::ours(epfd).is_some();
    if ours {
        if r > 0 {
            // SAFETY: the kernel has filled in `r` events.
            let got = unsafe { core::slice::from_raw_parts_mut(events, r as usize) };
            r = epwait::without_ours(got) as isize;
        }
        if r == 0
            && let Some(n) = epoll_ours(epfd, events, max, || Ok(deadline), mask)
        {
            return n;
        }
    }
    libc_ret(r) as c_int
}

pub fn epoll_pwait(epfd: c_int, events: *mut epoll_event, max: c_int, ms: c_int, mask: *const c_void) -> c_int {
    if let Some(n) = epoll_ours(epfd, events, max, || Ok(after_ms(ms)), mask) {
        return n;
    }
    let call = || block!(SYS_epoll_pwait, epfd, events, max, ms, mask, 8);
    raw_epoll(epfd, events, max, after_ms(ms), mask, call)
}

pub fn epoll_pwait2(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: *const timespec,
    mask: *const c_void,
) -> c_int {
    // SAFETY: the program's time-out, if any.
    let span = unsafe { timeout.as_ref() };
    let deadline = || span.map(|t| after(t.tv_sec, t.tv_nsec)).unwrap_or(Ok(None));
    if let Some(n) = epoll_ours(epfd, events, max, deadline, mask) {
        return n;
    }
    let call = || block!(SYS_epoll_pwait2, epfd, events, max, timeout, mask, 8);
    raw_epoll(epfd, events, max, deadline().unwrap_or(Some(0)), mask, call)
}
