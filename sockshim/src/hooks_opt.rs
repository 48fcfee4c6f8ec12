//! Options, names, ioctl.

#![allow(unsafe_code)]

use crate::addr;
use crate::offload;
use crate::remember;
use crate::sys::{self, check, libc_ret, ret, sys};
use crate::table::{Held, Kind, cand, engine, entry, get, tables, unrelayed};
use crate::user;
use core::sync::atomic::Ordering::Relaxed;
use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET, c_int, c_void, sockaddr, socklen_t};
use rustix::io::Errno;
use toe_core::shm::{SockState, app_flags};

#[unsafe(no_mangle)]
extern "C" fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
    let raw = || sys!(SYS_setsockopt, fd, level, name, value, len);
    match entry(fd).kind() {
        Kind::Candidate => {
            let r = raw();
            match tables().filter(|_| r == 0) {
                // The engine's sends complete at once, and nobody would tell.
                Some(t) if (level, name) == (SOL_SOCKET, SO_ZEROCOPY) => crate::hooks_life::kernel_for_good(t, fd),
                Some(t) => t.mark_all(fd, cand::OPTS | buffer_bit(level, name)),
                None => {}
            }
            libc_ret(r) as c_int
        }
        Kind::Engine => match engine(fd) {
            Some(h) => ret(set(&h, fd, level, name, value, len)) as c_int,
            None => libc_ret(raw()) as c_int,
        },
        Kind::Hybrid => {
            let r = raw();
            if let (0, Some(h), Ok(v)) = (r, get(fd), int(value, len)) {
                let _ = h.sock.set_option(level, name, v);
                h.local.opts.store(1, Relaxed);
                adopt_timeout(&h, fd, level, name);
            }
            libc_ret(r) as c_int
        }
        _ => libc_ret(raw()) as c_int,
    }
}

fn buffer_bit(level: c_int, name: c_int) -> u64 {
    match (level, name) {
        (SOL_SOCKET, libc::SO_SNDBUF) => cand::SNDBUF,
        (SOL_SOCKET, libc::SO_RCVBUF) => cand::RCVBUF,
        _ => 0,
    }
}

const SO_ZEROCOPY: c_int = 60;

fn int(value: *const c_void, len: socklen_t) -> Result<c_int, Errno> {
    if (len as i32) < size_of::<c_int>() as i32 {
        return Err(Errno::INVAL);
    }
    user::get(value.cast())
}

/// The IP level takes single bytes too, and nothing for 0.
fn int_or_byte(value: *const c_void, len: socklen_t) -> Result<c_int, Errno> {
    match len {
        0 => Ok(0),
        1..4 => user::get(value.cast::<u8>()).map(c_int::from),
        _ => int(value, len),
    }
}

