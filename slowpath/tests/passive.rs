//! Passive opens: the handshake itself, options, backlog, odd segments.
#![allow(missing_docs, clippy::vec_box)]

mod common;
use common::*;
use std::sync::atomic::Ordering::SeqCst;
use toe_core::SeqNr;
use toe_core::flow::TsInit;
use toe_core::msg::CloseKind;
use toe_core::shm::{SockState, app_flags};
use toe_core::wire::{TcpOptions, Timestamps, flags::*, verify_checksum};

const PEER: &str = "127.77.0.2:5555";
const US: &str = "127.77.0.1:80";

fn handshake(local: &str, peer: &str, listen: &str) {
    let mut h = host();
    let l = h.listener(listen, 5);
    let mut p = Peer::new(peer, local);
    let came = h.receive(p.syn());
    assert!(came.segments().is_empty(), "the neighbour is asked for first");
    assert_eq!(came.frames.len(), 1);
    let came = h.receive(p.neighbour_answer());
    let (_, frame) = &came.frames[0];
    let s = came.segment();
    assert!(verify_checksum(frame, &s));
    assert!(etherparse::SlicedPacket::from_ethernet(frame).is_ok());
    assert_eq!((s.flags, s.ack), (SYN | ACK, p.seq + 1));
    let mss = if p.key.local_ip.is_ipv4() { 1460 } else { 1440 };
    let ts = s.options.timestamps.unwrap();
    assert_eq!(ts.ecr, 5000);
    let want = TcpOptions {
        mss: Some(mss),
        wscale: Some(7),
        sack_permitted: true,
        timestamps: Some(ts),
        ..Default::default()
    };
    assert_eq!((s.options.clone(), s.window), (want, 65_535));
    p.learn(&s);
    h.now += ms(3);
    p.options.timestamps = Some(Timestamps { val: 5003, ecr: ts.val });
    p.window = 500;
    let mut came = h.receive(p.ack());
    assert_eq!(came.order, "I", "installed, and nothing on the wire");
    let f = came.installs.remove(0);
    assert_eq!((f.iss, f.irs, f.key), (s.seq, p.seq, p.key.reversed()));
    assert_eq!((f.snd_wnd, f.snd_wscale, f.rcv_wscale, f.sack), (500 << 7, 7, 7, true));
    assert_eq!((f.snd_mss, f.rcv_mss, f.rtt, f.syn_retransmitted), (mss, mss, Some(ms(3)), false));
    let offset = ts.val.wrapping_sub(1000);
    assert_eq!(f.timestamps, Some(TsInit { recent: 5003, offset }));
    assert_eq!(f.l2[..12], [PEER_MAC, MAC].concat());
    let a = h.accept(l).unwrap();
    assert_eq!(a, f.sock);
    let slot = h.slot(a);
    assert_eq!((h.state(a), slot.owner.load(SeqCst), slot.parent.load(SeqCst)), (SockState::Established, 1, l.0));
    assert_eq!(slot.local.load(), Some(f.key.local()));
    assert_eq!(slot.remote.load(), Some(f.key.remote()));
    assert_eq!((slot.rx_limit.load(SeqCst), slot.tx_limit.load(SeqCst)), (512 << 10, 512 << 10));
    assert!(h.slow.is_quiet() && h.next().is_none());
}

#[test]
fn ipv4() {
    handshake(US, PEER, US);
    handshake(US, PEER, "0.0.0.0:80");
}

#[test]
fn ipv6_and_dual_stack() {
    handshake("[fd77::1]:80", "[fd77::2]:5555", "[fd77::1]:80");
    handshake("[fd77::1]:80", "[fd77::2]:5555", "[::]:80");
    handshake(US, PEER, "[::]:80");
}

#[test]
fn v6only_takes_no_ipv4() {
    let mut h = host();
    let s = h.socket();
    h.flag(s, app_flags::V6ONLY);
    assert_eq!((h.bind(s, "[::]:80"), h.listen(s, 5)), (0, 0));
    let s = h.receive(Peer::new(PEER, US).syn()).segment();
    assert_eq!(s.flags, RST | ACK);
}

#[test]
fn a_peer_without_options() {
    let mut h = host();
    h.listener(US, 5);
    let mut p = Peer::new(PEER, US);
    p.options = TcpOptions::default();
    let f = h.accept_flow(&mut p);
    assert_eq!((f.snd_mss, f.snd_wscale, f.rcv_wscale, f.sack, f.timestamps), (536, 0, 0, false, None));
    assert_eq!(f.snd_wnd, 64_240);
}

