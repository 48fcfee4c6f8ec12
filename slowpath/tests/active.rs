//! Active opens: SYN schedule, errors, ephemeral ports, simultaneous open, neighbours.
#![allow(missing_docs, clippy::vec_box)]

mod common;
use common::*;
use std::collections::HashSet;
use std::sync::atomic::Ordering::SeqCst;
use toe_core::msg::CloseKind;
use toe_core::shm::{SockState, app_flags};
use toe_core::wire::{TcpOptions, Timestamps, flags::*, verify_checksum};
use toe_core::{NicId, SeqNr};

const PEER: &str = "127.77.0.2:80";
const US: &str = "127.77.0.1:0";

fn error(h: &Host, s: toe_core::SockId) -> i32 {
    h.slot(s).error.load(SeqCst) as i32
}

fn handshake(peer: &str, us: &str, mss: u16) {
    let mut h = host();
    let s = h.socket();
    let mut p = Peer::new(peer, us);
    let (err, came) = h.connect(s, peer);
    assert_eq!((err, h.state(s), came.frames.len()), (0, SockState::Connecting, 1));
    assert!(came.segments().is_empty(), "the neighbour first");
    let came = h.receive(p.neighbour_answer());
    let syn = came.segment();
    assert!(verify_checksum(&came.frames[0].1, &syn));
    assert_eq!((syn.flags, syn.window, syn.options.mss), (SYN, 65_535, Some(mss)));
    assert_eq!((syn.options.wscale, syn.options.sack_permitted), (Some(7), true));
    assert_eq!(syn.options.timestamps.unwrap().ecr, 0);
    assert!((32_768..=60_999).contains(&syn.key.remote_port));
    p.learn(&syn);
    h.now += ms(20);
    p.options.timestamps = Some(Timestamps { val: 9000, ecr: syn.options.timestamps.unwrap().val });
    let mut came = h.receive(p.syn_ack());
    assert_eq!(came.order, "tI", "ACK, then the flow");
    let ack = came.segment();
    assert_eq!((ack.flags, ack.seq, ack.ack), (ACK, syn.seq + 1, p.seq + 1));
    assert_eq!(ack.window, (512 << 10 >> 7) as u16);
    let ts = ack.options.timestamps.unwrap();
    assert_eq!((ts.val, ts.ecr), (syn.options.timestamps.unwrap().val.wrapping_add(20), 9000));
    let f = came.installs.remove(0);
    assert_eq!((f.sock, f.iss, f.irs, f.snd_wnd), (s, syn.seq, p.seq, 64_240), "a SYN's window is not scaled");
    assert_eq!((f.snd_mss, f.rtt, f.sack, f.snd_wscale), (mss.min(1460), Some(ms(20)), true, 7));
    assert_eq!((h.state(s), h.slot(s).owner.load(SeqCst)), (SockState::Established, 1));
    assert_eq!(h.slot(s).remote.load(), Some(at(peer)));
    assert_eq!(h.slot(s).local.load(), Some(f.key.local()));
    assert!(h.next().is_none());
}

#[test]
fn ipv4() {
    handshake(PEER, US, 1460);
}

#[test]
fn ipv6() {
    handshake("[fd77::2]:80", "[fd77::1]:0", 1440);
}

#[test]
fn syns_follow_the_schedule_and_end_in_etimedout() {
    let mut h = host();
    let s = h.socket();
    let p = Peer::new(PEER, US);
    h.connect(s, PEER);
    h.receive(p.neighbour_answer()).segment();
    let start = h.now;
    let mut times = vec![];
    while let Some(next) = h.next() {
        h.now = next;
        let came = h.run();
        if !came.segments().is_empty() {
            assert_eq!(came.segment().flags, SYN);
            times.push(h.now.since(start).as_secs());
        }
    }
    assert_eq!(times, [1, 3, 7, 15, 31, 63]);
    assert_eq!(h.now.since(start).as_secs(), 127);
    assert_eq!((h.state(s), error(&h, s)), (SockState::Closed, 110));
    assert_eq!(h.slow.status().counters.syn_retrans, 6);
}

#[test]
fn syncnt_is_obeyed_and_the_socket_may_try_again() {
    let mut h = host();
    let s = h.socket();
    h.slot(s).opt_syncnt.store(1, SeqCst);
    let mut p = Peer::new(PEER, US);
    h.connect(s, PEER);
    h.receive(p.neighbour_answer()).segment();
    assert_eq!(h.wait(ms(1000)).segment().flags, SYN);
    assert!(h.wait(ms(1999)).none());
    assert!(h.wait(ms(1)).none());
    assert_eq!(error(&h, s), 110);
    let f = h.connect_flow(s, &mut p);
    assert_eq!((f.sock, h.state(s), error(&h, s)), (s, SockState::Established, 0));
}

#[test]
fn a_retransmitted_syn_gives_no_rtt() {
    let mut h = host();
    let s = h.socket();
    let mut p = Peer::new(PEER, US);
    h.connect(s, PEER);
    p.learn(&h.receive(p.neighbour_answer()).segment());
    h.wait(ms(1000));
    let f = h.receive(p.syn_ack()).installs.remove(0);
    assert_eq!((f.rtt, f.syn_retransmitted), (None, true));
}

