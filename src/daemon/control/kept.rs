//! Sockets that leave the process image that made them: over exec, or in a message to another process. The daemon holds them
//! as long as any process has the placeholder, which it sees by the placeholder's connection: the other end is here, and hangs
//! up when the last descriptor is closed, wherever that is.

use super::{Control, Next, interest};
use crate::daemon::regions::Place;
use crate::daemon::relay::{Job, Relay};
use crate::daemon::sys::{self, Peer};
use crate::daemon::waker::LiveWaker;
use mio::Token;
use mio::unix::SourceFd;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use toe_core::control::{Fds, KEEP_IN_MESSAGE, KEEP_RELAY, Reply, Request};
use toe_core::ids::{RegionId, SockId};
use toe_core::notify;
use toe_core::shm::{SockState, app_flags, kept};

/// Tokens of kept sockets have this bit.
const KEPT: usize = 1 << (usize::BITS - 1);
/// Kept sockets at a time: each costs a descriptor.
const MAX_KEPT: usize = 65_536;
/// Those of one user.
const MAX_KEPT_PER_USER: usize = MAX_KEPT / 2;

/// A program starts within this, or counts as one without the shim. That costs speed, nothing else.
const STARTED_WITHIN: Duration = Duration::from_secs(3);
/// The same for a message to be taken. Not long: until then, a receiver without the shim has nothing to read.
const TAKEN_WITHIN: Duration = Duration::from_millis(500);

/// Is it the token of a kept socket?
pub fn is_kept(token: usize) -> bool {
    token & KEPT != 0
}

/// `token` as that of a connection.
pub fn conn_token(token: usize) -> usize {
    token & !KEPT
}

