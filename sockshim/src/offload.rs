//! From kernel socket to engine socket: the placeholder takes the descriptor's place, options move over.

use crate::ctx;
use crate::log;
use crate::sys::{self, check, sys};
use crate::table::{Entry, Kind, Tables, cand, entry};
use core::net::SocketAddr;
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET, c_int};
use rustix::io::Errno;
use toe_core::app::rules::{self, Action, Role};
use toe_core::app::{Link, Sock, Why};
use toe_core::shm::app_flags;

/// What the rules say of an address, and the link to use if it is the engine's.
pub enum Choice {
    /// The kernel's, for this reason.
    Kernel(Why),
    /// ENETUNREACH.
    Refuse,
    /// The engine's.
    Engine(usize, &'static Link),
    /// The engine's beside the kernel.
    Shared(usize, &'static Link),
}

/// Asks the rules of the current registration.
pub fn choose(role: Role, addr: SocketAddr) -> Choice {
    let Some((number, link)) = ctx::current() else { return Choice::Kernel(log::without()) };
    let header = &link.region.layout().header;
    match rules::decide(header, role, addr) {
        Action::Engine => Choice::Engine(number, link),
        Action::Shared => Choice::Shared(number, link),
        Action::Refuse => Choice::Refuse,
        Action::Kernel => Choice::Kernel(rules::why_kernel(header, role, addr)),
    }
}

/// Errors of the engine that are no answer to the program: it has no room, or is gone. The kernel serves instead.
pub fn falls_back(e: Errno) -> bool {
    matches!(e, Errno::NOBUFS | Errno::TIMEDOUT | Errno::DEADLK | Errno::NFILE | Errno::MFILE | Errno::NOMEM)
        || e == Errno::CONNRESET
}

/// A fresh placeholder: an unconnected AF_UNIX stream socket.
pub fn placeholder(flags: c_int) -> Result<c_int, Errno> {
    let fd = check(sys!(SYS_socket, libc::AF_UNIX, libc::SOCK_STREAM | flags, 0))?;
    Ok(fd as c_int)
}

/// The identity of a placeholder.
pub fn cookie(fd: c_int) -> u64 {
    let (mut cookie, mut len) = (0u64, 8u32);
    sys!(SYS_getsockopt, fd, SOL_SOCKET, libc::SO_COOKIE, &raw mut cookie, &raw mut len);
    cookie
}

/// Makes `fd`, a kernel candidate, the engine socket `sock`. Until this returns well the kernel socket is untouched.
pub fn replace(t: &'static Tables, fd: c_int, link: usize, sock: Sock<'static>) -> Result<(), Errno> {
    let was = entry(fd);
    let status = check(sys!(SYS_fcntl, fd, libc::F_GETFL))? as c_int;
    let nonblock = status & libc::O_NONBLOCK;
    let holder = placeholder(libc::SOCK_CLOEXEC | if nonblock != 0 { libc::SOCK_NONBLOCK } else { 0 })?;
    sock.set_flag(app_flags::NONBLOCK, nonblock != 0, false);
    let buffers = [was.has(cand::SNDBUF), was.has(cand::RCVBUF)];
    let opts = was.has(cand::OPTS) && mirror_socket_options(fd, holder, buffers);
    let Some(new) = t.new_local(link, sock.id, was.has(cand::V6), Kind::Engine) else {
        sys::close(holder);
        return Err(Errno::NOBUFS);
    };
    if was.has(cand::OPTS) {
        t.import_options(new, fd, opts);
    }
    sock.slot.cookie.store(cookie(holder), Relaxed);
    t.each_other(fd, was, |other, e| {
        t.share(new);
        move_over(t, holder, other, e, new);
    });
    let result = move_over(t, holder, fd, was, new);
    sys::close(holder);
    if result {
        Ok(())
    } else {
        t.discard(new);
        Err(Errno::MFILE)
    }
}

fn move_over(t: &'static Tables, holder: c_int, fd: c_int, was: Entry, new: Entry) -> bool {
    let close_on_exec = sys!(SYS_fcntl, fd, libc::F_GETFD) & libc::FD_CLOEXEC as isize != 0;
    if sys!(SYS_dup3, holder, fd, if close_on_exec { libc::O_CLOEXEC } else { 0 }) < 0 {
        return false;
    }
    t.swap(fd, new);
    if was.has(cand::IN_EPOLL) {
        crate::epset::candidate_moved(t, fd);
    }
    true
}

/// Integer options that both kinds of placeholder answer for; the slot gets them too.
const INTS: [(c_int, c_int); 19] = [
    (SOL_SOCKET, libc::SO_KEEPALIVE),
    (SOL_SOCKET, libc::SO_REUSEADDR),
    (SOL_SOCKET, libc::SO_REUSEPORT),
    (SOL_SOCKET, libc::SO_RCVLOWAT),
    (IPPROTO_TCP, libc::TCP_NODELAY),
    (IPPROTO_TCP, libc::TCP_CORK),
    (IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (IPPROTO_TCP, libc::TCP_KEEPCNT),
    (IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (IPPROTO_TCP, libc::TCP_LINGER2),
    (IPPROTO_TCP, libc::TCP_SYNCNT),
    (IPPROTO_TCP, libc::TCP_MAXSEG),
    (IPPROTO_TCP, TCP_NOTSENT_LOWAT),
    (IPPROTO_IP, libc::IP_TTL),
    (IPPROTO_IP, libc::IP_TOS),
    (IPPROTO_IPV6, libc::IPV6_V6ONLY),
    (IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
    (IPPROTO_IPV6, libc::IPV6_TCLASS),
];

const TCP_NOTSENT_LOWAT: c_int = 25;

/// An integer option of a kernel socket.
pub fn kernel_int(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let (mut value, mut len): (c_int, u32) = (0, 4);
    let r = sys!(SYS_getsockopt, fd, level, name, &raw mut value, &raw mut len);
    (r == 0 && len == 4).then_some(value)
}

/// Gives the slot the options that the program had set on the kernel socket.
pub fn import_options(fd: c_int, sock: &Sock<'_>) {
    let e = entry(fd);
    if e.has(cand::V6) && kernel_int(fd, IPPROTO_IPV6, libc::IPV6_V6ONLY) == Some(1) {
        sock.set_flag(app_flags::V6ONLY, true, false);
    }
    if !e.has(cand::OPTS) {
        return;
    }
    for (level, name) in INTS {
        if (level == IPPROTO_IPV6) != e.has(cand::V6) && level != SOL_SOCKET && level != IPPROTO_TCP {
            continue;
        }
        if let Some(value) = kernel_int(fd, level, name)
            && sock.get_option(level, name) != Ok(value)
        {
            let _ = sock.set_option(level, name, value);
        }
    }
    // Already doubled by the kernel.
    if e.has(cand::SNDBUF) {
        let v = kernel_int(fd, SOL_SOCKET, libc::SO_SNDBUF).unwrap_or(0);
        sock.slot.opt_sndbuf.store(v as u32, Relaxed);
    }
    if e.has(cand::RCVBUF) {
        let v = kernel_int(fd, SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(0);
        sock.slot.opt_rcvbuf.store(v as u32, Relaxed);
    }
    for (name, word) in [(libc::SO_RCVTIMEO, &sock.slot.rcv_timeo_ms), (libc::SO_SNDTIMEO, &sock.slot.snd_timeo_ms)] {
        if let Some(ms) = kernel_timeout(fd, name) {
            word.store(ms, Relaxed);
        }
    }
    if let Some((1, 0)) = kernel_pair(fd, libc::SO_LINGER).map(|[on, s]| (on & 1, s)) {
        sock.set_flag(app_flags::LINGER_RST, true, false);
    }
}

/// What SOL_SOCKET keeps for reading back only; accepted sockets inherit it.
pub const MIRRORED: [c_int; 16] = [
    libc::SO_OOBINLINE,
    libc::SO_PRIORITY,
    libc::SO_BROADCAST,
    libc::SO_DONTROUTE,
    libc::SO_TIMESTAMP,
    libc::SO_TIMESTAMPNS,
    libc::SO_BUSY_POLL,
    libc::SO_MARK,
    SO_NOFCS,
    libc::SO_RXQ_OVFL,
    libc::SO_MAX_PACING_RATE,
    libc::SO_SNDBUF,
    libc::SO_RCVBUF,
    libc::SO_LINGER,
    libc::SO_RCVTIMEO,
    libc::SO_SNDTIMEO,
];
const SO_NOFCS: c_int = 43;

/// Copies what differs. Buffers only if `buffers`: the defaults are not the same. Is there anything?
pub fn mirror_socket_options(from: c_int, to: c_int, buffers: [bool; 2]) -> bool {
    let mut any = false;
    for name in MIRRORED {
        let wanted = match name {
            libc::SO_SNDBUF => buffers[0],
            libc::SO_RCVBUF => buffers[1],
            _ => true,
        };
        let get = |fd: c_int| {
            let (mut value, mut len) = ([0u64; 2], 16u32);
            let r = sys!(SYS_getsockopt, fd, SOL_SOCKET, name, &raw mut value, &raw mut len);
            (value, if r == 0 { len } else { 0 })
        };
        if !wanted {
            continue;
        }
        let (mut value, len) = get(from);
        if (value, len) == get(to) {
            continue;
        }
        if [libc::SO_SNDBUF, libc::SO_RCVBUF].contains(&name) {
            // Doubled by the kernel once already.
            value[0] /= 2;
        }
        any |= sys!(SYS_setsockopt, to, SOL_SOCKET, name, &raw const value, len) == 0;
    }
    any
}

fn kernel_pair(fd: c_int, name: c_int) -> Option<[c_int; 2]> {
    let (mut value, mut len) = ([0 as c_int; 2], 8u32);
    (sys!(SYS_getsockopt, fd, SOL_SOCKET, name, &raw mut value, &raw mut len) == 0).then_some(value)
}

/// SO_RCVTIMEO or SO_SNDTIMEO of a kernel socket, in milliseconds rounded up; 0: none.
pub fn kernel_timeout(fd: c_int, name: c_int) -> Option<u32> {
    let (mut tv, mut len) = ([0i64; 2], 16u32);
    let r = sys!(SYS_getsockopt, fd, SOL_SOCKET, name, &raw mut tv, &raw mut len);
    if r != 0 {
        return None;
    }
    Some((tv[0].max(0).saturating_mul(1000) + (tv[1].max(0) + 999) / 1000).min(i64::from(u32::MAX)) as u32)
}

/// The address a kernel socket is bound to.
pub fn kernel_name(fd: c_int) -> Option<SocketAddr> {
    let mut storage = [0u64; 16];
    let mut len = 128u32;
    let p: *mut u64 = storage.as_mut_ptr();
    (sys!(SYS_getsockname, fd, p, &raw mut len) == 0).then(|| crate::addr::read(p.cast(), len))?
}

/// A local's flag as a bool.
pub fn is_set(word: &core::sync::atomic::AtomicU32) -> bool {
    word.load(Acquire) != 0
}
