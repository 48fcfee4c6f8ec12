//! socket, bind, listen, accept, connect, shutdown.

#![allow(unsafe_code)]

use crate::addr::{self, Given};
use crate::cancel::block;
use crate::connect;
use crate::ctx;
use crate::log::{self, say};
use crate::offload::{self, Choice, choose, falls_back};
use crate::sys::{self, check, libc_ret, ret, sys};
use crate::table::{Entry, Held, Kind, Tables, cand, entry, get, tables, unrelayed};
use core::net::SocketAddr;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use libc::{c_int, sockaddr, socklen_t};
use rustix::io::Errno;
use toe_core::SockId;
use toe_core::app::rules::{self, Action, Role};
use toe_core::app::wait::deadline_ms;
use toe_core::app::{Link, Sock, Why};
use toe_core::shm::{SockState, app_flags};

/// Over the kernel's loopback a handshake has happened when connect(2) returns, non-blocking or not, and programs rely on it.
/// Ours is done within a fraction of this.
const HANDSHAKE_NS: u64 = 1_000_000;

/// Numbers the kernel sockets that may become engine sockets.
static GROUPS: AtomicU32 = AtomicU32::new(1);

#[unsafe(no_mangle)]
extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let fd = sys!(SYS_socket, domain, kind, protocol);
    if fd >= 0 {
        fresh(fd as c_int);
        let internet = domain == libc::AF_INET || domain == libc::AF_INET6;
        let stream = kind & 0xf == libc::SOCK_STREAM;
        if stream && internet && protocol != 0 && protocol != libc::IPPROTO_TCP {
            log::kernel(Why::Protocol);
        } else if stream && internet && ctx::init() {
            let v6 = if domain == libc::AF_INET6 { cand::V6 } else { 0 };
            let group = u64::from(GROUPS.fetch_add(1, Relaxed)) << cand::GROUP_SHIFT;
            if let Some(t) = tables() {
                t.enter(fd as c_int, Entry::candidate(v6 | group));
            }
        }
    }
    libc_ret(fd) as c_int
}

/// The kernel has given out a descriptor: what we knew of its number is stale.
pub fn fresh(fd: c_int) {
    if entry(fd).kind() != Kind::None
        && let Some(t) = tables()
    {
        t.enter(fd, Entry(0));
    }
}

/// From now on the kernel's.
pub fn kernel_for_good(t: &Tables, fd: c_int) {
    t.enter(fd, Entry(0));
}

#[unsafe(no_mangle)]
extern "C" fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    let raw = || libc_ret(sys!(SYS_bind, fd, address, len)) as c_int;
    let (e, given) = (entry(fd), Given::take(address, len));
    match (e.kind(), given.ok().and_then(|g| own_address(e, fd, &g)), tables()) {
        (Kind::Engine, _, _) => {
            let Some(h) = get(fd) else { return raw() };
            ret(given.and_then(|g| bind_engine(&h, &g)).map(|()| 0)) as c_int
        }
        (Kind::Candidate, Some(a), Some(t)) => bind_candidate(t, fd, a, raw),
        _ => raw(),
    }
}

fn bind_candidate(t: &'static Tables, fd: c_int, a: SocketAddr, raw: impl Fn() -> c_int) -> c_int {
    let plain = rules::plain(a);
    let (mark, why) = match choose(Role::Listen, a) {
        _ if plain.ip().is_unspecified() => (cand::WILD, None),
        Choice::Engine(n, link) => match become_engine(t, fd, n, link, |s| s.bind(plain)) {
            Err(e) if falls_back(e) => {
                say!("fd {fd}: bind {a}: kernel ({e:?})");
                (cand::BOUND, Some(log::fell_back(link, e)))
            }
            outcome => return ret(outcome.map(|()| 0)) as c_int,
        },
        // As soon as it connects or listens, the engine takes the kernel's port as well.
        Choice::Shared(..) => (cand::LOOP, None),
        // There is nothing to refuse before it connects.
        Choice::Refuse => (cand::BOUND, None),
        Choice::Kernel(why) => (cand::BOUND, Some(why)),
    };
    let r = raw();
    if r == 0 {
        t.mark_all(fd, mark);
        why.into_iter().for_each(log::kernel);
    }
    r
}

/// An address that may be the engine's: of the candidate's own family, and no IPv4 for a socket that knows none. The kernel
/// has an errno for all others.
fn own_address(e: Entry, fd: c_int, given: &Given) -> Option<SocketAddr> {
    let a = given.of_family(e.has(cand::V6)).ok()?;
    let mapped = a.is_ipv6() && rules::plain(a).is_ipv4();
    let refused = mapped && offload::kernel_int(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) == Some(1);
    (!refused).then_some(a)
}

