//! ICMP errors, echo, ARP, NDP, and frames of any kind.
#![allow(missing_docs, clippy::vec_box)]

mod common;
use common::*;
use proptest::prelude::*;
use std::sync::atomic::Ordering::SeqCst;
use toe_core::flow::FlowInit;
use toe_core::msg::Down;
use toe_core::shm::SockState;
use toe_core::wire::flags::*;
use toe_core::{NicId, SeqNr};

const PEER: &str = "127.77.0.2:80";
const US: &str = "127.77.0.1:0";

/// An IPv4 error quoting a segment of ours.
fn error4(kind: u8, code: u8, rest: u32, key: &toe_core::flow::FlowKey, seq: SeqNr) -> Vec<u8> {
    let (std::net::IpAddr::V4(s), std::net::IpAddr::V4(d)) = (key.local_ip, key.remote_ip) else { unreachable!() };
    let quoted = [&[0x45, 0, 5, 0xdc, 0, 0, 0x40, 0, 64, 6, 0, 0][..], &s.octets(), &d.octets()].concat();
    let tcp = [key.local_port.to_be_bytes(), key.remote_port.to_be_bytes()].concat();
    let body = [&[kind, code, 0, 0][..], &rest.to_be_bytes(), &quoted, &tcp, &seq.0.to_be_bytes()].concat();
    icmp4(ip("127.77.0.254"), key.local_ip, body)
}

fn established(bytes_in_flight: u64) -> (Host, Box<FlowInit>) {
    let mut h = host();
    let s = h.socket();
    let mut p = Peer::new(PEER, US);
    let f = h.connect_flow(s, &mut p);
    h.slot(s).tx_sent.store(bytes_in_flight, SeqCst);
    (h, f)
}

fn mss(came: &Came) -> Option<u16> {
    came.others.iter().find_map(|m| match m {
        Down::SetMss(_, m) => Some(*m),
        _ => None,
    })
}

#[test]
fn fragmentation_needed_lowers_the_mss_of_known_data_only() {
    let (mut h, f) = established(3000);
    let inside = f.iss + 1 + 1460;
    assert_eq!(mss(&h.receive(error4(3, 4, 1400, &f.key, f.iss + 1 + 3001))), None, "not in flight");
    assert_eq!(mss(&h.receive(error4(3, 4, 1400, &f.key, f.iss))), None, "acknowledged");
    let mut other = f.key;
    other.remote_port += 1;
    assert_eq!(mss(&h.receive(error4(3, 4, 1400, &other, inside))), None, "no such flow");
    assert_eq!(mss(&h.receive(error4(3, 4, 1400, &f.key, inside))), Some(1360));
    assert_eq!(mss(&h.receive(error4(3, 4, 1400, &f.key, inside))), None, "no news");
    assert_eq!(mss(&h.receive(error4(3, 4, 1500, &f.key, inside))), None, "never larger");
    assert_eq!(mss(&h.receive(error4(3, 4, 68, &f.key, inside))), Some(512), "never below 552");
    let (mut h, f) = established(3000);
    assert_eq!(mss(&h.receive(error4(3, 4, 0, &f.key, inside_of(&f)))), Some(1452), "RFC 1191 plateau below 1500");
}

fn inside_of(f: &FlowInit) -> SeqNr {
    f.iss + 1
}

#[test]
fn packet_too_big() {
    let mut h = host();
    let s = h.socket();
    let mut p = Peer::new("[fd77::2]:80", "[fd77::1]:0");
    let f = h.connect_flow(s, &mut p);
    h.slot(s).tx_sent.store(3000, SeqCst);
    let too_big = |mtu: u32| {
        let (std::net::IpAddr::V6(us), std::net::IpAddr::V6(them)) = (f.key.local_ip, f.key.remote_ip) else {
            unreachable!()
        };
        let quoted = [&[0x60, 0, 0, 0, 5, 0xb4, 6, 64][..], &us.octets(), &them.octets()].concat();
        let tcp = [f.key.local_port.to_be_bytes(), f.key.remote_port.to_be_bytes()].concat();
        let seq = (f.iss + 1).0.to_be_bytes();
        let body = [&[2, 0, 0, 0][..], &mtu.to_be_bytes(), &quoted, &tcp, &seq].concat();
        icmp6(PEER_MAC, MAC, ip("fd77::9"), f.key.local_ip, body)
    };
    assert_eq!(mss(&h.receive(too_big(1400))), Some(1340));
    assert_eq!(mss(&h.receive(too_big(576))), Some(1220), "RFC 8200: never below 1280");
}

