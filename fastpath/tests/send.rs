//! Sending, as tables of segments: Nagle, cork, windows, retransmission, congestion.

mod common;

use common::host::Agreed;
use common::script::Script;
use std::sync::atomic::Ordering::Relaxed;
use toe_core::FlowId;
use toe_core::msg::{Down, TimerKind};
use toe_core::shm::app_flags;
use toe_core::tcp::TcpConfig;

const MSS: u64 = 1000;

fn script(sack: bool) -> Script {
    Script::reno(MSS as u16, sack)
}

fn cwnd(s: &Script) -> u64 {
    s.app().slot().info.cwnd.load(Relaxed).into()
}

/// `n` full segments in flight.
fn in_flight(s: &mut Script, n: u64) {
    s.app().write(n * MSS);
    s.poll();
    assert_eq!(s.sent().len() as u64, n);
}

#[test]
fn nagle_holds_the_second_short_segment() {
    let mut s = script(true);
    s.app().write(10);
    s.poll();
    s.expect(&["AP 0:10 ack 0"]);
    s.app().write(10);
    s.poll();
    s.expect(&[]);
    s.app().write(MSS);
    s.poll();
    s.expect(&["A 10:1010 ack 0"]);
    s.step("A 0:0 ack 10", &["AP 1010:1020 ack 0"]);
}

#[test]
fn minshall_lets_a_short_rest_follow_full_segments() {
    let mut s = script(true);
    s.app().write(2 * MSS + 5);
    s.poll();
    s.expect(&["A 0:1000 ack 0", "A 1000:2000 ack 0", "AP 2000:2005 ack 0"]);
}

#[test]
fn nodelay_sends_at_once() {
    let mut s = script(true);
    s.app().set_flags(app_flags::NODELAY, 0);
    for n in 0..3 {
        s.app().write(10);
        s.poll();
        s.expect(&[&format!("AP {}:{} ack 0", n * 10, n * 10 + 10)]);
    }
}

#[test]
fn cork_holds_for_200_ms_or_until_pulled() {
    let mut s = script(true);
    s.app().set_flags(app_flags::CORK | app_flags::NODELAY, 0);
    s.app().write(MSS + 10);
    s.poll();
    s.expect(&["A 0:1000 ack 0"]);
    s.app().set_flags(0, app_flags::CORK);
    s.poll();
    s.expect(&["AP 1000:1010 ack 0"]);
    s.step("A 0:0 ack 1010", &[]);
    s.app().set_flags(app_flags::CORK, 0);
    s.app().write(10);
    s.poll();
    s.pass(199);
    s.expect(&[]);
    s.pass(1);
    s.expect(&["AP 1010:1020 ack 0"]);
}

#[test]
fn a_fin_pulls_the_cork() {
    let mut s = script(true);
    s.app().set_flags(app_flags::CORK, 0);
    s.app().write(10);
    s.app().shutdown();
    s.poll();
    s.expect(&["APF 0:10 ack 0"]);
}

#[test]
fn the_peers_window_is_a_limit() {
    let mut s = script(true);
    s.step("A 0:0 ack 0 win 2500", &[]);
    s.app().write(5000);
    s.poll();
    s.expect(&["A 0:1000 ack 0", "A 1000:2000 ack 0"]);
    // 500 bytes more would be silly: less than a segment, less than half of the largest window.
    s.step("A 0:0 ack 1000 win 2500", &["A 2000:3000 ack 0"]);
    s.step("A 0:0 ack 3000 win 0", &[]);
    s.step("A 0:0 ack 3000 win 2000", &["A 3000:4000 ack 0", "AP 4000:5000 ack 0"]);
}

#[test]
fn a_zero_window_is_probed_with_back_off() {
    let mut s = script(true);
    s.step("A 0:0 ack 0 win 0", &[]);
    s.app().write(100);
    s.poll();
    s.expect(&[]);
    s.pass(250);
    assert_eq!(s.host.timeouts, [TimerKind::Persist]);
    s.down(Down::Probe(FlowId(0), TimerKind::Persist));
    s.expect(&["A -1:-1 ack 0"]);
    s.step("A 0:0 ack 0 win 0", &[]);
    s.pass(390);
    assert_eq!(s.host.timeouts.len(), 1);
    s.pass(100);
    assert_eq!(s.host.timeouts.len(), 2);
    s.down(Down::Probe(FlowId(0), TimerKind::Persist));
    s.expect(&["A -1:-1 ack 0"]);
    s.step("A 0:0 ack 0 win 50", &[]);
    s.step("A 0:0 ack 0 win 1000", &["AP 0:100 ack 0"]);
    s.step("A 0:0 ack 100", &[]);
    s.pass(10_000_000);
    assert_eq!(s.host.timeouts.len(), 2, "no timer runs while nothing is to be done");
}

