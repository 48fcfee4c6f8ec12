//! Sockets that leave their process image, over `exec` or in a message: giving them into the daemon's keeping, and taking them up
//! again on the other side.

use super::client::{Link, Reason, SocketPath, check, connect, errno_of, exchange_with, introduce, raise};
use super::socket::Sock;
use crate::control::{KEEP_FOR_SHIM, KEEP_IN_MESSAGE, KEEP_RELAY, OP_ADOPT, OP_KEEP, Reply, Request};
use crate::ids::{RegionId, SockId};
use core::sync::atomic::Ordering::Relaxed;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;

/// What becomes of a socket that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Whoever gets it has the shim and adopts it.
    ForShim,
    /// Nobody knows who gets it: it is adopted soon, or relayed.
    InMessage,
    /// Whoever gets it has not the shim: it is relayed.
    Relay,
}

impl Keep {
    fn word(self) -> u32 {
        match self {
            Keep::ForShim => KEEP_FOR_SHIM,
            Keep::InMessage => KEEP_IN_MESSAGE,
            Keep::Relay => KEEP_RELAY,
        }
    }
}

/// Which socket is to be adopted.
#[derive(Clone, Copy, Debug)]
pub enum Claim<'a> {
    /// The one that this placeholder stands for.
    Placeholder(BorrowedFd<'a>),
    /// This one. For the daemon's own threads.
    Slot(RegionId, SockId),
}

impl<'a> Claim<'a> {
    fn request(&self) -> Request {
        let mut request = Request::new(OP_ADOPT);
        if let Claim::Slot(region, sock) = self {
            (request.region, request.arg) = (region.0, sock.0);
        }
        request
    }

    fn proof(&self) -> &[BorrowedFd<'a>] {
        match self {
            Claim::Placeholder(fd) => core::slice::from_ref(fd),
            Claim::Slot(..) => &[],
        }
    }
}

impl Link {
    /// Gives `sock` into the daemon's keeping. `end`: the other end of its placeholder's connection; `None` if the daemon has it.
    /// `apart`: on a connection of its own, for a process (a `vfork` child) in which the link's may be closed.
    pub fn keep(&self, sock: &Sock<'_>, end: Option<BorrowedFd<'_>>, how: Keep, apart: bool) -> Result<(), Errno> {
        let mut request = Request::new(OP_KEEP);
        request.region = self.region.id().0;
        request.arg = sock.id.0;
        request.cookie = sock.slot.cookie.load(Relaxed);
        request.proc = how.word();
        let ends = end.as_slice();
        let first = if apart { Err(Errno::CONNRESET) } else { self.request_with(&request, ends) };
        let (reply, _) = match first {
            Ok(answer) => answer,
            Err(_) if self.dead() => return Err(Errno::CONNRESET),
            Err(_) => exchange_with(self.connect_again()?.as_fd(), &request, ends)?,
        };
        if reply.errno == 0 { Ok(()) } else { Err(errno_of(reply.errno)) }
    }

    /// Registers with the daemon behind `path` as a holder of a socket that it keeps.
    pub fn adopt(path: &SocketPath, claim: Claim<'_>, program: &[u8], fd_base: i32) -> Result<(Link, SockId), Reason> {
        let control = raise(connect(path).map_err(|_| Reason::Absent)?, fd_base);
        let mut request = claim.request();
        introduce(&mut request, program);
        let (reply, fds) = exchange_with(control.as_fd(), &request, claim.proof()).map_err(|_| Reason::Absent)?;
        check(&reply)?;
        let link = Link::assemble(control, path, &reply, fds, fd_base).ok_or(Reason::Failed)?;
        link.adopted(&reply).map(|id| (link, id)).ok_or(Reason::Failed)
    }

    /// The same for one more socket of this link's region. `EXDEV`: it is of another region.
    pub fn adopt_too(&self, claim: Claim<'_>) -> Result<SockId, Errno> {
        let (reply, _) = self.request_with(&claim.request(), claim.proof())?;
        match reply.errno {
            0 => self.adopted(&reply).ok_or(Errno::PROTO),
            e => Err(errno_of(e)),
        }
    }

    fn adopted(&self, reply: &Reply) -> Option<SockId> {
        Sock::of(self, SockId(reply.arg)).map(|s| s.id)
    }
}
