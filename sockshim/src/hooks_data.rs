//! Data calls: read, write, send, recv and their families, sendfile, splice.

#![allow(unsafe_code)]

use crate::addr::Given;
use crate::msg::{self, To};
use crate::sys::{self, check, libc_ret, ret, sys};
use crate::table::{Held, Kind, entry, stream};
use crate::user;
use libc::{c_int, c_void, iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};
use rustix::io::Errno;
use toe_core::app::Source;
use toe_core::app::wait::now_ns;

fn one(base: *const c_void, len: size_t) -> iovec {
    iovec { iov_base: base.cast_mut(), iov_len: len }
}

fn recv_one(h: &Held, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    let iov = one(buf, len);
    ret(msg::single(&iov, To::Program).and_then(|mut c| msg::recv(h, &mut c, flags)))
}

fn send_one(h: &Held, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    let iov = one(buf, len);
    ret(msg::single(&iov, To::Socket).and_then(|mut c| msg::send(h, &mut c, flags)))
}

#[unsafe(no_mangle)]
extern "C" fn read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
    match stream(fd) {
        // read(2) of nothing asks for nothing, unlike recv(2).
        Some(_) if len == 0 => 0,
        Some(h) => recv_one(&h, buf, len, 0),
        None => libc_ret(sys!(SYS_read, fd, buf, len)),
    }
}

#[unsafe(no_mangle)]
extern "C" fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t {
    match stream(fd) {
        Some(h) => send_one(&h, buf, len, 0),
        None => libc_ret(sys!(SYS_write, fd, buf, len)),
    }
}

#[unsafe(no_mangle)]
extern "C" fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    let Some(h) = stream(fd) else { return libc_ret(sys!(SYS_readv, fd, iov, count)) };
    ret(msg::cursor(iov, count as usize, To::Program)
        .and_then(|mut c| if c.left() == 0 { Ok(0) } else { msg::recv(&h, &mut c, 0) }))
}

#[unsafe(no_mangle)]
extern "C" fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    let Some(h) = stream(fd) else { return libc_ret(sys!(SYS_writev, fd, iov, count)) };
    ret(msg::cursor(iov, count as usize, To::Socket).and_then(|mut c| msg::send(&h, &mut c, 0)))
}

#[unsafe(no_mangle)]
extern "C" fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    match stream(fd) {
        Some(h) => recv_one(&h, buf, len, flags),
        None => libc_ret(sys!(SYS_recvfrom, fd, buf, len, flags, 0, 0)),
    }
}

#[unsafe(no_mangle)]
extern "C" fn recvfrom(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    let Some(h) = stream(fd) else { return libc_ret(sys!(SYS_recvfrom, fd, buf, len, flags, address, address_len)) };
    let n = recv_one(&h, buf, len, flags);
    if n < 0 || address.is_null() {
        return n;
    }
    // TCP names no sender. The bytes are gone even if that cannot be told.
    let told = user::get(address_len).and_then(|len| match len as i32 {
        len if len < 0 => Err(Errno::INVAL),
        _ => user::put(address_len, 0),
    });
    ret(told.map(|()| n as usize))
}

#[unsafe(no_mangle)]
extern "C" fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    sendto(fd, buf, len, flags, core::ptr::null(), 0)
}

#[unsafe(no_mangle)]
extern "C" fn sendto(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    address: *const sockaddr,
    address_len: socklen_t,
) -> ssize_t {
    if let Some(h) = stream(fd) {
        if !address.is_null() {
            // Where it goes is settled; the address is only looked at.
            if let Err(e) = Given::take(address, address_len) {
                return ret(Err(e));
            }
            if flags & libc::MSG_FASTOPEN != 0 && h.sock.peer().is_ok() {
                return ret(Err(Errno::ISCONN));
            }
        }
        return send_one(&h, buf, len, flags);
    }
    if flags & libc::MSG_FASTOPEN != 0 && entry(fd).kind() == Kind::Candidate {
        // The rules must see where it goes: the connection first, then the data.
        if crate::hooks_life::connect(fd, address, address_len) != 0 {
            return -1;
        }
        return sendto(fd, buf, len, flags & !libc::MSG_FASTOPEN, core::ptr::null(), 0);
    }
    libc_ret(sys!(SYS_sendto, fd, buf, len, flags, address, address_len))
}

#[unsafe(no_mangle)]
extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    match stream(fd) {
        Some(h) => ret(msg::sendmsg(&h, message, flags)),
        None => libc_ret(sys!(SYS_sendmsg, fd, message, flags)),
    }
}

#[unsafe(no_mangle)]
extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    match stream(fd) {
        Some(h) => ret(msg::recvmsg(&h, message, flags)),
        None => {
            let n = sys!(SYS_recvmsg, fd, message, flags);
            if n >= 0 {
                fresh_descriptors(message);
            }
            libc_ret(n)
        }
    }
}

