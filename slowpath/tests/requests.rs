//! bind and listen, and what hostile apps write.
#![allow(missing_docs, clippy::vec_box)]

mod common;
use common::*;
use proptest::prelude::*;
use std::sync::atomic::Ordering::SeqCst;
use toe_core::msg::{CloseKind, Up};
use toe_core::shm::{ReqOp, SockState, app_flags};
use toe_core::{RegionId, SockId};

#[test]
fn bind_errors() {
    let mut h = host();
    let (a, b) = (h.socket(), h.socket());
    assert_eq!(h.bind(a, "127.77.0.9:80"), 99, "EADDRNOTAVAIL");
    assert_eq!(h.bind(a, "127.77.0.1:8080"), 0);
    assert_eq!((h.state(a), h.slot(a).local.load()), (SockState::Bound, Some(at("127.77.0.1:8080"))));
    assert_eq!(h.bind(a, "127.77.0.1:8081"), 22, "EINVAL: bound already");
    assert_eq!(h.bind(b, "127.77.0.1:8080"), 98, "EADDRINUSE");
    assert_eq!(h.bind(b, "0.0.0.0:8080"), 98);
    assert_eq!(h.bind(b, "[::]:8080"), 98);
    assert_eq!(h.bind(b, "[fd77::1]:8080"), 0);
    let c = h.socket();
    assert_eq!(h.ask(c, ReqOp::Bind, None, 0).0, 22);
    h.close(a);
    assert_eq!(h.bind(c, "127.77.0.1:8080"), 0, "free again");
}

#[test]
fn privileged_ports_are_root_s() {
    let mut h = Host::new(config(MAC, &[("127.77.0.1", 24)]), 1000);
    let s = h.socket();
    assert_eq!(h.bind(s, "127.77.0.1:1023"), 13);
    assert_eq!(h.bind(s, "127.77.0.1:1024"), 0);
}

#[test]
fn bind_to_port_zero_chooses_and_listen_binds() {
    let mut h = host();
    let (a, b, c) = (h.socket(), h.socket(), h.socket());
    assert_eq!((h.bind(a, "0.0.0.0:0"), h.bind(b, "127.77.0.1:0"), h.listen(c, 1)), (0, 0, 0));
    let mut ports: Vec<u16> = [a, b, c].iter().map(|&s| h.slot(s).local.load().unwrap().port()).collect();
    assert!(ports.iter().all(|p| (32_768..61_000).contains(p)));
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 3);
}

#[test]
fn reuseaddr_binds_twice_but_listens_once() {
    let mut h = host();
    let (a, b) = (h.socket(), h.socket());
    h.flag(a, app_flags::REUSEADDR);
    h.flag(b, app_flags::REUSEADDR);
    assert_eq!((h.bind(a, "127.77.0.1:80"), h.bind(b, "127.77.0.1:80")), (0, 0));
    assert_eq!((h.listen(a, 1), h.listen(b, 1)), (0, 98));
    assert_eq!(h.ask(a, ReqOp::Listen, None, 7).0, 0, "a new backlog");
    assert_eq!(h.slow.status().listeners[0].backlog, 7);
}

/// Whoever closes a socket and then binds its port gets it, whatever the numbers of the two slots are.
#[test]
fn close_and_bind_in_one_round() {
    for swapped in [false, true] {
        let mut h = host();
        let (mut old, mut new) = (h.socket(), h.socket());
        if swapped {
            core::mem::swap(&mut old, &mut new);
        }
        assert_eq!((h.bind(old, "127.77.0.1:80"), h.listen(old, 1)), (0, 0));
        h.let_go(old);
        assert_eq!(h.bind(new, "127.77.0.1:80"), 0, "{old:?} then {new:?}");
        assert_eq!(h.state(old), SockState::Free);
    }
}

