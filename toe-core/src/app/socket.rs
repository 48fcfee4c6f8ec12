//! One socket: taking a slot, asking the slow path, accepting, closing, names.

use super::client::{Link, errno_of};
use super::lock::lock;
use super::wait::{Stop, now_ns};
use crate::ids::{EvSetId, SockId};
use crate::notify;
use crate::shm::{ACCEPT_RING, AcceptRing, ReqOp, SockSlot, SockState, app_flags, daemon_flags, kept};
use core::net::SocketAddr;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicU32, fence};
use rustix::io::Errno;

/// The slow path answers requests at once; one that takes longer than this is stopped or stuck.
const REQUEST_TIMEOUT_NS: u64 = 5_000_000_000;

/// Longest wait for the end of a listener.
const LISTENER_CLOSE_NS: u64 = 20_000_000;

/// What sending and receiving say of a socket that is [`relayed`](Sock::relayed): nothing was done, the placeholder is to be used.
pub const RELAYED: Errno = Errno::XDEV;

/// One socket slot, cheap to copy.
#[derive(Clone, Copy)]
pub struct Sock<'a> {
    /// Registration it belongs to.
    pub link: &'a Link,
    /// Slot number.
    pub id: SockId,
    /// Slot.
    pub slot: &'a SockSlot,
}

/// The halves of `shutdown(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Shut {
    Read,
    Write,
    Both,
}

