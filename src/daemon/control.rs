//! The control socket: one connection for each registered process, and one for each `toe status`.
//!
//! Everything a client sends is checked here; what makes no sense ends its connection and is counted. A client that does not
//! read its answers is dropped: nothing here ever waits for one.

mod kept;

use super::engines::Command;
use super::paths::ControlSocket;
use super::regions::{Place, Regions};
use super::relay::Relay;
use super::sys::{self, Peer};
use kept::Kept;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use toe_core::control::{self, Fds, MAX_FDS, Reply, Request};
use toe_core::shm::{DaemonPageMap, MAGIC, VERSION};

/// Token of the listening socket.
pub const LISTENER: Token = Token(0);
/// Connections have tokens from here on.
const FIRST_CONN: usize = 16;
/// Connections at a time.
const MAX_CONNS: usize = 16_384;
/// Connections of one user, so that none keeps the others out.
const MAX_CONNS_PER_USER: usize = MAX_CONNS / 2;
/// Connections accepted and requests read in one go.
const BATCH: usize = 64;
/// Bytes of one packet of a status.
const STATUS_PACKET: usize = 32 * 1024;

/// What went wrong on the control socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ControlStats {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections ended because of a request that made no sense.
    pub malformed: u64,
    /// Requests answered with an error.
    pub refused: u64,
}

struct Conn {
    fd: OwnedFd,
    peer: Peer,
    place: Option<Place>,
    /// Status packets still to be sent; an empty one is the last. `None`: not asked for.
    status: Option<VecDeque<Vec<u8>>>,
}

/// What follows from a request.
enum Next {
    Reply(Reply),
    /// With the region's descriptors.
    Welcome(Reply, Place),
    /// With one descriptor.
    Fd(Reply, OwnedFd),
    /// The answer comes later.
    Later,
    /// Answer, then end.
    Refuse(Reply),
    Malformed,
}

/// The service.
pub struct Control {
    socket: Option<ControlSocket>,
    registry: Registry,
    page: Arc<DaemonPageMap>,
    conns: HashMap<usize, Conn>,
    next_token: usize,
    kept: Kept,
    relay: Option<Relay>,
    /// Given up for a moment to accept, and so refuse, a connection when descriptors run out.
    spare: Option<OwnedFd>,
    /// Regions and their processes.
    pub regions: Regions,
    /// Counters.
    pub stats: ControlStats,
}

impl Control {
    /// Serves `socket`; events for [`LISTENER`] and above of `registry` go to [`event`](Self::event).
    pub fn new(
        socket: ControlSocket,
        registry: Registry,
        page: Arc<DaemonPageMap>,
        regions: Regions,
    ) -> io::Result<Control> {
        registry.register(&mut SourceFd(&socket.fd.as_raw_fd()), LISTENER, Interest::READABLE)?;
        Ok(Control {
            socket: Some(socket),
            registry,
            page,
            conns: HashMap::new(),
            next_token: FIRST_CONN,
            kept: Kept::default(),
            relay: None,
            spare: spare(),
            regions,
            stats: ControlStats::default(),
        })
    }

    /// No new connections from now on; the socket's file goes.
    pub fn stop_listening(&mut self) {
        if let Some(socket) = self.socket.take() {
            let _ = self.registry.deregister(&mut SourceFd(&socket.fd.as_raw_fd()));
        }
    }

    /// Nobody connected?
    pub fn is_idle(&self) -> bool {
        self.conns.is_empty() && self.kept.is_empty()
    }

    /// Something happened at `token`.
    pub fn event(&mut self, token: Token) {
        match token {
            LISTENER => self.accept(),
            Token(token) if kept::is_kept(token) => self.kept_event(token),
            Token(conn) => self.serve(conn),
        }
    }

