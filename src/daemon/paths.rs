//! Where the control socket stands, and whose it is.

use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Connections that may wait for `accept`.
const BACKLOG: i32 = 1024;

/// The control socket's place if nobody names one: `/run/toe/toed.sock` for root, else `$XDG_RUNTIME_DIR/toe/toed.sock`, else
/// `/tmp/toe-UID/toed.sock`.
pub fn default_socket() -> PathBuf {
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        return PathBuf::from("/run/toe/toed.sock");
    }
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|d| !d.is_empty()) {
        Some(dir) => PathBuf::from(dir).join("toe/toed.sock"),
        None => PathBuf::from(format!("/tmp/toe-{}/toed.sock", uid.as_raw())),
    }
}

/// Where a program finds a daemon that it was not told of, in this order.
pub fn candidates() -> Vec<PathBuf> {
    let mut all = vec![default_socket(), PathBuf::from("/run/toe/toed.sock")];
    all.dedup();
    all
}

/// Does a daemon answer at `path`?
pub fn answers(path: &Path) -> bool {
    connect(path).is_ok()
}

/// A connection to the control socket at `path`.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let limit = Some(std::time::Duration::from_secs(5));
    for way in [rustix::net::sockopt::Timeout::Send, rustix::net::sockopt::Timeout::Recv] {
        rustix::net::sockopt::set_socket_timeout(&fd, way, limit)?;
    }
    rustix::net::connect(&fd, &SocketAddrUnix::new(path)?)?;
    Ok(fd)
}

/// The bound control socket. Its file goes when this does.
#[derive(Debug)]
pub struct ControlSocket {
    /// Listening, not blocking.
    pub fd: OwnedFd,
    path: PathBuf,
    lock_path: PathBuf,
    _lock: OwnedFd,
}

impl ControlSocket {
    /// Binds `path`: for all users if this is root's, for its own user otherwise. What a dead daemon left there is replaced; a
    /// live daemon's is an error.
    pub fn bind(path: &Path) -> io::Result<ControlSocket> {
        let path = std::path::absolute(path)?;
        if let Some(dir) = path.parent() {
            make_dir(dir)?;
        }
        let lock_path = PathBuf::from(format!("{}.lock", path.display()));
        let lock = take_lock(&lock_path, &path)?;
        remove_stale(&path)?;
        let fd = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        let addr =
            SocketAddrUnix::new(&path).map_err(|_| named(&path, "longer than the 107 bytes of a socket's path"))?;
        rustix::net::bind(&fd, &addr).map_err(|e| named(&path, e))?;
        let mode = if rustix::process::geteuid().is_root() { 0o666 } else { 0o600 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        // Nobody can connect before this, so the mode above holds from the first connection on.
        rustix::net::listen(&fd, BACKLOG)?;
        Ok(ControlSocket { fd, path, lock_path, _lock: lock })
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(&self.lock_path);
    }
}

fn named(path: &Path, what: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {what}", path.display()))
}

/// Makes the directory of the control socket if it is missing; a directory of ours below /tmp must be nobody else's.
fn make_dir(dir: &Path) -> io::Result<()> {
    let root = rustix::process::geteuid().is_root();
    let mode = if root { 0o755 } else { 0o700 };
    match DirBuilder::new().recursive(true).mode(mode).create(dir) {
        Ok(()) => {}
        Err(e) => return Err(named(dir, e)),
    }
    let ours = dir.parent() == Some(Path::new("/tmp"))
        && dir.file_name().is_some_and(|n| n.as_encoded_bytes().starts_with(b"toe-"));
    if !ours {
        return Ok(());
    }
    let meta = fs::symlink_metadata(dir)?;
    if !meta.is_dir() || meta.uid() != rustix::process::geteuid().as_raw() || (!root && meta.mode() & 0o077 != 0) {
        return Err(named(dir, "not a directory of this user alone; refusing to use it"));
    }
    Ok(())
}

/// One daemon for each path: it holds a lock as long as it lives.
fn take_lock(lock: &Path, socket: &Path) -> io::Result<OwnedFd> {
    for _ in 0..100 {
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = rustix::fs::open(lock, flags, Mode::RUSR | Mode::WUSR).map_err(|e| named(lock, e))?;
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(named(socket, "a daemon already runs here")),
            Err(e) => return Err(named(lock, e)),
        }
        // The daemon before us may have removed the file between our open and our lock.
        let ours = rustix::fs::fstat(&fd)?;
        match rustix::fs::stat(lock) {
            Ok(now) if (now.st_dev, now.st_ino) == (ours.st_dev, ours.st_ino) => return Ok(fd),
            _ => {}
        }
    }
    Err(named(lock, "cannot be locked"))
}

/// With the lock held, a socket that stands there is a dead daemon's.
fn remove_stale(path: &Path) -> io::Result<()> {
    match rustix::fs::lstat(path) {
        Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(named(path, e)),
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::Socket => {
            Err(named(path, "there is something else than a socket; refusing to remove it"))
        }
        Ok(_) if answers(path) => Err(named(path, "somebody already listens here")),
        Ok(_) => fs::remove_file(path).map_err(|e| named(path, e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    #[test]
    fn one_daemon_for_each_path() {
        let dir = TempDir::new();
        let path = dir.path().join("x/toed.sock");
        let first = ControlSocket::bind(&path).unwrap();
        assert!(answers(&path));
        let e = ControlSocket::bind(&path).unwrap_err().to_string();
        assert!(e.contains("already runs") && e.contains("toed.sock"), "{e}");
        drop(first);
        assert!(!path.exists() && !answers(&path));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 0);
    }

    #[test]
    fn what_a_dead_daemon_left_is_replaced() {
        let dir = TempDir::new();
        let path = dir.path().join("toed.sock");
        let dead = ControlSocket::bind(&path).unwrap();
        // As after SIGKILL: descriptors closed, files left.
        let ControlSocket { fd, _lock, .. } = &*std::mem::ManuallyDrop::new(dead);
        rustix::fs::flock(_lock, FlockOperation::Unlock).unwrap();
        rustix::net::shutdown(fd, rustix::net::Shutdown::Both).unwrap();
        let _again = ControlSocket::bind(&path).unwrap();
        assert!(answers(&path));
    }

    #[test]
    fn files_are_not_removed() {
        let dir = TempDir::new();
        let path = dir.path().join("toed.sock");
        fs::write(&path, "precious").unwrap();
        assert!(ControlSocket::bind(&path).unwrap_err().to_string().contains("something else"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        let long = dir.path().join("x".repeat(120));
        assert!(ControlSocket::bind(&long).unwrap_err().to_string().contains("107 bytes"));
    }
}