impl<'a> Sock<'a> {
    /// The socket in slot `id`.
    pub fn of(link: &'a Link, id: SockId) -> Option<Sock<'a>> {
        link.region.sock(id).map(|slot| Sock { link, id, slot })
    }

    /// Takes a free slot for this process. ENOBUFS: none left.
    pub fn create(link: &'a Link) -> Result<Sock<'a>, Errno> {
        if link.dead() {
            return Err(Errno::CONNRESET);
        }
        let id = SockId(link.region.layout().sock_pool.pop().ok_or(Errno::NOBUFS)?);
        let sock = Sock::of(link, id).ok_or(Errno::NOBUFS)?;
        sock.reset();
        Ok(sock)
    }

    /// A slot fresh from the pool: whatever is left in it is nobody's.
    fn reset(&self) {
        let (s, h) = (self.slot, &self.link.region.layout().header);
        s.clear();
        s.req_seq.store(s.resp_seq.load(Acquire), Relaxed);
        s.tx_limit.store(h.default_sndbuf.load(Relaxed), Relaxed);
        s.rx_limit.store(h.default_rcvbuf.load(Relaxed), Relaxed);
        // Before the state: a late kick for the slot's last user must not find it without a holder.
        self.hold();
        s.state.store(SockState::New as u32, Release);
    }

    /// State as last published by the daemon. With the daemon gone, `Closed` and ECONNRESET pending.
    #[inline]
    pub fn state(&self) -> SockState {
        if self.link.dead() {
            self.bury();
        }
        SockState::from_word(self.slot.state.load(Acquire))
    }

    /// The daemon is gone: from now on the slot says what it would have said.
    #[cold]
    fn bury(&self) {
        if self.slot.state.load(Acquire) == SockState::Closed as u32 {
            return;
        }
        self.slot.error.store(Errno::CONNRESET.raw_os_error() as u32, Release);
        self.slot.daemon_flags.fetch_or(daemon_flags::RESET, AcqRel);
        self.slot.state.store(SockState::Closed as u32, Release);
        self.link.pass_on_death();
    }

    /// Is an error pending, for who has just seen `state`? What ends a connection is stored before the state says so and counts
    /// from then on: whoever sees the error sees the end too.
    pub(super) fn has_error(&self, state: SockState) -> bool {
        !matches!(state, SockState::Connecting | SockState::Established) && self.slot.error.load(Acquire) != 0
    }

    /// Takes the pending error.
    pub fn take_error(&self) -> Option<Errno> {
        if !self.has_error(self.state()) {
            return None;
        }
        match self.slot.error.swap(0, AcqRel) {
            0 => None,
            e => Some(errno_of(e)),
        }
    }

    /// Reserves a local address; port 0: any.
    pub fn bind(&self, addr: SocketAddr) -> Result<(), Errno> {
        self.request(ReqOp::Bind, Some(addr), 0)
    }

    /// Starts accepting; on a listener, changes the backlog.
    pub fn listen(&self, backlog: u32) -> Result<(), Errno> {
        if self.state() == SockState::Listening {
            return self.request(ReqOp::Listen, None, backlog);
        }
        let ring = self.link.region.layout().ring_pool.pop().ok_or(Errno::NOBUFS)?;
        if let Some(r) = self.link.region.layout().rings.get(ring as usize) {
            r.head.store(0, Relaxed);
            r.tail.store(0, Relaxed);
        }
        self.slot.accept_ring.store(ring, Relaxed);
        let result = self.request(ReqOp::Listen, None, backlog);
        if result.is_err() {
            self.link.region.layout().ring_pool.push(ring);
        }
        result
    }

    /// Starts connecting; the end is told by the state. [`wait_connected`](Self::wait_connected) waits for it.
    pub fn connect(&self, addr: SocketAddr) -> Result<(), Errno> {
        self.request(ReqOp::Connect, Some(addr), 0)
    }

    fn request(&self, op: ReqOp, addr: Option<SocketAddr>, arg: u32) -> Result<(), Errno> {
        let s = self.slot;
        let _held = lock(&s.req_lock).ok_or(Errno::DEADLK)?;
        s.req_addr.store(addr);
        s.req_op.store(op as u32, Relaxed);
        s.req_arg.store(arg, Relaxed);
        let seq = s.req_seq.load(Relaxed).wrapping_add(1);
        s.req_seq.store(seq, Release);
        self.link.kick(s, self.id);
        let deadline = now_ns() + REQUEST_TIMEOUT_NS;
        loop {
            // bind, listen and a non-blocking connect are not interruptible in Linux either.
            match self.link.wait(&s.tx_wait, Some(deadline), || s.resp_seq.load(Acquire) == seq) {
                Ok(()) => break,
                Err(Stop::Interrupted) => {}
                Err(Stop::TimedOut) => return Err(Errno::TIMEDOUT),
                Err(Stop::Dead) => return Err(Errno::CONNRESET),
            }
        }
        match s.resp_err.load(Acquire) {
            0 => Ok(()),
            e => Err(errno_of(e)),
        }
    }

    /// Waits for the end of a connection attempt, but only so long, and without taking its outcome.
    pub fn await_handshake(&self, ns: u64) {
        let done = || self.slot.state.load(Acquire) != SockState::Connecting as u32;
        let _ = self.link.wait(&self.slot.tx_wait, Some(now_ns() + ns), done);
    }

    /// Waits for the end of a connection attempt. `AGAIN`: not yet by `deadline`; `INTR`: a signal came first; the attempt
    /// goes on in both cases.
    pub fn wait_connected(&self, deadline: Option<u64>) -> Result<(), Errno> {
        let done = || self.slot.state.load(Acquire) != SockState::Connecting as u32;
        match self.link.wait(&self.slot.tx_wait, deadline, done) {
            Err(Stop::Interrupted) => return Err(Errno::INTR),
            Err(Stop::TimedOut) => return Err(Errno::AGAIN),
            Ok(()) | Err(Stop::Dead) => {}
        }
        match self.state() {
            SockState::Established => Ok(()),
            // Established and closed again before we looked: that is success, the news is for the next call.
            _ if self.slot.daemon_flags.load(Acquire) & daemon_flags::RX_FIN != 0 => Ok(()),
            _ => Err(self.take_error().unwrap_or(Errno::CONNREFUSED)),
        }
    }

    fn ring(&self) -> Option<&'a AcceptRing> {
        self.link.region.layout().rings.get(self.slot.accept_ring.load(Relaxed) as usize)
    }

    /// Is there a connection to accept?
    pub fn acceptable(&self) -> bool {
        self.ring().is_some_and(|r| r.head.load(Acquire) != r.tail.load(Acquire))
    }

    /// Is it a listener? EINVAL otherwise; ECONNABORTED after the daemon's death.
    pub fn may_accept(&self) -> Result<(), Errno> {
        if self.state() != SockState::Listening {
            return Err(if self.link.dead() { Errno::CONNABORTED } else { Errno::INVAL });
        }
        if self.slot.app_flags.load(Relaxed) & app_flags::SHUT_RD != 0 {
            return Err(Errno::INVAL);
        }
        Ok(())
    }

    /// Takes the oldest finished connection. `AGAIN`: none; `INVAL`: not a listener (any more).
    pub fn try_accept(&self) -> Result<Sock<'a>, Errno> {
        self.may_accept()?;
        let ring = self.ring().ok_or(Errno::INVAL)?;
        loop {
            let head = ring.head.load(Acquire);
            if head == ring.tail.load(Acquire) {
                return Err(Errno::AGAIN);
            }
            let id = SockId(ring.entry[head as usize % ACCEPT_RING].load(Acquire));
            if ring.head.compare_exchange(head, head.wrapping_add(1), AcqRel, Acquire).is_err() {
                continue;
            }
            if let Some(sock) = Sock::of(self.link, id) {
                sock.take_over();
                return Ok(sock);
            }
        }
    }

