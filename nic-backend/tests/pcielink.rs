//! Both ends of a PCIeLINK in one process.

mod common;

use common::{Clock, TempDir, drain, hash, wait};
use nic_backend::PcieLinkConfig;
use nic_backend::pcielink::{PcieLink, open, open_links};
use proptest::prelude::*;
use std::sync::atomic::Ordering::Relaxed;
use toe_core::nic::{Nic, RxCsum, TxError, TxMeta};
use toe_core::{Duration, Instant};

fn config(dir: &TempDir, queues: usize) -> PcieLinkConfig {
    PcieLinkConfig { queues, ring_bytes: 256 << 10, ..PcieLinkConfig::new(dir.path().join("link")) }
}

/// Polls everything until `done`, in virtual time; fails after ten seconds of it.
fn poll_until(clock: &mut Clock, all: &mut [&mut Vec<PcieLink>], done: impl Fn(&[&mut Vec<PcieLink>]) -> bool) {
    for _ in 0..10_000 {
        let now = clock.tick();
        all.iter_mut().flat_map(|side| side.iter_mut()).for_each(|nic| {
            nic.poll(now);
        });
        if done(all) {
            return;
        }
    }
    panic!("not reached");
}

fn all_up(sides: &[&mut Vec<PcieLink>]) -> bool {
    sides.iter().all(|side| side.iter().all(|nic| nic.is_up()))
}

fn linked(dir: &TempDir, a: PcieLinkConfig, b: PcieLinkConfig) -> (Vec<PcieLink>, Vec<PcieLink>, Clock) {
    let _ = dir;
    let (mut a, mut b) = (open_links(a).unwrap(), open_links(b).unwrap());
    let mut clock = Clock(Instant::ZERO);
    poll_until(&mut clock, &mut [&mut a, &mut b], all_up);
    a.iter_mut().chain(&mut b).for_each(|nic| nic.disarm()); // coming up has woken them
    (a, b, clock)
}

fn body(n: usize, i: u32) -> Vec<u8> {
    (0..n as u32).map(|b| (b.wrapping_mul(31) ^ (b >> 8) ^ i.wrapping_mul(77)) as u8).collect()
}

#[test]
fn frames_of_all_sizes_arrive_whole_over_many_laps() {
    let dir = TempDir::new();
    let (mut a, mut b, _) = linked(&dir, config(&dir, 1), config(&dir, 1));
    let (a, b) = (&mut a[0], &mut b[0]);
    assert_ne!(a.caps().mac, b.caps().mac);
    let sizes = [14, 60, 64, 100, 1514, 1518, 4096, 9018, 16_384, 40_000, 65_534];
    let (mut sent, mut seen) = (0u32, 0u32);
    while seen < 3000 {
        while sent < 3000 {
            let f = body(sizes[sent as usize % sizes.len()], sent);
            let (header, rest) = f.split_at(14.min(f.len()));
            let (x, y) = rest.split_at(rest.len() / 3);
            match a.send(header, &[x, y], TxMeta { csum_offload: sent.is_multiple_of(2), ..hash(sent) }) {
                Ok(()) => sent += 1,
                Err(e) => {
                    assert_eq!(e, TxError::Full);
                    break;
                }
            }
        }
        a.flush();
        let before = seen;
        b.recv(7, &mut |f, m| {
            assert_eq!(f, body(sizes[seen as usize % sizes.len()], seen));
            assert_eq!(m.csum == RxCsum::Good, seen.is_multiple_of(2), "only unfinished checksums are vouched for");
            seen += 1;
        });
        assert!(seen > before);
    }
    assert_eq!(a.send(&[0; 14], &[&[0; 65_530]], hash(0)), Err(TxError::TooLarge));
    assert_eq!((a.stats().tx_packets, a.stats().tx_bytes), (b.stats().rx_packets, b.stats().rx_bytes));
    let dma = a.dma_stats();
    assert!(dma.cpu_copies > 0 && dma.dma_copies > 0 && dma.cpu_bytes + dma.dma_bytes == a.stats().tx_bytes);
}

#[test]
fn each_flow_stays_in_order_on_its_queue() {
    let dir = TempDir::new();
    let wide = PcieLinkConfig { queues: 3, ..config(&dir, 3) };
    let (mut a, mut b, _) = linked(&dir, wide, PcieLinkConfig { mtu: 9000, ..config(&dir, 2) });
    assert_eq!((a[0].caps().mtu, b[1].caps().mtu), (9000, 9000), "the smaller of both");
    for n in 0..60u32 {
        let mut f = body(80, n);
        f[..4].copy_from_slice(&n.to_be_bytes());
        a[n as usize % 3].send(&f, &[], hash(n)).unwrap();
        b[n as usize % 2].send(&f, &[], hash(n)).unwrap();
    }
    a.iter_mut().chain(b.iter_mut()).for_each(|nic| nic.flush());
    for side in [&mut a, &mut b] {
        let queues = side.len() as u32;
        for (j, nic) in side.iter_mut().enumerate() {
            let got = drain(nic);
            assert_eq!(got.len() as u32, 60 / queues);
            let mut numbers: Vec<u32> = got.iter().map(|f| u32::from_be_bytes(f.0[..4].try_into().unwrap())).collect();
            assert!(numbers.iter().all(|n| n % queues == j as u32));
            numbers.sort();
            numbers.dedup();
            assert_eq!(numbers.len() as u32, 60 / queues);
        }
    }
}

