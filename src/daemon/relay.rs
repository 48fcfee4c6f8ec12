//! The relay: a thread that moves the bytes of sockets whose placeholder is in a process without the shim. To the engines it is
//! one more app: it joins the regions over the control socket and uses the sockets as a program would, by the same code.
//!
//! Slower than a socket of the shim's, and never wrong: bytes in order, ends and half-closes forwarded both ways. A reset reaches
//! the program as far as AF_UNIX can say it.

mod pump;

use super::engines::Event;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use pump::{BUF, Pump, Turn};
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use toe_core::app::adopt::Claim;
use toe_core::app::{EventSet, Link, Sock, SocketPath};
use toe_core::ids::{EvSetId, RegionId, SockId};

const WAKE: Token = Token(0);
/// Eventfds: one token, because news means "look at all sets".
const NEWS: Token = Token(1);
/// How soon a blocked socket is tried again.
const RETRY: Duration = Duration::from_millis(1);

/// One socket to be relayed.
pub struct Job {
    /// The daemon's end of the placeholder's connection; does not block.
    pub end: OwnedFd,
    /// Whose it is.
    pub region: RegionId,
    /// Which.
    pub sock: SockId,
    /// What `Event::RelayEnded` will say; at least 2.
    pub token: usize,
}

/// Starts the thread when the first socket needs it.
pub struct Relay {
    path: PathBuf,
    events: mpsc::Sender<Event>,
    events_wake: Arc<Waker>,
    running: Option<(mpsc::Sender<Job>, Arc<Waker>)>,
}

impl Relay {
    /// Joins regions by the control socket at `path`; ends are told to `events`.
    pub fn new(path: &Path, events: mpsc::Sender<Event>, events_wake: Arc<Waker>) -> Relay {
        Relay { path: path.to_path_buf(), events, events_wake, running: None }
    }

    /// Takes a socket over. It is held by the control thread until the end is told.
    pub fn take(&mut self, job: Job) -> io::Result<()> {
        if self.running.is_none() {
            self.running = Some(self.start()?);
        }
        let gone = || io::Error::other("the relay has ended");
        let (jobs, wake) = self.running.as_ref().ok_or_else(gone)?;
        jobs.send(job).map_err(|_| gone())?;
        wake.wake()
    }

    fn start(&self) -> io::Result<(mpsc::Sender<Job>, Arc<Waker>)> {
        let path = SocketPath::try_from(self.path.as_os_str().as_encoded_bytes()).map_err(io::Error::other)?;
        let poll = Poll::new()?;
        let wake = Arc::new(Waker::new(poll.registry(), WAKE)?);
        let (jobs, received) = mpsc::channel();
        let (events, events_wake) = (self.events.clone(), self.events_wake.clone());
        let mut thread = Thread {
            poll,
            path,
            events,
            events_wake,
            links: HashMap::new(),
            pumps: HashMap::new(),
            by_sock: HashMap::new(),
            due: HashSet::new(),
            blocked: HashSet::new(),
        };
        std::thread::Builder::new().name("toe-relay".to_owned()).spawn(move || {
            let mut buf = Box::new([0u8; BUF]);
            if let Err(e) = thread.run(&received, &mut buf) {
                tracing::error!("relay: {e}");
                std::process::abort();
            }
        })?;
        tracing::info!("relaying sockets of programs without the shim");
        Ok((jobs, wake))
    }
}

/// A region that the relay has joined.
struct Joined {
    link: Link,
    set: EvSetId,
    socks: usize,
}

impl Joined {
    fn set(&self) -> Option<EventSet<'_>> {
        EventSet::cached(&self.link, self.set)
    }
}

struct Relayed {
    pump: Pump,
    region: RegionId,
    sock: SockId,
}

struct Thread {
    poll: Poll,
    path: SocketPath,
    events: mpsc::Sender<Event>,
    events_wake: Arc<Waker>,
    links: HashMap<RegionId, Joined>,
    pumps: HashMap<usize, Relayed>,
    by_sock: HashMap<(RegionId, SockId), usize>,
    /// To be looked at now.
    due: HashSet<usize>,
    /// To be looked at in a moment.
    blocked: HashSet<usize>,
}

impl Thread {
    fn run(&mut self, jobs: &mpsc::Receiver<Job>, buf: &mut [u8; BUF]) -> io::Result<()> {
        let mut events = Events::with_capacity(256);
        loop {
            loop {
                match jobs.try_recv() {
                    Ok(job) => self.begin(job),
                    Err(mpsc::TryRecvError::Empty) => break,
                    // The daemon ends.
                    Err(mpsc::TryRecvError::Disconnected) => return Ok(()),
                }
            }
            for token in std::mem::take(&mut self.due) {
                self.turn(token, buf);
            }
            let quiet = self.arm() && self.due.is_empty();
            let retry = (!self.blocked.is_empty()).then_some(RETRY);
            match self.poll.poll(&mut events, if quiet { retry } else { Some(Duration::ZERO) }) {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => return Err(e),
                _ => {}
            }
            self.due.extend(self.blocked.drain());
            self.due.extend(events.iter().map(|e| e.token()).filter(|&t| t != WAKE && t != NEWS).map(|t| t.0));
            self.collect();
        }
    }