#[test]
fn a_silly_window_is_used_when_nothing_else_helps() {
    let mut s = script(true);
    s.step("A 0:0 ack 0 win 60000", &[]);
    s.step("A 0:0 ack 0 win 100", &[]);
    s.app().write(5000);
    s.poll();
    s.expect(&[]);
    s.pass(250);
    s.down(Down::Probe(FlowId(0), TimerKind::Persist));
    s.expect(&["A 0:100 ack 0"]);
}

#[test]
fn slow_start_doubles() {
    let mut s = script(true);
    s.app().write(100 * MSS);
    s.poll();
    assert_eq!(s.sent().len(), 10);
    s.inject("A 0:0 ack 2000");
    assert_eq!(s.sent().len(), 4);
    assert_eq!(cwnd(&s), 12 * MSS);
}

#[test]
fn three_duplicate_acks_resend_without_sack() {
    let mut s = script(false);
    s.app().write(100 * MSS);
    s.poll();
    assert_eq!(s.sent().len(), 10);
    // Limited transmit (RFC 3042): one new segment for each of the first two.
    s.step("A 0:0 ack 0", &["A 10000:11000 ack 0"]);
    s.step("A 0:0 ack 0", &["A 11000:12000 ack 0"]);
    s.step("A 0:0 ack 0", &["A 0:1000 ack 0"]);
    // Half of the flight without the two of limited transmit (RFC 5681 §3.2 step 2).
    assert_eq!((cwnd(&s), s.host.fp.stats().fast_retrans), (5 * MSS, 1));
    // Further duplicates inflate the window (here: deflate the pipe) until new data may go.
    for _ in 0..4 {
        s.step("A 0:0 ack 0", &[]);
    }
    s.step("A 0:0 ack 0", &["A 12000:13000 ack 0"]);
    // A partial ACK: the next hole, at once, and one segment for what left the network (RFC 6582 §3.2 step 5).
    s.step("A 0:0 ack 4000", &["A 4000:5000 ack 0", "A 13000:14000 ack 0"]);
    // All there: recovery is over, half the window remains.
    s.inject("A 0:0 ack 13000");
    assert_eq!((cwnd(&s), s.sent().len()), (5 * MSS, 4));
    assert_eq!(s.host.fp.stats().fast_retrans, 1);
}

#[test]
fn sack_resends_exactly_the_holes() {
    let mut s = script(true);
    in_flight(&mut s, 10);
    s.step("A 0:0 ack 1000 sack 2000:3000", &[]);
    s.step("A 0:0 ack 1000 sack 2000:3000,4000:5000", &[]);
    s.step("A 0:0 ack 1000 sack 2000:3000,4000:6000", &["A 1000:2000 ack 0"]);
    // Nothing new to send: the last segment goes once more in case that the tail is lost too (RFC 6675 NextSeg rule 4).
    s.step("A 0:0 ack 1000 sack 2000:3000,4000:9000", &["A 3000:4000 ack 0", "AP 9000:10000 ack 0"]);
    s.step("A 0:0 ack 3000 sack 4000:9000", &[]);
    s.step("A 0:0 ack 9000", &[]);
    s.step("A 0:0 ack 10000", &[]);
    assert_eq!((s.host.fp.stats().retrans_segs, s.host.fp.stats().fast_retrans), (3, 1));
    s.pass(5000);
    assert_eq!(s.host.timeouts, []);
}

#[test]
fn more_than_two_segments_of_sack_in_one_ack_are_enough() {
    let mut s = script(true);
    in_flight(&mut s, 10);
    s.step("A 0:0 ack 0 sack 1000:10000", &["A 0:1000 ack 0"]);
}

#[test]
fn duplicate_acks_without_news_count_for_nothing() {
    let mut s = script(true);
    in_flight(&mut s, 5);
    for _ in 0..10 {
        s.inject("A 0:0 ack 0");
        s.inject("A 0:0 ack 0 sack 7000:8000");
        s.inject("A 0:0 ack 0 sack -500:0");
    }
    s.expect(&[]);
    let mut s = script(false);
    in_flight(&mut s, 5);
    for n in 0..10 {
        s.inject(&format!("A 0:0 ack 0 win {}", 30_000 + n * 100));
    }
    s.expect(&[]);
}

