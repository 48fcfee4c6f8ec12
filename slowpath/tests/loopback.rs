//! 127.0.0.1 and ::1, which the engine shares with the kernel.
#![allow(missing_docs, clippy::vec_box)]

mod common;
use common::*;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use toe_core::msg::CloseKind;
use toe_core::shm::{DaemonPageMap, Region, SockState, app_flags};
use toe_core::wire::flags::*;
use toe_core::{NicId, ProcId, RegionId, SockId};

fn host_of(uid: u32) -> Host {
    let mut cfg = config(MAC, &[("127.77.0.1", 24)]);
    cfg.nics[1].addrs = vec![(ip("127.0.0.1"), 8), (ip("::1"), 128)];
    Host::new(cfg, uid)
}

/// Registers another user's process and makes it the one that acts. Returns the one before.
fn switch_user(h: &mut Host, id: u32, uid: u32) -> Arc<Region> {
    let region = Arc::new(Region::create(RegionId(id), 3).unwrap());
    let owner = slowpath::Owner { pid: id, uid, program: "other".into() };
    h.slow.attach(region.clone(), owner);
    let proc = region.layout().proc_pool.pop().unwrap();
    h.slow.proc_attached(RegionId(id), ProcId(proc), id);
    core::mem::replace(&mut h.region, region)
}

fn error(h: &Host, s: SockId) -> i32 {
    h.slot(s).error.load(SeqCst) as i32
}

#[test]
fn a_listener_at_the_address_or_the_wildcard_is_reached() {
    for (listen, connect) in [
        ("127.0.0.1:8080", "127.0.0.1:8080"),
        ("0.0.0.0:8080", "127.0.0.1:8080"),
        ("[::1]:8080", "[::1]:8080"),
        ("[::]:8080", "[::1]:8080"),
        ("[::]:8080", "127.0.0.1:8080"),
    ] {
        let mut h = host_of(1000);
        let l = h.listener(listen, 5);
        let s = h.socket();
        let (err, came) = h.connect(s, connect);
        assert_eq!(err, 0, "{connect}");
        let installs = h.loop_back(came);
        assert_eq!((installs.len(), h.state(s)), (2, SockState::Established), "{connect}");
        let (local, remote) = (h.slot(s).local.load().unwrap(), h.slot(s).remote.load().unwrap());
        assert_eq!((local.ip(), remote), (at(connect).ip(), at(connect)));
        assert!((32_768..61_000).contains(&local.port()));
        let a = h.accept(l).unwrap();
        assert_eq!((h.slot(a).local.load(), h.slot(a).remote.load()), (Some(remote), Some(local)));
    }
}

#[test]
fn without_a_listener_nothing_happens() {
    let mut h = host_of(0);
    let (s, bound) = (h.socket(), h.socket());
    h.listener("127.77.0.1:8080", 5);
    assert_eq!(h.bind(bound, "127.0.0.1:8080"), 0);
    let (err, came) = h.connect(s, "127.0.0.1:8080");
    assert_eq!((err, came.none(), h.state(s)), (111, true, SockState::New));
    assert_eq!(h.connect(s, "[::1]:8080").0, 111);
    // The socket may still be used for anything.
    h.listener("[::1]:8080", 5);
    let (err, came) = h.connect(s, "[::1]:8080");
    assert_eq!((err, h.loop_back(came).len()), (0, 2));
}

#[test]
fn engines_without_loopback_have_no_way_there() {
    let mut h = host();
    let s = h.socket();
    assert_eq!((h.bind(s, "127.0.0.1:80"), h.connect(s, "127.0.0.1:80").0), (99, 111));
}

#[test]
fn only_own_and_root_s_listeners_are_trusted() {
    for (server, client, wanted) in [(1000, 1000, 0), (0, 1000, 0), (1000, 1001, 111), (1000, 0, 111)] {
        let mut h = host_of(server);
        h.listener("127.0.0.1:8080", 5);
        switch_user(&mut h, 2, client);
        let s = h.socket();
        assert_eq!(h.connect(s, "127.0.0.1:8080").0, wanted, "{client} to {server}");
    }
}

/// The listener changes hands between connect(2) and the SYN's arrival.
#[test]
fn a_syn_is_not_for_a_stranger() {
    let mut h = host_of(1000);
    let l = h.listener("127.0.0.1:8080", 5);
    let s = h.socket();
    let (err, came) = h.connect(s, "127.0.0.1:8080");
    assert_eq!(err, 0);
    h.close(l);
    let first = switch_user(&mut h, 2, 1001);
    h.listener("127.0.0.1:8080", 5);
    h.region = first;
    assert!(h.loop_back(came).is_empty());
    assert_eq!((h.state(s), error(&h, s)), (SockState::Closed, 111));
}

