//! connect and shutdown of an engine socket: Linux's `__inet_stream_connect` and `inet_shutdown`, and the way back to an unconnected
//! socket (`tcp_disconnect`), which here is a fresh slot in the place of the used one.

use crate::addr::Given;
use crate::offload::is_set;
use crate::sys::sys;
use crate::table::{Entry, Held, entry};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::Ordering::{Relaxed, Release};
use libc::c_int;
use rustix::io::Errno;
use toe_core::app::socket::Shut;
use toe_core::app::wait::{deadline_ms, now_ns};
use toe_core::app::{Sock, rules};
use toe_core::shm::{SockState, app_flags};

/// Who bound a socket: [`Local::bound`](crate::table::Local::bound).
pub const PROGRAM: u32 = 1;
/// Accepted: the listener did. Or the kernel, whose port it shares.
pub const LISTENER: u32 = 2;

/// How long a port that was given up may take to be free, or a woken thread to run.
const REBIND_NS: u64 = 50_000_000;

/// `connect(2)`.
pub fn connect(h: &Held, given: &Given) -> Result<(), Errno> {
    if given.family()? == libc::AF_UNSPEC {
        return dissolve(h);
    }
    match h.sock.state() {
        SockState::Established if h.local.connect_told.swap(1, Relaxed) == 0 => Ok(()),
        SockState::Established | SockState::Listening => Err(Errno::ISCONN),
        SockState::Connecting => match finish(h) {
            Err(Errno::INPROGRESS) => Err(Errno::ALREADY),
            other => other,
        },
        SockState::New | SockState::Bound => {
            let target = target(h, given)?;
            // What was pending is of an earlier life.
            h.sock.take_error();
            h.sock.set_flag(app_flags::SHUT_RD | app_flags::SHUT_WR, false, false);
            h.sock.connect(target)?;
            finish(h)
        }
        SockState::Closed | SockState::Free if is_set(&h.local.connect_told) => Err(Errno::ISCONN),
        SockState::Closed | SockState::Free => {
            let error = h.sock.take_error().unwrap_or(Errno::CONNABORTED);
            renew(h, None);
            Err(error)
        }
    }
}

fn target(h: &Held, given: &Given) -> Result<SocketAddr, Errno> {
    let addr = given.of_family(is_set(&h.local.v6))?;
    let plain = rules::plain(addr);
    if plain.is_ipv4() && addr.is_ipv6() && v6_only(&h.sock) {
        return Err(Errno::NETUNREACH);
    }
    match rules::to_self(plain) {
        // Nobody can listen there.
        a if a.port() == 0 => Err(Errno::CONNREFUSED),
        a => Ok(a),
    }
}

/// Is it an IPv6 socket that knows no IPv4?
pub fn v6_only(sock: &Sock<'_>) -> bool {
    sock.slot.app_flags.load(Relaxed) & app_flags::V6ONLY != 0
}

/// A connection attempt is under way: waits for its end, unless non-blocking.
pub fn finish(h: &Held) -> Result<(), Errno> {
    // Even if it has ended meanwhile: Linux says so over loopback as well.
    if h.sock.nonblocking() {
        return Err(Errno::INPROGRESS);
    }
    let deadline = deadline_ms(h.sock.slot.snd_timeo_ms.load(Relaxed));
    let waiting = h.waiting();
    let outcome = h.sock.wait_connected(deadline);
    // Shut down meanwhile.
    let replaced = h.local.sock_id() != h.sock.id;
    drop(waiting);
    match outcome {
        _ if replaced => Err(Errno::CONNRESET),
        Ok(()) => {
            h.local.connect_told.store(1, Relaxed);
            Ok(())
        }
        Err(Errno::AGAIN) => Err(Errno::INPROGRESS),
        Err(Errno::INTR) => Err(Errno::INTR),
        Err(e) => {
            // Told, so that the socket is as it was before.
            renew(h, None);
            Err(e)
        }
    }
}