#[test]
fn a_time_out_backs_off_and_starts_slowly() {
    let mut s = script(true);
    in_flight(&mut s, 10);
    s.pass(205);
    assert_eq!(s.host.timeouts, [TimerKind::Retransmit]);
    s.expect(&["AP 9000:10000 ack 0"]); // the tail loss probe
    s.down(Down::Retransmit(FlowId(0)));
    s.expect(&["A 0:1000 ack 0"]);
    assert_eq!((cwnd(&s), s.app().slot().info.ssthresh.load(Relaxed)), (MSS, 5000));
    s.pass(390);
    assert_eq!(s.host.timeouts.len(), 1);
    s.pass(20);
    assert_eq!(s.host.timeouts.len(), 2);
    s.down(Down::Retransmit(FlowId(0)));
    s.expect(&["A 0:1000 ack 0"]);
    assert_eq!(s.app().slot().info.ssthresh.load(Relaxed), 5000, "held for repeated time-outs");
    // Go back through what is outstanding as ACKs come.
    s.step("A 0:0 ack 1000", &["A 1000:2000 ack 0", "A 2000:3000 ack 0"]);
    s.step("A 0:0 ack 3000", &["A 3000:4000 ack 0", "A 4000:5000 ack 0", "A 5000:6000 ack 0", "A 6000:7000 ack 0"]);
    s.step("A 0:0 ack 10000", &[]);
    s.pass(100_000);
    assert_eq!(s.host.timeouts.len(), 2);
}

#[test]
fn after_a_time_out_sacked_data_is_not_sent_again() {
    let mut s = script(true);
    in_flight(&mut s, 4);
    s.step("A 0:0 ack 0 sack 1000:2000", &[]);
    s.pass(300);
    s.expect(&["AP 3000:4000 ack 0"]);
    s.down(Down::Retransmit(FlowId(0)));
    s.expect(&["A 0:1000 ack 0"]);
    s.step("A 0:0 ack 2000", &["A 2000:3000 ack 0", "AP 3000:4000 ack 0"]);
}

#[test]
fn a_time_out_without_an_answer_is_told_again() {
    let mut s = script(true);
    in_flight(&mut s, 1);
    s.pass(3000);
    assert!(s.host.timeouts.len() >= 3);
    s.expect(&[]);
}

#[test]
fn a_smaller_path_mtu_recuts_what_is_in_flight() {
    let mut s = script(true);
    s.app().write(2000);
    s.poll();
    s.expect(&["A 0:1000 ack 0", "AP 1000:2000 ack 0"]);
    let before = cwnd(&s);
    s.down(Down::SetMss(FlowId(0), 500));
    s.expect(&["A 0:500 ack 0", "A 500:1000 ack 0", "A 1000:1500 ack 0", "AP 1500:2000 ack 0"]);
    assert_eq!(cwnd(&s), before);
    s.step("A 0:0 ack 500", &[]);
    assert_eq!(s.host.fp.stats().fast_retrans, 0);
}

#[test]
fn one_send_for_many_segments_when_the_link_cuts() {
    let agreed = Agreed { timestamps: false, wscale: 0, ..Agreed::default() };
    let mut s = Script::with(agreed, TcpConfig::default(), 65_000);
    s.app().write(20_000);
    s.poll();
    s.expect(&["A 0:14600 ack 0 gso 1460"]);
    s.step("A 0:0 ack 14600", &["AP 14600:20000 ack 0 gso 1460"]);
}

#[test]
fn keepalive_probes_an_idle_peer() {
    let mut s = script(true);
    s.app().slot().opt_keepidle.store(10, Relaxed);
    s.app().slot().opt_keepintvl.store(2, Relaxed);
    s.app().set_flags(app_flags::KEEPALIVE, 0);
    s.poll();
    s.pass(9_000);
    s.inject("A 0:0 ack 0");
    s.pass(9_000);
    assert_eq!(s.host.timeouts, []);
    s.pass(1_001);
    assert_eq!(s.host.timeouts, [TimerKind::KeepAlive]);
    s.down(Down::Probe(FlowId(0), TimerKind::KeepAlive));
    s.expect(&["A -1:-1 ack 0"]);
    s.pass(2_001);
    assert_eq!(s.host.timeouts.len(), 2);
    s.inject("A 0:0 ack 0");
    s.pass(7_000);
    assert_eq!(s.host.timeouts.len(), 2);
    s.app().set_flags(0, app_flags::KEEPALIVE);
    s.pass(100_000);
    assert_eq!(s.host.timeouts.len(), 2);
}

