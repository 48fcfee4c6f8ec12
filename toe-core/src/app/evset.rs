//! Event sets: one sleeper for many sockets of a link.

use super::client::Link;
use crate::ids::EvSetId;
use crate::shm::EvSet;
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::fence;
use rustix::fd::RawFd;
use rustix::io::Errno;

/// A set taken from the link's pool, with the eventfd that becomes readable when an armed set gets news.
#[derive(Clone, Copy)]
pub struct EventSet<'a> {
    link: &'a Link,
    set: &'a EvSet,
    /// Its number, for [`super::Sock::watch`].
    pub id: EvSetId,
    /// Its eventfd; the link's, not to be closed.
    pub fd: RawFd,
}

impl<'a> EventSet<'a> {
    /// Takes a set. ENFILE: none left, or the daemon has no eventfd for it.
    pub fn take(link: &'a Link) -> Result<EventSet<'a>, Errno> {
        let id = EvSetId(link.region.layout().evset_pool.pop().ok_or(Errno::NFILE)?);
        let made = link.evset_fd(id).and_then(|fd| {
            let set = EventSet::of(link, id, fd).ok_or(Errno::NFILE)?;
            set.disarm();
            set.drain(|_| ());
            Ok(set)
        });
        if made.is_err() {
            link.region.layout().evset_pool.push(id.0);
        }
        made
    }

    /// The set of number `id`, which the caller took before, and its eventfd.
    pub fn of(link: &'a Link, id: EvSetId, fd: RawFd) -> Option<EventSet<'a>> {
        link.region.evset(id).map(|set| EventSet { link, set, id, fd })
    }

    /// A set that was taken before.
    pub fn cached(link: &'a Link, id: EvSetId) -> Option<EventSet<'a>> {
        EventSet::of(link, id, link.evset_fd(id).ok()?)
    }

    /// Gives the set back. No socket may be watched by it any more.
    pub fn give_back(self) {
        self.disarm();
        self.link.region.layout().evset_pool.push(self.id.0);
    }

    /// Asks for the eventfd to be written at the next news. `false`: there are news already, do not sleep.
    pub fn arm(&self) -> bool {
        self.set.armed.store(1, SeqCst);
        fence(SeqCst);
        self.set.ready.is_empty()
    }

    /// Takes the request back, and the eventfd's count.
    pub fn disarm(&self) {
        if self.set.armed.swap(0, SeqCst) == 0 {
            self.clear();
        }
    }

    /// Reads the eventfd empty.
    pub fn clear(&self) {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(super::client::borrow(self.fd), &mut count);
    }

    /// Makes the eventfd readable, to wake another thread that sleeps on it.
    pub fn poke(&self) {
        let _ = rustix::io::write(super::client::borrow(self.fd), &1u64.to_ne_bytes());
    }

    /// Any news? Cheap.
    #[inline]
    pub fn news(&self) -> bool {
        !self.set.ready.is_empty()
    }

    /// Takes the sockets with news.
    pub fn drain(&self, f: impl FnMut(u32)) -> usize {
        self.set.ready.drain(f)
    }
}
