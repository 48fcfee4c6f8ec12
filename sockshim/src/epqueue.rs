//! The data of epoll sets: items, and the queue of those to be looked at. All under [`LOCK`].

use crate::ctx;
use crate::sys::Lock;
use crate::table::{Local, MAX_EPS, MAX_LINKS, Tables};
use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicU64, fence};
use libc::{EPOLLERR, EPOLLHUP};
use toe_core::EvSetId;
use toe_core::app::{EventSet, Link};

/// Guards every item and set. `fork` takes it.
pub static LOCK: Lock = Lock::new();

/// Event bits, as opposed to flags (EPOLLET, EPOLLONESHOT, EPOLLWAKEUP, EPOLLEXCLUSIVE). A one-shot item that has fired
/// has none left.
pub const WANTED: u32 = 0x0fff_ffff;
/// Reported whether asked for or not.
pub const ALWAYS: u32 = (EPOLLERR | EPOLLHUP) as u32;

/// One registration of one descriptor in one epoll set. Guarded by [`LOCK`]; atomics only so that it can lie in the tables.
pub struct Item {
    pub fd: AtomicU32,
    pub ep: AtomicU32,
    /// Local's index + 1; 0: a kernel socket that may still become an engine socket.
    pub local: AtomicU32,
    pub events: AtomicU32,
    pub data: AtomicU64,
    /// Next item of the same local (or of the candidates), + 1.
    pub next: AtomicU32,
    /// Next in the ready queue, + 1.
    pub next_ready: AtomicU32,
    pub queued: AtomicU32,
    /// Of a hybrid listener.
    pub hybrid: AtomicU32,
}

/// One epoll descriptor. Guarded by [`LOCK`], except for the counters read without it.
pub struct EpSet {
    /// Descriptors of this process for it; 0: unused.
    pub refs: AtomicU32,
    /// One of them.
    pub epfd: AtomicU32,
    /// Event set + 1, by link.
    pub sets: [AtomicU32; MAX_LINKS],
    /// Links whose death has been told.
    pub mourned: AtomicU32,
    pub first_ready: AtomicU32,
    pub last_ready: AtomicU32,
    /// Watched by another epoll set or poll: stays armed between waits.
    pub nested: AtomicU32,
    pub sleepers: AtomicU32,
    /// Counts waits, for fairness.
    pub turn: AtomicU32,
    /// Process that took the event sets.
    pub owner: AtomicU32,
}

pub fn item(t: &Tables, n: u32) -> Option<&Item> {
    t.items.get(n.checked_sub(1)? as usize)
}

pub fn ep_of(t: &Tables, n: usize) -> &EpSet {
    &t.eps[n % MAX_EPS]
}

/// Items of a list, with their numbers + 1.
pub fn list<'a>(t: &'a Tables, head: &AtomicU32) -> impl Iterator<Item = (u32, &'a Item)> + use<'a> {
    let mut at = head.load(Relaxed);
    core::iter::from_fn(move || {
        let (n, i) = (at, item(t, at)?);
        at = i.next.load(Relaxed);
        Some((n, i))
    })
}

pub fn unlink(t: &Tables, head: &AtomicU32, number: u32) {
    let mut link = head;
    while let Some(i) = item(t, link.load(Relaxed)) {
        if link.load(Relaxed) == number {
            link.store(i.next.load(Relaxed), Relaxed);
            return;
        }
        link = &i.next;
    }
}

impl Item {
    /// Are its socket's bytes the placeholder's?
    pub fn is_relayed(&self, t: &Tables) -> bool {
        let index = self.local.load(Relaxed).checked_sub(1);
        let sock = index.and_then(|i| t.locals.get(i as usize)).and_then(Local::sock);
        sock.is_some_and(|s| s.relayed())
    }

    /// The events to report now; none for a one-shot item that has fired.
    pub fn level(&self, t: &Tables) -> u32 {
        let events = self.events.load(Relaxed);
        if events & WANTED == 0 {
            return 0;
        }
        let Some(index) = self.local.load(Relaxed).checked_sub(1) else { return 0 };
        let sock = t.locals.get(index as usize).and_then(Local::sock);
        match sock {
            // Anything: what it is, the kernel says as soon as it has the item.
            Some(s) if s.relayed() => events & WANTED,
            Some(s) => s.level(events) & events & WANTED,
            None => 0,
        }
    }
}

/// Threads in the kernel's epoll_wait, for sets without engine sockets: should such a set get one meanwhile, they do not
/// take part in the protocol of arming, so the set stays armed as if it were nested.
pub static RAW_WAITERS: AtomicU32 = AtomicU32::new(0);

impl EpSet {
    pub fn queue(&self, t: &Tables, number: u32, i: &Item) {
        if i.queued.swap(1, Relaxed) != 0 {
            return;
        }
        i.next_ready.store(0, Relaxed);
        match item(t, self.last_ready.load(Relaxed)) {
            Some(last) => last.next_ready.store(number, Relaxed),
            None => self.first_ready.store(number, Relaxed),
        }
        self.last_ready.store(number, Relaxed);
    }

    pub fn dequeue(&self, t: &Tables) -> Option<(u32, &'static Item)> {
        let number = self.first_ready.load(Relaxed);
        let i = item(crate::table::tables()?, number)?;
        self.first_ready.store(i.next_ready.load(Relaxed), Relaxed);
        if item(t, i.next_ready.load(Relaxed)).is_none() {
            self.last_ready.store(0, Relaxed);
            self.first_ready.store(0, Relaxed);
        }
        i.queued.store(0, Relaxed);
        Some((number, i))
    }

    /// Takes an item out of the middle of the queue.
    pub fn unqueue(&self, t: &Tables, number: u32, i: &Item) {
        if i.queued.load(Relaxed) == 0 {
            return;
        }
        let mut n = self.first_ready.load(Relaxed);
        self.first_ready.store(0, Relaxed);
        self.last_ready.store(0, Relaxed);
        while let Some(at) = item(t, n) {
            let next = at.next_ready.load(Relaxed);
            at.queued.store(0, Relaxed);
            if n != number {
                self.queue(t, n, at);
            }
            n = next;
        }
    }

    /// The event sets in use, with their links.
    pub fn each_set(&self) -> impl Iterator<Item = (usize, &'static Link, EventSet<'static>)> + '_ {
        self.sets.iter().enumerate().filter_map(|(n, id)| {
            let id = EvSetId(id.load(Acquire).checked_sub(1)?);
            let link = ctx::link(n)?;
            Some((n, link, EventSet::cached(link, id)?))
        })
    }

    /// For an item that was added or changed: what is true already is reported at once, edge-triggered or not.
    pub fn queue_if_ready(&self, t: &Tables, number: u32, i: &Item) {
        if i.level(t) != 0 {
            self.queue(t, number, i);
            self.wake_sleepers();
        }
    }

    /// Takes out of the queue what is no longer true; is anything left?
    pub fn prune(&self, t: &Tables) -> bool {
        let last = self.last_ready.load(Relaxed);
        while let Some((n, i)) = self.dequeue(t) {
            if i.level(t) != 0 {
                self.queue(t, n, i);
            }
            if n == last {
                break;
            }
        }
        self.first_ready.load(Relaxed) != 0
    }

    /// After queueing: somebody may be about to sleep.
    pub fn wake_sleepers(&self) {
        fence(SeqCst);
        let waiting = self.sleepers.load(Acquire) > 0 || self.nested.load(Relaxed) != 0;
        if waiting && let Some((_, _, set)) = self.each_set().next() {
            set.poke();
        }
    }
}