#[test]
fn an_idle_window_starts_again() {
    let mut s = script(true);
    s.app().write(60 * MSS);
    s.poll();
    let mut acked = 0;
    while acked < 60 * MSS {
        acked += s.sent().len() as u64 * MSS;
        s.inject(&format!("A 0:0 ack {acked}"));
    }
    let before = cwnd(&s);
    s.pass(10_000);
    s.app().write(50 * MSS);
    s.poll();
    assert!(before > 10 * MSS);
    assert_eq!(s.sent().len(), 10);
}

#[test]
fn acked_chunks_go_back_to_the_app() {
    let mut s = script(true);
    s.app().write(100_000);
    s.poll();
    let mut acked = 0;
    while acked < 100_000 {
        acked += (s.sent().len() as u64) * MSS;
        s.inject(&format!("A 0:0 ack {acked}"));
    }
    assert_eq!(s.app().acked(), 100_000);
    assert_eq!(s.host.region.layout().tx_pool.used.load(Relaxed), 1, "only the chunk that the tail is in");
}

#[test]
fn duplicate_acks_are_not_swallowed_by_data_the_other_way() {
    let mut s = script(false);
    s.app().write(MSS);
    s.queue("A 1000:2000 ack 0");
    s.queue("A 2000:3000 ack 0");
    s.poll();
    s.expect(&["AP 0:1000 ack 0", "A 1000:1000 ack 0", "A 1000:1000 ack 0"]);
}

#[test]
fn an_answer_to_a_time_out_that_progress_has_overtaken_is_void() {
    let mut s = script(true);
    in_flight(&mut s, 4);
    s.pass(205);
    assert_eq!(s.host.timeouts, [TimerKind::Retransmit]);
    s.expect(&["AP 3000:4000 ack 0"]);
    let before = cwnd(&s);
    s.inject("A 0:0 ack 1000");
    s.down(Down::Retransmit(FlowId(0)));
    s.expect(&[]);
    assert!(cwnd(&s) >= before);
}

#[test]
fn a_full_link_loses_nothing() {
    let mut s = script(true);
    s.set_full(true);
    s.inject("A 0:500 ack 0");
    s.app().write(1500);
    s.poll();
    s.pass(1);
    s.expect(&[]);
    s.set_full(false);
    s.pass(1);
    s.expect(&["A 0:1000 ack 500", "AP 1000:1500 ack 500"]);
}

#[test]
fn a_sender_that_waits_is_told_of_room() {
    let mut s = script(true);
    s.app().slot().opt_sndbuf.store(9000, Relaxed);
    s.app().kick();
    s.poll();
    assert_eq!(s.app().write_some(20_000), 9000);
    s.app().slot().tx_wait.store(1, Relaxed);
    s.poll();
    s.inject("A 0:0 ack 2000");
    assert_eq!(s.app().slot().tx_wait.load(Relaxed), 1, "less than a third is free");
    s.inject("A 0:0 ack 3000");
    assert_eq!(s.app().slot().tx_wait.load(Relaxed), 0);
}

#[test]
fn sleeping_is_safe_only_when_nothing_is_pending() {
    let mut s = script(true);
    assert!(s.host.fp.arm());
    s.host.fp.disarm();
    s.app().kick();
    assert!(!s.host.fp.arm(), "a kick is pending");
    s.poll();
    assert!(s.host.fp.arm());
    s.host.down.send(Down::Report);
    assert!(!s.host.fp.arm(), "a message is pending");
    s.poll();
    s.queue("A 0:10 ack 0");
    assert!(!s.host.fp.arm(), "a frame is pending");
    s.poll();
    assert!(s.host.fp.arm());
}

#[test]
fn an_idle_flow_has_no_timer() {
    let mut s = script(true);
    s.app().write(100);
    s.poll();
    s.inject("A 0:10 ack 100");
    s.pass(60_000);
    assert_eq!(s.host.round(s.now), None);
}