/// Descriptors that came with a message have new numbers: what we knew of these is stale.
fn fresh_descriptors(message: *mut msghdr) {
    if crate::table::tables().is_none() || message.is_null() {
        return;
    }
    // SAFETY: the header that the kernel has just filled in.
    unsafe {
        let mut c = libc::CMSG_FIRSTHDR(message);
        while !c.is_null() {
            if (*c).cmsg_level == libc::SOL_SOCKET && (*c).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(c).cast::<c_int>();
                let bytes = ((*c).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                (0..bytes / 4).for_each(|i| crate::hooks_life::fresh(data.add(i).read_unaligned()));
            }
            c = libc::CMSG_NXTHDR(message, c);
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: u32, flags: c_int) -> c_int {
    let Some(h) = stream(fd) else { return libc_ret(sys!(SYS_sendmmsg, fd, messages, count, flags)) as c_int };
    let mut done = 0;
    while done < count.min(1024) {
        match one_message(messages, done, |m| msg::sendmsg(&h, m, flags)) {
            Ok(_) => {}
            Err(_) if done > 0 => break,
            Err(e) => return ret(Err(e)) as c_int,
        }
        done += 1;
    }
    done as c_int
}

#[unsafe(no_mangle)]
extern "C" fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: u32, flags: c_int, timeout: *mut timespec) -> c_int {
    let Some(h) = stream(fd) else {
        return libc_ret(sys!(SYS_recvmmsg, fd, messages, count, flags, timeout)) as c_int;
    };
    let limit = match timeout.is_null() {
        true => Ok(None),
        false => user::get(timeout).and_then(|t| crate::hooks_ready::after(t.tv_sec, t.tv_nsec)),
    };
    let limit = match limit {
        Ok(limit) => limit,
        Err(e) => return ret(Err(e)) as c_int,
    };
    let mut done = 0;
    while done < count.min(1024) && (done == 0 || limit.is_none_or(|l| now_ns() < l)) {
        let later = if flags & libc::MSG_WAITFORONE != 0 && done > 0 { libc::MSG_DONTWAIT } else { 0 };
        match one_message(messages, done, |m| msg::recvmsg(&h, m, flags | later)) {
            Ok(n) => {
                done += 1;
                if n == 0 {
                    break;
                }
            }
            Err(_) if done > 0 => break,
            Err(e) => return ret(Err(e)) as c_int,
        }
    }
    done as c_int
}

/// Message number `at` of the program's array.
fn one_message(
    messages: *mut mmsghdr,
    at: u32,
    call: impl FnOnce(*mut msghdr) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let m = messages.wrapping_add(at as usize);
    user::writable(m, size_of::<mmsghdr>())?;
    // SAFETY: the program's header, and it is there.
    let n = call(unsafe { &raw mut (*m).msg_hdr })?;
    // SAFETY: as above.
    unsafe { (*m).msg_len = n as u32 };
    Ok(n)
}

/// glibc's fortified variants abort on a buffer that is too small for `len`.
fn fortify(len: size_t, room: size_t) {
    if len > room {
        // SAFETY: ends the process, as `__chk_fail` does.
        unsafe { libc::abort() };
    }
}

#[unsafe(no_mangle)]
extern "C" fn __read_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t) -> ssize_t {
    fortify(len, room);
    read(fd, buf, len)
}

#[unsafe(no_mangle)]
extern "C" fn __recv_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t {
    fortify(len, room);
    recv(fd, buf, len, flags)
}

#[unsafe(no_mangle)]
extern "C" fn __recvfrom_chk(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    fortify(len, room);
    recvfrom(fd, buf, len, flags, address, address_len)
}

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

/// Most bytes of one sendfile (MAX_RW_COUNT).
const MAX_COUNT: usize = 0x7fff_f000;

#[unsafe(no_mangle)]
extern "C" fn sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    let Some(h) = stream(out) else {
        if stream(input).is_some() {
            sys::set_errno(libc::EINVAL);
            return -1;
        }
        return libc_ret(sys!(SYS_sendfile, out, input, offset, count));
    };
    let at = match offset.is_null() {
        true => None,
        false => match user::get(offset) {
            Ok(at) => Some(at),
            Err(e) => return ret(Err(e)),
        },
    };
    let mut src = FileSource { fd: input, offset: at, left: count.min(MAX_COUNT) };
    let outcome = msg::send(&h, &mut src, 0);
    if let (Ok(_), Some(end)) = (&outcome, src.offset) {
        // SAFETY: as above; not null, because there was an offset.
        unsafe { *offset = end };
    }
    ret(outcome)
}

#[unsafe(no_mangle)]
extern "C" fn sendfile64(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    sendfile(out, input, offset, count)
}

/// Pipes and engine sockets do not mix: EINVAL makes programs read and write instead.
fn not_ours(a: c_int, b: c_int, call: impl FnOnce() -> isize) -> ssize_t {
    if stream(a).is_some() || stream(b).is_some() {
        sys::set_errno(libc::EINVAL);
        return -1;
    }
    libc_ret(call())
}

#[unsafe(no_mangle)]
extern "C" fn splice(a: c_int, a_off: *mut i64, b: c_int, b_off: *mut i64, len: size_t, flags: u32) -> ssize_t {
    not_ours(a, b, || sys!(SYS_splice, a, a_off, b, b_off, len, flags))
}

#[unsafe(no_mangle)]
extern "C" fn tee(a: c_int, b: c_int, len: size_t, flags: u32) -> ssize_t {
    not_ours(a, b, || sys!(SYS_tee, a, b, len, flags))
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