#[test]
fn no_route_and_no_neighbour() {
    let mut h = host();
    let s = h.socket();
    assert_eq!(h.connect(s, "192.0.2.1:80").0, 101);
    assert_eq!(h.connect(s, "127.77.0.255:0").0, 99);
    assert_eq!(h.connect(s, "224.0.0.1:80").0, 101);
    assert_eq!(h.connect(s, "[fd78::1]:80").0, 101);
    assert_eq!(h.connect(s, PEER).0, 0);
    let mut questions = 0;
    while h.state(s) == SockState::Connecting {
        let came = h.wait(ms(1000));
        assert!(came.segments().is_empty());
        questions += came.frames.len();
    }
    assert_eq!((error(&h, s), questions), (113, 2), "three questions, then EHOSTUNREACH");
    assert!(h.next().is_none());
}

#[test]
fn two_neighbours_at_once_are_both_asked_at_once() {
    let mut h = host();
    for n in [2, 3] {
        let s = h.socket();
        let (err, came) = h.connect(s, &format!("127.77.0.{n}:80"));
        assert_eq!((err, came.frames.len()), (0, 1));
        assert_eq!(came.frames[0].1[38..42], [127, 77, 0, n], "ARP target");
    }
    let s = h.socket();
    let (_, came) = h.connect(s, "[fd77::5]:80");
    assert_eq!(came.frames.len(), 1);
    assert_eq!(came.frames[0].1[54], 135);
    let p = Peer::new("127.77.0.3:80", US);
    assert_eq!(h.receive(p.neighbour_answer()).segment().key.local_ip, ip("127.77.0.3"));
    let p = Peer::new("[fd77::5]:80", "[fd77::1]:0");
    assert_eq!(h.receive(p.neighbour_answer()).segment().key.local_ip, ip("fd77::5"));
}

#[test]
fn a_route_asks_for_its_gateway() {
    let mut h = host();
    let s = h.socket();
    let (err, came) = h.connect(s, "10.9.9.9:80");
    assert_eq!((err, &came.frames[0].1[38..42]), (0, &[127u8, 77, 0, 254][..]));
    let gateway = Peer::new("127.77.0.254:1", US);
    let came = h.receive(gateway.neighbour_answer());
    assert_eq!(came.segment().key.local_ip, ip("10.9.9.9"));
    assert_eq!(came.frames[0].1[..6], PEER_MAC);
}

#[test]
fn refused_and_other_answers_to_a_syn() {
    let mut h = host();
    let s = h.socket();
    let mut p = Peer::new(PEER, US);
    h.connect(s, PEER);
    let syn = h.receive(p.neighbour_answer()).segment();
    p.learn(&syn);
    let none = TcpOptions::default;
    let bad_ack = p.frame(p.seq, p.ack + 7, SYN | ACK, none(), &[]);
    let rst = h.receive(bad_ack).segment();
    assert_eq!((rst.flags, rst.seq), (RST, p.ack + 7));
    assert!(h.receive(p.frame(p.seq, p.ack + 7, RST | ACK, none(), &[])).segments().is_empty());
    assert!(h.receive(p.frame(p.seq, SeqNr(0), RST, none(), &[])).none(), "a RST without ACK");
    assert!(h.receive(p.frame(p.seq, p.ack, ACK, none(), &[])).none(), "an ACK without SYN");
    assert_eq!(h.state(s), SockState::Connecting);
    assert!(h.receive(p.frame(SeqNr(0), p.ack, RST | ACK, none(), &[])).none());
    assert_eq!((h.state(s), error(&h, s)), (SockState::Closed, 111));
    assert_eq!(h.slow.status().counters.attempt_fails, 1);
    assert!(h.next().is_none());
}

#[test]
fn simultaneous_open() {
    let mut h = host();
    let s = h.socket();
    let mut p = Peer::new(PEER, US);
    h.connect(s, PEER);
    let syn = h.receive(p.neighbour_answer()).segment();
    p.learn(&syn);
    let answer = h.receive(p.syn()).segment();
    assert_eq!((answer.flags, answer.seq, answer.ack), (SYN | ACK, syn.seq, p.seq + 1));
    let came = h.receive(p.syn_ack());
    assert_eq!((came.installs.len(), h.state(s)), (1, SockState::Established));
    assert_eq!((came.installs[0].iss, came.installs[0].irs), (syn.seq, p.seq));

    let mut h = host();
    let s = h.socket();
    h.connect(s, PEER);
    p.learn(&h.receive(p.neighbour_answer()).segment());
    h.receive(p.syn());
    assert_eq!(h.receive(p.ack()).installs.len(), 1, "or the ACK of our SYN-ACK");
}

#[test]
fn closing_while_connecting_is_silent() {
    let mut h = host();
    let s = h.socket();
    let mut p = Peer::new(PEER, US);
    h.connect(s, PEER);
    p.learn(&h.receive(p.neighbour_answer()).segment());
    assert!(h.close(s).none());
    assert_eq!(h.state(s), SockState::Free);
    assert_eq!(h.receive(p.syn_ack()).segment().flags, RST);
    assert!(h.next().is_none());
}