#[test]
fn the_kernels_port_decisions_stand() {
    let mut h = host_of(0);
    let l = h.listener("127.0.0.1:8080", 5);
    let s = h.socket();
    let came = h.connect(s, "127.0.0.1:8080").1;
    let flows = h.loop_back(came);
    let a = h.accept(l).unwrap();
    h.close(l);
    let active = flows.iter().find(|f| f.sock == s).unwrap();
    let passive = flows.iter().find(|f| f.sock == a).unwrap();
    h.end_time_wait(passive);
    h.end(active, CloseKind::Done);
    h.close(a);
    let (plain, by_kernel, second) = (h.socket(), h.socket(), h.socket());
    assert_eq!(h.bind(plain, "127.0.0.1:8080"), 98, "TIME-WAIT");
    h.flag(by_kernel, app_flags::KERNEL_BOUND);
    assert_eq!((h.bind(by_kernel, "127.0.0.1:8080"), h.listen(by_kernel, 1)), (0, 0));
    h.flag(second, app_flags::KERNEL_BOUND);
    assert_eq!(h.bind(second, "127.0.0.1:8080"), 98, "a listener of the engine");
}

/// connect(2) is not done before accept(2) would find the connection.
#[test]
fn connected_means_acceptable() {
    let mut h = host_of(0);
    let l = h.listener("127.0.0.1:8080", 0);
    let s = h.socket();
    let mut came = h.connect(s, "127.0.0.1:8080").1;
    let mut seen = vec![];
    while !came.frames.is_empty() {
        for (core, frame) in came.frames.split_off(0) {
            h.punt_at(core.0, LOCAL_NIC, frame);
        }
        came = h.run();
        let ring = &h.region.layout().rings[h.slot(l).accept_ring.load(SeqCst) as usize];
        seen.push((h.state(s) == SockState::Established, ring.tail.load(SeqCst) == 1));
    }
    assert_eq!(seen.last(), Some(&(true, true)));
    assert!(seen.iter().all(|(connected, acceptable)| connected == acceptable), "{seen:?}");
}

/// A listener that goes away takes along what nobody accepted, on both ends.
#[test]
fn a_closed_listener_resets_what_waits() {
    let mut h = host_of(0);
    let l = h.listener("127.0.0.1:8080", 5);
    let s = h.socket();
    let came = h.connect(s, "127.0.0.1:8080").1;
    let flows = h.loop_back(came);
    assert_eq!(flows.len(), 2);
    let waiting = flows.iter().find(|f| f.sock != s).unwrap();
    assert_eq!(h.close(l).removed, [(waiting.id, 104, true)]);
}

#[test]
fn nobody_outside_speaks_as_ourselves() {
    let mut h = host_of(0);
    h.listener("0.0.0.0:8080", 5);
    for from in ["127.0.0.1:9", "127.77.0.1:9"] {
        for to in ["127.77.0.1:8080", "127.0.0.1:8080"] {
            let p = Peer::new(from, to);
            assert!(h.receive(p.syn()).none());
            h.punt_at(0, NicId(0), p.frame(p.seq, p.ack, RST | ACK, Default::default(), &[]));
            assert!(h.run().none());
        }
    }
    // Nor may anybody else than a connect(2) of ours open a connection to the shared addresses.
    h.punt_at(0, LOCAL_NIC, Peer::new("127.77.0.1:9", "127.0.0.1:8080").syn());
    let came = h.run();
    assert!(came.segments().iter().all(|s| s.has(RST)), "{:?}", came.segments());
}

#[test]
fn ports_with_listeners_are_published() {
    let mut h = host_of(0);
    let page = Arc::new(DaemonPageMap::create().unwrap());
    h.slow.publish_ports(page.clone());
    let shown = |port| page.get().is_shared_port(port);
    let (a, b) = (h.listener("127.0.0.1:8080", 1), h.listener("[::1]:8080", 1));
    h.listener("127.77.0.1:8081", 1);
    h.listener("0.0.0.0:65535", 1);
    assert_eq!([8079, 8080, 8081, 65_535].map(shown), [false, true, false, true]);
    h.close(a);
    assert!(shown(8080));
    h.close(b);
    assert!(!shown(8080));
}