fn bind_engine(h: &Held, given: &Given) -> Result<(), Errno> {
    let a = match given.of_family(is_v6(h)) {
        Err(Errno::AFNOSUPPORT) if !is_v6(h) && given.is_unspecified_any() => any(false, given.port()),
        other => other?,
    };
    let plain = rules::plain(a);
    if a.is_ipv6() && plain.is_ipv4() && connect::v6_only(&h.sock) {
        return Err(Errno::INVAL);
    }
    let sock = match h.sock.state() {
        SockState::New => h.sock,
        // The end of a connection leaves an unbound socket, which still looks shut down.
        SockState::Closed if !offload::is_set(&h.local.bound) => {
            let error = h.sock.take_error();
            let sock = connect::renew(h, error).ok_or(Errno::INVAL)?;
            sock.set_flag(app_flags::SHUT_RD | app_flags::SHUT_WR, true, false);
            sock
        }
        _ => return Err(Errno::INVAL),
    };
    sock.bind(plain)?;
    h.local.bound.store(connect::PROGRAM, Relaxed);
    Ok(())
}

/// Takes a slot, gives it the socket's options, lets `ask` ask the engine, and puts it in the kernel socket's place.
fn become_engine(
    t: &'static Tables,
    fd: c_int,
    n: usize,
    link: &'static Link,
    ask: impl FnOnce(&Sock<'static>) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let sock = Sock::create(link)?;
    offload::import_options(fd, &sock);
    let outcome = ask(&sock).and_then(|()| offload::replace(t, fd, n, sock));
    if outcome.is_ok()
        && let (SockState::Bound, Some(h)) = (sock.state(), get(fd))
    {
        h.local.bound.store(connect::PROGRAM, Relaxed);
    }
    if outcome.is_err() {
        sock.release();
    } else {
        say!("fd {fd}: engine, slot {}", sock.id.0);
    }
    outcome
}

#[unsafe(no_mangle)]
extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    let raw = || libc_ret(sys!(SYS_listen, fd, backlog)) as c_int;
    // As Linux: a negative backlog is a very large one.
    let depth = (backlog as u32).min(65_535);
    match (entry(fd).kind(), tables()) {
        (Kind::Engine, _) => {
            let Some(h) = get(fd) else { return raw() };
            let outcome = match h.sock.state() {
                SockState::New => h.sock.bind(any(is_v6(&h), 0)).and_then(|()| h.sock.listen(depth)),
                SockState::Bound | SockState::Listening => h.sock.listen(depth),
                _ => Err(Errno::INVAL),
            };
            ret(outcome.map(|()| 0)) as c_int
        }
        (Kind::Hybrid, _) => {
            if let Some(h) = get(fd) {
                let _ = h.sock.listen(depth);
            }
            raw()
        }
        (Kind::Candidate, Some(t)) => {
            let r = raw();
            if r == 0 && (entry(fd).has(cand::BOUND) || !also_engine(t, fd, depth)) {
                kernel_for_good(t, fd);
            }
            r
        }
        _ => raw(),
    }
}

fn any(v6: bool, port: u16) -> SocketAddr {
    match v6 {
        true => SocketAddr::new(core::net::Ipv6Addr::UNSPECIFIED.into(), port),
        false => SocketAddr::new(core::net::Ipv4Addr::UNSPECIFIED.into(), port),
    }
}

fn is_v6(h: &Held) -> bool {
    offload::is_set(&h.local.v6)
}

/// A kernel socket listens on the wildcard address, 127.0.0.1 or ::1: the engine listens on the same port beside it.
fn also_engine(t: &'static Tables, fd: c_int, backlog: u32) -> bool {
    let v6 = entry(fd).has(cand::V6);
    let Some(name) = offload::kernel_name(fd).map(rules::plain) else { return false };
    let Some((n, link)) = ctx::current() else {
        log::kernel(log::without());
        return false;
    };
    if !entry(fd).has(cand::LOOP) {
        let v6_only = v6 && offload::kernel_int(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) == Some(1);
        let header = &link.region.layout().header;
        if rules::decide_wildcard(header, name.port(), !v6_only, v6) != Action::Engine {
            log::kernel(rules::why_kernel(header, Role::Listen, name));
            return false;
        }
    }
    match beside_kernel(t, fd, n, link, name, backlog) {
        Ok(id) => say!("fd {fd}: {name} in the kernel and in the engine, slot {}", id.0),
        Err(e) => {
            say!("fd {fd}: {name} in the kernel only ({e:?})");
            log::kernel(log::fell_back(link, e));
            return false;
        }
    }
    true
}

