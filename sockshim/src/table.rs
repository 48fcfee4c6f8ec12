//! What the shim knows of each descriptor: one large, lazily touched mapping of atomics, valid when all zero.

#![allow(unsafe_code)]

use crate::ctx;
use crate::sys;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64};
use toe_core::SockId;
use toe_core::app::{Link, Sock};
use toe_core::shm::{IndexPool, MAX_SOCKS, app_flags};

pub use crate::held::{Held, engine, get, stream, unrelayed};

/// Descriptors beyond this are the kernel's.
pub const MAX_FDS: usize = 1 << 20;
/// Engine sockets of one process.
pub const MAX_LOCALS: usize = 1 << 17;
/// Registrations of one process, over its life: restarts of the daemon, and one for each generation of `fork`.
pub const MAX_LINKS: usize = 16;
/// epoll registrations of engine sockets.
pub const MAX_ITEMS: usize = 1 << 17;
/// epoll descriptors with engine sockets in them.
pub const MAX_EPS: usize = 4096;

/// What an fd is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Not ours to know.
    None,
    /// A kernel TCP socket that may still become an engine socket; payload: [`cand`] bits and a group number.
    Candidate,
    /// A placeholder for an engine socket; payload: local number and its generation.
    Engine,
    /// A kernel listener on the wildcard address, with an engine listener beside it; payload as `Engine`.
    Hybrid,
    /// An epoll descriptor with engine sockets in it; payload: its number.
    Epoll,
    /// The shim's own.
    Internal,
}

/// Bits of a candidate's payload.
pub mod cand {
    #![allow(missing_docs)]
    pub const V6: u64 = 1 << 4;
    /// More than one descriptor for this socket.
    pub const DUP: u64 = 1 << 5;
    /// Was put into an epoll set.
    pub const IN_EPOLL: u64 = 1 << 6;
    /// Bound to the wildcard address.
    pub const WILD: u64 = 1 << 7;
    /// Bound to an address of the kernel's.
    pub const BOUND: u64 = 1 << 8;
    /// Options were set.
    pub const OPTS: u64 = 1 << 9;
    pub const SNDBUF: u64 = 1 << 10;
    pub const RCVBUF: u64 = 1 << 11;
    /// Bound to 127.0.0.1 or ::1, which the engine shares.
    pub const LOOP: u64 = 1 << 12;
    /// Bits above are the group: the same for all descriptors of one socket.
    pub const GROUP_SHIFT: u32 = 32;
}

/// One word of the fd table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Entry(pub u64);

impl Entry {
    /// Of a kind, with payload bits from 4 on.
    pub fn new(kind: Kind, payload: u64) -> Entry {
        Entry(payload << 4 | kind as u64)
    }

    /// Of a candidate: flags are already in place.
    pub fn candidate(bits: u64) -> Entry {
        Entry(bits & !0xf | Kind::Candidate as u64)
    }

    #[inline(always)]
    pub fn kind(self) -> Kind {
        match self.0 & 0xf {
            1 => Kind::Candidate,
            2 => Kind::Engine,
            3 => Kind::Hybrid,
            4 => Kind::Epoll,
            5 => Kind::Internal,
            _ => Kind::None,
        }
    }

    pub fn has(self, bit: u64) -> bool {
        self.0 & bit != 0
    }

    fn local(kind: Kind, index: u32, generation: u32) -> Entry {
        Entry::new(kind, u64::from(generation & 0xff_ffff) << 24 | u64::from(index))
    }

    pub fn local_index(self) -> usize {
        (self.0 >> 4 & 0xff_ffff) as usize
    }

    /// Number of an epoll set.
    pub fn number(self) -> usize {
        (self.0 >> 4) as usize
    }
}

/// An engine socket as this process has it open: what the kernel calls a file.
pub struct Local {
    /// Descriptors, plus calls under way.
    pub refs: AtomicU32,
    generation: AtomicU32,
    link: AtomicU32,
    sock: AtomicU32,
    /// AF_INET6.
    pub v6: AtomicU32,
    /// 1: the hybrid's kernel listener was made non-blocking by us.
    pub forced_nonblock: AtomicU32,
    /// First epoll item, plus 1.
    pub items: AtomicU32,
    /// The peer was told about a finished connect: the next connect is EISCONN.
    pub connect_told: AtomicU32,
    /// Who bound it (`connect::PROGRAM`, `connect::LISTENER`): then it keeps its address when it is dissolved.
    pub bound: AtomicU32,
    /// Calls that wait for the end of a connect or for a connection to accept.
    pub waiters: AtomicU32,
    /// 1: the placeholder has SOL_SOCKET options that accepted sockets inherit.
    pub opts: AtomicU32,
    /// See `remember.rs`.
    pub remembered: [AtomicU32; crate::remember::COUNT],
}

