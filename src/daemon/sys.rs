//! What no safe crate offers: the peer's credentials, where its process may be invisible to us, and cookies. `unsafe`: getsockopt.

#![allow(unsafe_code)]

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Who is behind a Unix socket, by the kernel's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Process id in our namespace; 0 if the process is not in it.
    pub pid: u32,
    /// User id.
    pub uid: u32,
}

/// `SO_PEERCRED`. (rustix's wrapper has no room for the pid 0 of a process in a foreign pid namespace.)
pub fn peer(fd: BorrowedFd<'_>) -> io::Result<Peer> {
    let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: both pointers are to locals of the given length.
    let result = unsafe {
        let to = (&raw mut cred).cast();
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, to, &mut len)
    };
    match result {
        0 => Ok(Peer { pid: cred.pid as u32, uid: cred.uid }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has everybody at the other end of a Unix socket closed it?
pub fn hung_up(fd: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    let mut looked = [PollFd::from_borrowed_fd(fd, PollFlags::empty())];
    poll(&mut looked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(looked[0].revents().contains(PollFlags::HUP))
}

/// `SO_COOKIE`: a socket's identity, the same through all its descriptors.
pub fn cookie(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut cookie = 0u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: both pointers are to locals of the given length.
    let result = unsafe {
        let to = (&raw mut cookie).cast();
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_COOKIE, to, &mut len)
    };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}
