//! Sockets and processes: what is freed when, shutdown, time-outs, status.
#![allow(missing_docs, clippy::vec_box)]

mod common;
use common::*;
use std::sync::atomic::Ordering::SeqCst;
use toe_core::msg::{CloseKind, CoreStats, Down, TimerKind, Up};
use toe_core::shm::{CHUNK_SIZE, SockState};
use toe_core::{CoreId, NicId, ProcId, RegionId, SockId};

const PEER: &str = "127.77.0.2:80";
const US: &str = "127.77.0.1:0";

#[test]
fn a_closed_flow_frees_its_slot_and_chunks() {
    let mut h = host();
    let s = h.socket();
    let f = h.connect_flow(s, &mut Peer::new(PEER, US));
    let pool = &h.region.layout().tx_pool;
    let chunks: Vec<u32> = (0..3).map(|_| pool.pop().unwrap()).collect();
    let slot = h.slot(s);
    // Head in the second chunk of the stream, tail in the fourth.
    let c = CHUNK_SIZE as u64;
    slot.tx_head.store(c + 5, SeqCst);
    slot.tx_tail.store(3 * c + 1, SeqCst);
    for (i, chunk) in chunks.iter().enumerate() {
        h.region.tx_table(s).unwrap()[1 + i].store(*chunk, SeqCst);
    }
    assert!(h.end(&f, CloseKind::PeerReset).none());
    assert_eq!((h.state(s), h.region.layout().tx_pool.used.load(SeqCst)), (SockState::Closed, 3), "still open");
    let came = h.close(s);
    assert_eq!(came.released, [(CoreId(0), s)], "the core may let go of unread bytes");
    assert_eq!((h.state(s), h.slot(s).generation.load(SeqCst)), (SockState::Free, 1));
    assert_eq!(h.region.layout().tx_pool.used.load(SeqCst), 0);
    assert_eq!(h.region.layout().sock_pool.used.load(SeqCst), 0);
    assert_eq!(h.slot(s).tx_tail.load(SeqCst), 0);
    assert_eq!(h.slow.status().counters.estab_resets, 1);
}

#[test]
fn flow_numbers_are_used_again() {
    let mut h = host();
    let mut ids = vec![];
    for _ in 0..3 {
        let s = h.socket();
        let f = h.connect_flow(s, &mut Peer::new(PEER, US));
        ids.push(f.id);
        h.end(&f, CloseKind::Done);
        h.close(s);
    }
    assert!(ids.iter().all(|i| *i == ids[0]));
    assert_eq!(h.slow.status().flows.len(), 0);
}

#[test]
fn kicks_for_a_flow_go_to_its_core() {
    let mut h = host();
    let s = h.socket();
    h.connect_flow(s, &mut Peer::new(PEER, US));
    h.region.kick(0, s);
    assert_eq!(h.run().kicks, [(CoreId(0), s)]);
    // The last close too: FIN or RST is the fast path's to decide.
    h.slot(s).holders[0].store(0, SeqCst);
    h.region.kick(0, s);
    assert_eq!(h.run().kicks, [(CoreId(0), s)]);
    assert_eq!(h.state(s), SockState::Established);
}

#[test]
fn a_connection_reset_in_the_accept_queue_stays_there() {
    let mut h = host();
    let l = h.listener("127.77.0.1:80", 5);
    let f = h.accept_flow(&mut Peer::new("127.77.0.2:9", "127.77.0.1:80"));
    h.end(&f, CloseKind::PeerReset);
    assert_eq!(h.state(f.sock), SockState::Closed);
    h.region.kick(0, f.sock);
    h.run();
    assert_eq!(h.state(f.sock), SockState::Closed, "a late kick of a former life changes nothing");
    let s = h.accept(l).unwrap();
    assert_eq!(s, f.sock);
    h.close(s);
    assert_eq!(h.state(s), SockState::Free);
    let g = h.accept_flow(&mut Peer::new("127.77.0.2:10", "127.77.0.1:80"));
    assert_eq!(g.sock, s, "the slot is used again");
}

#[test]
fn an_unused_socket_is_freed_after_a_while() {
    let mut h = host();
    let s = h.socket();
    h.close(s);
    assert_eq!(h.state(s), SockState::New, "perhaps only just taken");
    h.wait(ms(1000));
    assert_eq!((h.state(s), h.region.layout().sock_pool.used.load(SeqCst)), (SockState::Free, 0));
    // A late kick of a former life finds a slot that is being taken: it stays.
    let s = h.socket();
    h.slot(s).holders[0].store(0, SeqCst);
    h.region.kick(0, s);
    h.run();
    h.slot(s).holders[0].store(1, SeqCst);
    h.wait(ms(1000));
    assert_eq!(h.state(s), SockState::New);
}

