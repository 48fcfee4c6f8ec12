//! Data calls: read, write, send, recv and their families.

#![allow(unsafe_code)]

use crate::addr::Given;
use crate::cancel::block;
use crate::msg::{self, To};
use crate::rights;
use crate::sys::{libc_ret, ret};
use crate::table::{Held, Kind, entry, stream};
use crate::user;
use libc::{c_int, c_void, iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec};
use rustix::io::Errno;
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

pub fn read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
    match stream(fd) {
        // read(2) of nothing asks for nothing, unlike recv(2).
        Some(_) if len == 0 => 0,
        Some(h) => recv_one(&h, buf, len, 0),
        None => libc_ret(block!(SYS_read, fd, buf, len)),
    }
}

pub fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t {
    match stream(fd) {
        Some(h) => send_one(&h, buf, len, 0),
        None => libc_ret(block!(SYS_write, fd, buf, len)),
    }
}

pub fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    let Some(h) = stream(fd) else { return libc_ret(block!(SYS_readv, fd, iov, count)) };
    ret(msg::cursor(iov, count as usize, To::Program)
        .and_then(|mut c| if c.left() == 0 { Ok(0) } else { msg::recv(&h, &mut c, 0) }))
}

pub fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    let Some(h) = stream(fd) else { return libc_ret(block!(SYS_writev, fd, iov, count)) };
    ret(msg::cursor(iov, count as usize, To::Socket).and_then(|mut c| msg::send(&h, &mut c, 0)))
}

pub fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    match stream(fd) {
        Some(h) => recv_one(&h, buf, len, flags),
        None => libc_ret(block!(SYS_recvfrom, fd, buf, len, flags, 0, 0)),
    }
}

pub fn recvfrom(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    let Some(h) = stream(fd) else { return libc_ret(block!(SYS_recvfrom, fd, buf, len, flags, address, address_len)) };
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

pub fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    sendto(fd, buf, len, flags, core::ptr::null(), 0)
}

pub fn sendto(
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
    libc_ret(block!(SYS_sendto, fd, buf, len, flags, address, address_len))
}

pub fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    match stream(fd) {
        Some(h) => ret(msg::sendmsg(&h, message, flags)),
        None => {
            rights::leave(message);
            libc_ret(block!(SYS_sendmsg, fd, message, flags))
        }
    }
}

pub fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    match stream(fd) {
        Some(h) => ret(msg::recvmsg(&h, message, flags)),
        None => {
            let n = block!(SYS_recvmsg, fd, message, flags);
            if n >= 0 {
                rights::arrive(message);
            }
            libc_ret(n)
        }
    }
}

/// The headers of the first `count` messages (UIO_MAXIOV at most, as in the kernel).
fn each_message(messages: *mut mmsghdr, count: usize, mut f: impl FnMut(*const msghdr)) {
    if !messages.is_null() {
        // SAFETY: the program's array of `count` headers.
        (0..count.min(1024)).for_each(|i| f(unsafe { &raw const (*messages.add(i)).msg_hdr }));
    }
}

pub fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: u32, flags: c_int) -> c_int {
    let Some(h) = stream(fd) else {
        each_message(messages, count as usize, rights::leave);
        return libc_ret(block!(SYS_sendmmsg, fd, messages, count, flags)) as c_int;
    };
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

pub fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: u32, flags: c_int, timeout: *mut timespec) -> c_int {
    let Some(h) = stream(fd) else {
        let n = block!(SYS_recvmmsg, fd, messages, count, flags, timeout);
        each_message(messages, n.max(0) as usize, rights::arrive);
        return libc_ret(n) as c_int;
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

pub fn __read_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t) -> ssize_t {
    fortify(len, room);
    read(fd, buf, len)
}

pub fn __recv_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t {
    fortify(len, room);
    recv(fd, buf, len, flags)
}

pub fn __recvfrom_chk(
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
