//! Losses that no duplicate ACKs tell of: tail loss probes (RFC 8985 §7), and what is lost a second time.

mod common;

use common::script::Script;
use std::sync::atomic::Ordering::Relaxed;

const MSS: u64 = 1000;
/// More than two round trips and the probe's slack: the handshake took less than a millisecond.
const SOON: u64 = 5;

fn script(sack: bool) -> Script {
    let mut s = Script::reno(MSS as u16, sack);
    // A measured round trip.
    s.app().write(MSS);
    s.poll();
    s.expect(&["AP 0:1000 ack 0"]);
    s.step("A 0:0 ack 1000", &[]);
    s
}

fn cwnd(s: &Script) -> u64 {
    s.app().slot().info.cwnd.load(Relaxed).into()
}

fn write(s: &mut Script, segments: u64) {
    s.app().write(segments * MSS);
    s.poll();
    let _ = s.sent();
}

#[test]
fn a_silent_flight_is_probed_once_with_its_last_segment() {
    let mut s = script(true);
    write(&mut s, 3);
    s.pass(SOON);
    s.expect(&["AP 3000:4000 ack 0"]);
    s.pass(20 * SOON);
    s.expect(&[]);
    assert_eq!(s.host.fp.stats().loss_probes, 1);
    // An answer allows the next.
    s.step("A 0:0 ack 2000", &[]);
    s.pass(SOON);
    s.expect(&["AP 3000:4000 ack 0"]);
}

#[test]
fn a_probe_brings_new_data_if_there_is_any() {
    let mut s = script(true);
    let window = cwnd(&s) / MSS;
    write(&mut s, window + 5);
    let end = MSS + window * MSS;
    s.pass(SOON);
    s.expect(&[&format!("A {end}:{} ack 0", end + MSS)]);
}

#[test]
fn the_first_hole_is_probed_when_the_last_segment_is_there() {
    let mut s = script(true);
    write(&mut s, 3);
    s.step("A 0:0 ack 1000 sack 2000:4000", &[]);
    s.pass(SOON);
    s.expect(&["A 1000:2000 ack 0"]);
}

#[test]
fn one_segment_alone_waits_for_the_retransmission_timer() {
    let mut s = script(true);
    write(&mut s, 1);
    s.pass(20 * SOON);
    s.expect(&[]);
}

#[test]
fn without_sack_there_are_no_probes() {
    let mut s = script(false);
    write(&mut s, 5);
    s.pass(20 * SOON);
    s.expect(&[]);
}

#[test]
fn a_loss_that_a_probe_repaired_halves_the_window() {
    for (answer, halved) in [("A 0:0 ack 4000", true), ("A 0:0 ack 4000 sack 3000:4000", false)] {
        let mut s = script(true);
        write(&mut s, 3);
        let before = cwnd(&s);
        s.pass(SOON);
        s.expect(&["AP 3000:4000 ack 0"]);
        s.step(answer, &[]);
        assert_eq!(cwnd(&s) < before, halved, "{answer}");
    }
}

#[test]
fn a_lost_retransmission_is_sent_again_without_a_time_out() {
    let mut s = script(true);
    write(&mut s, 8);
    s.step("A 0:0 ack 1000 sack 2000:5000", &["A 1000:2000 ack 0"]);
    let before = cwnd(&s);
    // All but the retransmission arrives, and what is written now, which left after it.
    s.inject("A 0:0 ack 1000 sack 2000:9000");
    write(&mut s, 3);
    s.step("A 0:0 ack 1000 sack 2000:11000", &["AP 11000:12000 ack 0"]);
    s.step("A 0:0 ack 1000 sack 2000:12000", &["A 1000:2000 ack 0"]);
    assert_eq!(s.host.fp.stats().lost_retransmits, 1);
    assert!(cwnd(&s) < before, "RFC 5681 section 4.3");
    s.step("A 0:0 ack 12000", &[]);
    assert_eq!(s.host.timeouts, []);
}