#[test]
fn the_death_of_the_last_process_releases_everything() {
    let mut h = host();
    let l = h.listener("127.77.0.1:80", 5);
    let taken = h.accept_flow(&mut Peer::new("127.77.0.2:1", "127.77.0.1:80"));
    h.accept(l);
    let untaken = h.accept_flow(&mut Peer::new("127.77.0.2:2", "127.77.0.1:80"));
    h.receive(Peer::new("127.77.0.2:3", "127.77.0.1:80").syn());
    let c = h.socket();
    h.connect(c, "127.77.0.3:80");
    let b = h.socket();
    h.bind(b, "127.77.0.1:99");
    h.slow.proc_died(h.now, RegionId(1), ProcId(0));
    let came = h.run();
    assert!(came.kicks.contains(&(CoreId(0), taken.sock)), "orphaned: FIN or RST");
    assert_eq!(came.removed, [(untaken.id, 104, true)]);
    assert_eq!(h.slot(taken.sock).holders[0].load(SeqCst), 0);
    let status = h.slow.status();
    assert_eq!((status.half_open, status.listeners.len(), status.flows.len()), (0, 0, 2));
    assert!(h.slow.knows(RegionId(1)), "flows still name it");
    h.end(&untaken, CloseKind::Aborted);
    let (_, came) = h.end_time_wait(&taken);
    assert!(came.others.iter().all(|m| matches!(m, Down::Detach(RegionId(1)))));
    assert_eq!(came.others.len(), 2, "every core forgets it");
    assert!(!h.slow.knows(RegionId(1)));
    assert_eq!(h.slow.status().time_wait, 1, "the peer may still need an answer");
    assert_eq!(h.receive(Peer::new("127.77.0.2:4", "127.77.0.1:80").syn()).segment().flags, 0x14);
}

#[test]
fn the_death_of_one_of_two_processes_leaves_what_the_other_holds() {
    let mut h = host();
    let second = h.region.layout().proc_pool.pop().unwrap();
    assert_eq!(second, 1);
    h.slow.proc_attached(RegionId(1), ProcId(second), 78);
    let (shared, own) = (h.socket(), h.socket());
    let f = h.connect_flow(shared, &mut Peer::new(PEER, US));
    assert_eq!(h.bind(own, "127.77.0.1:99"), 0);
    h.slot(shared).holders[0].store(3, SeqCst);
    let fresh = h.socket();
    h.slow.proc_died(h.now, RegionId(1), ProcId(0));
    let came = h.run();
    assert!(came.kicks.is_empty() && came.removed.is_empty());
    assert_eq!((h.state(shared), h.slot(shared).holders[0].load(SeqCst)), (SockState::Established, 2));
    assert_eq!((h.state(own), h.state(fresh)), (SockState::Free, SockState::Free));
    assert_eq!(h.region.layout().proc_pool.pop(), Some(0), "its bit is free");
    let s = h.socket();
    assert_eq!(h.bind(s, "127.77.0.1:99"), 0, "its port is free");
    assert_eq!(h.slow.status().flows[0].pid, 78);
    let _ = f;
}

#[test]
fn a_process_that_dies_while_it_accepts_leaves_an_orphan() {
    let mut h = host();
    h.slow.proc_attached(RegionId(1), ProcId(9), 78);
    h.listener("127.77.0.1:80", 5);
    let f = h.accept_flow(&mut Peer::new("127.77.0.2:1", "127.77.0.1:80"));
    h.slot(f.sock).holders[0].store(1 << 9, SeqCst);
    h.slow.proc_died(h.now, RegionId(1), ProcId(9));
    assert_eq!(h.run().kicks, [(CoreId(0), f.sock)]);
    assert_eq!(h.slot(f.sock).app_flags.load(SeqCst), toe_core::shm::app_flags::TAKEN);
}

#[test]
fn shutdown_tells_every_peer() {
    let mut h = host();
    let l = h.listener("127.77.0.1:80", 5);
    let a = h.accept_flow(&mut Peer::new("127.77.0.2:1", "127.77.0.1:80"));
    h.accept(l);
    let b = h.accept_flow(&mut Peer::new("127.77.0.2:2", "127.77.0.1:80"));
    let c = h.socket();
    h.connect(c, "127.77.0.3:80");
    h.slow.begin_shutdown(h.now);
    let came = h.run();
    assert_eq!(came.removed, [(b.id, 104, true)]);
    assert!(came.kicks.contains(&(CoreId(0), a.sock)));
    assert_eq!(h.slot(a.sock).app_flags.load(SeqCst) & 1, 1, "SHUT_WR");
    assert_eq!((h.state(c), h.slot(c).error.load(SeqCst)), (SockState::Closed, 103));
    assert!(h.receive(Peer::new("127.77.0.2:3", "127.77.0.1:80").syn()).segment().flags == 0x14);
    let s = h.socket();
    assert_eq!(h.bind(s, "127.77.0.1:99"), 100);
    assert!(!h.slow.is_drained());
    h.end(&b, CloseKind::Aborted);
    h.slow.abort_all();
    assert_eq!(h.run().removed, [(a.id, 104, true)]);
    h.end_time_wait(&a);
    assert!(h.slow.is_drained());
}