struct KeptSock {
    /// The other end of the placeholder's connection; `None`: the relay has it, and says when it ends.
    end: Option<OwnedFd>,
    /// How many who were to adopt it have not done so.
    expected: usize,
    /// They have time until then.
    due: Option<Instant>,
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
    /// Dues in their order; one that was renewed has an old entry, too.
    dues: BTreeSet<(Instant, usize)>,
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
        let token = match (self.kept.by_cookie.get(&key).copied(), end) {
            // Two processes at once: only one of them could connect the placeholder.
            (Some(token), _) => self.move_kept(token, region, sock)?,
            (None, Some(end)) => self.new_kept(end, region, sock, key)?,
            (None, None) => return Err(Errno::NOENT),
        };
        match r.proc {
            KEEP_RELAY => self.demote(token),
            KEEP_IN_MESSAGE => self.expect(token, Instant::now() + TAKEN_WITHIN),
            _ => self.expect(token, Instant::now() + STARTED_WITHIN),
        }
        Ok(())
    }

    /// Somebody is to adopt the socket soon; otherwise who has it cannot.
    fn expect(&mut self, token: usize, due: Instant) {
        let Some(k) = self.kept.socks.get_mut(&token).filter(|k| k.end.is_some()) else { return };
        k.expected += 1;
        k.due = Some(due);
        self.kept.dues.insert((due, token));
    }

    /// When [`check_due`](Self::check_due) has something to do.
    pub fn next_due(&self) -> Option<Instant> {
        self.kept.dues.first().map(|&(at, _)| at)
    }

    /// Relays what was not adopted in time.
    pub fn check_due(&mut self, now: Instant) {
        while let Some(&(at, token)) = self.kept.dues.first().filter(|(at, _)| *at <= now) {
            self.kept.dues.pop_first();
            let Some(k) = self.kept.socks.get_mut(&token).filter(|k| k.due == Some(at)) else { continue };
            k.due = None;
            if std::mem::take(&mut k.expected) > 0 {
                self.demote(token);
            }
        }
    }

    /// From now on all bytes of the socket go through its placeholder.
    fn demote(&mut self, token: usize) {
        let Some(relay) = &mut self.relay else { return };
        let Some(k) = self.kept.socks.get_mut(&token) else { return };
        let Some((region, slot)) = self.regions.shared_slot(k.region, k.sock) else { return };
        // Bytes alone do not make an accept.
        if slot.state.load(SeqCst) == SockState::Listening as u32 {
            return;
        }
        let Some(end) = k.end.take() else { return };
        let _ = self.registry.deregister(&mut SourceFd(&end.as_raw_fd()));
        slot.kept.fetch_or(kept::RELAYED, SeqCst);
        let (id, sock) = (k.region, k.sock);
        if let Err(e) = relay.take(Job { end, region: id, sock, token }) {
            tracing::error!("a socket cannot be relayed: {e}");
            self.end_kept(token);
            return;
        }
        notify::all(region, sock, slot, &LiveWaker);
    }

    /// Who relays.
    pub fn relay_by(&mut self, relay: Relay) {
        self.relay = Some(relay);
    }

    /// The relay is done with a socket.
    pub fn relay_ended(&mut self, token: usize) {
        self.end_kept(token);
    }

    fn new_kept(&mut self, end: OwnedFd, region: RegionId, sock: SockId, key: (u32, u64)) -> Result<usize, Errno> {
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
        self.kept.insert(token, KeptSock { end: Some(end), expected: 0, due: None, region, sock, key });
        Ok(token)
    }

    /// The placeholder stands for another slot now (a failed connect was tried again), or was kept before.
    fn move_kept(&mut self, token: usize, region: RegionId, sock: SockId) -> Result<usize, Errno> {
        let Some(k) = self.kept.socks.get_mut(&token) else { return Err(Errno::NOENT) };
        let was = (k.region, k.sock);
        if was != (region, sock) {
            self.regions.keep(region, sock)?;
            (k.region, k.sock) = (region, sock);
            self.regions.unkeep(was.0, was.1);
        }
        Ok(token)
    }

    /// OP_ADOPT.
    pub(super) fn adopt(&mut self, token: usize, peer: Peer, place: Option<Place>, r: &Request, fds: Fds) -> Next {
        let claimed = match fds.first() {
            None if peer.pid == std::process::id() => Some((RegionId(r.region), SockId(r.arg))),
            None => None,
            Some(placeholder) => self.claimed(peer.uid, placeholder),
        };
        let Some((region, sock)) = claimed else { return self.refuse(Errno::NOENT) };
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

    /// The socket that a user's placeholder stands for.
    fn claimed(&mut self, uid: u32, placeholder: &OwnedFd) -> Option<(RegionId, SockId)> {
        let cookie = sys::cookie(placeholder.as_fd()).ok()?;
        let token = self.kept.by_cookie.get(&(uid, cookie))?;
        let k = self.kept.socks.get_mut(token)?;
        k.expected = k.expected.saturating_sub(1);
        Some((k.region, k.sock))
    }

    /// Something happened at the other end of a socket that is not relayed: closed; or somebody uses the placeholder itself.
    pub(super) fn kept_event(&mut self, token: usize) {
        let Some(end) = self.kept.socks.get(&token).and_then(|k| k.end.as_ref()) else { return };
        let Ok(hung_up) = sys::hung_up(end.as_fd()) else { return };
        let peeked = rustix::net::recv(end, &mut [0u8; 1], RecvFlags::DONTWAIT | RecvFlags::PEEK);
        match peeked {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok((_, 1..)) => self.demote(token),
            Ok(_) if !hung_up => self.demote(token),
            other => {
                // Closed with bytes unread: TCP says so by a reset (RFC 2525 §2.17).
                if other == Err(Errno::CONNRESET) {
                    self.reset_kept(token);
                }
                self.end_kept(token);
            }
        }
    }

    fn reset_kept(&self, token: usize) {
        let k = self.kept.socks.get(&token);
        if let Some(slot) = k.and_then(|k| self.regions.slot(k.region, k.sock)) {
            slot.app_flags.fetch_or(app_flags::LINGER_RST, SeqCst);
        }
    }

    fn end_kept(&mut self, token: usize) {
        let Some(k) = self.kept.remove(token) else { return };
        if let Some(end) = &k.end {
            let _ = self.registry.deregister(&mut SourceFd(&end.as_raw_fd()));
        }
        self.regions.unkeep(k.region, k.sock);
    }
}
