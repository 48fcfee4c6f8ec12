//! What `msghdr` and `MSG_*` mean for an engine socket.

#![allow(unsafe_code)]

use crate::relayed;
use crate::sys;
use crate::table::Held;
use libc::{c_int, iovec, msghdr};
use rustix::io::Errno;
use toe_core::app::send::SendHow;
use toe_core::app::socket::RELAYED;
use toe_core::app::{IovCursor, RecvHow, Source};

/// A cursor over the program's buffers.
pub fn cursor(iov: *const iovec, count: usize) -> Result<IovCursor, Errno> {
    // SAFETY: the program's buffers, valid through the call by the contract of the hooked function.
    unsafe { IovCursor::new(iov, count) }
}

/// A send with `flags`; raises SIGPIPE where it is due.
pub fn send(h: &Held, src: &mut impl Source, flags: c_int) -> Result<usize, Errno> {
    if flags & libc::MSG_OOB != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let how = SendHow {
        nonblocking: flags & libc::MSG_DONTWAIT != 0 || h.sock.nonblocking(),
        more: flags & libc::MSG_MORE != 0,
    };
    let mut outcome = h.sock.send(src, how);
    if outcome == Err(RELAYED) {
        outcome = relayed::send(h.fd, src, flags);
    }
    if outcome == Err(Errno::PIPE) && flags & libc::MSG_NOSIGNAL == 0 {
        sys::raise_sigpipe();
    }
    outcome
}

/// A receive with `flags`.
pub fn recv(h: &Held, dst: &mut IovCursor, flags: c_int) -> Result<usize, Errno> {
    if flags & libc::MSG_OOB != 0 {
        return Err(Errno::INVAL);
    }
    if flags & libc::MSG_ERRQUEUE != 0 {
        return Err(Errno::AGAIN);
    }
    let how = RecvHow {
        nonblocking: flags & libc::MSG_DONTWAIT != 0 || h.sock.nonblocking(),
        peek: flags & libc::MSG_PEEK != 0,
        waitall: flags & libc::MSG_WAITALL != 0,
        trunc: flags & libc::MSG_TRUNC != 0,
    };
    match h.sock.recv(dst, how) {
        Err(RELAYED) => relayed::recv(h.fd, dst, flags),
        other => other,
    }
}

/// `sendmsg`. Control data is of no meaning to TCP and ignored, except that descriptors cannot be passed.
pub fn sendmsg(h: &Held, msg: *const msghdr, flags: c_int) -> Result<usize, Errno> {
    if msg.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: the program's message header.
    let (iov, count) = unsafe { ((*msg).msg_iov, (*msg).msg_iovlen) };
    if count > toe_core::app::iov::MAX_IOV {
        return Err(Errno::MSGSIZE);
    }
    send(h, &mut cursor(iov, count)?, flags)
}

/// `recvmsg`: no address, no control data, no flags.
pub fn recvmsg(h: &Held, msg: *mut msghdr, flags: c_int) -> Result<usize, Errno> {
    if msg.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: the program's message header.
    let (iov, count) = unsafe { ((*msg).msg_iov, (*msg).msg_iovlen) };
    if count > toe_core::app::iov::MAX_IOV {
        return Err(Errno::MSGSIZE);
    }
    let n = recv(h, &mut cursor(iov, count)?, flags)?;
    // SAFETY: as above.
    unsafe {
        (*msg).msg_namelen = 0;
        (*msg).msg_controllen = 0;
        (*msg).msg_flags = 0;
    }
    Ok(n)
}
