//! Reads and writes at a position. Sockets have none: ESPIPE, which the placeholder says by itself for pread, preadv and their kin. Only the
//! position -1 of preadv2 and pwritev2 means "none", and then they are readv and writev with flags.

#![allow(unsafe_code)]

use crate::cancel::block;
use crate::msg::{self, To};
use crate::sys::{libc_ret, ret};
use crate::table::stream;
use libc::{c_int, iovec, off_t, ssize_t};
use rustix::io::Errno;

/// Do not wait.
const RWF_NOWAIT: c_int = 8;
/// Hints and promises that mean nothing to a socket.
const HARMLESS: c_int = 1 | 2 | 4;

/// `MSG_*` for `RWF_*`; EOPNOTSUPP for the others, as the kernel.
fn flags_of(rwf: c_int) -> Result<c_int, Errno> {
    match rwf & !HARMLESS {
        0 => Ok(0),
        RWF_NOWAIT => Ok(libc::MSG_DONTWAIT),
        _ => Err(Errno::OPNOTSUPP),
    }
}

pub fn preadv2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
    match stream(fd).filter(|_| offset == -1) {
        Some(h) => ret(flags_of(flags).and_then(|f| {
            let mut c = msg::cursor(iov, count as usize, To::Program)?;
            if c.left() == 0 { Ok(0) } else { msg::recv(&h, &mut c, f) }
        })),
        None => libc_ret(block!(SYS_preadv2, fd, iov, count, offset, 0, flags)),
    }
}

pub fn pwritev2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
    match stream(fd).filter(|_| offset == -1) {
        Some(h) => {
            ret(flags_of(flags).and_then(|f| msg::send(&h, &mut msg::cursor(iov, count as usize, To::Socket)?, f)))
        }
        None => libc_ret(block!(SYS_pwritev2, fd, iov, count, offset, 0, flags)),
    }
}

pub fn preadv64v2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
    preadv2(fd, iov, count, offset, flags)
}

pub fn pwritev64v2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
    pwritev2(fd, iov, count, offset, flags)
}
