//! epoll: the program's own epoll descriptor stays and goes on serving kernel descriptors; engine sockets are kept here, beside
//! it, as `Item`s. One event set per link and epoll descriptor, whose eventfd is put into the real epoll set under a private
//! tag, wakes sleepers of every kind, nested sets included.
//!
//! An item is *queued* when its socket had news (or was added or changed) and has not been looked at since; looking means
//! computing the level. An edge-triggered item then leaves the queue, a level-triggered one stays as long as its level holds.
//! One lock guards all of it; it is held for short, bounded sections and never while sleeping.

#![allow(unsafe_code)]

use crate::ctx;
use crate::epqueue::{ALWAYS, EpSet, Item, LOCK, RAW_WAITERS, WANTED, ep_of, item, list, unlink};
use crate::sys::{check, sys};
use crate::table::{Entry, Kind, Local, MAX_EPS, MAX_ITEMS, MAX_LINKS, Tables, entry, get};
use crate::user;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicU32, fence};
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLEXCLUSIVE, EPOLLIN, EPOLLONESHOT, EPOLLOUT, epoll_event};
use rustix::io::Errno;
use toe_core::EvSetId;
use toe_core::app::{EventSet, Link};

/// `epoll_event.u64` of our own entries in real epoll sets: this, plus the link's number, plus [`DEATH`].
pub const TAG: u64 = 0xF0E1_70E5_C3D2_0000;
pub const DEATH: u64 = 0x8000;

/// Events that may go with EPOLLEXCLUSIVE.
const EXCLUSIVE_OK: u32 = (EPOLLIN | EPOLLOUT) as u32 | ALWAYS;

/// Is any set nested in another?
static NESTED: AtomicU32 = AtomicU32::new(0);

/// Candidates in epoll sets: first item + 1.
static CANDIDATES: AtomicU32 = AtomicU32::new(0);

/// The number of the set behind `epfd`, if it has anything of ours.
pub fn ours(epfd: i32) -> Option<(&'static Tables, usize)> {
    let e = entry(epfd);
    if e.kind() != Kind::Epoll {
        return None;
    }
    let t = crate::table::tables()?;
    let ep = ep_of(t, e.number());
    let any = ep.sets.iter().any(|s| s.load(Acquire) != 0) || ep.first_ready.load(Acquire) != 0;
    any.then_some((t, e.number()))
}

/// `epoll_ctl` for an engine, hybrid or candidate descriptor; the raw result.
pub fn control(t: &'static Tables, epfd: i32, op: i32, fd: i32, event: *const epoll_event) -> Result<usize, Errno> {
    let e = entry(fd);
    if e.kind() != Kind::Engine {
        check(sys!(SYS_epoll_ctl, epfd, op, fd, event))?;
    }
    let (events, data) = if op == EPOLL_CTL_DEL {
        (0, 0)
    } else {
        let ev = user::get(event)?;
        // As the kernel: errors are always of interest.
        (ev.events | ALWAYS, ev.u64)
    };
    // What goes with EPOLLEXCLUSIVE, and that it is for adding.
    let wrong = events & WANTED & !EXCLUSIVE_OK != 0 || events & EPOLLONESHOT as u32 != 0 || op == EPOLL_CTL_MOD;
    if events & EPOLLEXCLUSIVE as u32 != 0 && wrong {
        return Err(Errno::INVAL);
    }
    let held = if e.kind() == Kind::Candidate { None } else { Some(get(fd).ok_or(Errno::BADF)?) };
    let _locked = LOCK.lock();
    let number = find_or_make_ep(t, epfd)?;
    let head = held.as_ref().map_or(&CANDIDATES, |h| &h.local.items);
    let found = list(t, head)
        .find(|(_, i)| i.fd.load(Relaxed) == fd as u32 && i.ep.load(Relaxed) as usize == number)
        .map(|(n, _)| n);
    match (op, found) {
        // The kernel has accepted it: then what we knew of this number is stale.
        (EPOLL_CTL_ADD, Some(n)) if held.is_none() => change(t, n, events, data),
        (EPOLL_CTL_ADD, Some(_)) => return Err(Errno::EXIST),
        (EPOLL_CTL_ADD, None) => {
            let n = t.item_pool.pop().ok_or(Errno::NOSPC)? + 1;
            let i = item(t, n).ok_or(Errno::NOSPC)?;
            i.fd.store(fd as u32, Relaxed);
            i.ep.store(number as u32, Relaxed);
            i.queued.store(0, Relaxed);
            i.events.store(events, Relaxed);
            i.data.store(data, Relaxed);
            i.hybrid.store((e.kind() == Kind::Hybrid).into(), Relaxed);
            let attached = match &held {
                Some(h) => attach(t, number, epfd, n, h.local),
                None => {
                    t.mark(fd, crate::table::cand::IN_EPOLL);
                    i.local.store(0, Relaxed);
                    Ok(())
                }
            };
            if let Err(err) = attached {
                t.item_pool.push(n - 1);
                return Err(err);
            }
            i.next.store(head.load(Relaxed), Relaxed);
            head.store(n, Relaxed);
        }
        (EPOLL_CTL_MOD, Some(n)) if is_exclusive(t, n) => return Err(Errno::INVAL),
        (EPOLL_CTL_MOD, Some(n)) => change(t, n, events, data),
        (EPOLL_CTL_DEL, Some(n)) => remove(t, n),
        (_, None) if held.is_none() => {}
        (EPOLL_CTL_MOD | EPOLL_CTL_DEL, None) => return Err(Errno::NOENT),
        _ => return Err(Errno::INVAL),
    }
    Ok(0)
}

