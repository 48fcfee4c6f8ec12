//! One wait for engine and kernel descriptors together: what poll, ppoll, select, pselect and the blocking accept of a hybrid
//! listener are made of.
//!
//! Look at all levels; spin; then let an event set for each link hear of the sockets, look again, and sleep in the kernel's ppoll
//! on the kernel's descriptors, the sets' eventfds, and the control connections (a dead daemon hangs up).

#![allow(unsafe_code)]

use crate::ctx;
use crate::sys::{self, check, sys};
use crate::table::{Entry, Held, Kind, MAX_LINKS, entry, tables, unrelayed};
use core::mem::MaybeUninit;
use libc::{POLLERR, POLLHUP, POLLIN, c_void, pollfd};
use rustix::io::Errno;
use toe_core::app::EventSet;
use toe_core::app::wait::now_ns;

/// Space for `N` values without the program's heap: on the stack, or mapped if there are more.
pub struct Space<T, const N: usize> {
    inline: [MaybeUninit<T>; N],
    mapped: *mut T,
    capacity: usize,
    len: usize,
}

impl<T, const N: usize> Space<T, N> {
    /// For `capacity` values. ENOMEM.
    pub fn new(capacity: usize) -> Result<Space<T, N>, Errno> {
        let mut space = Space::<T, N> {
            inline: [const { MaybeUninit::uninit() }; N],
            mapped: core::ptr::null_mut(),
            capacity: capacity.max(N),
            len: 0,
        };
        if capacity > N {
            let bytes = capacity.checked_mul(size_of::<T>()).ok_or(Errno::NOMEM)?;
            space.mapped = sys::map(bytes).cast();
            if space.mapped.is_null() {
                return Err(Errno::NOMEM);
            }
        }
        Ok(space)
    }

    fn base(&mut self) -> *mut T {
        if self.mapped.is_null() { self.inline.as_mut_ptr().cast() } else { self.mapped }
    }

    /// Adds a value; a full space drops it.
    pub fn push(&mut self, value: T) {
        if self.len < self.capacity {
            // SAFETY: below the capacity, and not yet initialised.
            unsafe { self.base().add(self.len).write(value) };
            self.len += 1;
        }
    }

    /// Keeps the first `len` values.
    pub fn truncate(&mut self, len: usize) {
        while self.len > len {
            self.len -= 1;
            // SAFETY: the value at `len` was initialised and is now outside.
            unsafe { self.base().add(self.len).drop_in_place() };
        }
    }

    /// The values.
    pub fn all(&mut self) -> &mut [T] {
        let (base, len) = (self.base(), self.len);
        // SAFETY: the first `len` are initialised.
        unsafe { core::slice::from_raw_parts_mut(base, len) }
    }
}

impl<T, const N: usize> Drop for Space<T, N> {
    fn drop(&mut self) {
        self.truncate(0);
        if !self.mapped.is_null() {
            sys::unmap(self.mapped.cast(), self.capacity * size_of::<T>());
        }
    }
}

/// An engine socket among the program's descriptors.
struct Watch {
    at: usize,
    held: Held,
}

/// Most descriptors on the stack.
const INLINE: usize = 32;
/// The kernel's descriptors are looked at in each such round of spinning.
const KERNEL_ROUND: u32 = 8;
/// With no event set left, the sockets are looked at this often.
const NO_SET_NS: u64 = 10_000_000;

/// Is any of them ours? Nested epoll sets are told that they are watched.
pub fn any_ours(fds: &[pollfd]) -> bool {
    if tables().is_none() {
        return false;
    }
    let mut any = false;
    for p in fds {
        match entry(p.fd).kind() {
            Kind::Engine | Kind::Hybrid => any = true,
            Kind::Epoll => crate::epset::watched(p.fd),
            _ => {}
        }
    }
    any
}

/// The kernel's ppoll, until `deadline` (`CLOCK_MONOTONIC` nanoseconds; `None`: for ever).
pub fn kernel_poll(fds: &mut [pollfd], deadline: Option<u64>, mask: *const c_void) -> Result<usize, Errno> {
    let left = deadline.map(|d| d.saturating_sub(now_ns()));
    let ts = left.map(|ns| [(ns / 1_000_000_000) as i64, (ns % 1_000_000_000) as i64]);
    let tsp = ts.as_ref().map_or(core::ptr::null(), |t| t.as_ptr());
    check(sys!(SYS_ppoll, fds.as_mut_ptr(), fds.len(), tsp, mask, 8))
}

/// Waits until one of `fds` is ready; how many are.
pub fn poll_some(fds: &mut [pollfd], deadline: Option<u64>, mask: *const c_void) -> Result<usize, Errno> {
    if !any_ours(fds) {
        return kernel_poll(fds, deadline, mask);
    }
    let mut watches = Space::<Watch, INLINE>::new(fds.len())?;
    let mut kernel = Space::<pollfd, { INLINE + 2 * MAX_LINKS }>::new(fds.len() + 2 * MAX_LINKS)?;
    let mut has_kernel = false;
    for (at, p) in fds.iter_mut().enumerate() {
        p.revents = 0;
        let mut theirs = *p;
        if let Some(held) = unrelayed(p.fd) {
            if !held.hybrid {
                theirs.fd = -1;
            }
            watches.push(Watch { at, held });
        }
        has_kernel |= theirs.fd >= 0;
        kernel.push(theirs);
    }
    let mut look = Look { fds: &mut *fds, watches, kernel, has_kernel };
    let start = now_ns();
    loop {
        if look.relayed() {
            // They are the kernel's to look at from now on.
            drop(look);
            return poll_some(fds, deadline, mask);
        }
        let found = look.all()?;
        if found > 0 || deadline.is_some_and(|d| d <= now_ns()) {
            return Ok(found);
        }
        if look.spin(start)? {
            continue;
        }
        look.sleep(deadline, mask)?;
        if let Some(w) = look.watches.all().first() {
            w.held.sock.link.spin.waited(now_ns().saturating_sub(start));
        }
    }
}

