//! Calls that were under way when their socket became relayed: they go on by the placeholder, as all later ones do by themselves.

#![allow(unsafe_code)]

use crate::sys::{check, sys};
use libc::{POLLOUT, c_int, pollfd};
use rustix::io::Errno;
use toe_core::app::{IovCursor, Source};

/// Bytes moved by one system call, over this stack.
const PIECE: usize = 16 * 1024;

/// `recv` with the program's flags.
pub fn recv(fd: c_int, dst: &mut IovCursor, flags: c_int) -> Result<usize, Errno> {
    let mut buf = [0u8; PIECE];
    let mut done = 0;
    loop {
        let len = dst.left().min(PIECE);
        let n = match check(sys!(SYS_recvfrom, fd, buf.as_mut_ptr(), len, flags, 0, 0)) {
            Err(_) if done > 0 => return Ok(done),
            other => other?,
        };
        // SAFETY: the kernel has filled in `n` bytes.
        done += unsafe { dst.put(buf.as_ptr(), n) }?;
        let more = flags & libc::MSG_WAITALL != 0 && flags & libc::MSG_PEEK == 0;
        if !more || n < len || dst.left() == 0 {
            return Ok(done);
        }
    }
}

/// `send` with the program's flags; SIGPIPE is the caller's.
pub fn send(fd: c_int, src: &mut impl Source, flags: c_int) -> Result<usize, Errno> {
    let flags = (flags & (libc::MSG_DONTWAIT | libc::MSG_MORE)) | libc::MSG_NOSIGNAL;
    let mut buf = [0u8; PIECE];
    let mut done = 0;
    while src.left() > 0 {
        // What was taken from the source must be sent: room first.
        let mut room = pollfd { fd, events: POLLOUT, revents: 0 };
        if flags & libc::MSG_DONTWAIT != 0 && check(sys!(SYS_ppoll, &raw mut room, 1, [0u64; 2].as_ptr(), 0, 8))? == 0 {
            return if done > 0 { Ok(done) } else { Err(Errno::AGAIN) };
        }
        // SAFETY: the buffer has that many bytes.
        let n = unsafe { src.fill(buf.as_mut_ptr(), PIECE) }?;
        if n == 0 {
            break;
        }
        match send_all(fd, &buf[..n], flags & !libc::MSG_DONTWAIT) {
            Err(e) if done == 0 => return Err(e),
            Err(_) => break,
            Ok(()) => done += n,
        }
    }
    Ok(done)
}

fn send_all(fd: c_int, mut bytes: &[u8], flags: c_int) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match check(sys!(SYS_sendto, fd, bytes.as_ptr(), bytes.len(), flags, 0, 0)) {
            Ok(n) => bytes = &bytes[n..],
            Err(Errno::AGAIN) => {
                let mut room = pollfd { fd, events: POLLOUT, revents: 0 };
                sys!(SYS_ppoll, &raw mut room, 1, 0, 0, 8);
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
