//! How two daemons find each other and join their windows: an `AF_UNIX` `SOCK_SEQPACKET` connection on one path that both
//! know. Who holds the lock file listens; the other connects. The end of that connection is the end of the link.
//!
//! ```text
//!   both: HELLO  (version, queues, MTU, ring size, MAC)
//!   both: WINDOW (memfd and doorbell eventfds, made to fit the other's HELLO)
//!   both: write the link header into the peer's window, version last; then READY
//! ```
//!
//! Nothing here blocks; [`Handshake::step`] is called with the time, and whenever a descriptor of [`Handshake::fds`] is
//! readable.

use super::doorbell;
use super::geometry::{Geometry, MAGIC, VERSION, header, link_up};
use super::queue::Conn;
use super::rendezvous::Rendezvous;
use super::window::Window;
use crate::config::PcieLinkConfig;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use rustix::net::RecvFlags;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use toe_core::control;
use toe_core::{Duration, Instant};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const MIN_BACKOFF: Duration = Duration::from_millis(10);
const MAX_BACKOFF: Duration = Duration::from_millis(100);
/// A peer that has connected must get through the handshake in this time.
const TIMEOUT: Duration = Duration::from_secs(1);
/// A link that was up this long starts its backoff afresh.
const STABLE: Duration = Duration::from_secs(1);
/// How often an awake owner looks at the socket of a link that is up, and of one that is not. (A sleeping one is woken.)
const LOOK_UP: Duration = Duration::from_millis(10);
const LOOK_DOWN: Duration = Duration::from_millis(1);

const HELLO: u32 = 1;
const WINDOW: u32 = 2;
const READY: u32 = 3;

/// One packet, native byte order (both daemons run on one machine).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Message {
    magic: u32,
    version: u32,
    kind: u32,
    queues: u32,
    mtu: u32,
    pad: u32,
    ring_bytes: u64,
    mac: [u8; 8],
}

/// What a step brought.
pub enum Event {
    /// Nothing new.
    None,
    /// The link is up.
    Up(Arc<Conn>),
    /// The link, which was up, is down.
    Down,
}

/// Our window and interrupts, while the peer's are awaited.
struct Offer {
    mine: Arc<Window>,
    mine_geo: Geometry,
    peer_geo: Geometry,
    mtu: usize,
    my_bells: Vec<OwnedFd>,
    peer: Message,
}

enum State {
    Idle,
    Greeted { sock: OwnedFd, since: Instant },
    Offered { sock: OwnedFd, since: Instant, offer: Box<Offer> },
    Attached { sock: OwnedFd, since: Instant, conn: Arc<Conn>, peer: Message },
    Up { sock: OwnedFd, since: Instant, conn: Arc<Conn> },
}

/// One side's handshake and link supervision.
pub struct Handshake {
    meet: Rendezvous,
    hello: Message,
    state: State,
    backoff: Duration,
    next_try: Instant,
    next_look: Instant,
    complained: bool,
}

impl Handshake {
    /// Starts; takes the listener's role if it is free.
    pub fn new(cfg: &PcieLinkConfig, mac: [u8; 6]) -> io::Result<Handshake> {
        let mut mac8 = [0; 8];
        mac8[..6].copy_from_slice(&mac);
        let hello = Message {
            magic: MAGIC,
            version: VERSION,
            kind: HELLO,
            queues: cfg.queues as u32,
            mtu: cfg.mtu as u32,
            pad: 0,
            ring_bytes: cfg.ring_bytes as u64,
            mac: mac8,
        };
        let mut meet = Rendezvous::new(cfg.socket.clone());
        meet.try_lead()?;
        Ok(Handshake {
            meet,
            hello,
            state: State::Idle,
            backoff: MIN_BACKOFF,
            next_try: Instant::ZERO,
            next_look: Instant::ZERO,
            complained: false,
        })
    }

    /// Descriptors that become readable when a step is due.
    pub fn fds(&self) -> Vec<RawFd> {
        match &self.state {
            // Not while backing off: a peer that waits there would keep the poller awake.
            State::Idle if self.next_try > Instant::ZERO => vec![],
            State::Idle => self.meet.listener().map(|l| l.as_raw_fd()).into_iter().collect(),
            State::Greeted { sock, .. }
            | State::Offered { sock, .. }
            | State::Attached { sock, .. }
            | State::Up { sock, .. } => vec![sock.as_raw_fd()],
        }
    }

    /// A descriptor may have become readable: look at the next step.
    pub fn look_now(&mut self) {
        self.next_look = Instant::ZERO;
    }