#[test]
fn timeouts_are_decided() {
    let mut h = host();
    let s = h.socket();
    let f = h.connect_flow(s, &mut Peer::new(PEER, US));
    let came = h.timeout(&f, TimerKind::Retransmit, 1, ms(200));
    assert!(matches!(came.others[..], [Down::Retransmit(id)] if id == f.id));
    let came = h.timeout(&f, TimerKind::Persist, 50, ms(200));
    assert!(matches!(came.others[..], [Down::Probe(id, TimerKind::Persist)] if id == f.id));
    h.slot(s).opt_user_timeout.store(5000, SeqCst);
    assert!(!h.timeout(&f, TimerKind::Retransmit, 3, ms(4999)).others.is_empty());
    assert_eq!(h.timeout(&f, TimerKind::Retransmit, 4, ms(5000)).removed, [(f.id, 110, false)]);
    assert!(h.timeout(&f, TimerKind::Retransmit, 5, ms(9000)).removed.is_empty(), "once is enough");
    h.end(&f, CloseKind::Aborted);
    assert!(h.timeout(&f, TimerKind::Retransmit, 6, ms(9000)).none(), "a stale number");
}

#[test]
fn reports_and_status() {
    let mut h = host();
    h.slow.request_reports();
    assert_eq!(h.run().others.len(), 2);
    let nic = toe_core::nic::NicStats { rx_packets: 7, link_ups: 1, ..Default::default() };
    for core in 0..2 {
        let stats = CoreStats { in_segs: 5, nics: vec![(NicId(0), nic)], ..Default::default() };
        h.up(Up::Report { core: CoreId(core), stats: Box::new(stats) });
    }
    let l = h.listener("[::]:80", 9);
    let f = h.accept_flow(&mut Peer::new("127.77.0.2:1", "127.77.0.1:80"));
    h.slot(f.sock).rx_tail.store(10, SeqCst);
    h.slot(f.sock).info.tcp_state.store(8, SeqCst);
    let c = h.socket();
    h.connect(c, "127.77.0.3:443");
    let s = h.slow.status();
    assert_eq!((s.nics[0].stats.rx_packets, s.nics[0].stats.link_ups, s.cores[1].in_segs), (14, 1, 5));
    assert_eq!((s.listeners[0].local, s.listeners[0].waiting), (at("[::]:80"), 1));
    assert_eq!((s.flows[0].state, s.flows[0].recv_q, s.flows[0].core), ("CLOSE-WAIT", 10, Some(CoreId(0))));
    assert_eq!((s.flows[1].state, s.flows[1].remote), ("SYN-SENT", at("127.77.0.3:443")));
    assert_eq!((s.flows[0].program.as_str(), s.flows[0].nic.as_str()), ("test", "link0"));
    let json = serde_json::to_value(&s).unwrap();
    assert_eq!(json["counters"]["TcpPassiveOpens"], 1);
    assert_eq!(json["flows"][0]["local"], "127.77.0.1:80");
    assert_eq!(s.regions[0].sockets, 3);
    let _ = (l, SockId(0));
}

#[test]
fn reasons_for_the_kernel_outlive_their_process() {
    use toe_core::app::why::{Why, count};
    let mut h = host();
    let header = &h.region.layout().header;
    count(&header.why, Why::Rule);
    count(&header.why, Why::NoListener);
    count(&header.why, Why::NoListener);
    header.why[31].store(7, SeqCst); // no reason has this number
    header.why_errno.store(99, SeqCst);
    let s = h.slow.status();
    assert_eq!(s.regions[0].why, [("no_listener", 2), ("rule", 1)].into());
    assert_eq!((&s.why, s.regions[0].why_errno), (&s.regions[0].why, 99));
    h.slow.proc_died(h.now, RegionId(1), toe_core::ProcId(0));
    h.run();
    let s = h.slow.status();
    assert_eq!((s.regions.len(), s.why), (0, [("no_listener", 2), ("rule", 1)].into()));
}