/// All of it.
pub struct Tables {
    fds: [AtomicU64; MAX_FDS],
    /// Highest descriptor ever entered.
    pub max_fd: AtomicI32,
    pub locals: [Local; MAX_LOCALS],
    local_pool: IndexPool<MAX_LOCALS>,
    /// Local + 1 of each slot of each link.
    by_sock: [[AtomicU32; MAX_SOCKS]; MAX_LINKS],
    pub items: [crate::epqueue::Item; MAX_ITEMS],
    pub item_pool: IndexPool<MAX_ITEMS>,
    pub eps: [crate::epqueue::EpSet; MAX_EPS],
    pub ep_pool: IndexPool<MAX_EPS>,
}

static TABLES: AtomicPtr<Tables> = AtomicPtr::new(core::ptr::null_mut());

/// The tables, once something was entered.
#[inline(always)]
pub fn tables() -> Option<&'static Tables> {
    // SAFETY: null, or a mapping of the right size that is never unmapped and consists of atomics.
    unsafe { TABLES.load(Acquire).as_ref() }
}

/// Makes the tables. `None`: no memory.
pub fn make_tables() -> Option<&'static Tables> {
    if tables().is_none() {
        let new = sys::map(size_of::<Tables>()).cast::<Tables>();
        if new.is_null() {
            return None;
        }
        if TABLES.compare_exchange(core::ptr::null_mut(), new, AcqRel, Acquire).is_err() {
            sys::unmap(new.cast(), size_of::<Tables>());
        }
    }
    tables()
}

/// The entry of `fd`.
#[inline(always)]
pub fn entry(fd: i32) -> Entry {
    match tables() {
        Some(t) if (fd as usize) < MAX_FDS => Entry(t.fds[fd as usize].load(Acquire)),
        _ => Entry(0),
    }
}

impl Tables {
    /// Replaces the entry of `fd`; the old one is the caller's to release.
    pub fn swap(&self, fd: i32, entry: Entry) -> Entry {
        match self.fds.get(fd as usize) {
            Some(word) => {
                self.max_fd.fetch_max(fd, Relaxed);
                Entry(word.swap(entry.0, AcqRel))
            }
            None => Entry(0),
        }
    }

    /// Sets `fd`'s entry and lets go of a stale one (the number was closed behind our back and given out again).
    pub fn enter(&self, fd: i32, entry: Entry) {
        let stale = self.swap(fd, entry);
        self.drop_entry(fd, stale);
        if fd <= 2 {
            crate::hooks_stdio::adopt(fd, entry);
        }
    }

    /// Sets bits of a candidate, if it still is one.
    pub fn mark(&self, fd: i32, bits: u64) {
        if let Some(word) = self.fds.get(fd as usize) {
            let _ = word.fetch_update(AcqRel, Acquire, |w| (Entry(w).kind() == Kind::Candidate).then_some(w | bits));
        }
    }

    /// The same for every descriptor of its socket.
    pub fn mark_all(&self, fd: i32, bits: u64) {
        self.mark(fd, bits);
        self.each_other(fd, entry(fd), |other, _| self.mark(other, bits));
    }

    /// The other descriptors of the candidate `of`, which is `fd`'s.
    pub fn each_other(&self, fd: i32, of: Entry, mut f: impl FnMut(i32, Entry)) {
        let alike = |e: Entry| e.kind() == Kind::Candidate && e.0 >> cand::GROUP_SHIFT == of.0 >> cand::GROUP_SHIFT;
        if of.kind() == Kind::Candidate && of.has(cand::DUP) {
            self.each(|other, e| {
                if other != fd && alike(e) {
                    f(other, e);
                }
            });
        }
    }

    /// Descriptors whose entry satisfies `f`.
    pub fn each(&self, mut f: impl FnMut(i32, Entry)) {
        let last = self.max_fd.load(Relaxed).clamp(-1, MAX_FDS as i32 - 1);
        for fd in 0..=last {
            let e = Entry(self.fds[fd as usize].load(Acquire));
            if e.kind() != Kind::None {
                f(fd, e);
            }
        }
    }