    fn take_over(&self) {
        self.hold();
        let flags = self.slot.app_flags.load(Relaxed);
        if flags & app_flags::NONBLOCK != 0 {
            self.slot.app_flags.fetch_and(!app_flags::NONBLOCK, AcqRel);
        }
        self.slot.app_flags.fetch_or(app_flags::TAKEN, SeqCst);
        // So that the owner has seen a holder before it can see none.
        self.link.kick(self.slot, self.id);
    }

    /// Waits until [`try_accept`](Self::try_accept) has something to say other than "none yet".
    pub fn wait_acceptable(&self, deadline: Option<u64>) -> Result<(), Errno> {
        let s = self.slot;
        let ready = || {
            self.acceptable()
                || s.state.load(Acquire) != SockState::Listening as u32
                || s.app_flags.load(Acquire) & app_flags::SHUT_RD != 0
        };
        match self.link.wait(&s.rx_wait, deadline, ready) {
            Ok(()) | Err(Stop::Dead) => Ok(()),
            Err(Stop::Interrupted) => Err(Errno::INTR),
            Err(Stop::TimedOut) => Err(Errno::AGAIN),
        }
    }

    /// Takes a connection, waiting for one.
    pub fn accept(&self, deadline: Option<u64>) -> Result<Sock<'a>, Errno> {
        loop {
            match self.try_accept() {
                Err(Errno::AGAIN) => self.wait_acceptable(deadline)?,
                other => return other,
            }
        }
    }

    /// `shutdown(2)`.
    pub fn shutdown(&self, how: Shut) -> Result<(), Errno> {
        let flags = match how {
            Shut::Read => app_flags::SHUT_RD,
            Shut::Write => app_flags::SHUT_WR,
            Shut::Both => app_flags::SHUT_RD | app_flags::SHUT_WR,
        };
        match self.state() {
            SockState::Established if !self.over() => {}
            SockState::Listening if how == Shut::Write => return Ok(()),
            SockState::Listening | SockState::Connecting => {}
            // Remembered all the same.
            _ => {
                self.set_flag(flags, true, false);
                return Err(Errno::NOTCONN);
            }
        }
        self.apply_shutdown(flags);
        Ok(())
    }

    /// Both directions are through, although the daemon has not said so yet.
    fn over(&self) -> bool {
        let both = daemon_flags::RX_FIN | daemon_flags::TX_FIN_ACKED;
        self.slot.daemon_flags.load(Acquire) & both == both
    }

    fn apply_shutdown(&self, flags: u32) {
        // A writer in the middle of a copy finishes first, so that FIN comes after its bytes.
        let held = lock(&self.slot.tx_lock);
        self.slot.app_flags.fetch_or(flags, SeqCst);
        drop(held);
        self.link.kick(self.slot, self.id);
        self.wake_locals();
    }

    /// Something changed that the daemon will not announce: wakes those who wait for the socket in any process.
    fn wake_locals(&self) {
        notify::all(&self.link.region, self.id, self.slot, &LocalWaker(self.link));
    }

    /// Sets this process's holder bit.
    pub fn hold(&self) {
        if let Some(p) = self.link.proc() {
            self.slot.hold(p);
        }
    }

    /// This process closes the socket: the last descriptor is gone. The slot must not be used afterwards.
    pub fn release(&self) {
        let Some(p) = self.link.proc() else { return };
        self.slot.let_go(p);
        fence(SeqCst);
        if self.slot.is_held() {
            return;
        }
        let listening = self.slot.state.load(Acquire) == SockState::Listening as u32;
        let generation = self.slot.generation.load(Acquire);
        self.link.kick(self.slot, self.id);
        if listening {
            self.await_silence(generation);
        }
    }

    /// Once close(2) of a listener has returned, Linux refuses connections and gives the port to others. The daemon needs a moment
    /// for it; a busy one is not waited for.
    fn await_silence(&self, generation: u32) {
        let deadline = now_ns() + LISTENER_CLOSE_NS;
        let open = || {
            self.slot.state.load(Acquire) == SockState::Listening as u32
                && self.slot.generation.load(Acquire) == generation
        };
        while open() && !self.link.dead() && now_ns() < deadline {
            rustix::thread::sched_yield();
        }
    }

    /// Lets event set `set` hear of the socket, or not.
    pub fn watch(&self, set: EvSetId, on: bool) {
        let (word, bit) = (&self.slot.sets[set.index() / 64], 1u64 << (set.index() % 64));
        if on {
            word.fetch_or(bit, SeqCst);
        } else {
            word.fetch_and(!bit, SeqCst);
        }
    }

    /// getsockname.
    pub fn local(&self) -> Option<SocketAddr> {
        self.slot.local.load()
    }

    /// getpeername; ENOTCONN unless connected.
    pub fn peer(&self) -> Result<SocketAddr, Errno> {
        match self.state() {
            SockState::Established if !self.over() => self.slot.remote.load().ok_or(Errno::NOTCONN),
            _ => Err(Errno::NOTCONN),
        }
    }

    /// A process without the shim has the placeholder, so that all bytes go through it: the daemon moves them. Once true, it
    /// stays so. Told by `notify::all`; who takes a stream's lock after the relay did sees it.
    #[inline]
    pub fn relayed(&self) -> bool {
        self.slot.kept.load(Relaxed) & kept::RELAYED != 0
    }

    /// Is O_NONBLOCK set on the open file description?
    #[inline]
    pub fn nonblocking(&self) -> bool {
        self.slot.app_flags.load(Relaxed) & app_flags::NONBLOCK != 0
    }

    /// Sets or clears bits of `app_flags`; kicks the owner if `tell`.
    pub fn set_flag(&self, flag: u32, on: bool, tell: bool) {
        if on {
            self.slot.app_flags.fetch_or(flag, SeqCst);
        } else {
            self.slot.app_flags.fetch_and(!flag, SeqCst);
        }
        if tell {
            self.link.kick(self.slot, self.id);
        }
    }
}

/// Wakes sleepers of other threads and processes from an app.
struct LocalWaker<'a>(&'a Link);

impl notify::Waker for LocalWaker<'_> {
    fn futex(&self, word: &AtomicU32) {
        use rustix::thread::futex::{Flags, wake};
        let _ = wake(word, Flags::empty(), i32::MAX as u32);
    }

    fn evset(&self, _: &crate::shm::Region, set: EvSetId) {
        if let Ok(fd) = self.0.evset_fd(set) {
            let _ = rustix::io::write(super::client::borrow(fd), &1u64.to_ne_bytes());
        }
    }
}