#[test]
fn shutdown_while_connecting_ends_the_attempt() {
    let mut h = host();
    let s = h.socket();
    h.connect(s, PEER);
    h.flag(s, app_flags::SHUT_WR);
    h.region.kick(0, s);
    h.run();
    assert_eq!((h.state(s), error(&h, s)), (SockState::Closed, 104));
}

#[test]
fn states_refuse_a_second_connect() {
    let mut h = host();
    let s = h.socket();
    let mut p = Peer::new(PEER, US);
    h.connect(s, PEER);
    assert_eq!(h.connect(s, PEER).0, 114);
    p.learn(&h.receive(p.neighbour_answer()).segment());
    h.receive(p.syn_ack());
    assert_eq!(h.connect(s, PEER).0, 106);
    assert_eq!(h.bind(s, "127.77.0.1:9"), 22);
    assert_eq!(h.listen(s, 1), 22);
    let l = h.listener("127.77.0.1:9000", 1);
    assert_eq!(h.connect(l, PEER).0, 106);
}

#[test]
fn a_bound_socket_keeps_its_address_and_port() {
    let mut h = host();
    let s = h.socket();
    let mut p = Peer::new(PEER, US);
    assert_eq!(h.bind(s, "127.77.0.1:4444"), 0);
    let f = h.connect_flow(s, &mut p);
    assert_eq!(f.key.local(), at("127.77.0.1:4444"));
    let t = h.socket();
    h.flag(t, app_flags::REUSEADDR);
    assert_eq!(h.bind(t, "127.77.0.1:4444"), 98);
    let v6 = h.socket();
    assert_eq!(h.bind(v6, "[fd77::1]:4445"), 0);
    assert_eq!(h.connect(v6, PEER).0, 22);
}

#[test]
fn ephemeral_ports_are_unique_per_destination_until_none_is_left() {
    let mut cfg = config(MAC, &[("127.77.0.1", 24)]);
    cfg.tcp.port_range = (50_000, 50_019);
    let mut h = Host::new(cfg, 0);
    let b = h.socket();
    assert_eq!(h.bind(b, "127.77.0.1:50003"), 0);
    let mut ports = HashSet::new();
    let mut last = None;
    for _ in 0..19 {
        let s = h.socket();
        assert_eq!(h.connect(s, PEER).0, 0);
        assert!(ports.insert(h.slot(s).local.load().unwrap().port()));
        last = Some(s);
    }
    assert!(!ports.contains(&50_003) && ports.iter().all(|p| (50_000..50_020).contains(p)));
    let s = h.socket();
    assert_eq!(h.connect(s, PEER).0, 99);
    assert_eq!(h.connect(s, "127.77.0.2:81").0, 0, "another destination has ports of its own");
    h.close(last.unwrap());
    let s = h.socket();
    assert_eq!(h.connect(s, PEER).0, 0);
}

#[test]
fn the_local_link_carries_connections_to_ourselves() {
    let mut h = host();
    let l = h.listener("127.77.0.1:80", 5);
    let s = h.socket();
    let (err, came) = h.connect(s, "127.77.0.1:80");
    assert_eq!(err, 0);
    let installs = h.loop_back(came);
    assert_eq!(installs.len(), 2);
    assert_eq!(installs[0].key, installs[1].key.reversed());
    assert_eq!((installs[0].nic, h.state(s)), (LOCAL_NIC, SockState::Established));
    assert!(h.accept(l).is_some());
}

#[test]
fn isns_grow_for_one_4_tuple_and_differ_between_them() {
    let mut h = host();
    let isn = |h: &mut Host, port: u16| {
        let s = h.socket();
        assert_eq!(h.bind(s, &format!("127.77.0.1:{port}")), 0);
        let mut p = Peer::new(PEER, US);
        let f = h.connect_flow(s, &mut p);
        h.end(&f, CloseKind::Done);
        h.close(s);
        f.iss
    };
    let (a, other) = (isn(&mut h, 4000), isn(&mut h, 4001));
    h.now += ms(1000);
    let b = isn(&mut h, 4000);
    assert_eq!(b - a, 250_000, "one each 4 us (RFC 6528)");
    assert!(other - a > 1000 && a - other > 1000);
}

#[test]
fn a_link_that_is_down_is_no_way() {
    let mut h = host();
    let caps = toe_core::nic::NicCaps { mac: MAC, mtu: 9000, tso_max: 0, tx_csum: false, queues: 1 };
    let link = |up| toe_core::msg::Up::Link { core: toe_core::CoreId(0), nic: NicId(0), up, caps: caps.clone() };
    h.up(link(false));
    h.run();
    let s = h.socket();
    assert_eq!(h.connect(s, PEER).0, 101);
    h.up(link(true));
    h.run();
    assert_eq!(h.connect(s, PEER).0, 0);
    let syn = h.receive(Peer::new(PEER, US).neighbour_answer()).segment();
    assert_eq!(syn.options.mss, Some(8960), "the new MTU");
}
