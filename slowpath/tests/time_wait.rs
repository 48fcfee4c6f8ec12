//! TIME-WAIT: RFC 9293 3.10.7.4, RFC 1337, RFC 6191.
#![allow(missing_docs, clippy::vec_box)]

mod common;
use common::*;
use std::sync::atomic::Ordering::SeqCst;
use toe_core::flow::{FlowInit, TimeWait};
use toe_core::shm::SockState;
use toe_core::wire::{TcpOptions, Timestamps, flags::*};

const PEER: &str = "127.77.0.2:5555";
const US: &str = "127.77.0.1:80";

/// A listener with one connection in TIME-WAIT; the peer as it then stands.
fn waiting(options: TcpOptions) -> (Host, Peer, TimeWait, Box<FlowInit>) {
    let mut h = host();
    let l = h.listener(US, 5);
    let mut p = Peer::new(PEER, US);
    p.options = options;
    let f = h.accept_flow(&mut p);
    let s = h.accept(l).unwrap();
    let (tw, _) = h.end_time_wait(&f);
    h.close(s);
    assert_eq!((h.state(s), h.slow.status().time_wait), (SockState::Free, 1));
    (h, p, tw, f)
}

fn plain() -> TcpOptions {
    TcpOptions { mss: Some(1460), ..Default::default() }
}

fn ts(val: u32) -> TcpOptions {
    TcpOptions { timestamps: Some(Timestamps { val, ecr: 0 }), ..Default::default() }
}

#[test]
fn a_retransmitted_fin_is_acknowledged_and_restarts_the_time() {
    let (mut h, p, tw, f) = waiting(linux_options());
    h.wait(ms(59_000));
    let fin = p.frame(tw.rcv_nxt - 1, tw.snd_nxt, FIN | ACK, ts(6000), &[]);
    let s = h.receive(fin).segment();
    assert_eq!((s.flags, s.seq, s.ack, s.window), (ACK, tw.snd_nxt, tw.rcv_nxt, 500));
    let offset = f.timestamps.unwrap().offset;
    let val = (h.now.millis() as u32).wrapping_add(offset);
    assert_eq!(s.options.timestamps, Some(Timestamps { val, ecr: 5000 }));
    h.wait(ms(59_000));
    assert_eq!(h.slow.status().time_wait, 1, "2 MSL from the second FIN");
    assert_eq!(h.next(), Some(h.now + ms(1000)));
    h.wait(ms(1000));
    assert_eq!((h.slow.status().time_wait, h.next()), (0, None));
}

#[test]
fn rst_does_not_end_it() {
    let (mut h, p, tw, _) = waiting(plain());
    for seq in [tw.rcv_nxt, tw.rcv_nxt - 5, tw.rcv_nxt + 5] {
        assert!(h.receive(p.frame(seq, tw.snd_nxt, RST, TcpOptions::default(), &[])).none());
    }
    assert_eq!(h.slow.status().time_wait, 1, "RFC 1337 F1");
}

#[test]
fn old_data_is_acknowledged_and_the_last_ack_is_not() {
    let (mut h, p, tw, _) = waiting(plain());
    let old = p.frame(tw.rcv_nxt - 50, tw.snd_nxt, ACK, TcpOptions::default(), b"again");
    assert_eq!(h.receive(old).segment().ack, tw.rcv_nxt);
    assert!(h.receive(p.frame(tw.rcv_nxt, tw.snd_nxt, ACK, TcpOptions::default(), &[])).none());
    assert!(h.receive(p.frame(tw.rcv_nxt, tw.snd_nxt, 0, TcpOptions::default(), b"no ack")).none());
}

#[test]
fn a_new_syn_with_a_higher_sequence_number_opens() {
    let (mut h, mut p, tw, _) = waiting(plain());
    p.seq = tw.rcv_nxt + 1;
    let s = h.receive(p.syn()).segment();
    assert_eq!((s.flags, s.ack), (SYN | ACK, p.seq + 1));
    assert!(s.seq.after_eq(tw.snd_nxt + 65_537), "beyond everything of the old connection");
    assert_eq!((h.slow.status().time_wait, h.slow.status().half_open), (0, 1));
    p.learn(&s);
    assert_eq!(h.receive(p.ack()).installs.len(), 1);
    h.wait(ms(120_000));
    assert_eq!(h.slow.status().flows.len(), 1);
}