    fn accept(&mut self) {
        for _ in 0..BATCH {
            let Some(socket) = &self.socket else { return };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&socket.fd, flags) {
                Ok(fd) => self.welcome(fd),
                Err(Errno::AGAIN) => return,
                Err(Errno::MFILE | Errno::NFILE) => {
                    // Without this the connection would stay in the queue, and its program wait for its time-out.
                    self.spare = None;
                    drop(rustix::net::accept_with(&socket.fd, flags));
                    self.spare = spare();
                    self.stats.refused += 1;
                }
                Err(e) => tracing::debug!("accept: {e}"),
            }
        }
        // More may wait; mio reports edges, asking again makes one.
        if let Some(socket) = &self.socket {
            let fd = socket.fd.as_raw_fd();
            let _ = self.registry.reregister(&mut SourceFd(&fd), LISTENER, Interest::READABLE);
        }
    }

    fn welcome(&mut self, fd: OwnedFd) {
        let Ok(peer) = sys::peer(fd.as_fd()) else { return };
        let of_user = self.conns.values().filter(|c| c.peer.uid == peer.uid).count();
        if self.conns.len() >= MAX_CONNS || of_user >= MAX_CONNS_PER_USER {
            self.stats.refused += 1;
            return;
        }
        let token = self.next_token;
        self.next_token = kept::conn_token(token.wrapping_add(1)).max(FIRST_CONN);
        if self.registry.register(&mut SourceFd(&fd.as_raw_fd()), Token(token), interest()).is_err() {
            return;
        }
        self.stats.accepted += 1;
        self.conns.insert(token, Conn { fd, peer, place: None, status: None });
    }

    /// Reads what a connection brings and answers it; then sends what waits.
    fn serve(&mut self, token: usize) {
        for _ in 0..BATCH {
            let Some(conn) = self.conns.get(&token) else { return };
            match control::recv::<Request>(conn.fd.as_fd(), RecvFlags::DONTWAIT) {
                Ok(Some((request, fds))) => {
                    let next = self.request(token, &request, fds);
                    if !self.answer(token, next) {
                        return self.close(token);
                    }
                }
                Ok(None) => return self.close(token),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return self.send_status(token),
                Err(e) => {
                    self.stats.malformed += u64::from(e.kind() == io::ErrorKind::InvalidData);
                    return self.close(token);
                }
            }
        }
        if let Some(conn) = self.conns.get(&token) {
            let fd = conn.fd.as_raw_fd();
            let _ = self.registry.reregister(&mut SourceFd(&fd), Token(token), interest());
        }
    }

    fn request(&mut self, token: usize, r: &Request, fds: Fds) -> Next {
        if r.magic != MAGIC {
            return Next::Malformed;
        }
        if r.version != VERSION {
            return Next::Refuse(Reply::new(Errno::PROTO.raw_os_error() as u32));
        }
        let Some(conn) = self.conns.get(&token) else { return Next::Malformed };
        let (peer, place) = (conn.peer, conn.place);
        match (r.op, place) {
            (control::OP_HELLO, None) => self.hello(token, peer, r),
            (control::OP_CHILD, None) => match self.regions.child(peer, r.region, r.proc, r.pid) {
                Ok(place) => {
                    self.put(token, place);
                    Next::Reply(self.reply(place))
                }
                Err(e) => self.refuse(e),
            },
            (control::OP_PID, Some(place)) => {
                self.regions.pid(place, r.pid);
                Next::Reply(self.reply(place))
            }
            (control::OP_EVSET, Some(place)) if r.region == place.region.0 => match self.regions.evset(place, r.arg) {
                Ok(fd) => Next::Fd(self.reply(place), fd),
                Err(e) => self.refuse(e),
            },
            (control::OP_STATUS, None) if conn.status.is_none() => {
                self.regions.command(Command::Status(token as u64));
                if let Some(conn) = self.conns.get_mut(&token) {
                    conn.status = Some(VecDeque::new());
                }
                Next::Later
            }
            (control::OP_KEEP, _) => self.keep(peer, place, r, fds),
            (control::OP_ADOPT, _) => self.adopt(token, peer, place, r, fds),
            (control::OP_EVSET | control::OP_PID, _) => self.refuse(Errno::PERM),
            (control::OP_HELLO | control::OP_CHILD | control::OP_STATUS, _) => self.refuse(Errno::INVAL),
            _ => Next::Malformed,
        }
    }

    fn hello(&mut self, token: usize, peer: Peer, r: &Request) -> Next {
        match self.regions.hello(peer, &program_name(&r.program)) {
            Ok(place) => {
                self.put(token, place);
                Next::Welcome(self.reply(place), place)
            }
            Err(e) => self.refuse(e),
        }
    }

    fn put(&mut self, token: usize, place: Place) {
        if let Some(conn) = self.conns.get_mut(&token) {
            conn.place = Some(place);
        }
    }

    fn reply(&self, place: Place) -> Reply {
        let workers = self.regions.workers() as u32;
        Reply { region: place.region.0, proc: place.proc.0, workers, ..Reply::new(0) }
    }

    fn refuse(&mut self, errno: Errno) -> Next {
        self.stats.refused += 1;
        Next::Reply(Reply::new(errno.raw_os_error() as u32))
    }

    /// `false`: the connection is over.
    fn answer(&mut self, token: usize, next: Next) -> bool {
        let Some(conn) = self.conns.get(&token) else { return false };
        let fd = conn.fd.as_fd();
        match next {
            Next::Later => true,
            Next::Reply(reply) => control::send(fd, &reply, &[]).is_ok(),
            Next::Fd(reply, extra) => control::send(fd, &reply, &[extra.as_fd()]).is_ok(),
            Next::Welcome(reply, place) => {
                let Some((region, kicks)) = self.regions.shared(place) else { return false };
                let mut fds: Vec<BorrowedFd<'_>> = vec![region.fd(), self.page.fd()];
                fds.extend(kicks.iter().map(AsFd::as_fd).take(MAX_FDS - 2));
                control::send(fd, &reply, &fds).is_ok()
            }
            Next::Refuse(reply) => {
                let _ = control::send(fd, &reply, &[]);
                self.stats.refused += 1;
                false
            }
            Next::Malformed => {
                self.stats.malformed += 1;
                false
            }
        }
    }

    /// The status that connection `id` asked for.
    pub fn status(&mut self, id: u64, text: &str) {
        let token = id as usize;
        let Some(packets) = self.conns.get_mut(&token).and_then(|c| c.status.as_mut()) else { return };
        packets.extend(text.as_bytes().chunks(STATUS_PACKET).map(<[u8]>::to_vec));
        packets.push_back(vec![]);
        self.send_status(token);
    }

    fn send_status(&mut self, token: usize) {
        let Some(conn) = self.conns.get_mut(&token) else { return };
        let Some(packets) = &mut conn.status else { return };
        while let Some(packet) = packets.front() {
            match rustix::net::send(&conn.fd, packet, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(_) if packet.is_empty() => return self.close(token),
                Ok(_) => drop(packets.pop_front()),
                Err(Errno::AGAIN) => return,
                Err(_) => return self.close(token),
            }
        }
    }

    fn close(&mut self, token: usize) {
        let Some(conn) = self.conns.remove(&token) else { return };
        let _ = self.registry.deregister(&mut SourceFd(&conn.fd.as_raw_fd()));
        if let Some(place) = conn.place {
            self.regions.gone(place);
        }
    }
}

fn interest() -> Interest {
    Interest::READABLE | Interest::WRITABLE
}

fn spare() -> Option<OwnedFd> {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).ok()
}

/// The base name that a client gave, fit to be printed.
fn program_name(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    let text = String::from_utf8_lossy(&bytes[..end]);
    let base = text.rsplit('/').next().unwrap_or_default();
    base.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;