#[test]
fn requests_on_an_established_flow() {
    let mut h = host();
    let s = h.socket();
    let mut p = Peer::new("127.77.0.2:80", "127.77.0.1:0");
    h.connect_flow(s, &mut p);
    assert_eq!(h.connect(s, "127.77.0.2:80").0, 106, "EISCONN");
    assert_eq!((h.bind(s, "127.77.0.1:80"), h.listen(s, 1)), (22, 22));
    // A core had no flow for the socket and passes the kick on.
    let slot = h.slot(s);
    slot.req_addr.store(Some(at("127.77.0.2:80")));
    slot.req_op.store(ReqOp::Connect as u32, SeqCst);
    let seq = slot.req_seq.fetch_add(1, SeqCst) + 1;
    h.up(Up::Kick { region: RegionId(1), sock: s });
    h.run();
    assert_eq!((h.slot(s).resp_seq.load(SeqCst), h.slot(s).resp_err.load(SeqCst)), (seq, 106));
}

#[test]
fn time_wait_needs_reuseaddr() {
    for reuse in [0, app_flags::REUSEADDR] {
        let mut h = host();
        let l = h.socket();
        h.flag(l, app_flags::REUSEADDR);
        assert_eq!((h.bind(l, "127.77.0.1:80"), h.listen(l, 1)), (0, 0));
        let f = h.accept_flow(&mut Peer::new("127.77.0.2:9", "127.77.0.1:80"));
        let s = h.accept(l).unwrap();
        h.close(l);
        let (_, _) = h.end_time_wait(&f);
        h.close(s);
        let n = h.socket();
        h.flag(n, reuse);
        assert_eq!(h.bind(n, "127.77.0.1:80"), if reuse == 0 { 98 } else { 0 });
        if reuse == 0 {
            h.wait(ms(60_000));
            assert_eq!(h.bind(n, "127.77.0.1:80"), 0, "2 MSL later");
        }
    }
}

#[test]
fn rings_are_checked() {
    let mut h = host();
    let (a, b) = (h.listener("127.77.0.1:80", 1), h.socket());
    let ring = h.slot(a).accept_ring.load(SeqCst);
    for bad in [ring, 256, u32::MAX] {
        h.slot(b).accept_ring.store(bad, SeqCst);
        assert_eq!(h.ask(b, ReqOp::Listen, None, 1).0, 22, "{bad}");
    }
}

#[test]
fn a_scribbled_ring_harms_nobody() {
    let mut h = host();
    let l = h.listener("127.77.0.1:80", 3);
    let ring = h.slot(l).accept_ring.load(SeqCst) as usize;
    for (i, head) in [5, u32::MAX, 1 << 31, 77].into_iter().enumerate() {
        h.region.layout().rings[ring].head.store(head, SeqCst);
        h.region.layout().rings[ring].tail.store(head / 3, SeqCst);
        h.receive(Peer::new(&format!("127.77.0.2:{}", i + 1), "127.77.0.1:80").syn());
    }
    h.close(l);
    assert!(h.slow.status().listeners.is_empty());
}

#[test]
fn unknown_requests_and_foreign_slots() {
    let mut h = host();
    let s = h.socket();
    h.slot(s).req_op.store(99, SeqCst);
    h.slot(s).req_seq.store(5, SeqCst);
    h.region.kick(0, s);
    h.run();
    assert_eq!((h.slot(s).resp_seq.load(SeqCst), h.slot(s).resp_err.load(SeqCst)), (5, 95));
    // A slot of the daemon's own range that it never gave out is ignored.
    let foreign = SockId(40_000);
    h.slot(foreign).req_seq.store(1, SeqCst);
    h.region.kick(0, foreign);
    h.run();
    assert_eq!(h.slot(foreign).resp_seq.load(SeqCst), 0);
}

#[derive(Debug, Clone)]
struct Word {
    sock: u32,
    op: u32,
    arg: u32,
    family: u32,
    port: u32,
    ip: [u32; 4],
    state: u32,
    flags: u32,
    ring: u32,
    holders: u64,
    counters: [u64; 4],
    frame: u8,
}