fn is_exclusive(t: &Tables, n: u32) -> bool {
    item(t, n).is_some_and(|i| i.events.load(Relaxed) & EPOLLEXCLUSIVE as u32 != 0)
}

fn find_or_make_ep(t: &'static Tables, epfd: i32) -> Result<usize, Errno> {
    let e = entry(epfd);
    if e.kind() == Kind::Epoll {
        return Ok(e.number());
    }
    // The kernel checks the descriptor first, and finds out that there is no buffer only when an event is to be put there,
    // which it then keeps.
    match check(sys!(SYS_epoll_pwait, epfd, 0, 1, 0, 0, 8)) {
        Ok(_) | Err(Errno::FAULT) => {}
        Err(e) => return Err(e),
    }
    let number = t.ep_pool.pop().ok_or(Errno::NOMEM)?;
    let ep = ep_of(t, number as usize);
    for word in [&ep.mourned, &ep.first_ready, &ep.last_ready, &ep.nested, &ep.sleepers, &ep.turn] {
        word.store(0, Relaxed);
    }
    ep.sets.iter().for_each(|s| s.store(0, Relaxed));
    ep.refs.store(1, Relaxed);
    ep.epfd.store(epfd as u32, Relaxed);
    ep.owner.store(ctx::OWNER.load(Relaxed), Relaxed);
    t.swap(epfd, Entry::new(Kind::Epoll, u64::from(number)));
    Ok(number as usize)
}

/// Lets the item's set hear of the item's socket.
fn attach(t: &'static Tables, number: usize, epfd: i32, n: u32, local: &Local) -> Result<(), Errno> {
    let sock = local.sock().ok_or(Errno::BADF)?;
    let ep = ep_of(t, number);
    let set = set_for(t, ep, epfd, local.link(), sock.link);
    let i = item(t, n).ok_or(Errno::NOSPC)?;
    let (index, _) = t.local_of(local.link(), sock.id.0).ok_or(Errno::BADF)?;
    i.local.store(index as u32 + 1, Relaxed);
    match set {
        Ok(set) => sock.watch(set.id, true),
        // No news will come, but what there is to say is true already.
        Err(_) if sock.link.dead() => {}
        Err(e) => return Err(e),
    }
    ep.queue_if_ready(t, n, i);
    Ok(())
}

fn set_for(
    t: &'static Tables,
    ep: &EpSet,
    epfd: i32,
    number: usize,
    link: &'static Link,
) -> Result<EventSet<'static>, Errno> {
    if let Some(id) = ep.sets[number].load(Relaxed).checked_sub(1) {
        return EventSet::cached(link, EvSetId(id)).ok_or(Errno::BADF);
    }
    let set = EventSet::take(link).map_err(|_| Errno::NOSPC)?;
    t.swap(set.fd, Entry::new(Kind::Internal, 0));
    let add = |fd: i32, events: u32, data: u64| {
        let ev = epoll_event { events, u64: data };
        check(sys!(SYS_epoll_ctl, epfd, EPOLL_CTL_ADD, fd, &raw const ev))
    };
    match add(set.fd, EPOLLIN as u32, TAG | number as u64) {
        Ok(_) | Err(Errno::EXIST) => {}
        Err(e) => {
            set.give_back();
            return Err(e);
        }
    }
    if link.control_fd() >= 0 {
        let _ = add(link.control_fd(), 0, TAG | DEATH | number as u64);
    }
    ep.sets[number].store(set.id.0 + 1, Release);
    fence(SeqCst);
    if RAW_WAITERS.load(Relaxed) > 0 {
        ep.nested.store(1, Relaxed);
        set.poke();
    }
    Ok(set)
}