#[test]
fn errors_never_end_an_established_connection() {
    let (mut h, f) = established(100);
    for (kind, code, errno) in [(3, 1, 113), (3, 3, 111), (11, 0, 113), (12, 0, 71), (3, 0, 101)] {
        assert!(h.receive(error4(kind, code, 0, &f.key, inside_of(&f))).none());
        assert_eq!(h.slot(f.sock).soft_error.load(SeqCst), errno);
    }
    assert_eq!(h.state(f.sock), SockState::Established);
    // On give-up it says more than ETIMEDOUT.
    let came = h.timeout(&f, toe_core::msg::TimerKind::Retransmit, 16, ms(900_000));
    assert_eq!(came.removed, [(f.id, 101, false)]);
}

#[test]
fn errors_during_connect() {
    for (kind, code, errno) in [(3, 1, 113), (3, 0, 101), (3, 3, 111), (3, 2, 92), (11, 0, 113)] {
        let mut h = host();
        let s = h.socket();
        h.connect(s, PEER);
        let syn = h.receive(Peer::new(PEER, US).neighbour_answer()).segment();
        let key = syn.key.reversed();
        h.receive(error4(kind, code, 0, &key, syn.seq + 1));
        assert_eq!(h.state(s), SockState::Connecting, "not our SYN");
        h.receive(error4(kind, code, 0, &key, syn.seq));
        assert_eq!((h.state(s), h.slot(s).error.load(SeqCst)), (SockState::Closed, errno));
    }
}

#[test]
fn bad_checksums_and_cut_quotes_are_ignored() {
    let (mut h, f) = established(3000);
    let good = error4(3, 4, 1400, &f.key, inside_of(&f));
    for cut in 30..good.len() {
        assert!(h.receive(good[..cut].to_vec()).none());
    }
    let mut bad = good.clone();
    bad[40] ^= 1;
    assert!(h.receive(bad).none());
    assert!(!h.receive(good).none());
}

#[test]
fn arp_is_answered_for_our_addresses_only() {
    let mut h = host();
    let who = |a: [u8; 4]| arp(1, PEER_MAC, [127, 77, 0, 2].into(), [0; 6], a.into());
    let came = h.receive(who([127, 77, 0, 1]));
    assert_eq!(came.frames[0].1, arp(2, MAC, [127, 77, 0, 1].into(), PEER_MAC, [127, 77, 0, 2].into()));
    assert!(h.receive(who([127, 77, 0, 3])).none());
    // And the asker is known now.
    let s = h.socket();
    assert_eq!(h.connect(s, PEER).1.segment().flags, SYN);
}

#[test]
fn neighbours_are_answered_even_from_their_link_local_address() {
    for from in ["fd77::2", "fe80::2"] {
        let mut h = host();
        let (std::net::IpAddr::V6(target), _) = (ip("fd77::1"), ()) else { unreachable!() };
        let body = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &target.octets(), &[1, 1], &PEER_MAC].concat();
        let came = h.receive(icmp6(PEER_MAC, MAC, ip(from), ip("fd77::1"), body));
        let frame = &came.frames[0].1;
        assert_eq!((frame[54], &frame[62..78], &frame[..6]), (136, &target.octets()[..], &PEER_MAC[..]));
        assert_eq!(frame[80..86], MAC);
    }
}