    /// What closing a descriptor with this entry means.
    pub fn drop_entry(&self, fd: i32, e: Entry) {
        match e.kind() {
            Kind::Engine | Kind::Hybrid => {
                crate::epset::forget_fd(self, &self.locals[e.local_index() % MAX_LOCALS], fd);
                self.unref(e.local_index());
            }
            Kind::Candidate if e.has(cand::IN_EPOLL) => crate::epset::forget_candidate(self, fd),
            Kind::Epoll => crate::epset::closed(self, e.number()),
            _ => {}
        }
    }

    /// One more descriptor for `e`'s socket.
    pub fn share(&self, e: Entry) {
        match e.kind() {
            Kind::Engine | Kind::Hybrid => {
                self.locals[e.local_index() % MAX_LOCALS].refs.fetch_add(1, AcqRel);
            }
            Kind::Epoll => crate::epset::shared(self, e.number()),
            _ => {}
        }
    }

    /// A new local for `sock`, with one reference, not yet in the fd table.
    pub fn new_local(&self, link: usize, sock: SockId, v6: bool, kind: Kind) -> Option<Entry> {
        let index = self.local_pool.pop()?;
        let local = &self.locals[index as usize];
        local.link.store(link as u32, Relaxed);
        local.sock.store(sock.0, Relaxed);
        local.v6.store(v6.into(), Relaxed);
        let words =
            [&local.forced_nonblock, &local.items, &local.connect_told, &local.bound, &local.waiters, &local.opts];
        for word in words.into_iter().chain(&local.remembered) {
            word.store(0, Relaxed);
        }
        self.by_sock[link][sock.index()].store(index + 1, Relaxed);
        if v6 && let Some(sock) = local.sock() {
            sock.set_flag(app_flags::INET6, true, false);
        }
        local.refs.store(1, Release);
        Some(Entry::local(kind, index, local.generation.load(Relaxed)))
    }

    /// The open socket whose placeholder has this cookie.
    pub fn by_cookie(&self, cookie: u64) -> Option<&Local> {
        let used = (self.local_pool.fresh.load(Relaxed) as usize).min(MAX_LOCALS);
        let has = |l: &&Local| l.sock().is_some_and(|s| s.slot.cookie.load(Relaxed) == cookie);
        self.locals[..used].iter().filter(|l| l.refs.load(Acquire) > 0).find(has)
    }

    /// The entry for one more descriptor of such a socket, already counted.
    pub fn share_by_cookie(&self, cookie: u64) -> Option<Entry> {
        let local = self.by_cookie(cookie)?;
        let (index, _) = self.local_of(local.link(), local.sock_id().0)?;
        local.refs.fetch_update(AcqRel, Acquire, |r| (r > 0).then_some(r + 1)).ok()?;
        Some(Entry::local(Kind::Engine, index as u32, local.generation.load(Relaxed)))
    }