fn set(h: &Held, fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> Result<usize, Errno> {
    match level {
        SOL_SOCKET => set_socket(h, fd, name, value, len),
        IPPROTO_TCP => set_tcp(h, name, value, len),
        // An IPv4 socket has no such level.
        IPPROTO_IPV6 if !offload::is_set(&h.local.v6) => Err(Errno::NOPROTOOPT),
        IPPROTO_IP | IPPROTO_IPV6 => {
            let v = int_or_byte(value, len)?;
            // Settled once there is a port.
            if (level, name) == (IPPROTO_IPV6, libc::IPV6_V6ONLY) && h.sock.local().is_some_and(|a| a.port() != 0) {
                return Err(Errno::INVAL);
            }
            either(remember::set(h, level, name, v), || h.sock.set_option(level, name, v)).map(|()| 0)
        }
        _ => Err(Errno::NOPROTOOPT),
    }
}

/// The second answer where the first does not know the option.
fn either<T>(first: Result<T, Errno>, second: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    match first {
        Err(Errno::NOPROTOOPT) => second(),
        other => other,
    }
}

fn set_socket(h: &Held, fd: c_int, name: c_int, value: *const c_void, len: socklen_t) -> Result<usize, Errno> {
    match name {
        // AF_UNIX refuses it.
        libc::SO_REUSEPORT => return h.sock.set_option(SOL_SOCKET, name, int(value, len)?).map(|()| 0),
        // AF_UNIX takes these.
        libc::SO_PASSCRED | libc::SO_PASSSEC | SO_PASSPIDFD => return Err(Errno::OPNOTSUPP),
        _ => {}
    }
    // The placeholder checks and remembers; the slot gets what means something to the engine.
    check(sys!(SYS_setsockopt, fd, SOL_SOCKET, name, value, len))?;
    adopt_timeout(h, fd, SOL_SOCKET, name);
    if offload::MIRRORED.contains(&name) {
        h.local.opts.store(1, Relaxed);
    }
    let v = int(value, len).unwrap_or(0);
    if name == libc::SO_LINGER {
        // SAFETY: the kernel has accepted the same bytes as a struct linger.
        let seconds = unsafe { value.cast::<c_int>().add(1).read_unaligned() };
        h.sock.set_flag(app_flags::LINGER_RST, v != 0 && seconds == 0, false);
    } else {
        match h.sock.set_option(SOL_SOCKET, name, v) {
            Ok(()) | Err(Errno::NOPROTOOPT) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(0)
}

/// Time-outs that the kernel socket has just accepted.
fn adopt_timeout(h: &Held, fd: c_int, level: c_int, name: c_int) {
    // The numbers with 64-bit time as well.
    let (rcv, snd) = ([libc::SO_RCVTIMEO, 66], [libc::SO_SNDTIMEO, 67]);
    if level != SOL_SOCKET {
        return;
    }
    if rcv.contains(&name) {
        let ms = offload::kernel_timeout(fd, libc::SO_RCVTIMEO).unwrap_or(0);
        h.sock.slot.rcv_timeo_ms.store(ms, Relaxed);
    } else if snd.contains(&name) {
        let ms = offload::kernel_timeout(fd, libc::SO_SNDTIMEO).unwrap_or(0);
        h.sock.slot.snd_timeo_ms.store(ms, Relaxed);
    }
}

fn set_tcp(h: &Held, name: c_int, value: *const c_void, len: socklen_t) -> Result<usize, Errno> {
    match name {
        libc::TCP_CONGESTION => {
            let len = (len as usize).min(15);
            if len == 0 {
                return Err(Errno::INVAL);
            }
            user::readable(value, len)?;
            // SAFETY: the program's bytes, and they are there.
            let bytes = unsafe { core::slice::from_raw_parts(value.cast::<u8>(), len) };
            let name = bytes.split(|&b| b == 0).next().unwrap_or(&[]);
            match name {
                b"cubic" => h.sock.set_flag(app_flags::RENO, false, true),
                b"reno" => h.sock.set_flag(app_flags::RENO, true, true),
                _ => return Err(Errno::NOENT),
            }
            Ok(0)
        }
        // Programs take the plain path after ENOENT.
        libc::TCP_ULP => Err(Errno::NOENT),
        libc::TCP_QUICKACK => {
            let v = int(value, len)?;
            remember::set(h, IPPROTO_TCP, name, v)?;
            h.sock.set_option(IPPROTO_TCP, name, v).map(|()| 0)
        }
        _ => {
            let v = int(value, len)?;
            either(remember::set(h, IPPROTO_TCP, name, v), || h.sock.set_option(IPPROTO_TCP, name, v)).map(|()| 0)
        }
    }
}

const SO_PASSPIDFD: c_int = 76;
const SO_PEERNAME: c_int = 28;

#[unsafe(no_mangle)]
extern "C" fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int {
    match engine(fd) {
        Some(h) => ret(get_option(&h, fd, level, name, value, len)) as c_int,
        None => libc_ret(sys!(SYS_getsockopt, fd, level, name, value, len)) as c_int,
    }
}

fn get_option(
    h: &Held,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> Result<usize, Errno> {
    if level == SOL_SOCKET && name == libc::SO_DOMAIN {
        let domain = if offload::is_set(&h.local.v6) { libc::AF_INET6 } else { libc::AF_INET };
        return put(value, len, &domain.to_ne_bytes());
    }
    let raw = || check(sys!(SYS_getsockopt, fd, level, name, value, len));
    match (level, name) {
        (SOL_SOCKET, libc::SO_PASSCRED | libc::SO_PASSSEC | SO_PASSPIDFD) => Err(Errno::OPNOTSUPP),
        (SOL_SOCKET, SO_PEERNAME) => peer_name(h, value, len),
        // The kernel counts their bytes, and knows its own limits.
        (SOL_SOCKET, libc::SO_SNDBUF) if h.sock.slot.opt_sndbuf.load(Relaxed) != 0 => raw(),
        (SOL_SOCKET, libc::SO_RCVBUF) if h.sock.slot.opt_rcvbuf.load(Relaxed) != 0 => raw(),
        (IPPROTO_IPV6, _) if !offload::is_set(&h.local.v6) => Err(Errno::OPNOTSUPP),
        (IPPROTO_TCP, libc::TCP_ULP) => put(value, len, &[]),
        (l, _) if ![SOL_SOCKET, IPPROTO_TCP, IPPROTO_IP, IPPROTO_IPV6].contains(&l) && offload::is_set(&h.local.v6) => {
            Err(Errno::NOPROTOOPT)
        }
        (l, _) if ![SOL_SOCKET, IPPROTO_TCP, IPPROTO_IP, IPPROTO_IPV6].contains(&l) => Err(Errno::OPNOTSUPP),
        (IPPROTO_TCP, libc::TCP_INFO) => {
            let info = h.sock.tcp_info();
            // SAFETY: plain integers without padding that matters, read as bytes.
            let bytes = unsafe { core::slice::from_raw_parts((&raw const info).cast::<u8>(), size_of_val(&info)) };
            put(value, len, bytes)
        }
        (IPPROTO_TCP, libc::TCP_CONGESTION) => {
            let reno = h.sock.slot.app_flags.load(Relaxed) & app_flags::RENO != 0;
            let mut padded = [0u8; 16];
            let name: &[u8] = if reno { b"reno" } else { b"cubic" };
            padded[..name.len()].copy_from_slice(name);
            put(value, len, &padded)
        }
        _ => match either(remember::get(h, level, name), || h.sock.get_option(level, name)) {
            Ok(v) if level == IPPROTO_IP || level == IPPROTO_IPV6 => put_ip(value, len, v),
            Ok(v) => put(value, len, &v.to_ne_bytes()),
            // The placeholder remembers.
            Err(_) if level == SOL_SOCKET => raw(),
            Err(e) => Err(e),
        },
    }
}

/// The IP level gives a single byte to those who have no room for more.
fn put_ip(value: *mut c_void, len: *mut socklen_t, v: c_int) -> Result<usize, Errno> {
    match user::get(len)? {
        1..4 if (0..256).contains(&v) => put(value, len, &[v as u8]),
        _ => put(value, len, &v.to_ne_bytes()),
    }
}

/// All of the name or nothing.
fn peer_name(h: &Held, value: *mut c_void, len: *mut socklen_t) -> Result<usize, Errno> {
    let (peer, v6) = (h.sock.peer()?, offload::is_set(&h.local.v6));
    let room = user::get(len)?;
    let size = if v6 { size_of::<libc::sockaddr_in6>() } else { size_of::<libc::sockaddr_in>() };
    if room as usize > size {
        return Err(Errno::INVAL);
    }
    addr::write(value.cast(), len, Some(peer), v6)?;
    user::put(len, room).map(|()| 0)
}

fn put(value: *mut c_void, len: *mut socklen_t, bytes: &[u8]) -> Result<usize, Errno> {
    let room = user::get(len)?;
    if (room as i32) < 0 {
        return Err(Errno::INVAL);
    }
    let n = (room as usize).min(bytes.len());
    user::writable(value, n)?;
    // SAFETY: the program's buffer, and it is there.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast::<u8>(), n) };
    user::put(len, n as socklen_t).map(|()| 0)
}

#[unsafe(no_mangle)]
extern "C" fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let Some(h) = engine(fd) else { return libc_ret(sys!(SYS_getsockname, fd, address, len)) as c_int };
    ret(addr::write(address, len, h.sock.local(), offload::is_set(&h.local.v6)).map(|()| 0)) as c_int
}

#[unsafe(no_mangle)]
extern "C" fn getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let Some(h) = engine(fd) else { return libc_ret(sys!(SYS_getpeername, fd, address, len)) as c_int };
    let outcome = h.sock.peer().and_then(|peer| addr::write(address, len, Some(peer), offload::is_set(&h.local.v6)));
    ret(outcome.map(|()| 0)) as c_int
}

/// SIOCATMARK and SIOCOUTQNSD are not in libc for all targets.
const SIOCATMARK: u64 = 0x8905;
const SIOCOUTQNSD: u64 = 0x894B;

#[unsafe(no_mangle)]
extern "C" fn ioctl(fd: c_int, request: libc::c_ulong, arg: usize) -> c_int {
    let Some(h) = unrelayed(fd) else { return libc_ret(sys!(SYS_ioctl, fd, request, arg)) as c_int };
    ret(control(&h, fd, request, arg)) as c_int
}

fn control(h: &Held, fd: c_int, request: libc::c_ulong, arg: usize) -> Result<usize, Errno> {
    if request == libc::FIONBIO {
        let on = int(arg as *const c_void, 4)?;
        if !h.hybrid {
            check(sys!(SYS_ioctl, fd, request, arg))?;
        }
        h.sock.set_flag(app_flags::NONBLOCK, on != 0, false);
        return Ok(0);
    }
    if h.hybrid {
        return check(sys!(SYS_ioctl, fd, request, arg));
    }
    let (unsent, unacked) = h.sock.unsent_and_unacked();
    let value = match request {
        libc::FIONREAD if h.sock.state() == SockState::Listening => return Err(Errno::INVAL),
        libc::FIONREAD => h.sock.available(),
        libc::TIOCOUTQ | SIOCOUTQNSD if h.sock.state() == SockState::Listening => return Err(Errno::INVAL),
        libc::TIOCOUTQ => unacked,
        SIOCOUTQNSD => unsent,
        SIOCATMARK => 0,
        _ => return check(sys!(SYS_ioctl, fd, request, arg)),
    };
    user::put(arg as *mut c_int, value.min(i32::MAX as u64) as c_int).map(|()| 0)
}

#[unsafe(no_mangle)]
extern "C" fn sockatmark(fd: c_int) -> c_int {
    if engine(fd).is_some() {
        return 0;
    }
    let mut mark: c_int = 0;
    let r = sys!(SYS_ioctl, fd, SIOCATMARK, &raw mut mark);
    if r < 0 { libc_ret(r) as c_int } else { mark }
}

#[unsafe(no_mangle)]
extern "C" fn isfdtype(fd: c_int, kind: c_int) -> c_int {
    let mut st = [0u64; 32];
    let r = sys!(SYS_fstat, fd, st.as_mut_ptr());
    if r < 0 {
        return libc_ret(r) as c_int;
    }
    // SAFETY: the kernel has filled in a stat that fits.
    let mode = unsafe { (*st.as_ptr().cast::<libc::stat>()).st_mode };
    sys::set_errno(0);
    (mode & libc::S_IFMT == kind as libc::mode_t).into()
}
