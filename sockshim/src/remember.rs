//! Options that mean nothing to the engine: checked as the kernel checks them, kept, and read back.

use crate::table::Held;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, c_int};
use rustix::io::Errno;
use toe_core::shm::SockState;

/// How many there are.
pub const COUNT: usize = OPTIONS.len();

/// One of them: level, number, value of a new socket, what the kernel makes of a value.
struct Kept(c_int, c_int, c_int, fn(&Held, c_int) -> Result<c_int, Errno>);

const OPTIONS: [Kept; 17] = [
    Kept(IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 0, |_, v| Ok(retransmission_times(v))),
    Kept(IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, 0, |_, v| Ok(v)),
    Kept(IPPROTO_TCP, libc::TCP_QUICKACK, 1, |_, v| Ok(v & 1)),
    Kept(IPPROTO_TCP, libc::TCP_FASTOPEN, 0, |h, v| if v >= 0 && idle(h, true) { Ok(v) } else { Err(Errno::INVAL) }),
    Kept(IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 0, |h, v| if idle(h, false) { bit(h, v) } else { Err(Errno::INVAL) }),
    Kept(IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 0, bit),
    Kept(IPPROTO_TCP, TCP_REPAIR, 0, |_, _| Err(Errno::PERM)),
    Kept(IPPROTO_IP, libc::IP_OPTIONS, 0, |_, v| Ok(v)),
    Kept(IPPROTO_IP, libc::IP_PKTINFO, 0, truth),
    Kept(IPPROTO_IP, libc::IP_MTU_DISCOVER, 1, |_, v| if (0..=5).contains(&v) { Ok(v) } else { Err(Errno::INVAL) }),
    Kept(IPPROTO_IP, libc::IP_RECVERR, 0, truth),
    Kept(IPPROTO_IP, libc::IP_RECVTTL, 0, truth),
    Kept(IPPROTO_IP, libc::IP_RECVTOS, 0, truth),
    Kept(IPPROTO_IP, libc::IP_FREEBIND, 0, truth),
    Kept(IPPROTO_IP, libc::IP_MINTTL, 0, |_, v| if (0..=255).contains(&v) { Ok(v) } else { Err(Errno::INVAL) }),
    Kept(IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 0, truth),
    Kept(IPPROTO_IPV6, IPV6_RECVERR, 0, truth),
];

// Not in libc for all targets.
const TCP_THIN_LINEAR_TIMEOUTS: c_int = 16;
const TCP_REPAIR: c_int = 19;
const TCP_FASTOPEN_CONNECT: c_int = 30;
const IP_BIND_ADDRESS_NO_PORT: c_int = 24;
const IPV6_RECVERR: c_int = 25;

fn truth(_: &Held, v: c_int) -> Result<c_int, Errno> {
    Ok((v != 0).into())
}

fn bit(_: &Held, v: c_int) -> Result<c_int, Errno> {
    if (0..=1).contains(&v) { Ok(v) } else { Err(Errno::INVAL) }
}

/// Not connected, nor on the way.
fn idle(h: &Held, listening_too: bool) -> bool {
    match h.sock.state() {
        SockState::New | SockState::Bound | SockState::Closed => true,
        SockState::Listening => listening_too,
        _ => false,
    }
}

/// TCP_DEFER_ACCEPT counts in SYN-ACK retransmissions (1, 3, 7, 15 … seconds after the first, at most 120 apart).
fn retransmission_times(seconds: c_int) -> c_int {
    let (mut wait, mut total) = (1, 0);
    for _ in 0..255 {
        if total >= seconds {
            break;
        }
        total += wait;
        wait = (wait * 2).min(120);
    }
    total
}

fn find(level: c_int, name: c_int) -> Option<(usize, &'static Kept)> {
    OPTIONS.iter().enumerate().find(|(_, k)| (k.0, k.1) == (level, name))
}

/// What the program had set on its kernel socket.
pub fn import(fd: c_int, v6: bool, to: &[AtomicU32; COUNT]) {
    for (word, kept) in to.iter().zip(&OPTIONS) {
        if kept.0 == IPPROTO_TCP || (kept.0 == IPPROTO_IPV6) == v6 {
            let value = crate::offload::kernel_int(fd, kept.0, kept.1).unwrap_or(kept.2);
            word.store((value ^ kept.2) as u32, Relaxed);
        }
    }
}

/// Keeps a value. ENOPROTOOPT: not one of these.
pub fn set(h: &Held, level: c_int, name: c_int, value: c_int) -> Result<(), Errno> {
    let (at, kept) = find(level, name).ok_or(Errno::NOPROTOOPT)?;
    let value = kept.3(h, value)?;
    // The default reads zero, as all of a fresh table does.
    h.local.remembered[at].store((value ^ kept.2) as u32, Relaxed);
    Ok(())
}

/// Reads it back. ENOPROTOOPT: not one of these.
pub fn get(h: &Held, level: c_int, name: c_int) -> Result<c_int, Errno> {
    let (at, kept) = find(level, name).ok_or(Errno::NOPROTOOPT)?;
    Ok(h.local.remembered[at].load(Relaxed) as c_int ^ kept.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defer_accept_rounds_up() {
        let seconds = [0, 1, 2, 3, 5, 7, 8, 100, -1];
        assert_eq!(seconds.map(retransmission_times), [0, 1, 3, 3, 7, 7, 15, 127, 0]);
    }
}
