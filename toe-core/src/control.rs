//! The control socket (`AF_UNIX`, `SOCK_SEQPACKET`): how a process registers with its daemon. Nothing of it is on the data
//! path. One packet is one [`Request`] or [`Reply`], fixed size, native byte order, with descriptors beside it.
//!
//! A connection stands for one process: when it ends, the daemon lets go of all that the process held.

use crate::shm::MAX_WORKERS;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Most descriptors in one packet: region, page, an eventfd for each worker.
pub const MAX_FDS: usize = 2 + MAX_WORKERS;

/// `Request::op`: a new process wants a region of its own. Reply: region memfd, daemon page memfd, one eventfd for each
/// worker (in worker order).
pub const OP_HELLO: u32 = 1;
/// A parent opens a connection on behalf of the child it is about to fork: `region`, `proc` say where the child's holder
/// bit is. The reply carries no descriptors; the child inherits this connection and the mapping.
pub const OP_CHILD: u32 = 2;
/// The process behind this connection is `pid` now (after fork, or exec).
pub const OP_PID: u32 = 3;
/// The app wants the eventfd of event set `arg` of `region`. Reply: one eventfd.
pub const OP_EVSET: u32 = 4;
/// A process has the placeholder of a kept socket (inherited over exec, or received) and sends it along as proof: where does
/// it belong? Only for the region's own user. On a fresh connection the reply carries a region's descriptors as for HELLO, and
/// `proc` is a new bit; on one that has a place in the right region it carries none. In both cases the bit is set in the
/// socket, and `arg` is its number. EXDEV: it is of another region, namely `region`. ENOENT: no socket is kept under this
/// placeholder's cookie. The daemon's own relay sends no placeholder but names `region` and `arg`.
pub const OP_ADOPT: u32 = 5;
/// `toe status`: the reply is a sequence of packets of JSON text, ended by an empty one; the connection then closes.
pub const OP_STATUS: u32 = 6;

/// Socket `arg` of `region`, whose placeholder has `cookie`, is about to leave its processes (exec, SCM_RIGHTS): the daemon is to
/// hold it as long as any process has the placeholder. The packet carries the other end of the placeholder's connection; none
/// if the placeholder was kept before, for this or for a former slot. `proc` says how, one of the `KEEP_*`. Also on a
/// connection without a place, for the region's own user.
pub const OP_KEEP: u32 = 7;

/// `OP_KEEP`: who gets the placeholder has the shim and will adopt it.
pub const KEEP_FOR_SHIM: u32 = 0;
/// `OP_KEEP`: it goes off in a message. Whoever gets it adopts it soon, or has not the shim.
pub const KEEP_IN_MESSAGE: u32 = 1;
/// `OP_KEEP`: who gets it has not the shim: relay at once.
pub const KEEP_RELAY: u32 = 2;

/// From app (or tool) to daemon.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Request {
    /// [`crate::shm::MAGIC`].
    pub magic: u32,
    /// [`crate::shm::VERSION`].
    pub version: u32,
    /// One of the `OP_*`.
    pub op: u32,
    /// Process id, as its own namespace sees it (informative; credentials come from the kernel).
    pub pid: u32,
    /// See the ops.
    pub region: u32,
    /// See the ops.
    pub proc: u32,
    /// See the ops.
    pub arg: u32,
    /// Zero.
    pub pad: u32,
    /// See the ops.
    pub cookie: u64,
    /// Program name for rules and status (base name of the executable, zero-padded).
    pub program: [u8; 64],
}

impl Request {
    /// A request of `op`, everything else zero.
    pub fn new(op: u32) -> Request {
        Request {
            magic: crate::shm::MAGIC,
            version: crate::shm::VERSION,
            op,
            pid: 0,
            region: 0,
            proc: 0,
            arg: 0,
            pad: 0,
            cookie: 0,
            program: [0; 64],
        }
    }
}

/// From daemon to app.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Reply {
    /// [`crate::shm::MAGIC`].
    pub magic: u32,
    /// The daemon's [`crate::shm::VERSION`]: the app turns away if it is not its own.
    pub version: u32,
    /// errno, 0: done. EPROTO: other version; ENOSPC: the daemon is full; EPERM: not yours.
    pub errno: u32,
    /// See the ops.
    pub region: u32,
    /// See the ops.
    pub proc: u32,
    /// See the ops.
    pub arg: u32,
    /// Workers of the daemon.
    pub workers: u32,
    /// Zero.
    pub pad: u32,
}

impl Reply {
    /// A reply with `errno`, everything else zero.
    pub fn new(errno: u32) -> Reply {
        Reply {
            magic: crate::shm::MAGIC,
            version: crate::shm::VERSION,
            errno,
            region: 0,
            proc: 0,
            arg: 0,
            workers: 0,
            pad: 0,
        }
    }
}

/// Descriptors received with a packet.
pub type Fds = arrayvec::ArrayVec<OwnedFd, MAX_FDS>;

/// Sends one packet with descriptors.
pub fn send<T: IntoBytes + Immutable>(sock: BorrowedFd<'_>, message: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::NOSIGNAL;
    rustix::net::sendmsg(sock, &[IoSlice::new(message.as_bytes())], &mut ancillary, flags)?;
    Ok(())
}

/// Receives one packet. `Ok(None)`: the other side is gone. A packet of another size is `InvalidData`.
pub fn recv<T: FromBytes + IntoBytes>(sock: BorrowedFd<'_>, flags: RecvFlags) -> io::Result<Option<(T, Fds)>> {
    let mut message = T::new_zeroed();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let got = {
        let mut iov = [IoSliceMut::new(message.as_mut_bytes())];
        rustix::net::recvmsg(sock, &mut iov, &mut ancillary, flags | RecvFlags::CMSG_CLOEXEC)?
    };
    let mut fds = Fds::new();
    for m in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = m {
            for fd in received {
                let _ = fds.try_push(fd);
            }
        }
    }
    match got.bytes {
        0 => Ok(None),
        n if n == size_of::<T>() => Ok(Some((message, fds))),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "control packet of another size")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    use std::os::fd::AsFd;

    #[test]
    fn packets_carry_descriptors() {
        let (a, b) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let mut req = Request::new(OP_HELLO);
        req.pid = 5;
        send(a.as_fd(), &req, &[a.as_fd(), b.as_fd()]).unwrap();
        let (got, fds) = recv::<Request>(b.as_fd(), RecvFlags::empty()).unwrap().unwrap();
        assert_eq!((got.pid, got.op, fds.len()), (5, OP_HELLO, 2));
        send(a.as_fd(), &7u32, &[]).unwrap();
        assert!(recv::<Request>(b.as_fd(), RecvFlags::empty()).is_err());
        drop((a, fds));
        assert!(recv::<Request>(b.as_fd(), RecvFlags::empty()).unwrap().is_none());
    }
}