#[test]
fn the_answer_offers_only_what_was_offered() {
    let mut h = host();
    h.listener(US, 5);
    let mut p = Peer::new(PEER, US);
    p.options = TcpOptions { mss: Some(900), sack_permitted: true, ..Default::default() };
    h.receive(p.syn());
    let s = h.receive(p.neighbour_answer()).segment();
    assert_eq!(s.options, TcpOptions { mss: Some(1460), sack_permitted: true, ..Default::default() });
    p.learn(&s);
    let f = h.receive(p.ack()).installs.remove(0);
    assert_eq!((f.snd_mss, f.rcv_wscale), (900, 0));
}

#[test]
fn options_are_inherited() {
    let mut h = host();
    let s = h.socket();
    h.flag(s, app_flags::NODELAY | app_flags::KEEPALIVE);
    h.slot(s).opt_keepidle.store(9, SeqCst);
    h.slot(s).opt_rcvbuf.store(16_384, SeqCst);
    h.slot(s).opt_maxseg.store(500, SeqCst);
    assert_eq!((h.bind(s, US), h.listen(s, 5)), (0, 0));
    let mut p = Peer::new(PEER, US);
    h.receive(p.syn());
    let syn_ack = h.receive(p.neighbour_answer()).segment();
    assert_eq!((syn_ack.window, syn_ack.options.mss), (16_384, Some(500)));
    p.learn(&syn_ack);
    let f = h.receive(p.ack()).installs.remove(0);
    assert_eq!((f.snd_mss, f.rcv_mss), (500, 500));
    let slot = h.slot(f.sock);
    assert_eq!(slot.app_flags.load(SeqCst), app_flags::NODELAY | app_flags::KEEPALIVE);
    assert_eq!((slot.opt_keepidle.load(SeqCst), slot.rx_limit.load(SeqCst)), (9, 16_384));
}

#[test]
fn early_data_follows_the_install() {
    let mut h = host();
    h.listener(US, 5);
    let mut p = Peer::new(PEER, US);
    h.receive(p.syn());
    p.learn(&h.receive(p.neighbour_answer()).segment());
    let frame = p.data(b"GET /", ACK | PSH | FIN);
    h.punt_at(1, toe_core::NicId(0), frame.clone());
    let came = h.run();
    assert_eq!(came.order, "Ii");
    assert_eq!(came.installs[0].core, toe_core::CoreId(1), "the core that received it");
    assert_eq!(came.injected, [(toe_core::CoreId(1), frame)]);
    // What comes later to another core is handed on.
    let late = p.data(b"more", ACK);
    assert_eq!(h.receive(late.clone()).injected, [(toe_core::CoreId(1), late)]);
}

#[test]
fn a_duplicate_syn_gets_the_same_answer() {
    let mut h = host();
    h.listener(US, 5);
    let mut p = Peer::new(PEER, US);
    h.receive(p.syn());
    let first = h.receive(p.neighbour_answer()).segment();
    h.now += ms(10);
    let again = h.receive(p.syn()).segment();
    assert_eq!((first.seq, first.ack, first.flags), (again.seq, again.ack, again.flags));
    assert_eq!(h.slow.status().half_open, 1);
    p.learn(&first);
    assert_eq!(h.receive(p.ack()).installs[0].rtt, None, "ambiguous (Karn)");
}

#[test]
fn syn_ack_is_retransmitted_and_then_forgotten() {
    let mut h = host();
    h.listener(US, 5);
    let p = Peer::new(PEER, US);
    h.receive(p.syn());
    h.receive(p.neighbour_answer()).segment();
    let start = h.now;
    let mut times = vec![];
    while let Some(next) = h.next() {
        h.now = next;
        let came = h.run();
        if !came.none() {
            assert_eq!(came.segment().flags, SYN | ACK);
            times.push(h.now.since(start).as_secs());
        }
    }
    assert_eq!(times, [1, 3, 7, 15, 31]);
    assert_eq!((h.now.since(start).as_secs(), h.slow.status().half_open), (63, 0));
    assert_eq!(h.receive(p.ack()).segment().flags, RST);
}

#[test]
fn a_full_accept_queue_drops_and_never_resets() {
    let mut h = host();
    let l = h.listener(US, 1);
    // Linux: the backlog, plus one.
    for port in [1, 2] {
        h.accept_flow(&mut Peer::new(&format!("127.77.0.2:{port}"), US));
    }
    assert!(h.receive(Peer::new("127.77.0.2:3", US).syn()).none());
    assert_eq!(h.slow.status().counters.listen_overflows, 1);
    assert!(h.accept(l).is_some());
    h.accept_flow(&mut Peer::new("127.77.0.2:3", US));
}

