//! Moving bytes between descriptors: sendfile, splice, tee, copy_file_range.

#![allow(unsafe_code)]

use crate::cancel::block;
use crate::msg::{self, To};
use crate::sys::{self, check, libc_ret, ret, sys};
use crate::table::{Held, stream};
use crate::user;
use libc::{POLLIN, POLLOUT, c_int, off_t, pollfd, size_t, ssize_t};
use rustix::io::Errno;
use toe_core::app::{RecvHow, Source};

/// Bytes of a file, read straight into the stream's chunks.
struct FileSource {
    fd: c_int,
    offset: Option<i64>,
    left: usize,
}

impl Source for FileSource {
    unsafe fn fill(&mut self, dst: *mut u8, len: usize) -> Result<usize, Errno> {
        let len = len.min(self.left);
        let n = match self.offset {
            Some(at) => check(sys!(SYS_pread64, self.fd, dst, len, at))?,
            None => check(sys!(SYS_read, self.fd, dst, len))?,
        };
        self.offset = self.offset.map(|at| at + n as i64);
        self.left = if n == 0 { 0 } else { self.left - n };
        Ok(n)
    }

    fn left(&self) -> usize {
        self.left
    }
}

/// Most bytes of one call (MAX_RW_COUNT).
const MAX_COUNT: usize = 0x7fff_f000;

/// The file type of a descriptor (`S_IFMT` bits).
fn file_type(fd: c_int) -> Result<libc::mode_t, Errno> {
    let mut st = [0u64; 32];
    check(sys!(SYS_fstat, fd, st.as_mut_ptr()))?;
    // SAFETY: the kernel has filled in a stat that fits.
    Ok(unsafe { (*st.as_ptr().cast::<libc::stat>()).st_mode } & libc::S_IFMT)
}

#[unsafe(no_mangle)]
extern "C" fn sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    match stream(out) {
        Some(h) => ret(send_file(&h, input, offset, count)),
        None if stream(input).is_some() => ret(Err(Errno::INVAL)),
        None => libc_ret(sys!(SYS_sendfile, out, input, offset, count)),
    }
}

#[unsafe(no_mangle)]
extern "C" fn sendfile64(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    sendfile(out, input, offset, count)
}

fn send_file(h: &Held, input: c_int, offset: *mut off_t, count: usize) -> Result<usize, Errno> {
    // Only what can be read without waiting for somebody.
    if matches!(file_type(input)?, libc::S_IFIFO | libc::S_IFSOCK | libc::S_IFDIR) {
        return Err(Errno::INVAL);
    }
    let at = match offset.is_null() {
        true => None,
        false => Some(user::get(offset)?),
    };
    if at.is_some_and(|at| at < 0) {
        return Err(Errno::INVAL);
    }
    let mut src = FileSource { fd: input, offset: at, left: count.min(MAX_COUNT) };
    let outcome = msg::send(h, &mut src, 0);
    if let (Ok(_), Some(end)) = (&outcome, src.offset) {
        // SAFETY: as above; not null, because there was an offset.
        unsafe { *offset = end };
    }
    outcome
}

const ALL_FLAGS: u32 = libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;

pub fn splice(a: c_int, a_off: *mut i64, b: c_int, b_off: *mut i64, len: size_t, flags: u32) -> ssize_t {
    let (from, to) = (stream(a), stream(b));
    if from.is_none() && to.is_none() {
        return libc_ret(block!(SYS_splice, a, a_off, b, b_off, len, flags));
    }
    ret(match (from, to) {
        _ if len == 0 => Ok(0),
        _ if flags & !ALL_FLAGS != 0 => Err(Errno::INVAL),
        (Some(h), None) => pipe_end(b, b_off, a_off).and_then(|()| to_pipe(&h, b, len.min(MAX_COUNT), flags)),
        (None, Some(h)) => pipe_end(a, a_off, b_off).and_then(|()| from_pipe(&h, a, len.min(MAX_COUNT), flags)),
        // One of the two must be a pipe.
        _ => Err(Errno::INVAL),
    })
}

/// The other side must be a pipe, and neither has offsets.
fn pipe_end(fd: c_int, pipe_off: *const i64, sock_off: *const i64) -> Result<(), Errno> {
    match file_type(fd)? {
        libc::S_IFIFO if !pipe_off.is_null() => Err(Errno::SPIPE),
        libc::S_IFIFO if sock_off.is_null() => Ok(()),
        _ => Err(Errno::INVAL),
    }
}