fn change(t: &'static Tables, n: u32, events: u32, data: u64) {
    let Some(i) = item(t, n) else { return };
    i.events.store(events, Relaxed);
    i.data.store(data, Relaxed);
    if i.local.load(Relaxed) != 0 {
        ep_of(t, i.ep.load(Relaxed) as usize).queue_if_ready(t, n, i);
    }
}

/// Frees an item.
fn remove(t: &'static Tables, n: u32) {
    let Some(i) = item(t, n) else { return };
    let number = i.ep.load(Relaxed);
    let ep = ep_of(t, number as usize);
    ep.unqueue(t, n, i);
    match i.local.load(Relaxed).checked_sub(1) {
        None => unlink(t, &CANDIDATES, n),
        Some(index) => {
            let local = &t.locals[index as usize % t.locals.len()];
            unlink(t, &local.items, n);
            let still = list(t, &local.items).any(|(_, o)| o.ep.load(Relaxed) == number);
            // A set that a parent process made goes on being the parent's.
            let mine = ep.owner.load(Relaxed) == ctx::OWNER.load(Relaxed);
            if let (false, true, Some(sock)) = (still, mine, local.sock())
                && let Some(id) = ep.sets[local.link()].load(Relaxed).checked_sub(1)
            {
                sock.watch(EvSetId(id), false);
            }
        }
    }
    t.item_pool.push(n - 1);
}

/// `fd` has become an engine or hybrid socket: its registrations come along.
pub fn candidate_moved(t: &'static Tables, fd: i32) {
    let Some(held) = get(fd) else { return };
    let _locked = LOCK.lock();
    while let Some((n, i)) = list(t, &CANDIDATES).find(|(_, i)| i.fd.load(Relaxed) == fd as u32) {
        unlink(t, &CANDIDATES, n);
        let number = i.ep.load(Relaxed) as usize;
        let epfd = ep_of(t, number).epfd.load(Relaxed) as i32;
        i.hybrid.store(held.hybrid.into(), Relaxed);
        if attach(t, number, epfd, n, held.local).is_ok() {
            i.next.store(held.local.items.load(Relaxed), Relaxed);
            held.local.items.store(n, Relaxed);
        } else {
            t.item_pool.push(n - 1);
        }
    }
}

/// The item's socket has become relayed: the kernel's set watches its placeholder from now on.
pub fn hand_to_kernel(t: &'static Tables, n: u32, i: &Item) {
    let (fd, number) = (i.fd.load(Relaxed) as i32, i.ep.load(Relaxed) as usize);
    let event = epoll_event { events: i.events.load(Relaxed), u64: i.data.load(Relaxed) };
    let epfd = ep_of(t, number).epfd.load(Relaxed);
    remove(t, n);
    if fd >= 0 {
        sys!(SYS_epoll_ctl, epfd, EPOLL_CTL_ADD, fd, &raw const event);
    }
}

/// The same for all of `fd`'s, before the program changes them.
pub fn hand_over(t: &'static Tables, fd: i32) {
    let Some(held) = get(fd) else { return };
    let _locked = LOCK.lock();
    while let Some((n, i)) = list(t, &held.local.items).next() {
        hand_to_kernel(t, n, i);
    }
}

/// The socket has a fresh slot: what is true of it now is news.
pub fn renewed(t: &'static Tables, local: &Local) {
    if local.items.load(Acquire) == 0 {
        return;
    }
    let _locked = LOCK.lock();
    for (n, i) in list(t, &local.items) {
        ep_of(t, i.ep.load(Relaxed) as usize).queue_if_ready(t, n, i);
    }
}

/// A candidate was closed, or is the kernel's for good.
pub fn forget_candidate(_: &Tables, fd: i32) {
    let Some(t) = crate::table::tables() else { return };
    let _locked = LOCK.lock();
    while let Some((n, _)) = list(t, &CANDIDATES).find(|(_, i)| i.fd.load(Relaxed) == fd as u32) {
        remove(t, n);
    }
}

