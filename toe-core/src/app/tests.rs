//! The app side against the test daemon: both ends of every connection are sockets of one link, and so of one thread.

#![allow(unsafe_code)]

use super::ready::bits::*;
use super::send::SendHow;
use super::socket::Shut;
use super::testing::LoopDaemon;
use super::*;
use crate::shm::{SockState, app_flags};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::net::SocketAddr;
use std::sync::atomic::AtomicU32;

/// A daemon, a registration with it, and a directory that goes away with them.
struct World {
    daemon: LoopDaemon,
    link: Link,
    dir: std::path::PathBuf,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl World {
    fn new() -> World {
        let dir = std::env::temp_dir().join(format!("toe-app-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed)));
        std::fs::create_dir(&dir).unwrap();
        let daemon = LoopDaemon::start(&dir).unwrap();
        let link = Link::register(&daemon.path(), b"test", 0).unwrap();
        World { daemon, link, dir }
    }

    fn listener(&self) -> (Sock<'_>, SocketAddr) {
        let l = Sock::create(&self.link).unwrap();
        l.bind("127.77.0.1:0".parse().unwrap()).unwrap();
        l.listen(16).unwrap();
        (l, l.local().unwrap())
    }

    fn pair(&self) -> (Sock<'_>, Sock<'_>) {
        let (l, addr) = self.listener();
        let c = Sock::create(&self.link).unwrap();
        c.connect(addr).unwrap();
        c.wait_connected(None).unwrap();
        let s = l.accept(None).unwrap();
        l.release();
        (c, s)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.daemon.kill();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn write(s: &Sock<'_>, bytes: &[u8], nonblocking: bool) -> Result<usize, Errno> {
    let iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: one buffer that outlives the call and is only read.
    let mut src = unsafe { IovCursor::new(&iov, 1) }?;
    s.send(&mut src, SendHow { nonblocking, more: false })
}

fn read(s: &Sock<'_>, bytes: &mut [u8], how: RecvHow) -> Result<usize, Errno> {
    let iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: one buffer that outlives the call.
    let mut dst = unsafe { IovCursor::new(&iov, 1) }?;
    s.recv(&mut dst, how)
}

const BLOCK: RecvHow = RecvHow { nonblocking: false, peek: false, waitall: false, trunc: false };
const NOW: RecvHow = RecvHow { nonblocking: true, ..BLOCK };

/// Seeded bytes that depend on their position.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed) >> 32) as u8).collect()
}

#[test]
fn bytes_cross_both_ways() {
    let w = World::new();
    let (c, s) = w.pair();
    let mut buf = [0; 16];
    assert_eq!(read(&s, &mut buf, NOW), Err(Errno::AGAIN));
    assert_eq!(write(&c, b"hello", false), Ok(5));
    assert_eq!(read(&s, &mut buf, BLOCK), Ok(5));
    assert_eq!(&buf[..5], b"hello");
    assert_eq!(write(&s, b"back", false), Ok(4));
    assert_eq!(read(&c, &mut buf, BLOCK), Ok(4));
    assert_eq!(c.peer().unwrap(), s.local().unwrap());
    assert_eq!(s.peer().unwrap(), c.local().unwrap());
}

#[test]
fn megabytes_arrive_unchanged_and_chunks_come_back() {
    let w = World::new();
    let (c, s) = w.pair();
    let data = pattern(9 << 20, 1);
    let got = std::thread::scope(|t| {
        t.spawn(|| {
            assert_eq!(write(&c, &data, false), Ok(data.len()));
            c.shutdown(Shut::Write).unwrap();
        });
        let (mut got, mut buf) = (vec![], vec![0; 100_001]);
        loop {
            match read(&s, &mut buf, BLOCK).unwrap() {
                0 => break got,
                n => got.extend_from_slice(&buf[..n]),
            }
        }
    });
    assert!(got == data);
    assert!(w.link.region.layout().tx_pool.used.load(Relaxed) <= 1);
}

#[test]
fn peek_waitall_and_trunc() {
    let w = World::new();
    let (c, s) = w.pair();
    let mut buf = [0; 8];
    write(&c, b"abcd", false).unwrap();
    assert_eq!(read(&s, &mut buf, RecvHow { peek: true, ..BLOCK }), Ok(4));
    let whole = std::thread::scope(|t| {
        let reader = t.spawn(|| {
            let mut buf = [0; 8];
            read(&s, &mut buf, RecvHow { waitall: true, ..BLOCK }).map(|n| (n, buf))
        });
        // The reader takes what is there and sleeps for the rest.
        while s.available() > 0 {
            std::thread::yield_now();
        }
        write(&c, b"efgh", false).unwrap();
        reader.join().unwrap()
    });
    assert_eq!(whole, Ok((8, *b"abcdefgh")));
    write(&c, b"12345678", false).unwrap();
    assert_eq!(read(&s, &mut buf, RecvHow { trunc: true, waitall: true, ..BLOCK }), Ok(8));
    assert_eq!(&buf, b"abcd\0\0\0\0", "MSG_TRUNC leaves the buffer alone");
    c.shutdown(Shut::Write).unwrap();
    assert_eq!(read(&s, &mut buf, RecvHow { waitall: true, ..BLOCK }), Ok(0));
}

#[test]
fn a_full_stream_says_so_and_says_when_not() {
    let w = World::new();
    let (c, s) = w.pair();
    let block = pattern(64 * 1024, 2);
    let mut sent = 0;
    // Until both buffers are full and stay so.
    loop {
        match write(&c, &block, true) {
            Ok(n) => sent += n,
            Err(e) => {
                assert_eq!(e, Errno::AGAIN);
                if s.available() == u64::from(s.slot.rx_limit.load(Relaxed)) {
                    break;
                }
                std::thread::yield_now();
            }
        }
    }
    assert_eq!(c.level(OUT) & OUT, 0);
    assert_ne!(c.slot.app_flags.load(Relaxed) & app_flags::NOSPACE, 0);
    let set = EventSet::take(&w.link).unwrap();
    c.watch(set.id, true);
    let mut buf = vec![0; 1 << 20];
    let mut got = 0;
    while got < sent {
        got += read(&s, &mut buf, BLOCK).unwrap();
    }
    while !set.news() {
        std::thread::yield_now();
    }
    assert_ne!(c.level(OUT) & OUT, 0);
    c.watch(set.id, false);
    set.give_back();
}

#[test]
fn levels_are_those_of_linux() {
    let w = World::new();
    let (l, addr) = w.listener();
    assert_eq!(l.level(IN), 0);
    let c = Sock::create(&w.link).unwrap();
    assert_eq!(c.level(IN | OUT), HUP | OUT | WRNORM);
    c.connect(addr).unwrap();
    c.wait_connected(None).unwrap();
    assert_eq!(l.level(IN), IN | RDNORM);
    let s = l.accept(None).unwrap();
    assert_eq!(s.level(IN | OUT), OUT | WRNORM);
    c.shutdown(Shut::Write).unwrap();
    assert_eq!(read(&s, &mut [0; 1], BLOCK), Ok(0));
    assert_eq!(s.level(IN | OUT), IN | RDNORM | RDHUP | OUT | WRNORM);
    s.shutdown(Shut::Write).unwrap();
    assert_eq!(read(&c, &mut [0; 1], BLOCK), Ok(0));
    assert_eq!(c.level(IN | OUT), IN | RDNORM | RDHUP | OUT | WRNORM | HUP);
}

/// The daemon stores the error first and the state then: between the two neither is to be seen.
#[test]
fn an_error_counts_from_the_end_on() {
    let w = World::new();
    let (c, _s) = w.pair();
    for state in [SockState::Connecting, SockState::Established] {
        c.slot.state.store(state as u32, Release);
        c.slot.error.store(Errno::CONNRESET.raw_os_error() as u32, Release);
        assert_eq!((c.level(IN) & (ERR | HUP), c.take_error()), (0, None), "{state:?}");
        assert_eq!(read(&c, &mut [0; 1], RecvHow { nonblocking: true, ..BLOCK }), Err(Errno::AGAIN));
        c.slot.state.store(SockState::Closed as u32, Release);
        assert_eq!((c.level(IN) & (ERR | HUP), c.take_error()), (ERR | HUP, Some(Errno::CONNRESET)), "{state:?}");
        assert_eq!((c.level(IN) & (ERR | HUP), c.take_error()), (HUP, None), "{state:?}");
    }
}

#[test]
fn closing_with_unread_bytes_resets() {
    let w = World::new();
    let (c, s) = w.pair();
    write(&c, b"x", false).unwrap();
    assert_eq!(read(&s, &mut [0; 1], RecvHow { peek: true, ..BLOCK }), Ok(1));
    let blocked = std::thread::scope(|t| {
        let reader = t.spawn(|| read(&c, &mut [0; 1], BLOCK));
        s.release();
        reader.join().unwrap()
    });
    assert_eq!(blocked, Err(Errno::CONNRESET));
    assert_eq!(c.level(IN) & (HUP | IN), HUP | IN);
    assert_eq!(write(&c, b"y", false), Err(Errno::PIPE));
    assert_eq!(read(&c, &mut [0; 1], BLOCK), Ok(0));
}

#[test]
fn a_refused_connection() {
    let w = World::new();
    let c = Sock::create(&w.link).unwrap();
    c.connect("127.77.0.9:9".parse().unwrap()).unwrap();
    assert_eq!(c.wait_connected(None), Err(Errno::CONNREFUSED));
    assert_eq!(c.state(), SockState::Closed);
    assert_eq!(c.peer(), Err(Errno::NOTCONN));
}

#[test]
fn timeouts_and_options() {
    let w = World::new();
    let (_c, s) = w.pair();
    s.slot.rcv_timeo_ms.store(1, Relaxed);
    assert_eq!(read(&s, &mut [0; 1], BLOCK), Err(Errno::AGAIN));
    use libc::{IPPROTO_TCP, SO_ERROR, SO_SNDBUF, SOL_SOCKET, TCP_KEEPCNT, TCP_NODELAY};
    assert_eq!(s.get_option(IPPROTO_TCP, TCP_NODELAY), Ok(0));
    s.set_option(IPPROTO_TCP, TCP_NODELAY, 1).unwrap();
    assert_eq!(s.get_option(IPPROTO_TCP, TCP_NODELAY), Ok(1));
    assert_eq!(s.set_option(IPPROTO_TCP, TCP_KEEPCNT, 200), Err(Errno::INVAL));
    s.set_option(SOL_SOCKET, SO_SNDBUF, 100_000).unwrap();
    assert_eq!(s.get_option(SOL_SOCKET, SO_SNDBUF), Ok(200_000));
    assert_eq!(s.get_option(SOL_SOCKET, SO_ERROR), Ok(0));
    assert_eq!(s.get_option(IPPROTO_TCP, 9999), Err(Errno::NOPROTOOPT));
}

#[test]
fn a_dead_daemon_wakes_every_sleeper() {
    let mut w = World::new();
    let (l, _) = w.listener();
    let pairs: Vec<_> = (0..4).map(|_| w.pair()).collect();
    let (l, pairs): (u32, Vec<u32>) = (l.id.0, pairs.iter().map(|(c, _)| c.id.0).collect());
    let World { daemon, link, .. } = &mut w;
    std::thread::scope(|t| {
        let of = |id: u32| Sock::of(link, crate::ids::SockId(id)).unwrap();
        let readers: Vec<_> = pairs.iter().map(|&id| t.spawn(move || read(&of(id), &mut [0; 1], BLOCK))).collect();
        let accepter = t.spawn(move || of(l).accept(None).err());
        // Each is about to sleep or sleeps; either way it must come back.
        while !pairs.iter().chain([&l]).all(|&id| of(id).slot.rx_wait.load(Acquire) == 1) {
            std::thread::yield_now();
        }
        daemon.kill();
        for r in readers {
            assert_eq!(r.join().unwrap(), Err(Errno::CONNRESET));
        }
        assert_eq!(accepter.join().unwrap(), Some(Errno::CONNABORTED));
        let level = of(pairs[0]).level(IN | OUT);
        assert_eq!(level & (HUP | IN | OUT), HUP | IN | OUT);
        assert_eq!(Sock::create(link).err(), Some(Errno::CONNRESET));
    });
}

#[test]
fn a_childs_bit_keeps_the_socket_open() {
    let w = World::new();
    let (c, s) = w.pair();
    let child = w.link.prepare_child([s].into_iter()).unwrap();
    s.release();
    assert_eq!(write(&c, b"still there", false), Ok(11));
    assert_eq!(read(&s, &mut [0; 11], BLOCK), Ok(11));
    // The child dies: its control connection, of which this is now the only copy, closes.
    w.link.leave_to_child(child);
    assert_eq!(read(&c, &mut [0; 1], BLOCK), Ok(0));
}

#[test]
fn slots_are_used_again() {
    let w = World::new();
    let (l, addr) = w.listener();
    for round in 0..200 {
        let c = Sock::create(&w.link).unwrap();
        c.connect(addr).unwrap();
        c.wait_connected(None).unwrap();
        let s = l.accept(None).unwrap();
        write(&c, &[round], false).unwrap();
        let mut b = [0];
        assert_eq!(read(&s, &mut b, BLOCK), Ok(1));
        assert_eq!(b[0], round);
        s.release();
        assert_eq!(read(&c, &mut b, BLOCK), Ok(0));
        c.release();
    }
    assert!(w.link.region.layout().sock_pool.fresh.load(Relaxed) < 20);
}

#[test]
fn rules_first_match_wins() {
    let w = World::new();
    let h = &w.link.region.layout().header;
    let a = |s: &str| s.parse::<SocketAddr>().unwrap();
    assert_eq!(rules::decide(h, Role::Connect, a("127.77.3.4:80")), Action::Engine);
    assert_eq!(rules::decide(h, Role::Connect, a("[::ffff:127.77.3.4]:80")), Action::Engine);
    assert_eq!(rules::decide(h, Role::Connect, a("127.0.0.1:80")), Action::Kernel);
    assert_eq!(rules::decide(h, Role::Connect, a("[::1]:80")), Action::Kernel);
    assert_eq!(rules::decide_wildcard(h, 80, true, false), Action::Engine);
    assert_eq!(rules::decide_wildcard(h, 80, false, true), Action::Kernel);
    h.rules[0].action.store(3, Relaxed);
    assert_eq!(rules::decide(h, Role::Connect, a("127.77.0.1:80")), Action::Refuse);
}

#[test]
fn loopback_is_shared_or_the_kernels() {
    let region = crate::shm::Region::create(crate::ids::RegionId(1), 1).unwrap();
    let h = &region.layout().header;
    let a = |s: &str| s.parse::<SocketAddr>().unwrap();
    // One rule: everything is the engine's.
    h.rules[0].roles.store(3, Relaxed);
    h.rules[0].action.store(1, Relaxed);
    h.rules[0].port_hi.store(65_535, Relaxed);
    h.rules_len.store(1, Relaxed);
    for (on, wanted) in [(1, Action::Shared), (0, Action::Kernel)] {
        h.loopback.store(on, Relaxed);
        for addr in ["127.0.0.1:80", "[::1]:80", "[::ffff:127.0.0.1]:80"] {
            assert_eq!(rules::decide(h, Role::Connect, a(addr)), wanted);
            assert_eq!(rules::decide(h, Role::Listen, a(addr)), wanted);
        }
        assert_eq!(rules::decide(h, Role::Connect, a("127.77.0.1:80")), Action::Engine);
        assert_eq!(rules::decide(h, Role::Connect, a("127.0.0.2:80")), Action::Engine);
    }
    h.rules[0].action.store(3, Relaxed);
    assert_eq!(rules::decide(h, Role::Connect, a("127.0.0.1:80")), Action::Refuse);
    h.rules[0].action.store(2, Relaxed);
    assert_eq!(rules::why_kernel(h, Role::Connect, a("127.0.0.1:80")), Why::Rule);
    h.rules[0].origin.store(u32::MAX, Relaxed);
    assert_eq!(rules::why_kernel(h, Role::Connect, a("127.0.0.1:80")), Why::Address);
}