    /// Has anything to do at `now`? Cheap.
    #[inline(always)]
    pub fn is_due(&self, now: Instant) -> bool {
        now >= self.next_look || matches!(&self.state, State::Up { conn, .. } if link_up(&conn.mine).load(Relaxed) != 1)
    }

    /// Does what can be done at `now`, and says when to come back at the latest.
    pub fn step(&mut self, now: Instant) -> (Event, Option<Instant>) {
        let (event, deadline) = self.run(now);
        self.next_look = now + if matches!(self.state, State::Up { .. }) { LOOK_UP } else { LOOK_DOWN };
        (event, deadline)
    }

    fn run(&mut self, now: Instant) -> (Event, Option<Instant>) {
        // Each pass either advances the state (there are five) or ends.
        for _ in 0..8 {
            match self.advance(now) {
                Ok(Some(Event::None)) => continue,
                Ok(Some(event)) => return (event, self.deadline()),
                Ok(None) => break,
                Err(e) => {
                    let event = self.fail(now, &e);
                    return (event, self.deadline());
                }
            }
        }
        (Event::None, self.deadline())
    }

    /// Ends the link (the peer is broken); it is tried again after the backoff.
    pub fn reset(&mut self, now: Instant) -> Event {
        self.fail(now, &io::Error::new(io::ErrorKind::InvalidData, "the peer broke the ring protocol"))
    }

    /// When to come back at the latest, even if no descriptor becomes readable.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Idle => Some(self.next_try).filter(|&t| self.meet.listener().is_none() || t > Instant::ZERO),
            State::Greeted { since, .. } | State::Offered { since, .. } | State::Attached { since, .. } => {
                Some(*since + TIMEOUT)
            }
            State::Up { .. } => None,
        }
    }

    fn fail(&mut self, now: Instant, why: &io::Error) -> Event {
        let was = core::mem::replace(&mut self.state, State::Idle);
        let event = match was {
            State::Up { since, conn, .. } => {
                // The peer, should it still run, sees the word at once.
                link_up(&conn.peer).store(0, Release);
                if now.since(since) >= STABLE {
                    self.backoff = MIN_BACKOFF;
                }
                Event::Down
            }
            State::Attached { conn, .. } => {
                link_up(&conn.peer).store(0, Release);
                Event::None
            }
            _ => Event::None,
        };
        let ordinary = matches!(why.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::WouldBlock);
        if !ordinary && !core::mem::replace(&mut self.complained, true) {
            tracing::warn!(socket = %self.meet.path().display(), "PCIeLINK: {why}; trying again");
        }
        self.next_try = now + self.backoff;
        self.backoff = (self.backoff * 2).min(MAX_BACKOFF);
        event
    }

    /// One transition. `None`: nothing to do now.
    fn advance(&mut self, now: Instant) -> io::Result<Option<Event>> {
        match &self.state {
            State::Idle => self.meet_peer(now),
            State::Greeted { sock, since } => match receive(sock.as_fd(), now, *since)? {
                Some((m, _)) => self.on_hello(m).map(Some),
                None => Ok(None),
            },
            State::Offered { sock, since, .. } => match receive(sock.as_fd(), now, *since)? {
                Some((m, fds)) => self.on_window(m, fds).map(Some),
                None => Ok(None),
            },
            State::Attached { sock, since, .. } => match receive(sock.as_fd(), now, *since)? {
                Some((m, _)) => self.on_ready(m, now).map(Some),
                None => Ok(None),
            },
            State::Up { sock, conn, .. } => {
                if link_up(&conn.mine).load(Acquire) != 1 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                match receive(sock.as_fd(), now, now)? {
                    Some(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "unexpected packet from the peer")),
                    None => Ok(None),
                }
            }
        }
    }

    fn meet_peer(&mut self, now: Instant) -> io::Result<Option<Event>> {
        if now < self.next_try {
            return Ok(None);
        }
        self.meet.try_lead()?;
        let sock = match self.meet.listener() {
            Some(_) => match self.meet.accept()? {
                Some(sock) => sock,
                None => {
                    self.next_try = Instant::ZERO; // the listener's fd tells
                    return Ok(None);
                }
            },
            None => self.meet.connect()?,
        };
        control::send(sock.as_fd(), &self.hello, &[])?;
        self.state = State::Greeted { sock, since: now };
        Ok(Some(Event::None))
    }

    fn on_hello(&mut self, m: Message) -> io::Result<Event> {
        expect(&m, HELLO)?;
        let mtu = (m.mtu as usize).min(self.hello.mtu as usize);
        let (ours, theirs) = (self.hello.queues as usize, m.queues as usize);
        let mine_geo = Geometry::new(ours, theirs, self.hello.ring_bytes as usize, mtu)?;
        let peer_geo = Geometry::new(theirs, ours, m.ring_bytes as usize, mtu)?;
        let mine = Arc::new(Window::create(c"toe-window", mine_geo.window_len())?);
        let my_bells = (0..ours).map(|_| doorbell::new_interrupt()).collect::<io::Result<Vec<_>>>()?;
        let State::Greeted { sock, since } = core::mem::replace(&mut self.state, State::Idle) else {
            return Ok(Event::None);
        };
        let mut fds: Vec<BorrowedFd<'_>> = vec![mine.fd()];
        fds.extend(my_bells.iter().map(AsFd::as_fd));
        control::send(sock.as_fd(), &Message { kind: WINDOW, ..self.hello }, &fds)?;
        let offer = Box::new(Offer { mine, mine_geo, peer_geo, mtu, my_bells, peer: m });
        self.state = State::Offered { sock, since, offer };
        Ok(Event::None)
    }

    fn on_window(&mut self, m: Message, fds: control::Fds) -> io::Result<Event> {
        let State::Offered { sock, since, offer } = core::mem::replace(&mut self.state, State::Idle) else {
            return Ok(Event::None);
        };
        expect(&m, WINDOW)?;
        if fds.len() != 1 + offer.peer_geo.owner {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the peer sent another number of descriptors"));
        }
        let mut fds = fds.into_iter();
        let memfd = fds.next().ok_or(io::ErrorKind::InvalidData)?;
        let peer = Arc::new(Window::open(memfd, offer.peer_geo.window_len())?);
        let peer_bells: Vec<OwnedFd> = fds.collect();
        peer_bells.iter().try_for_each(doorbell::check_interrupt)?;
        write_header(&peer, &self.hello);
        control::send(sock.as_fd(), &Message { kind: READY, ..self.hello }, &[])?;
        let Offer { mine, mine_geo, peer_geo, mtu, my_bells, peer: peer_hello } = *offer;
        let conn = Arc::new(Conn { mine, mine_geo, peer, peer_geo, mtu, my_bells, peer_bells });
        self.state = State::Attached { sock, since, conn, peer: peer_hello };
        Ok(Event::None)
    }

    fn on_ready(&mut self, m: Message, now: Instant) -> io::Result<Event> {
        let State::Attached { sock, conn, peer, .. } = core::mem::replace(&mut self.state, State::Idle) else {
            return Ok(Event::None);
        };
        expect(&m, READY)?;
        if !header_is(&conn.mine, &peer) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the link header is not that of the peer's HELLO"));
        }
        self.complained = false;
        self.state = State::Up { sock, since: now, conn: conn.clone() };
        Ok(Event::Up(conn))
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        if let State::Up { conn, .. } | State::Attached { conn, .. } = &self.state {
            link_up(&conn.peer).store(0, Release);
        }
    }
}

