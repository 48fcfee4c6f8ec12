//! The libc calls that the standard library does not offer: a socket whose options are set before it connects or listens,
//! and `poll`. They are plain C symbols, resolved by the dynamic linker like those of any other program.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_ulong, c_void};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const AF_INET: c_int = 2;
const AF_INET6: c_int = 10;
const SOCK_STREAM: c_int = 1;
const SOCK_CLOEXEC: c_int = 0o2_000_000;
const SOL_SOCKET: c_int = 1;
const SO_REUSEADDR: c_int = 2;
const IPPROTO_TCP: c_int = 6;
const TCP_CONGESTION: c_int = 13;
const BACKLOG: c_int = 4096;

/// `poll` events.
pub const POLLIN: i16 = 1;
/// `poll` events.
pub const POLLOUT: i16 = 4;

/// `struct pollfd`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PollFd {
    pub fd: c_int,
    pub events: i16,
    pub revents: i16,
}

unsafe extern "C" {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: u32) -> c_int;
    fn bind(fd: c_int, addr: *const c_void, len: u32) -> c_int;
    fn listen(fd: c_int, backlog: c_int) -> c_int;
    fn connect(fd: c_int, addr: *const c_void, len: u32) -> c_int;
    #[link_name = "poll"]
    fn c_poll(fds: *mut PollFd, count: c_ulong, timeout_ms: c_int) -> c_int;
}

/// A listener with a long backlog and, if asked for and known to the kernel, CUBIC.
pub fn listener(addr: SocketAddr, cubic: bool) -> io::Result<TcpListener> {
    let fd = open(addr, cubic)?;
    set(&fd, SOL_SOCKET, SO_REUSEADDR, &1i32.to_ne_bytes())?;
    let (raw, len) = sockaddr(addr);
    // SAFETY: `raw` lives through the call and holds `len` valid bytes.
    check(unsafe { bind(fd.as_raw_fd(), raw.as_ptr().cast(), len) })?;
    // SAFETY: no pointers.
    check(unsafe { listen(fd.as_raw_fd(), BACKLOG) })?;
    Ok(TcpListener::from(fd))
}

/// A blocking connection; see [`listener`].
pub fn connection(addr: SocketAddr, cubic: bool) -> io::Result<TcpStream> {
    let fd = open(addr, cubic)?;
    let (raw, len) = sockaddr(addr);
    // SAFETY: `raw` lives through the call and holds `len` valid bytes.
    check(unsafe { connect(fd.as_raw_fd(), raw.as_ptr().cast(), len) })?;
    Ok(TcpStream::from(fd))
}

/// Waits for events; a negative time waits for ever.
pub fn poll(fds: &mut [PollFd], timeout_ms: c_int) -> io::Result<usize> {
    // SAFETY: the slice is valid for its length, and PollFd is laid out as struct pollfd.
    let n = unsafe { c_poll(fds.as_mut_ptr(), fds.len() as c_ulong, timeout_ms) };
    check(n)?;
    Ok(n as usize)
}

fn open(addr: SocketAddr, cubic: bool) -> io::Result<OwnedFd> {
    let domain = if addr.is_ipv4() { AF_INET } else { AF_INET6 };
    // SAFETY: no pointers.
    let raw = unsafe { socket(domain, SOCK_STREAM | SOCK_CLOEXEC, 0) };
    check(raw)?;
    // SAFETY: a descriptor that was just opened and that nobody else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    if cubic {
        // Refused where cubic is not allowed to this user; the default stays then.
        let _ = set(&fd, IPPROTO_TCP, TCP_CONGESTION, b"cubic");
    }
    Ok(fd)
}

fn set(fd: &OwnedFd, level: c_int, name: c_int, value: &[u8]) -> io::Result<()> {
    // SAFETY: `value` is valid for its length during the call.
    check(unsafe { setsockopt(fd.as_raw_fd(), level, name, value.as_ptr().cast(), value.len() as u32) })
}

fn check(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `struct sockaddr_in` or `sockaddr_in6` as bytes, and their number.
fn sockaddr(addr: SocketAddr) -> ([u8; 28], u32) {
    let mut raw = [0; 28];
    raw[2..4].copy_from_slice(&addr.port().to_be_bytes());
    match addr {
        SocketAddr::V4(a) => {
            raw[..2].copy_from_slice(&(AF_INET as u16).to_ne_bytes());
            raw[4..8].copy_from_slice(&a.ip().octets());
            (raw, 16)
        }
        SocketAddr::V6(a) => {
            raw[..2].copy_from_slice(&(AF_INET6 as u16).to_ne_bytes());
            raw[4..8].copy_from_slice(&a.flowinfo().to_ne_bytes());
            raw[8..24].copy_from_slice(&a.ip().octets());
            raw[24..].copy_from_slice(&a.scope_id().to_ne_bytes());
            (raw, 28)
        }
    }
}