/// Waits until the pipe has bytes, or room; EAGAIN instead of waiting.
fn wait_pipe(fd: c_int, events: i16, flags: u32) -> Result<i16, Errno> {
    let mut p = pollfd { fd, events, revents: 0 };
    let nonblocking = flags & libc::SPLICE_F_NONBLOCK != 0
        || check(sys!(SYS_fcntl, fd, libc::F_GETFL))? as c_int & libc::O_NONBLOCK != 0;
    let deadline = if nonblocking { Some(0) } else { None };
    match crate::poll::kernel_poll(core::slice::from_mut(&mut p), deadline, core::ptr::null())? {
        0 => Err(Errno::AGAIN),
        _ => Ok(p.revents),
    }
}

fn queued(pipe: c_int) -> Result<usize, Errno> {
    let mut bytes: c_int = 0;
    check(sys!(SYS_ioctl, pipe, libc::FIONREAD, &raw mut bytes))?;
    Ok(bytes.max(0) as usize)
}

/// What the pipe holds goes into the stream.
fn from_pipe(h: &Held, pipe: c_int, len: usize, flags: u32) -> Result<usize, Errno> {
    wait_pipe(pipe, POLLIN, flags)?;
    // Only what is there: reading it does not wait. Nothing is there when all writers are gone.
    let left = queued(pipe)?.min(len);
    let more = if flags & libc::SPLICE_F_MORE != 0 { libc::MSG_MORE } else { 0 };
    msg::send(h, &mut FileSource { fd: pipe, offset: None, left }, more)
}

/// Bytes on the way to a pipe.
const BOUNCE: usize = 16 * 1024;

/// A write of so many bytes does not wait on a pipe that polls as writable (PIPE_BUF).
const SURE: usize = 4096;

/// What the stream has, and what fits, goes into the pipe. The bytes are only looked at until the pipe has taken them: none is
/// lost if it does not.
fn to_pipe(h: &Held, pipe: c_int, len: usize, flags: u32) -> Result<usize, Errno> {
    if wait_pipe(pipe, POLLOUT, flags)? & libc::POLLERR != 0 {
        // No reader is left.
        sys::raise_sigpipe();
        return Err(Errno::PIPE);
    }
    let size = check(sys!(SYS_fcntl, pipe, libc::F_GETPIPE_SZ))?;
    // SAFETY: reads the auxiliary vector.
    let page = (unsafe { libc::getauxval(libc::AT_PAGESZ) } as usize).max(SURE);
    let mut bounce = [0u8; BOUNCE];
    let (mut done, mut room) = (0, if queued(pipe)? == 0 { size } else { SURE });
    while done < len {
        let how = RecvHow { nonblocking: done > 0 || h.sock.nonblocking(), peek: true, ..RecvHow::default() };
        let n = match receive(h, &mut bounce, (len - done).min(room), how) {
            Ok(n) => n,
            Err(_) if done > 0 => break,
            Err(e) => return Err(e),
        };
        if n == 0 {
            break;
        }
        let written = match check(sys!(SYS_write, pipe, bounce.as_ptr(), n)) {
            Ok(written) => written,
            Err(_) if done > 0 => break,
            Err(e) => return Err(e),
        };
        let take = RecvHow { nonblocking: true, trunc: true, ..RecvHow::default() };
        done += receive(h, &mut bounce, written, take)?;
        // Each write begins a page of its own, at worst.
        room = room.saturating_sub(written.next_multiple_of(page));
        if room == 0 {
            // Full as far as we know; there may be a page left.
            match wait_pipe(pipe, POLLOUT, libc::SPLICE_F_NONBLOCK) {
                Ok(events) if events & libc::POLLERR == 0 => room = SURE,
                _ => break,
            }
        }
    }
    Ok(done)
}

fn receive(h: &Held, bounce: &mut [u8; BOUNCE], len: usize, how: RecvHow) -> Result<usize, Errno> {
    let iov = libc::iovec { iov_base: bounce.as_mut_ptr().cast(), iov_len: len.min(BOUNCE) };
    h.sock.recv(&mut msg::cursor(&iov, 1, To::Program)?, how)
}

/// Calls that want two pipes, or two files.
fn not_ours(a: c_int, b: c_int, call: impl FnOnce() -> isize) -> ssize_t {
    if stream(a).is_some() || stream(b).is_some() {
        return ret(Err(Errno::INVAL));
    }
    libc_ret(call())
}

pub fn tee(a: c_int, b: c_int, len: size_t, flags: u32) -> ssize_t {
    not_ours(a, b, || block!(SYS_tee, a, b, len, flags))
}

#[unsafe(no_mangle)]
extern "C" fn copy_file_range(
    a: c_int,
    a_off: *mut i64,
    b: c_int,
    b_off: *mut i64,
    len: size_t,
    flags: u32,
) -> ssize_t {
    not_ours(a, b, || sys!(SYS_copy_file_range, a, a_off, b, b_off, len, flags))
}