/// The next packet, if there is one; an error if the peer is gone, or late.
fn receive(sock: BorrowedFd<'_>, now: Instant, since: Instant) -> io::Result<Option<(Message, control::Fds)>> {
    match control::recv::<Message>(sock, RecvFlags::DONTWAIT) {
        Ok(Some(packet)) => Ok(Some(packet)),
        Ok(None) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(None),
        Err(e) if e.kind() == io::ErrorKind::ConnectionReset => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(e) if e.kind() != io::ErrorKind::WouldBlock => Err(e),
        Err(_) if now.since(since) > TIMEOUT => Err(io::Error::new(io::ErrorKind::TimedOut, "handshake timed out")),
        Err(_) => Ok(None),
    }
}

fn expect(m: &Message, kind: u32) -> io::Result<()> {
    if m.magic != MAGIC || m.version != VERSION {
        let what = format!("the peer speaks version {}, this daemon {VERSION}", m.version);
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    if m.kind != kind {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "handshake packet out of order"));
    }
    Ok(())
}

/// Writes our link header into the peer's window, version last.
fn write_header(peer: &Window, hello: &Message) {
    peer.word32(header::MAGIC).store(MAGIC, Relaxed);
    peer.word32(header::QUEUES).store(hello.queues, Relaxed);
    peer.word32(header::MTU).store(hello.mtu, Relaxed);
    link_up(peer).store(1, Relaxed);
    peer.word32(header::VERSION).store(VERSION, Release);
}

/// Has the peer written its link header into our window, and does it agree with its HELLO?
fn header_is(mine: &Window, hello: &Message) -> bool {
    mine.word32(header::VERSION).load(Acquire) == VERSION
        && mine.word32(header::MAGIC).load(Relaxed) == MAGIC
        && mine.word32(header::QUEUES).load(Relaxed) == hello.queues
        && mine.word32(header::MTU).load(Relaxed) == hello.mtu
        && link_up(mine).load(Relaxed) == 1
}