#[test]
fn a_full_ring_says_so_and_recovers() {
    let dir = TempDir::new();
    let (mut a, mut b, _) = linked(&dir, config(&dir, 1), config(&dir, 1));
    let mut sent = 0;
    while a[0].send(&[5; 54], &[&[6; 30_000]], hash(0)).is_ok() {
        sent += 1;
    }
    assert_eq!(sent, (256 << 10) / 30_080);
    assert!(a[0].arm(), "blocked: sleeps until there is credit");
    assert!(!wait(&a[0], 0));
    assert_eq!(drain(&mut b[0]).len(), sent, "what filled the ring was shown to the peer");
    assert!(wait(&a[0], 0), "credit wakes the sender");
    a[0].disarm();
    a[0].send(&[5; 54], &[&[6; 30_000]], hash(0)).unwrap();
    a[0].flush();
    assert_eq!(drain(&mut b[0]).len(), 1);
}

#[test]
fn a_dead_peer_is_seen_and_its_successor_linked() {
    let dir = TempDir::new();
    let (mut a, mut b, mut clock) = linked(&dir, config(&dir, 2), config(&dir, 2));
    for round in 0..4 {
        // Now the one that listens dies, now the one that connected.
        let (dead, mut alive) = if round % 2 == 0 { (a, b) } else { (b, a) };
        alive.iter_mut().for_each(|nic| nic.disarm());
        assert!(alive.iter().all(|nic| !wait(nic, 0)), "quiet");
        let ups = alive[0].stats().link_ups;
        drop(dead);
        assert!(wait(&alive[0], 0), "EOF wakes the survivor at once");
        alive[0].disarm();
        let now = clock.tick();
        assert!(alive[0].poll(now).is_some() && !alive[0].is_up(), "seen at the next poll");
        assert!(wait(&alive[1], 0), "the other queue is told");
        alive[1].disarm();
        alive[1].poll(now);
        assert_eq!(alive[1].send(&[0; 60], &[], hash(0)), Err(TxError::Down));
        let mut new = open_links(config(&dir, 2)).unwrap();
        let start = clock.0;
        poll_until(&mut clock, &mut [&mut alive, &mut new], all_up);
        assert!(clock.0 - start <= Duration::from_millis(110), "took {:?}", clock.0 - start);
        assert_eq!(alive[0].stats().link_ups, ups + 1);
        alive[1].send(&[7; 60], &[], hash(1)).unwrap();
        alive[1].flush();
        assert_eq!(drain(&mut new[1]), [(vec![7; 60], RxCsum::Good, 0)]);
        (a, b) = (alive, new);
    }
}

#[test]
fn an_awake_survivor_sees_it_within_100_ms() {
    let dir = TempDir::new();
    let (mut a, b, mut clock) = linked(&dir, config(&dir, 1), config(&dir, 1));
    drop(b);
    let start = clock.0;
    poll_until(&mut clock, &mut [&mut a], |s| !s[0][0].is_up());
    assert!(clock.0 - start <= Duration::from_millis(100));
}

#[test]
fn stale_and_foreign_files_at_the_meeting_point() {
    let dir = TempDir::new();
    // A socket file left behind by a killed daemon: nobody listens.
    drop(std::os::unix::net::UnixListener::bind(dir.path().join("link")).unwrap());
    let (a, b, _) = linked(&dir, config(&dir, 1), config(&dir, 1));
    drop((a, b));
    assert!(!dir.path().join("link").exists(), "removed by its owner");
    std::fs::write(dir.path().join("link"), "precious").unwrap();
    assert!(open(config(&dir, 1)).is_err());
    assert_eq!(std::fs::read(dir.path().join("link")).unwrap(), b"precious");
    assert!(open(PcieLinkConfig::new(dir.path().join("no/such/dir"))).is_err());
    assert!(open(PcieLinkConfig { ring_bytes: 1000, ..config(&dir, 1) }).is_err());
}