struct Look<'a> {
    fds: &'a mut [pollfd],
    watches: Space<Watch, INLINE>,
    /// The program's array with the engine's entries blanked, then room for our own.
    kernel: Space<pollfd, { INLINE + 2 * MAX_LINKS }>,
    has_kernel: bool,
}

fn level(w: &Watch, events: i16) -> i16 {
    let interest = events as u16 as u32;
    (w.held.sock.level(interest) & (interest | (POLLERR | POLLHUP) as u32)) as i16
}

impl Look<'_> {
    /// Fills in what is ready now.
    fn all(&mut self) -> Result<usize, Errno> {
        let n = self.fds.len();
        if self.has_kernel {
            kernel_poll(&mut self.kernel.all()[..n], Some(0), core::ptr::null())?;
        }
        for (p, k) in self.fds.iter_mut().zip(self.kernel.all()) {
            p.revents = if k.fd >= 0 { k.revents } else { 0 };
        }
        for w in self.watches.all() {
            let p = &mut self.fds[w.at];
            p.revents |= level(w, p.events);
        }
        Ok(self.fds.iter().filter(|p| p.revents != 0).count())
    }

    /// `true`: something is ready.
    fn spin(&mut self, start: u64) -> Result<bool, Errno> {
        let budget = self.watches.all().first().map_or(0, |w| w.held.sock.link.spin.budget_ns());
        let n = self.fds.len();
        let mut round = 0u32;
        while now_ns().saturating_sub(start) < budget {
            sys!(SYS_sched_yield);
            if self.engine_ready() {
                return Ok(true);
            }
            round += 1;
            if self.has_kernel
                && round.is_multiple_of(KERNEL_ROUND)
                && kernel_poll(&mut self.kernel.all()[..n], Some(0), core::ptr::null())? > 0
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn engine_ready(&mut self) -> bool {
        let fds = &*self.fds;
        self.watches.all().iter().any(|w| level(w, fds[w.at].events) != 0 || w.held.sock.relayed())
    }

    /// Has one of them become the placeholder's?
    fn relayed(&mut self) -> bool {
        self.watches.all().iter().any(|w| w.held.sock.relayed())
    }

    /// Sleeps once. `Ok`: look again.
    fn sleep(&mut self, deadline: Option<u64>, mask: *const c_void) -> Result<(), Errno> {
        let n = self.fds.len();
        let mut sets: [Option<EventSet<'static>>; MAX_LINKS] = [None; MAX_LINKS];
        let mut controls = [-1; MAX_LINKS];
        let mut quiet = true;
        for w in self.watches.all() {
            let link = w.held.local.link();
            if sets[link].is_none() {
                sets[link] = EventSet::take(w.held.sock.link).ok();
                controls[link] = w.held.sock.link.control_fd();
            }
            match &sets[link] {
                Some(set) => w.held.sock.watch(set.id, true),
                None => quiet = false,
            }
        }
        for (set, control) in sets.iter().zip(controls) {
            let Some(set) = set else { continue };
            w_protect(set.fd);
            set.arm();
            self.kernel.push(pollfd { fd: set.fd, events: POLLIN, revents: 0 });
            self.kernel.push(pollfd { fd: control, events: 0, revents: 0 });
        }
        let until = if quiet { deadline } else { Some(deadline.unwrap_or(u64::MAX).min(now_ns() + NO_SET_NS)) };
        let outcome = if self.engine_ready() {
            Ok(0)
        } else if crate::cancel::due() {
            Err(Errno::INTR)
        } else {
            kernel_poll(self.kernel.all(), until, mask)
        };
        self.hang_up(n, &sets);
        self.kernel.truncate(n);
        for w in self.watches.all() {
            if let Some(set) = &sets[w.held.local.link()] {
                w.held.sock.watch(set.id, false);
            }
        }
        for set in sets.into_iter().flatten() {
            set.drain(|_| ());
            set.give_back();
        }
        outcome.map(|_| ())
    }

    /// A hung-up control connection: that daemon is gone.
    fn hang_up(&mut self, n: usize, sets: &[Option<EventSet<'static>>; MAX_LINKS]) {
        let ours = self.kernel.all()[n..].chunks_exact(2);
        for (link, pair) in (0..MAX_LINKS).filter(|&l| sets[l].is_some()).zip(ours) {
            if pair[1].revents & (POLLHUP | POLLERR) != 0
                && let Some(link) = ctx::link(link)
            {
                link.cut_off();
            }
        }
    }
}

/// Event sets' eventfds come one by one.
fn w_protect(fd: i32) {
    if entry(fd).kind() != Kind::Internal
        && let Some(t) = tables()
    {
        t.swap(fd, Entry::new(Kind::Internal, 0));
    }
}