fn beside_kernel(
    t: &'static Tables,
    fd: c_int,
    n: usize,
    link: &'static Link,
    name: SocketAddr,
    backlog: u32,
) -> Result<SockId, Errno> {
    let (sock, v6) = (Sock::create(link)?, entry(fd).has(cand::V6));
    offload::import_options(fd, &sock);
    sock.set_flag(app_flags::KERNEL_BOUND, true, false);
    let asked = sock.bind(name).and_then(|()| sock.listen(backlog));
    let made = asked.and_then(|()| t.new_local(n, sock.id, v6, Kind::Hybrid).ok_or(Errno::NOBUFS));
    let new = made.inspect_err(|_| sock.release())?;
    if entry(fd).has(cand::OPTS) {
        t.import_options(new, fd, true);
    }
    force_nonblocking(fd, &sock);
    sock.slot.cookie.store(offload::cookie(fd), Relaxed);
    let was = entry(fd);
    t.each_other(fd, was, |other, _| {
        t.share(new);
        t.swap(other, new);
    });
    t.swap(fd, new);
    if was.has(cand::IN_EPOLL) {
        crate::epset::candidate_moved(t, fd);
    }
    Ok(sock.id)
}

/// Two queues feed one accept, so neither may block: the kernel's listener is made non-blocking, and what the program believes
/// is kept in the slot.
fn force_nonblocking(fd: c_int, sock: &Sock<'_>) {
    let status = sys!(SYS_fcntl, fd, libc::F_GETFL).max(0) as c_int;
    sock.set_flag(app_flags::NONBLOCK, status & libc::O_NONBLOCK != 0, false);
    sys!(SYS_fcntl, fd, libc::F_SETFL, status | libc::O_NONBLOCK);
}

pub fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    accept4(fd, address, len, 0)
}

pub fn accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    let Some(h) = get(fd) else { return raw_accept(fd, address, len, flags) };
    if flags & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) != 0 {
        sys::set_errno(libc::EINVAL);
        return -1;
    }
    let outcome =
        if h.hybrid { accept_either(&h, fd, address, len, flags) } else { accept_engine(&h, fd, address, len, flags) };
    ret(outcome.map(|fd| fd as usize)) as c_int
}

fn raw_accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    let new = block!(SYS_accept4, fd, address, len, flags);
    if new >= 0 {
        fresh(new as c_int);
    }
    libc_ret(new) as c_int
}