fn word() -> impl Strategy<Value = Word> {
    let ip = prop_oneof![
        Just([u32::from_ne_bytes([127, 77, 0, 1]), 0, 0, 0]),
        Just([u32::from_ne_bytes([127, 77, 0, 2]), 0, 0, 0]),
        Just([0; 4]),
        any::<[u32; 4]>()
    ];
    let a = (0u32..4, 0u32..5, any::<u32>(), prop_oneof![Just(4u32), Just(6), any::<u32>()], ip);
    let port = prop_oneof![Just(80u32), Just(0), any::<u32>()];
    let b = (port, 0u32..9, any::<u32>(), 0u32..4, 0u64..3, any::<[u64; 4]>(), any::<u8>());
    (a, b).prop_map(|((sock, op, arg, family, ip), (port, state, flags, ring, holders, counters, frame))| Word {
        sock,
        op,
        arg,
        family,
        port,
        ip,
        state,
        flags,
        ring,
        holders,
        counters,
        frame,
    })
}

fn scribble(h: &mut Host, w: &Word) {
    let s = SockId(if w.sock == 3 { 32_768 } else { w.sock });
    let slot = h.slot(s);
    slot.req_op.store(w.op, SeqCst);
    slot.req_arg.store(w.arg, SeqCst);
    slot.req_addr.family.store(w.family, SeqCst);
    slot.req_addr.port.store(w.port, SeqCst);
    for (to, from) in slot.req_addr.ip.iter().zip(w.ip) {
        to.store(from, SeqCst);
    }
    slot.state.store(w.state, SeqCst);
    slot.app_flags.store(w.flags, SeqCst);
    slot.accept_ring.store(w.ring, SeqCst);
    slot.holders[0].store(w.holders, SeqCst);
    slot.tx_head.store(w.counters[0], SeqCst);
    slot.tx_tail.store(w.counters[1], SeqCst);
    slot.opt_rcvbuf.store(w.counters[2] as u32, SeqCst);
    slot.opt_maxseg.store(w.counters[3] as u32, SeqCst);
    slot.opt_syncnt.store(w.counters[3] as u32 >> 3, SeqCst);
    slot.owner.store(w.counters[2] as u32 % 20, SeqCst);
    if w.op != 4 {
        slot.req_seq.fetch_add(1, SeqCst);
    }
    h.region.layout().rings[w.ring as usize].head.store(w.counters[0] as u32, SeqCst);
    h.region.kick(0, s);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Whatever an app writes and kicks: no panic, no hang, and when it is gone nothing of it is left.
    #[test]
    fn hostile_apps(words in proptest::collection::vec(word(), 1..60)) {
        let mut h = host();
        let mut flows = vec![];
        for w in &words {
            scribble(&mut h, w);
            let mut came = h.run();
            flows.append(&mut came.installs);
            let mut p = Peer::new("127.77.0.2:80", "127.77.0.1:80");
            let came = match w.frame % 4 {
                0 => h.receive(p.neighbour_answer()),
                1 => h.receive(p.syn()),
                2 => h.wait(ms(700)),
                _ => came,
            };
            for s in came.segments() {
                p.learn(&s);
                let frame = if s.has(toe_core::wire::flags::ACK) { p.ack() } else { p.syn_ack() };
                flows.append(&mut h.receive(frame).installs);
            }
        }
        h.slow.proc_died(h.now, RegionId(1), toe_core::ProcId(0));
        for f in &flows {
            h.end(f, CloseKind::Aborted);
        }
        prop_assert!(!h.slow.knows(RegionId(1)));
        let status = h.slow.status();
        prop_assert_eq!((status.flows.len(), status.half_open, status.listeners.len()), (0, 0, 0));
        h.wait(ms(200_000));
        prop_assert_eq!(h.next(), None);
    }
}