#[test]
fn an_old_duplicate_syn_is_answered_with_an_ack() {
    let (mut h, mut p, tw, _) = waiting(plain());
    p.seq = tw.rcv_nxt - 1000;
    let s = h.receive(p.syn()).segment();
    assert_eq!((s.flags, s.seq, s.ack), (ACK, tw.snd_nxt, tw.rcv_nxt));
    assert_eq!(h.slow.status().time_wait, 1);
}

#[test]
fn a_new_syn_with_a_higher_timestamp_opens_whatever_its_sequence_number() {
    let (mut h, mut p, tw, _) = waiting(linux_options());
    p.seq = tw.rcv_nxt - 1000;
    p.options = TcpOptions { timestamps: Some(Timestamps { val: 4999, ecr: 0 }), ..linux_options() };
    assert_eq!(h.receive(p.syn()).segment().flags, ACK, "PAWS");
    p.options = linux_options();
    assert_eq!(h.receive(p.syn()).segment().flags, ACK, "equal");
    p.options = TcpOptions { timestamps: Some(Timestamps { val: 5001, ecr: 0 }), ..linux_options() };
    assert_eq!(h.receive(p.syn()).segment().flags, SYN | ACK);
}

#[test]
fn a_new_syn_to_nobody_leaves_it_alone() {
    let (mut h, mut p, tw, _) = waiting(plain());
    let s = toe_core::SockId(0);
    h.close(s);
    p.seq = tw.rcv_nxt + 1;
    assert!(h.receive(p.syn()).none());
    assert_eq!(h.slow.status().time_wait, 1);
}

#[test]
fn our_own_connect_avoids_it_or_cuts_it_short_with_timestamps() {
    for (options, want) in [(plain(), 99), (linux_options(), 0)] {
        let mut cfg = config(MAC, &[("127.77.0.1", 24)]);
        cfg.tcp.port_range = (50_000, 50_000);
        let mut h = Host::new(cfg, 0);
        let mut p = Peer::new("127.77.0.2:80", "127.77.0.1:0");
        p.options = options;
        let s = h.socket();
        let f = h.connect_flow(s, &mut p);
        let (tw, _) = h.end_time_wait(&f);
        h.close(s);
        let s = h.socket();
        assert_eq!(h.connect(s, "127.77.0.2:80").0, 99, "at once: not even with timestamps");
        h.wait(ms(1000));
        let (err, came) = h.connect(s, "127.77.0.2:80");
        assert_eq!(err, want);
        if want == 0 {
            let syn = came.segment();
            assert!(syn.seq.after_eq(tw.snd_nxt + 65_537));
            assert!(syn.options.timestamps.unwrap().val > 0);
            assert_eq!(h.slow.status().counters.time_waits_recycled, 1);
        }
    }
}

#[test]
fn answers_outside_the_window_are_limited() {
    let mut cfg = config(MAC, &[("127.77.0.1", 24)]);
    cfg.tcp.challenge_ack_limit = 3;
    let mut h = Host::new(cfg, 0);
    let l = h.listener(US, 5);
    let mut p = Peer::new(PEER, US);
    let f = h.accept_flow(&mut p);
    let s = h.accept(l).unwrap();
    let (tw, _) = h.end_time_wait(&f);
    h.close(s);
    let old = p.frame(tw.rcv_nxt - 50, tw.snd_nxt, ACK, ts(6000), b"again");
    let answers = |h: &mut Host| (0..10).filter(|_| !h.receive(old.clone()).none()).count();
    assert_eq!(answers(&mut h), 3);
    h.now += ms(1000);
    assert_eq!(answers(&mut h), 3);
    assert_eq!(h.slot(s).generation.load(SeqCst), 1);
}
