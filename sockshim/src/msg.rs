//! What `msghdr` and `MSG_*` mean for an engine socket.

#![allow(unsafe_code)]

use crate::relayed;
use crate::sys;
use crate::table::Held;
use crate::user;
use libc::{c_int, iovec, msghdr};
use rustix::io::Errno;
use toe_core::app::iov::{Guard, MAX_IOV};
use toe_core::app::send::SendHow;
use toe_core::app::socket::RELAYED;
use toe_core::app::{IovCursor, RecvHow, Source};
use toe_core::shm::SockState;

/// Where the bytes go: into the program's buffers, or out of them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum To {
    Program,
    Socket,
}

impl To {
    fn guard(self) -> Guard {
        match self {
            To::Program => user::writable,
            To::Socket => user::readable_mut,
        }
    }
}

/// A cursor over the program's buffers. EFAULT, EINVAL.
pub fn cursor(iov: *const iovec, count: usize, to: To) -> Result<IovCursor, Errno> {
    if count > MAX_IOV {
        return Err(Errno::INVAL);
    }
    user::readable(iov, count * size_of::<iovec>())?;
    // SAFETY: the program's array, and it is there.
    unsafe {
        for i in 0..count {
            let v = iov.add(i).read_unaligned();
            if v.iov_len as isize >= 0 {
                user::in_user_space(v.iov_base, v.iov_len)?;
            }
        }
        IovCursor::guarded(iov, count, to.guard())
    }
}

/// A cursor over one buffer.
#[inline]
pub fn single(v: &iovec, to: To) -> Result<IovCursor, Errno> {
    user::in_user_space(v.iov_base, v.iov_len)?;
    // SAFETY: the caller's value.
    unsafe { IovCursor::guarded(v, 1, to.guard()) }
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
    if flags & libc::MSG_ERRQUEUE != 0 {
        return Err(Errno::AGAIN);
    }
    if flags & libc::MSG_OOB != 0 {
        return Err(if h.sock.state() == SockState::Listening { Errno::NOTCONN } else { Errno::INVAL });
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

/// Buffers and bytes of control data.
#[allow(clippy::unnecessary_cast)] // musl's counts are no size_t
fn counts(m: &msghdr) -> (usize, usize) {
    (m.msg_iovlen as usize, m.msg_controllen as usize)
}

/// A program's message header: copied, checked.
fn header(msg: *const msghdr) -> Result<msghdr, Errno> {
    let m = user::get(msg)?;
    if !m.msg_name.is_null() && (m.msg_namelen as i32) < 0 {
        return Err(Errno::INVAL);
    }
    if counts(&m).0 > MAX_IOV {
        return Err(Errno::MSGSIZE);
    }
    Ok(m)
}

/// `sendmsg`. Control data is of no meaning to TCP; what the kernel would refuse is refused.
pub fn sendmsg(h: &Held, msg: *const msghdr, flags: c_int) -> Result<usize, Errno> {
    let m = header(msg)?;
    if !m.msg_name.is_null() {
        user::readable(m.msg_name, (m.msg_namelen as usize).min(128))?;
    }
    let (buffers, control) = counts(&m);
    let mut src = cursor(m.msg_iov, buffers, To::Socket)?;
    if control > 0 {
        check_control(&m)?;
    }
    send(h, &mut src, flags)
}

/// SCM_TXTIME and its like are for other sockets: EINVAL, as for a header whose length is none.
fn check_control(m: &msghdr) -> Result<(), Errno> {
    let (_, len) = counts(m);
    if len > i32::MAX as usize {
        return Err(Errno::NOBUFS);
    }
    user::readable(m.msg_control, len)?;
    // SAFETY: the control data, and it is there; CMSG_NXTHDR stays within its length.
    unsafe {
        let mut c = libc::CMSG_FIRSTHDR(m);
        while !c.is_null() {
            let at = c.addr() - m.msg_control.addr();
            if ((*c).cmsg_len as usize) < size_of::<libc::cmsghdr>() || (*c).cmsg_len as usize > len - at {
                return Err(Errno::INVAL);
            }
            let known =
                [libc::SCM_RIGHTS, libc::SCM_CREDENTIALS, libc::SO_MARK, libc::SO_TIMESTAMPING, libc::SO_PRIORITY];
            if (*c).cmsg_level == libc::SOL_SOCKET && !known.contains(&(*c).cmsg_type) {
                return Err(Errno::INVAL);
            }
            c = libc::CMSG_NXTHDR(m, c);
        }
    }
    Ok(())
}

/// `recvmsg`: no address, no control data, no flags but the one that is always given back.
pub fn recvmsg(h: &Held, msg: *mut msghdr, flags: c_int) -> Result<usize, Errno> {
    let m = header(msg)?;
    let n = recv(h, &mut cursor(m.msg_iov, counts(&m).0, To::Program)?, flags)?;
    user::writable(msg, size_of::<msghdr>())?;
    // SAFETY: the program's message header, and it is there.
    unsafe {
        if !m.msg_name.is_null() {
            (*msg).msg_namelen = 0;
        }
        (*msg).msg_controllen = 0;
        (*msg).msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
    }
    Ok(n)
}