#[test]
fn a_queue_that_fills_during_the_handshake_ignores_the_last_ack() {
    let mut h = host();
    let l = h.listener(US, 0);
    let (mut a, mut b) = (Peer::new("127.77.0.2:1", US), Peer::new("127.77.0.2:2", US));
    h.receive(a.syn());
    a.learn(&h.receive(a.neighbour_answer()).segment());
    b.learn(&h.receive(b.syn()).segment());
    assert_eq!(h.receive(a.ack()).installs.len(), 1);
    assert!(h.receive(b.ack()).none(), "as if lost");
    assert_eq!(h.wait(ms(1000)).segment().flags, SYN | ACK, "and asked for again");
    assert!(h.accept(l).is_some());
    assert_eq!(h.receive(b.ack()).installs.len(), 1);
}

#[test]
fn half_open_connections_are_bounded() {
    let mut h = host();
    h.listener(US, 20);
    h.receive(Peer::new("127.77.0.2:1", US).syn());
    h.receive(Peer::new("127.77.0.2:1", US).neighbour_answer());
    for port in 2..100 {
        h.receive(Peer::new(&format!("127.77.0.2:{port}"), US).syn());
    }
    assert_eq!(h.slow.status().half_open, 20);
    assert_eq!(h.slow.status().counters.req_q_full_drop, 79);
}

#[test]
fn closed_ports_are_reset() {
    let mut h = host();
    let p = Peer::new(PEER, "127.77.0.1:81");
    let s = h.receive(p.syn()).segment();
    assert_eq!((s.flags, s.seq, s.ack), (RST | ACK, SeqNr(0), p.seq + 1));
    let mut q = p.clone();
    q.ack = SeqNr(99);
    let s = h.receive(q.data(b"xyz", ACK)).segment();
    assert_eq!((s.flags, s.seq), (RST, SeqNr(99)));
    let s = h.receive(p.frame(SeqNr(10), SeqNr(0), FIN, TcpOptions::default(), b"abc")).segment();
    assert_eq!((s.flags, s.ack), (RST | ACK, SeqNr(14)));
    assert!(h.receive(p.frame(SeqNr(10), SeqNr(0), RST, TcpOptions::default(), &[])).none());
}

#[test]
fn segments_to_a_listener_that_are_no_syn() {
    let mut h = host();
    h.listener(US, 5);
    let mut p = Peer::new(PEER, US);
    p.ack = SeqNr(5);
    assert_eq!(h.receive(p.ack()).segment().flags, RST);
    assert!(h.receive(p.frame(p.seq, SeqNr(0), SYN | FIN, TcpOptions::default(), &[])).none());
    assert!(h.receive(p.frame(p.seq, SeqNr(0), RST, TcpOptions::default(), &[])).none());
    let mut land = Peer::new(US, US);
    land.options = TcpOptions::default();
    assert!(h.receive(land.syn()).none());
    let mut bad = p.syn();
    let n = bad.len();
    bad[n - 1] ^= 1;
    assert!(h.receive(bad).none(), "bad checksum");
    assert_eq!(h.slow.status().counters.in_errs, 1);
    assert!(h.receive(Peer::new(PEER, "127.77.0.9:80").syn()).none(), "not our address");
}

fn received() -> (common::Host, Peer) {
    let mut h = host();
    h.listener(US, 5);
    let mut p = Peer::new(PEER, US);
    h.receive(p.syn());
    p.learn(&h.receive(p.neighbour_answer()).segment());
    (h, p)
}

#[test]
fn syn_received_bad_ack_is_reset_and_the_handshake_lives() {
    let (mut h, p) = received();
    let mut bad = p.clone();
    bad.ack = p.ack + 5;
    let s = h.receive(bad.ack()).segment();
    assert_eq!((s.flags, s.seq), (RST, p.ack + 5));
    assert_eq!(h.receive(p.ack()).installs.len(), 1);
}

#[test]
fn syn_received_rst_by_rfc_5961() {
    let (mut h, p) = received();
    let rst = |seq| p.frame(seq, SeqNr(0), RST, TcpOptions::default(), &[]);
    assert!(h.receive(rst(p.seq + 100_000)).none(), "outside the window");
    let s = h.receive(rst(p.seq + 50)).segment();
    assert_eq!((s.flags, s.ack), (ACK, p.seq + 1), "in the window: challenge");
    assert_eq!(h.slow.status().half_open, 1);
    assert!(h.receive(rst(p.seq + 1)).none(), "exact: over");
    assert_eq!(h.slow.status().half_open, 0);
}

