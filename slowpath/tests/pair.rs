//! Two slow paths back to back. The stand-in fast paths only forward: what is to be sent arrives at the other side as a punt.
#![allow(missing_docs, clippy::vec_box)]

mod common;
use common::*;
use toe_core::flow::FlowInit;
use toe_core::shm::SockState;
use toe_core::{NicId, SockId};

struct Pair {
    a: Host,
    b: Host,
    installs: [Vec<Box<FlowInit>>; 2],
    sent: usize,
    /// Frames (by number, of both sides together) that are lost.
    lose: Vec<usize>,
}

fn pair() -> Pair {
    let a = Host::new(config(MAC, &[("127.77.0.1", 24), ("fd77::1", 64)]), 0);
    let b = Host::new(config(PEER_MAC, &[("127.77.0.2", 24), ("fd77::2", 64)]), 0);
    Pair { a, b, installs: [vec![], vec![]], sent: 0, lose: vec![] }
}

impl Pair {
    /// Carries frames until nobody says anything more.
    fn settle(&mut self, first: Came) {
        let mut from_a = first;
        loop {
            let mut from_b = self.b.run();
            from_a = merge(from_a, self.a.run());
            if from_a.frames.is_empty() && from_b.frames.is_empty() {
                self.installs[0].append(&mut from_a.installs);
                self.installs[1].append(&mut from_b.installs);
                return;
            }
            self.installs[0].append(&mut from_a.installs);
            self.installs[1].append(&mut from_b.installs);
            self.carry(from_a, false);
            self.carry(from_b, true);
            from_a = Came::default();
        }
    }

    fn carry(&mut self, came: Came, to_a: bool) {
        for (core, frame) in came.frames {
            self.sent += 1;
            if !self.lose.contains(&self.sent) {
                let host = if to_a { &mut self.a } else { &mut self.b };
                host.punt_at(core.0, NicId(0), frame);
            }
        }
    }

    /// Both clocks go to the next timer of either.
    fn step(&mut self) -> bool {
        let next = [self.a.next(), self.b.next()].into_iter().flatten().min();
        let Some(next) = next else { return false };
        (self.a.now, self.b.now) = (next, next);
        self.settle(Came::default());
        true
    }
}

fn merge(mut a: Came, mut b: Came) -> Came {
    a.frames.append(&mut b.frames);
    a.installs.append(&mut b.installs);
    a
}

fn agree(a: &FlowInit, b: &FlowInit) {
    assert_eq!(a.key, b.key.reversed());
    assert_eq!((a.iss, a.irs), (b.irs, b.iss));
    assert_eq!((a.snd_wscale, a.rcv_wscale, a.sack), (b.rcv_wscale, b.snd_wscale, b.sack));
    assert_eq!((a.snd_mss, a.rcv_mss), (b.rcv_mss, b.snd_mss));
    assert_eq!(a.l2[..6], b.l2[6..12]);
    assert_eq!(a.timestamps.is_some(), b.timestamps.is_some());
    assert!(a.sack && a.snd_wscale == 7 && a.timestamps.is_some());
}

fn meet(to: &str) {
    let mut p = pair();
    let l = p.b.listener("[::]:80", 300);
    let mut socks = vec![];
    for _ in 0..200 {
        let s = p.a.socket();
        let (err, came) = p.a.connect(s, to);
        assert_eq!(err, 0);
        p.settle(came);
        socks.push(s);
    }
    assert!(socks.iter().all(|&s| p.a.state(s) == SockState::Established));
    assert_eq!(std::iter::from_fn(|| p.b.accept(l)).count(), 200);
    let [mut at_a, mut at_b] = core::mem::take(&mut p.installs);
    at_a.sort_by_key(|f| f.key.local_port);
    at_b.sort_by_key(|f| f.key.remote_port);
    assert_eq!((at_a.len(), at_b.len()), (200, 200));
    for (a, b) in at_a.iter().zip(&at_b) {
        agree(a, b);
    }
    let cores: Vec<usize> = (0..2).map(|c| at_b.iter().filter(|f| f.core.index() == c).count()).collect();
    assert!(cores.iter().all(|&n| n > 50), "both cores take their part: {cores:?}");
    assert!(p.a.slow.is_quiet() && p.b.slow.is_quiet() && !p.step());
}

#[test]
fn ipv4() {
    meet("127.77.0.2:80");
}

#[test]
fn ipv6() {
    meet("[fd77::2]:80");
}

#[test]
fn refused() {
    let mut p = pair();
    let s = p.a.socket();
    let (_, came) = p.a.connect(s, "127.77.0.2:81");
    p.settle(came);
    assert_eq!(p.a.slot(s).error.load(std::sync::atomic::Ordering::SeqCst), 111);
}

/// Any one or two of the first frames lost (neighbour questions included): the connection still comes about.
#[test]
fn losses() {
    for first in 1..8 {
        for second in first..8 {
            let mut p = pair();
            p.lose = vec![first, second];
            let l = p.b.listener("0.0.0.0:80", 5);
            let s = p.a.socket();
            let (_, came) = p.a.connect(s, "127.77.0.2:80");
            p.settle(came);
            while p.a.state(s) == SockState::Connecting && p.step() {}
            while p.installs[1].is_empty() && p.step() {
                // Our last ACK was lost: the fast path would answer the repeated SYN-ACK; its data would do as well.
                if p.installs[0].len() == 1 && p.installs[1].is_empty() {
                    let f = &p.installs[0][0];
                    let mut data = Peer::new("127.77.0.1:1", "127.77.0.2:80");
                    data.key = f.key;
                    (data.seq, data.ack, data.to_mac, data.mac) = (f.iss, f.irs + 1, PEER_MAC, MAC);
                    data.options.timestamps = None;
                    let frame = data.data(b"x", 0x10);
                    p.b.punt_at(0, NicId(0), frame);
                    p.settle(Came::default());
                }
            }
            assert_eq!((p.installs[0].len(), p.installs[1].len()), (1, 1), "lost {first} {second}");
            agree(&p.installs[0][0], &p.installs[1][0]);
            assert!(p.b.accept(l).is_some());
        }
    }
}

#[test]
fn both_at_once() {
    let mut p = pair();
    let (s, t): (SockId, SockId) = (p.a.socket(), p.b.socket());
    assert_eq!((p.a.bind(s, "127.77.0.1:7"), p.b.bind(t, "127.77.0.2:7")), (0, 0));
    // Neighbours first, so that the SYNs cross.
    let q = p.a.receive(arp(1, PEER_MAC, [127, 77, 0, 2].into(), [0; 6], [127, 77, 0, 1].into()));
    p.settle(q);
    let (_, mut from_a) = p.a.connect(s, "127.77.0.2:7");
    let (_, from_b) = p.b.connect(t, "127.77.0.1:7");
    from_a.frames.retain(|f| f.1.len() > 42);
    p.carry(from_b, true);
    p.settle(from_a);
    while p.a.state(s) == SockState::Connecting && p.step() {}
    assert_eq!((p.a.state(s), p.b.state(t)), (SockState::Established, SockState::Established));
    agree(&p.installs[0][0], &p.installs[1][0]);
}