/// One of a socket's descriptors is closed. As in Linux its registrations stay while the socket has others; a reused number
/// must not be taken for it, though, so they lose their number.
pub fn forget_fd(_: &Tables, local: &Local, fd: i32) {
    if local.items.load(Acquire) == 0 {
        return;
    }
    let Some(t) = crate::table::tables() else { return };
    let _locked = LOCK.lock();
    for (_, i) in list(t, &local.items) {
        if i.fd.load(Relaxed) == fd as u32 {
            i.fd.store(u32::MAX, Relaxed);
        }
    }
}

/// The socket is closed.
pub fn forget_local(_: &Tables, local: &Local) {
    if local.items.load(Acquire) == 0 {
        return;
    }
    let Some(t) = crate::table::tables() else { return };
    let _locked = LOCK.lock();
    while local.items.load(Relaxed) != 0 {
        let n = local.items.load(Relaxed);
        remove(t, n);
        if local.items.load(Relaxed) == n {
            break;
        }
    }
}

/// One more descriptor for an epoll set.
pub fn shared(t: &Tables, number: usize) {
    ep_of(t, number).refs.fetch_add(1, Relaxed);
}

/// One descriptor of an epoll set is closed.
pub fn closed(_: &Tables, number: usize) {
    let Some(t) = crate::table::tables() else { return };
    let _locked = LOCK.lock();
    let ep = ep_of(t, number);
    if ep.refs.fetch_sub(1, Relaxed) != 1 {
        t.each(|fd, e| {
            if e.kind() == Kind::Epoll && e.number() == number {
                ep.epfd.store(fd as u32, Relaxed);
            }
        });
        return;
    }
    let of_this = |(_, i): &(u32, &Item)| i.ep.load(Relaxed) as usize == number;
    while let Some((n, _)) = list(t, &CANDIDATES).find(of_this) {
        remove(t, n);
    }
    for (n, link, set) in ep.each_set() {
        for sock in t.open_socks(n, link) {
            let Some((_, local)) = t.local_of(n, sock.id.0) else { continue };
            while let Some((n, _)) = list(t, &local.items).find(of_this) {
                remove(t, n);
            }
        }
        if ep.owner.load(Relaxed) == ctx::OWNER.load(Relaxed) {
            set.give_back();
        }
    }
    t.ep_pool.push(number as u32);
}

/// `fd` was put into another epoll set. If it is an epoll set itself, it may get engine sockets later.
pub fn nested_in(fd: i32) {
    let Some(t) = crate::table::tables() else { return };
    if let Kind::None | Kind::Epoll = entry(fd).kind() {
        let _locked = LOCK.lock();
        if let Ok(number) = find_or_make_ep(t, fd) {
            ep_of(t, number).nested.store(1, Relaxed);
            NESTED.store(1, Relaxed);
            rest(t, ep_of(t, number));
        }
    }
}

/// Another epoll set or a poll watches this one.
pub fn watched(epfd: i32) {
    if let Some((t, number)) = ours(epfd) {
        let ep = ep_of(t, number);
        let _locked = LOCK.lock();
        ep.nested.store(1, Relaxed);
        rest(t, ep);
    }
}

/// What was taken since from the sockets of nested sets is no longer news for the sets around them.
pub fn refresh_nested() {
    let Some(t) = crate::table::tables().filter(|_| NESTED.load(Relaxed) != 0) else { return };
    let used = (t.ep_pool.fresh.load(Relaxed) as usize).min(MAX_EPS);
    let _locked = LOCK.lock();
    for ep in t.eps[..used].iter().filter(|ep| ep.refs.load(Relaxed) > 0 && ep.nested.load(Relaxed) != 0) {
        rest(t, ep);
    }
}

/// Leaves a set on which others sleep (another thread, an outer set) so that its eventfd is readable if and only if there
/// may be something to report.
pub fn rest(t: &Tables, ep: &EpSet) {
    if ep.nested.load(Relaxed) == 0 && ep.sleepers.load(Acquire) == 0 {
        return;
    }
    let queued = ep.prune(t);
    for (_, _, set) in ep.each_set() {
        // First, so that what comes from now on is kept.
        set.clear();
        if !set.arm() || queued || crate::cancel::passing() {
            set.poke();
        }
    }
}

const _: () = assert!(MAX_LINKS <= 32 && MAX_ITEMS < u32::MAX as usize);