#[test]
fn echo() {
    let mut h = host();
    h.receive(arp(1, PEER_MAC, [127, 77, 0, 2].into(), [0; 6], [127, 77, 0, 1].into()));
    let came = h.receive(icmp4(ip("127.77.0.2"), ip("127.77.0.1"), b"\x08\0\0\0\0\x01\0\x02payload".to_vec()));
    let reply = &came.frames[0].1;
    assert_eq!((reply[34], &reply[38..]), (0, &b"\0\x01\0\x02payload"[..]));
    let mut h = host();
    h.receive(Peer::new("[fd77::2]:1", "[fd77::1]:1").neighbour_answer());
    let body = b"\x80\0\0\0\0\x01\0\x02payload".to_vec();
    let came = h.receive(icmp6(PEER_MAC, MAC, ip("fd77::2"), ip("fd77::1"), body));
    assert_eq!(came.frames[0].1[54], 129);
}

#[test]
fn a_neighbour_that_moves_takes_its_flows_along() {
    let (mut h, f) = established(0);
    let moved = [2, 0, 0, 0, 0, 9];
    let came = h.receive(arp(1, moved, [127, 77, 0, 2].into(), [0; 6], [127, 77, 0, 1].into()));
    let l2 = came.others.iter().find_map(|m| match m {
        Down::SetL2(id, l2) if *id == f.id => Some(*l2),
        _ => None,
    });
    assert_eq!(l2.unwrap()[..], [&moved[..], &MAC, &[8, 0]].concat());
}

#[test]
fn ip_options_are_taken_off_and_fragments_and_other_protocols_dropped() {
    let mut h = host();
    h.listener("127.77.0.1:80", 5);
    h.receive(arp(1, PEER_MAC, [127, 77, 0, 2].into(), [0; 6], [127, 77, 0, 1].into()));
    let syn = Peer::new("127.77.0.2:9", "127.77.0.1:80").syn();
    let mut with = [&syn[..34], &[1, 1, 1, 0], &syn[34..]].concat();
    with[14] = 0x46;
    let total = (with.len() - 14) as u16;
    with[16..18].copy_from_slice(&total.to_be_bytes());
    with[24..26].copy_from_slice(&[0, 0]);
    let sum = !toe_core::wire::checksum::fold(toe_core::wire::checksum::add(0, &with[14..38]));
    with[24..26].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(h.receive(with).segment().flags, SYN | ACK);
    let mut fragment = syn.clone();
    fragment[20] = 0x20;
    assert!(h.receive(fragment).none());
    let mut udp = syn;
    udp[23] = 17;
    assert!(h.receive(udp).none());
    assert_eq!(h.slow.status().counters.unknown_protocols, 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any bytes, with plausible beginnings: no panic in us or in smoltcp.
    #[test]
    fn any_frames(frames in proptest::collection::vec((0u8..8, proptest::collection::vec(any::<u8>(), 0..120)), 1..40)) {
        let mut h = host();
        h.listener("127.77.0.1:80", 5);
        let s = h.socket();
        h.connect(s, PEER);
        for (kind, tail) in frames {
            let base = match kind {
                0 => arp(1, PEER_MAC, [127, 77, 0, 2].into(), [0; 6], [127, 77, 0, 1].into()),
                1 => icmp4(ip("127.77.0.2"), ip("127.77.0.1"), [&[8, 0, 0, 0][..], &tail].concat()),
                2 => icmp4(ip("127.77.0.2"), ip("127.77.0.1"), [&[3, 4, 0, 0][..], &tail].concat()),
                3 => icmp6(PEER_MAC, MAC, ip("fd77::2"), ip("fd77::1"), [&[135, 0, 0, 0][..], &tail].concat()),
                4 => icmp6(PEER_MAC, MAC, ip("fd77::2"), ip("fd77::1"), [&[136, 0, 0, 0][..], &tail].concat()),
                5 => icmp6(PEER_MAC, MAC, ip("fd77::2"), ip("fd77::1"), [&[2, 0, 0, 0][..], &tail].concat()),
                6 => Peer::new("127.77.0.2:9", "127.77.0.1:80").syn(),
                _ => vec![],
            };
            h.punt_at(1, NicId(0), base.clone());
            let keep = tail.first().map_or(0, |n| usize::from(*n) % (base.len() + 1));
            h.punt_at(0, NicId(0), [&base[..keep], &tail].concat());
            h.punt_at(0, NicId(7), base);
            h.wait(ms(300));
        }
    }
}