    /// Asks for all news. `false`: there is some already.
    fn arm(&self) -> bool {
        let mut quiet = true;
        for set in self.links.values().filter_map(Joined::set) {
            quiet &= set.arm();
        }
        quiet
    }

    /// Takes the news.
    fn collect(&mut self) {
        for (region, joined) in &self.links {
            if let Some(set) = joined.set() {
                set.disarm();
                set.drain(|sock| self.due.extend(self.by_sock.get(&(*region, SockId(sock)))));
            }
        }
    }

    fn begin(&mut self, job: Job) {
        let (token, region, sock) = (job.token, job.region, job.sock);
        if let Err(e) = self.join(region, sock) {
            tracing::warn!("a socket of region {} cannot be relayed: {e}", region.0);
            return self.tell(token);
        }
        let interest = Interest::READABLE | Interest::WRITABLE;
        let end = job.end.as_raw_fd();
        if let Err(e) = self.poll.registry().register(&mut SourceFd(&end), Token(token), interest) {
            tracing::warn!("a socket of region {} cannot be relayed: {e}", region.0);
            self.leave(region, sock, |s| s.release());
            return self.tell(token);
        }
        self.pumps.insert(token, Relayed { pump: Pump::new(job.end), region, sock });
        self.by_sock.insert((region, sock), token);
        self.due.insert(token);
    }

    /// Holds a socket, and hears of its news.
    fn join(&mut self, region: RegionId, sock: SockId) -> Result<(), String> {
        let claim = Claim::Slot(region, sock);
        if let Some(joined) = self.links.get_mut(&region) {
            joined.link.adopt_too(claim).map_err(|e| e.to_string())?;
            joined.socks += 1;
        } else {
            let (link, _) = Link::adopt(&self.path, claim, b"toed", 0).map_err(|e| e.to_string())?;
            let set = EventSet::take(&link).map_err(|e| e.to_string())?;
            let (set, fd) = (set.id, set.fd);
            let joined = self.poll.registry().register(&mut SourceFd(&fd), NEWS, Interest::READABLE);
            joined.map_err(|e| e.to_string())?;
            self.links.insert(region, Joined { link, set, socks: 1 });
        }
        let joined = self.links.get(&region).ok_or("no region")?;
        if let Some(sock) = Sock::of(&joined.link, sock) {
            sock.watch(joined.set, true);
        }
        Ok(())
    }

    /// Takes [`join`](Self::join) back; `last` is the last thing done with the socket.
    fn leave(&mut self, region: RegionId, sock: SockId, last: impl FnOnce(&Sock<'_>)) {
        let Some(joined) = self.links.get_mut(&region) else { return };
        if let Some(sock) = Sock::of(&joined.link, sock) {
            sock.watch(joined.set, false);
            last(&sock);
        }
        joined.socks -= 1;
        if joined.socks > 0 {
            return;
        }
        if let Some(set) = joined.set() {
            // The descriptor is not ours alone: it must be out of the poll before it is closed.
            let _ = self.poll.registry().deregister(&mut SourceFd(&set.fd));
            set.give_back();
        }
        self.links.remove(&region);
    }

    fn turn(&mut self, token: usize, buf: &mut [u8; BUF]) {
        let Some(relayed) = self.pumps.get_mut(&token) else { return };
        let sock = self.links.get(&relayed.region).and_then(|j| Sock::of(&j.link, relayed.sock));
        match sock.map_or(Turn::Over, |s| relayed.pump.turn(&s, buf)) {
            Turn::Idle => {}
            Turn::Busy => drop(self.due.insert(token)),
            Turn::Blocked => drop(self.blocked.insert(token)),
            Turn::Over => self.end(token),
        }
    }

    fn end(&mut self, token: usize) {
        let Some(Relayed { pump, region, sock }) = self.pumps.remove(&token) else { return };
        self.by_sock.remove(&(region, sock));
        let _ = self.poll.registry().deregister(&mut SourceFd(&pump.end.as_raw_fd()));
        self.leave(region, sock, |s| pump.finish(s));
        self.tell(token);
    }

    fn tell(&self, token: usize) {
        // The other side is gone only when the daemon ends.
        let _ = self.events.send(Event::RelayEnded(token));
        let _ = self.events_wake.wake();
    }
}