#[test]
fn strangers_at_the_socket_are_survived() {
    use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
    let dir = TempDir::new();
    let mut a = open_links(config(&dir, 1)).unwrap();
    let mut clock = Clock(Instant::ZERO);
    let stranger = || {
        let s =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::connect(&s, &SocketAddrUnix::new(dir.path().join("link")).unwrap()).unwrap();
        s
    };
    let silent = stranger();
    for junk in [&[0u8; 40][..], &[1; 3], &[0xff; 4000]] {
        poll_until(&mut clock, &mut [&mut a], |s| !s[0][0].is_up());
        let s = stranger();
        rustix::net::send(&s, junk, SendFlags::NOSIGNAL).unwrap();
        (0..1500).for_each(|_| {
            a[0].poll(clock.tick());
        });
    }
    drop(silent);
    let mut b = open_links(config(&dir, 1)).unwrap();
    poll_until(&mut clock, &mut [&mut a, &mut b], all_up);
}

/// Two threads that sleep whenever they may; a lost wake-up leaves one of them asleep until its poll times out.
#[test]
fn no_wake_up_is_lost() {
    const ROUNDS: u32 = 20_000;
    let dir = TempDir::new();
    let (mut a, mut b, _) = linked(&dir, config(&dir, 1), config(&dir, 1));
    let run = |nic: &mut PcieLink, first: bool| {
        let mut seen = 0;
        let mut send = first;
        while seen < ROUNDS {
            if send {
                nic.send(&[1; 60], &[], hash(0)).unwrap();
                nic.flush();
            }
            loop {
                let got = nic.recv(4, &mut |_, _| ());
                if got > 0 {
                    assert_eq!(got, 1);
                    break;
                }
                // Sometimes look again first, so that all interleavings come about.
                if seen % 3 != 0 && nic.arm() {
                    assert!(wait(nic, 20), "slept through frame {seen}");
                    nic.disarm();
                }
                std::thread::yield_now();
            }
            seen += 1;
            send = true;
        }
        if !first {
            nic.send(&[1; 60], &[], hash(0)).unwrap();
            nic.flush();
        }
    };
    std::thread::scope(|s| {
        s.spawn(|| run(&mut a[0], true));
        s.spawn(|| run(&mut b[0], false));
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Whatever a hostile peer writes into our window: no panic, no endless loop, and the link can come up again.
    #[test]
    fn a_hostile_peer_is_survived(writes in proptest::collection::vec((0usize..4096, any::<u64>(), any::<bool>()), 1..80)) {
        let dir = TempDir::new();
        let (mut a, mut b, mut clock) = linked(&dir, config(&dir, 2), config(&dir, 2));
        for (at, value, small) in writes {
            // The peer can write our whole window: take the pages of words, and the starts of the rings.
            let Some(conn) = a[0].conn().cloned() else { break };
            let (geo, value) = (conn.mine_geo, if small { value % 1024 * 64 } else { value });
            let at = match at % 4 {
                0 => geo.ring(at / 4 % 2, at / 8 % 2) + at / 16 * 8,
                _ => at * 8 % geo.ring(0, 0),
            };
            conn.mine.word64(at).store(value, Relaxed);
            let now = clock.tick();
            for nic in &mut a {
                nic.poll(now);
                let mut budget = 0;
                nic.recv(32, &mut |f, _| { budget += 1; assert!((14..=65_538).contains(&f.len())) });
                prop_assert!(budget <= 32);
                let _ = nic.send(&[3; 54], &[&[4; 3000]], hash(at as u32));
                nic.flush();
                let _ = nic.arm();
                nic.disarm();
            }
        }
        let ended = a[0].conn().is_none();
        drop(b);
        poll_until(&mut clock, &mut [&mut a], |s| s[0].iter().all(|n| !n.is_up()));
        b = open_links(config(&dir, 2)).unwrap();
        poll_until(&mut clock, &mut [&mut a, &mut b], all_up);
        prop_assert!(!ended || a.iter().map(|n| n.stats().rx_errors).sum::<u64>() <= 80);
    }
}

#[test]
fn nonsense_is_counted_and_the_link_starts_afresh() {
    let dir = TempDir::new();
    let (mut a, mut b, mut clock) = linked(&dir, config(&dir, 2), config(&dir, 2));
    let conn = a[1].conn().unwrap().clone();
    conn.mine.word64(conn.mine_geo.producer(0, 1)).store(77, Relaxed);
    assert_eq!(a[1].recv(9, &mut |_, _| panic!("no frame")), 0);
    assert!(a[1].stats().rx_errors == 1 && !a[1].is_up());
    assert!(wait(&a[0], 0), "the supervisor is told");
    a[0].disarm();
    a[0].poll(clock.tick());
    assert!(!a[0].is_up());
    b[0].poll(clock.0);
    assert!(!b[0].is_up(), "the peer sees the link-up word at once");
    poll_until(&mut clock, &mut [&mut a, &mut b], all_up);
    a[1].send(&[9; 60], &[], hash(1)).unwrap();
    a[1].flush();
    assert_eq!(drain(&mut b[1]).len(), 1);
}