#[test]
fn syn_received_other_odd_segments() {
    let (mut h, p) = received();
    let syn = p.frame(p.seq + 9, SeqNr(0), SYN, TcpOptions::default(), &[]);
    assert_eq!(h.receive(syn).segment().flags, ACK, "another SYN: challenge (RFC 5961 4.2)");
    let no_ack = p.frame(p.seq + 1, SeqNr(0), PSH, TcpOptions::default(), b"x");
    assert!(h.receive(no_ack).none());
    let mut old = p.clone();
    old.options.timestamps = Some(Timestamps { val: 4999, ecr: 0 });
    let came = h.receive(old.ack());
    assert_eq!((came.segment().flags, came.installs.len()), (ACK, 0), "PAWS");
    let far = p.frame(p.seq + 200_000, p.ack, ACK, TcpOptions::default(), &[]);
    assert_eq!(h.receive(far).segment().flags, ACK, "outside the window");
    // Data ahead of the bare ACK completes it as well.
    let ahead = p.frame(p.seq + 101, p.ack, ACK, TcpOptions::default(), b"later");
    assert_eq!(h.receive(ahead).order, "Ii");
}

#[test]
fn closing_a_listener_resets_the_untaken_and_drops_the_unfinished() {
    let mut h = host();
    let l = h.listener(US, 5);
    let first = h.accept_flow(&mut Peer::new("127.77.0.2:1", US));
    let second = h.accept_flow(&mut Peer::new("127.77.0.2:2", US));
    let taken = h.accept(l).unwrap();
    assert_eq!(taken, first.sock);
    h.receive(Peer::new("127.77.0.2:3", US).syn());
    let came = h.close(l);
    assert_eq!(came.removed, [(second.id, 104, true)]);
    let status = h.slow.status();
    assert_eq!((status.half_open, status.listeners.len(), status.flows.len()), (0, 0, 2));
    assert_eq!(h.state(l), SockState::Free);
    assert_eq!(h.region.layout().ring_pool.used.load(SeqCst), 0, "the ring came back");
    h.end(&second, CloseKind::Aborted);
    assert_eq!(h.state(second.sock), SockState::Free);
    assert_eq!(h.state(taken), SockState::Established);
    let s = h.receive(Peer::new("127.77.0.2:4", US).syn()).segment();
    assert_eq!(s.flags, RST | ACK);
}

#[test]
fn shutdown_of_a_listener_ends_it() {
    let mut h = host();
    let l = h.listener(US, 5);
    h.flag(l, app_flags::SHUT_RD);
    h.region.kick(0, l);
    h.run();
    assert_eq!(h.state(l), SockState::Closed);
    assert_eq!(h.receive(Peer::new(PEER, US).syn()).segment().flags, RST | ACK);
}

#[test]
fn reuseport_spreads_and_sticks() {
    let mut h = host();
    let mut ls = vec![];
    for _ in 0..2 {
        let s = h.socket();
        h.flag(s, app_flags::REUSEPORT);
        assert_eq!((h.bind(s, US), h.listen(s, 100)), (0, 0));
        ls.push(s);
    }
    for port in 1000..1040 {
        h.accept_flow(&mut Peer::new(&format!("127.77.0.2:{port}"), US));
    }
    let mut count = |l| std::iter::from_fn(|| h.accept(l)).count();
    let (a, b) = (count(ls[0]), count(ls[1]));
    assert_eq!(a + b, 40);
    assert!(a > 5 && b > 5, "{a} {b}");
}

#[test]
fn a_large_backlog_is_kept_whole() {
    let mut h = host();
    let l = h.listener("0.0.0.0:80", 1_000_000);
    assert_eq!(h.slow.status().listeners[0].backlog, 65_535, "somaxconn");
    let flows: Vec<_> =
        (1..=5000).map(|n| h.accept_flow(&mut Peer::new(&format!("127.77.0.2:{n}"), US)).sock).collect();
    assert_eq!(h.slow.status().listeners[0].waiting, 5000);
    let accepted: Vec<_> = std::iter::from_fn(|| h.accept(l)).collect();
    assert_eq!(accepted, flows, "first come, first served");
    assert_eq!(h.slow.status().counters.listen_drops, 0);
}
