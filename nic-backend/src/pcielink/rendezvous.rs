//! The meeting point of two daemons: a socket path, and a lock file beside it that decides who listens. The kernel lets
//! go of the lock when its holder dies, so that a stale socket file is always replaced by the survivor.

use rustix::fs::FlockOperation;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// One daemon's view of the meeting point.
pub struct Rendezvous {
    path: PathBuf,
    /// The listener's role: the lock, and the socket (absent while it could not be made).
    lead: Option<(File, Option<OwnedFd>)>,
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

impl Rendezvous {
    /// Meeting at `path`; touches nothing yet.
    pub fn new(path: PathBuf) -> Rendezvous {
        Rendezvous { path, lead: None }
    }

    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The listening socket, if the role is ours.
    pub fn listener(&self) -> Option<BorrowedFd<'_>> {
        self.lead.as_ref()?.1.as_ref().map(AsFd::as_fd)
    }

    /// Takes the listener's role if nobody has it.
    pub fn try_lead(&mut self) -> io::Result<()> {
        if self.listener().is_some() {
            return Ok(());
        }
        if self.lead.is_none() {
            let mut lock = self.path.clone().into_os_string();
            lock.push(".lock");
            let mut options = File::options();
            options.create(true).truncate(false).write(true).custom_flags(libc::O_NOFOLLOW);
            let file = options.open(lock)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => self.lead = Some((file, None)),
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(()),
                Err(e) => return Err(e.into()),
            }
        }
        let listener = self.listen()?;
        if let Some((_, slot)) = &mut self.lead {
            *slot = Some(listener);
        }
        Ok(())
    }

    fn listen(&self) -> io::Result<OwnedFd> {
        match fs::symlink_metadata(&self.path) {
            Ok(m) if m.file_type().is_socket() => fs::remove_file(&self.path)?, // of a dead daemon: we hold the lock
            Ok(_) => return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the socket's path is another file")),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        let sock = socket()?;
        rustix::net::bind(&sock, &SocketAddrUnix::new(&self.path)?)?;
        rustix::net::listen(&sock, 4)?;
        Ok(sock)
    }

    /// The next peer that has connected, if any.
    pub fn accept(&self) -> io::Result<Option<OwnedFd>> {
        let Some(listener) = self.listener() else { return Ok(None) };
        match rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(sock) => Ok(Some(sock)),
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Connects to the daemon that listens. Nobody there (yet) is `WouldBlock`.
    pub fn connect(&self) -> io::Result<OwnedFd> {
        use rustix::io::Errno;
        let sock = socket()?;
        match rustix::net::connect(&sock, &SocketAddrUnix::new(&self.path)?) {
            Ok(()) => Ok(sock),
            Err(Errno::NOENT | Errno::CONNREFUSED | Errno::AGAIN) => Err(io::ErrorKind::WouldBlock.into()),
            Err(e) => Err(e.into()),
        }
    }
}

impl Drop for Rendezvous {
    fn drop(&mut self) {
        // Still under the lock, so that it cannot be a successor's socket.
        if self.listener().is_some() {
            let _ = fs::remove_file(&self.path);
        }
    }
}