/// `connect(2)` to AF_UNSPEC: ends whatever the socket was doing.
fn dissolve(h: &Held) -> Result<(), Errno> {
    let error = match h.sock.state() {
        SockState::New | SockState::Bound => {
            h.sock.set_flag(app_flags::SHUT_RD | app_flags::SHUT_WR, false, false);
            return Ok(());
        }
        SockState::Listening => return stop_listening(h),
        SockState::Connecting | SockState::Established => Some(Errno::CONNRESET),
        SockState::Closed | SockState::Free => h.sock.take_error(),
    };
    renew(h, error);
    Ok(())
}

/// `shutdown(2)`.
pub fn shutdown(h: &Held, how: Shut) -> Result<(), Errno> {
    match h.sock.state() {
        SockState::Listening if how != Shut::Write => stop_listening(h),
        SockState::Connecting => {
            h.sock.shutdown(Shut::Both)?;
            // A blocked connect is told by the old slot.
            let error = h.sock.nonblocking().then_some(Errno::CONNRESET);
            renew(h, error);
            Ok(())
        }
        _ => h.sock.shutdown(how),
    }
}

/// A listener becomes a bound socket again. Those who wait in accept are told by the old slot.
fn stop_listening(h: &Held) -> Result<(), Errno> {
    h.sock.shutdown(Shut::Read)?;
    if !h.hybrid {
        renew(h, None);
    }
    Ok(())
}

/// A listener that the kernel shares has stopped listening there: from now on it is the kernel's alone.
pub fn leave_to_kernel(h: &Held) {
    let _ = h.sock.shutdown(Shut::Read);
    if !h.sock.nonblocking() {
        let status = sys!(SYS_fcntl, h.fd, libc::F_GETFL).max(0) as c_int;
        sys!(SYS_fcntl, h.fd, libc::F_SETFL, status & !libc::O_NONBLOCK);
    }
    let this = entry(h.fd);
    h.tables.each(|fd, e| {
        if e == this {
            h.tables.enter(fd, Entry(0));
        }
    });
}

/// A fresh slot in the place of the one that `h` has, if nobody else has done so; with an error pending.
pub fn renew(h: &Held, error: Option<Errno>) -> Option<Sock<'static>> {
    let (listened, old) = (h.sock.state() == SockState::Listening, h.sock);
    let (name, v6) = (old.local(), is_set(&h.local.v6));
    let new = h.local.renew(h.tables, &old)?;
    h.local.connect_told.store(0, Relaxed);
    let bound = if listened { PROGRAM } else { h.local.bound.load(Relaxed) };
    // Whatever the peer has not got yet it does not get.
    old.set_flag(app_flags::LINGER_RST, true, false);
    // Not before those who sleep on it have seen that it is over: the next user's state would keep them.
    let deadline = now_ns() + REBIND_NS;
    while is_set(&h.local.waiters) && now_ns() < deadline {
        rustix::thread::sched_yield();
    }
    old.release();
    match name {
        Some(name) if bound == PROGRAM => rebind(&new, name),
        // Linux keeps showing it, or at least the port.
        Some(_) if bound == LISTENER => new.slot.local.store(name),
        Some(name) => new.slot.local.store(Some(SocketAddr::new(any_ip(v6), name.port()))),
        None => {}
    }
    if let Some(e) = error {
        new.slot.error.store(e.raw_os_error() as u32, Release);
    }
    crate::epset::renewed(h.tables, h.local);
    Some(new)
}

fn any_ip(v6: bool) -> IpAddr {
    if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

/// The daemon needs a moment to free the port. Should somebody else get it, the socket is unbound.
fn rebind(sock: &Sock<'_>, name: SocketAddr) {
    let deadline = now_ns() + REBIND_NS;
    while sock.bind(name) == Err(Errno::ADDRINUSE) && now_ns() < deadline {
        rustix::thread::sched_yield();
    }
}

/// The halves that a number means.
pub fn halves(how: c_int) -> Result<Shut, Errno> {
    match how {
        libc::SHUT_RD => Ok(Shut::Read),
        libc::SHUT_WR => Ok(Shut::Write),
        libc::SHUT_RDWR => Ok(Shut::Both),
        _ => Err(Errno::INVAL),
    }
}