fn accept_engine(
    h: &Held,
    listener: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> Result<c_int, Errno> {
    let deadline = deadline_ms(h.sock.slot.rcv_timeo_ms.load(Relaxed));
    loop {
        h.sock.may_accept()?;
        if !h.sock.acceptable() {
            if h.sock.nonblocking() {
                return Err(Errno::AGAIN);
            }
            let _waiting = h.waiting();
            h.sock.wait_acceptable(deadline)?;
        }
        match take(h, listener, address, len, flags) {
            Err(Errno::AGAIN) if !h.sock.nonblocking() => {}
            other => return other,
        }
    }
}

/// A descriptor first, as in the kernel: without one, the connection stays in the queue.
fn take(h: &Held, listener: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> Result<c_int, Errno> {
    let fd = offload::placeholder(flags)?;
    if offload::is_set(&h.local.opts) {
        let slot = h.sock.slot;
        let buffers = [&slot.opt_sndbuf, &slot.opt_rcvbuf].map(|w| w.load(Relaxed) != 0);
        offload::mirror_socket_options(listener, fd, buffers);
    }
    let outcome = take_as(h, fd, address, len, flags);
    if outcome.is_err() {
        sys::close(fd);
    }
    outcome
}

fn take_as(h: &Held, fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> Result<c_int, Errno> {
    let sock = h.sock.try_accept()?;
    sock.set_flag(app_flags::NONBLOCK, flags & libc::SOCK_NONBLOCK != 0, false);
    sock.slot.cookie.store(offload::cookie(fd), Relaxed);
    let v6 = is_v6(h);
    let Some(new) = h.tables.new_local(h.local.link(), sock.id, v6, Kind::Engine) else {
        sock.release();
        return Err(Errno::NOBUFS);
    };
    h.tables.connected(new);
    h.tables.inherit(new, h.local);
    h.tables.enter(fd, new);
    let told = if address.is_null() { Ok(()) } else { addr::write(address, len, sock.slot.remote.load(), v6) };
    if told.is_err() {
        // As the kernel: the connection is lost.
        h.tables.enter(fd, Entry(0));
    }
    told.map(|()| fd)
}

/// From a hybrid listener: whichever side has a connection.
fn accept_either(
    h: &Held,
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> Result<c_int, Errno> {
    let deadline = deadline_ms(h.sock.slot.rcv_timeo_ms.load(Relaxed));
    loop {
        if h.sock.acceptable() && h.sock.may_accept().is_ok() {
            match take(h, fd, address, len, flags) {
                Err(Errno::AGAIN) => {}
                other => return other,
            }
        }
        match check(sys!(SYS_accept4, fd, address, len, flags)) {
            Ok(new) => {
                fresh(new as c_int);
                log::kernel_of(h.sock.link, Why::KernelPeer);
                return Ok(new as c_int);
            }
            Err(Errno::AGAIN) if !h.sock.nonblocking() => {}
            Err(e) => return Err(e),
        }
        let mut p = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        match crate::poll::poll_some(core::slice::from_mut(&mut p), deadline, core::ptr::null()) {
            Ok(0) => return Err(Errno::AGAIN),
            // poll is never restarted by the kernel, accept is.
            Err(Errno::INTR) if deadline.is_none() && ctx::handlers_restart() => {}
            Err(e) => return Err(e),
            Ok(_) => {}
        }
    }
}

pub fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    let raw = || libc_ret(block!(SYS_connect, fd, address, len)) as c_int;
    let (e, given) = (entry(fd), Given::take(address, len));
    match (e.kind(), given.ok().and_then(|g| own_address(e, fd, &g)), tables()) {
        (Kind::Engine, _, _) => match get(fd) {
            Some(h) => ret(given.and_then(|g| connect::connect(&h, &g)).map(|()| 0)) as c_int,
            None => raw(),
        },
        (Kind::Candidate, Some(a), Some(t)) => ret(connect_candidate(t, fd, a, raw).map(|r| r as usize)) as c_int,
        (Kind::Hybrid, _, _) => {
            let r = raw();
            if r == 0
                && let Some(h) = get(fd)
            {
                connect::leave_to_kernel(&h);
            }
            r
        }
        _ => raw(),
    }
}

fn connect_candidate(t: &'static Tables, fd: c_int, a: SocketAddr, raw: impl Fn() -> c_int) -> Result<c_int, Errno> {
    let target = rules::to_self(rules::plain(a));
    let begun = |near: bool| {
        let h = get(fd).ok_or(Errno::BADF)?;
        if near {
            h.sock.await_handshake(HANDSHAKE_NS);
        }
        connect::finish(&h).map(|()| 0)
    };
    let why = match choose(Role::Connect, target) {
        // Counted when it was bound.
        _ if entry(fd).has(cand::BOUND) => None,
        Choice::Refuse => return Err(Errno::NETUNREACH),
        Choice::Engine(..) if target.port() == 0 => return Err(Errno::CONNREFUSED),
        Choice::Engine(n, link) => match connect_via(t, fd, n, link, target) {
            Ok(()) => return begun(false),
            Err(e) if falls_back(e) => {
                say!("fd {fd}: connect {a}: kernel ({e:?})");
                Some(log::fell_back(link, e))
            }
            Err(e) => return Err(e),
        },
        Choice::Shared(_, link) if !link.page.get().is_shared_port(target.port()) => Some(Why::NoListener),
        // Whatever the engine says before it has sent anything: the kernel knows better.
        Choice::Shared(n, link) => match connect_via(t, fd, n, link, target) {
            Ok(()) => return begun(true),
            Err(Errno::CONNREFUSED) => Some(Why::NoListener),
            Err(e) => Some(log::fell_back(link, e)),
        },
        Choice::Kernel(why) => Some(why),
    };
    let r = raw();
    if r == 0 || errno() == libc::EINPROGRESS {
        kernel_for_good(t, fd);
        why.into_iter().for_each(log::kernel);
    }
    // -1 with errno set is passed through by `ret` as it is.
    Ok(r)
}

fn errno() -> c_int {
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() }
}

/// The socket becomes the engine's and starts to connect.
fn connect_via(t: &'static Tables, fd: c_int, n: usize, link: &'static Link, a: SocketAddr) -> Result<(), Errno> {
    let bound = entry(fd).has(cand::WILD | cand::LOOP);
    let name = if bound { offload::kernel_name(fd).map(rules::plain) } else { None };
    become_engine(t, fd, n, link, |s| {
        if let Some(name) = name.filter(|name| name.port() != 0) {
            let any_of_target = || any(a.is_ipv6(), name.port());
            s.set_flag(app_flags::KERNEL_BOUND, true, false);
            s.bind(if name.ip().is_unspecified() { any_of_target() } else { name })?;
        }
        s.connect(a)
    })?;
    if let (Some(name), Some(h)) = (name, get(fd))
        && !name.ip().is_unspecified()
    {
        h.local.bound.store(connect::LISTENER, Relaxed);
    }
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    let Some(h) = unrelayed(fd) else { return libc_ret(sys!(SYS_shutdown, fd, how)) as c_int };
    if h.hybrid {
        let r = sys!(SYS_shutdown, fd, how);
        if r == 0 && how != libc::SHUT_WR {
            connect::leave_to_kernel(&h);
        }
        return libc_ret(r) as c_int;
    }
    ret(connect::halves(how).and_then(|half| connect::shutdown(&h, half)).map(|()| 0)) as c_int
}
