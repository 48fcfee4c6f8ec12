//! Sockets that leave the process image that made them: over exec, or in a message to another process. The daemon holds them
//! as long as any process has the placeholder, which it sees by the placeholder's connection: the other end is here, and hangs
//! up when the last descriptor is closed, wherever that is.

use super::{Control, Next, interest};
use crate::daemon::regions::Place;
use crate::daemon::sys::{self, Peer};
use mio::Token;
use mio::unix::SourceFd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;
use toe_core::control::{Fds, Reply, Request};
use toe_core::ids::{RegionId, SockId};
use toe_core::shm::app_flags;

/// Tokens of kept sockets have this bit.
const KEPT: usize = 1 << (usize::BITS - 1);
/// Kept sockets at a time: each costs a descriptor.
const MAX_KEPT: usize = 65_536;
/// Those of one user.
const MAX_KEPT_PER_USER: usize = MAX_KEPT / 2;

/// Is it the token of a kept socket?
pub fn is_kept(token: usize) -> bool {
    token & KEPT != 0
}

/// `token` as that of a connection.
pub fn conn_token(token: usize) -> usize {
    token & !KEPT
}

struct KeptSock {
    /// The other end of the placeholder's connection.
    end: OwnedFd,
    region: RegionId,
    sock: SockId,
    /// The region's user, and the placeholder's cookie.
    key: (u32, u64),
}

/// All of them.
#[derive(Default)]
pub struct Kept {
    socks: HashMap<usize, KeptSock>,
    by_cookie: HashMap<(u32, u64), usize>,
    by_user: HashMap<u32, usize>,
    next: usize,
}

impl Kept {
    /// None?
    pub fn is_empty(&self) -> bool {
        self.socks.is_empty()
    }

    fn has_room(&self, uid: u32) -> bool {
        self.socks.len() < MAX_KEPT && self.by_user.get(&uid).is_none_or(|&n| n < MAX_KEPT_PER_USER)
    }

    fn insert(&mut self, token: usize, k: KeptSock) {
        *self.by_user.entry(k.key.0).or_default() += 1;
        self.by_cookie.insert(k.key, token);
        self.socks.insert(token, k);
    }

    fn remove(&mut self, token: usize) -> Option<KeptSock> {
        let k = self.socks.remove(&token)?;
        self.by_cookie.remove(&k.key);
        if let Some(n) = self.by_user.get_mut(&k.key.0) {
            *n -= 1;
            if *n == 0 {
                self.by_user.remove(&k.key.0);
            }
        }
        Some(k)
    }
}

impl Control {
    /// OP_KEEP.
    pub(super) fn keep(&mut self, peer: Peer, place: Option<Place>, r: &Request, mut fds: Fds) -> Next {
        let outcome = self.try_keep(peer, place, r, fds.pop());
        outcome.map_or_else(|e| self.refuse(e), |()| Next::Reply(Reply::new(0)))
    }

    fn try_keep(&mut self, peer: Peer, place: Option<Place>, r: &Request, end: Option<OwnedFd>) -> Result<(), Errno> {
        let (region, sock) = (RegionId(r.region), SockId(r.arg));
        let uid = self.regions.uid(region).ok_or(Errno::PERM)?;
        if uid != peer.uid && place.is_none_or(|p| p.region != region) {
            return Err(Errno::PERM);
        }
        let slot = self.regions.slot(region, sock).ok_or(Errno::INVAL)?;
        if r.cookie == 0 || slot.cookie.load(SeqCst) != r.cookie {
            return Err(Errno::INVAL);
        }
        let key = (uid, r.cookie);
        match (self.kept.by_cookie.get(&key).copied(), end) {
            // Two processes at once: both ends stand for the same placeholder, and only one of them can be true.
            (Some(token), _) => self.move_kept(token, region, sock),
            (None, Some(end)) => self.new_kept(end, region, sock, key),
            (None, None) => Err(Errno::NOENT),
        }
    }

    fn new_kept(&mut self, end: OwnedFd, region: RegionId, sock: SockId, key: (u32, u64)) -> Result<(), Errno> {
        if !self.kept.has_room(key.0) {
            return Err(Errno::NOSPC);
        }
        rustix::io::ioctl_fionbio(&end, true)?;
        let token = KEPT | self.kept.next;
        self.kept.next = conn_token(self.kept.next.wrapping_add(1));
        let raw = end.as_raw_fd();
        self.registry.register(&mut SourceFd(&raw), Token(token), interest()).map_err(|_| Errno::NOSPC)?;
        if let Err(e) = self.regions.keep(region, sock) {
            let _ = self.registry.deregister(&mut SourceFd(&raw));
            return Err(e);
        }
        self.kept.insert(token, KeptSock { end, region, sock, key });
        Ok(())
    }

    /// The placeholder stands for another slot now (a failed connect was tried again), or was kept before.
    fn move_kept(&mut self, token: usize, region: RegionId, sock: SockId) -> Result<(), Errno> {
        let Some(k) = self.kept.socks.get_mut(&token) else { return Err(Errno::NOENT) };
        let was = (k.region, k.sock);
        if was != (region, sock) {
            self.regions.keep(region, sock)?;
            (k.region, k.sock) = (region, sock);
            self.regions.unkeep(was.0, was.1);
        }
        Ok(())
    }

    /// OP_ADOPT.
    pub(super) fn adopt(&mut self, token: usize, peer: Peer, place: Option<Place>, mut fds: Fds) -> Next {
        let cookie = fds.pop().and_then(|fd| sys::cookie(fd.as_fd()).ok());
        let key = cookie.map(|c| (peer.uid, c));
        let found = key.and_then(|k| self.kept.by_cookie.get(&k)).and_then(|t| self.kept.socks.get(t));
        let Some((region, sock)) = found.map(|k| (k.region, k.sock)) else { return self.refuse(Errno::NOENT) };
        match place {
            Some(place) if place.region == region => {
                self.regions.hold(place, sock);
                Next::Reply(Reply { arg: sock.0, ..self.reply(place) })
            }
            Some(_) => Next::Reply(Reply { region: region.0, ..Reply::new(Errno::XDEV.raw_os_error() as u32) }),
            None => match self.regions.join(region, peer.pid) {
                Ok(place) => {
                    self.put(token, place);
                    self.regions.hold(place, sock);
                    Next::Welcome(Reply { arg: sock.0, ..self.reply(place) }, place)
                }
                Err(e) => self.refuse(e),
            },
        }
    }

    /// Something happened at the other end: only its closing is of interest.
    pub(super) fn kept_event(&mut self, token: usize) {
        let Some(k) = self.kept.socks.get(&token) else { return };
        let mut looked = [PollFd::new(&k.end, PollFlags::empty())];
        let looked = poll(&mut looked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).map(|_| looked[0].revents());
        if looked.is_ok_and(|r| r.intersects(PollFlags::HUP | PollFlags::ERR)) {
            self.end_kept(token);
        }
    }

    fn end_kept(&mut self, token: usize) {
        let Some(k) = self.kept.remove(token) else { return };
        let _ = self.registry.deregister(&mut SourceFd(&k.end.as_raw_fd()));
        // Closed with bytes unread: TCP says so by a reset (RFC 2525 §2.17).
        let lost = rustix::net::recv(&k.end, &mut [0u8; 1], RecvFlags::DONTWAIT | RecvFlags::PEEK);
        if lost == Err(Errno::CONNRESET)
            && let Some(slot) = self.regions.slot(k.region, k.sock)
        {
            slot.app_flags.fetch_or(app_flags::LINGER_RST, SeqCst);
        }
        self.regions.unkeep(k.region, k.sock);
    }
}