    /// The socket of an entry.
    pub fn sock_of(&self, e: Entry) -> Option<Sock<'static>> {
        self.locals.get(e.local_index())?.sock()
    }

    /// Did this process ever have an engine socket?
    pub fn any_locals(&self) -> bool {
        self.local_pool.fresh.load(Relaxed) != 0
    }

    /// Gives up an entry that never got into the fd table, without releasing its socket.
    pub fn discard(&self, e: Entry) {
        let local = &self.locals[e.local_index() % MAX_LOCALS];
        local.refs.store(0, Relaxed);
        self.by_sock[local.link()][local.sock_id().index()].store(0, Relaxed);
        local.generation.fetch_add(1, AcqRel);
        self.local_pool.push(e.local_index() as u32);
    }

    /// `e`'s socket was accepted: there is no connect left to be told of.
    pub fn connected(&self, e: Entry) {
        let local = &self.locals[e.local_index() % MAX_LOCALS];
        local.connect_told.store(1, Relaxed);
        local.bound.store(crate::connect::LISTENER, Relaxed);
    }

    /// Takes over from the kernel socket `fd` what it remembers. `mirrored`: the placeholder has options that accepted sockets inherit.
    pub fn import_options(&self, e: Entry, fd: i32, mirrored: bool) {
        let local = &self.locals[e.local_index() % MAX_LOCALS];
        local.opts.store(mirrored.into(), Relaxed);
        crate::remember::import(fd, local.v6.load(Relaxed) != 0, &local.remembered);
    }

    /// What an accepted socket has from its listener.
    pub fn inherit(&self, e: Entry, listener: &Local) {
        let local = &self.locals[e.local_index() % MAX_LOCALS];
        local.opts.store(listener.opts.load(Relaxed), Relaxed);
        for (to, from) in local.remembered.iter().zip(&listener.remembered) {
            to.store(from.load(Relaxed), Relaxed);
        }
    }

    /// The local of a slot.
    pub fn local_of(&self, link: usize, sock: u32) -> Option<(usize, &Local)> {
        let index = self.by_sock[link].get(sock as usize)?.load(Acquire).checked_sub(1)? as usize;
        Some((index, self.locals.get(index)?))
    }

    /// One descriptor or call less. The last one closes the socket.
    pub fn unref(&self, index: usize) {
        let Some(local) = self.locals.get(index) else { return };
        if local.refs.fetch_sub(1, AcqRel) != 1 {
            return;
        }
        crate::epset::forget_local(self, local);
        let sock = local.sock();
        self.by_sock[local.link()][local.sock_id().index()].store(0, Relaxed);
        local.generation.fetch_add(1, AcqRel);
        self.local_pool.push(index as u32);
        if let Some(sock) = sock {
            sock.release();
        }
    }

    /// Sockets that this process has open on `link`.
    pub fn open_socks<'a>(&'a self, number: usize, link: &'static Link) -> impl Iterator<Item = Sock<'static>> + 'a {
        let used = self.local_pool.fresh.load(Relaxed) as usize;
        self.locals[..used.min(MAX_LOCALS)]
            .iter()
            .filter(move |l| l.refs.load(Acquire) > 0 && l.link() == number)
            .filter_map(move |l| Sock::of(link, l.sock_id()))
    }

    /// In a forked child: calls under way were those of the parent's threads.
    pub fn recount(&self) {
        let used = (self.local_pool.fresh.load(Relaxed) as usize).min(MAX_LOCALS);
        self.locals[..used].iter().for_each(|l| {
            l.waiters.store(0, Relaxed);
            if l.refs.load(Relaxed) > 0 {
                // Above any count, so that none reaches zero while counting.
                l.refs.store(1 << 30, Relaxed);
            }
        });
        self.each(|_, e| {
            if matches!(e.kind(), Kind::Engine | Kind::Hybrid) {
                self.locals[e.local_index() % MAX_LOCALS].refs.fetch_add(1, Relaxed);
            }
        });
        for (index, local) in self.locals[..used].iter().enumerate() {
            if local.refs.load(Relaxed) >= 1 << 30 {
                local.refs.fetch_sub((1 << 30) - 1, Relaxed);
                self.unref(index);
            }
        }
    }
}

impl Local {
    /// Number of its link.
    pub fn link(&self) -> usize {
        self.link.load(Relaxed) as usize % MAX_LINKS
    }

    /// Its slot.
    pub fn sock_id(&self) -> SockId {
        SockId(self.sock.load(Relaxed) % MAX_SOCKS as u32)
    }

    /// Its socket.
    pub fn sock(&self) -> Option<Sock<'static>> {
        Sock::of(ctx::link(self.link())?, self.sock_id())
    }
}

impl Local {
    /// A fresh slot in the place of `old`, with its options and watchers; `old` is the caller's to release. `None`: somebody else
    /// was faster, or there is none.
    pub fn renew(&self, t: &Tables, old: &Sock<'static>) -> Option<Sock<'static>> {
        let new = Sock::create(old.link).ok()?;
        new.inherit_options(old);
        new.slot.cookie.store(old.slot.cookie.load(Relaxed), Relaxed);
        for (to, from) in new.slot.sets.iter().zip(&old.slot.sets) {
            to.store(from.load(Relaxed), Relaxed);
        }
        if self.sock.compare_exchange(old.id.0, new.id.0, AcqRel, Acquire).is_err() {
            new.release();
            return None;
        }
        let index = &t.by_sock[self.link()][old.id.index()];
        t.by_sock[self.link()][new.id.index()].store(index.swap(0, AcqRel), Release);
        Some(new)
    }
}
