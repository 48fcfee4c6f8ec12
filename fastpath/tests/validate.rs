//! What is refused, and how: RFC 5961, PAWS, windows, malformed and foreign frames.

mod common;

use common::host::Agreed;
use common::script::Script;
use toe_core::shm::{SockState, daemon_flags};
use toe_core::tcp::TcpConfig;

fn stamped() -> Script {
    Script::with(Agreed { wscale: 0, ..Agreed::default() }, TcpConfig::default(), 0)
}

#[test]
fn a_rst_counts_only_at_the_very_next_byte() {
    let mut s = Script::new();
    s.step("A 0:1000 ack 0", &["A 0:0 ack 1000"]);
    s.step("R 999:999 ack 0", &[]);
    s.step("R 1001:1001 ack 0", &["A 0:0 ack 1000"]);
    s.step("R 2000000:2000000 ack 0", &[]);
    assert_eq!((s.app().state(), s.host.fp.stats().challenge_acks), (SockState::Established, 1));
    s.step("R 1000:1000 ack 0", &[]);
    assert_eq!((s.app().state(), s.app().error()), (SockState::Closed, 104));
    assert_ne!(s.app().slot().daemon_flags.load(std::sync::atomic::Ordering::Relaxed) & daemon_flags::RESET, 0);
    assert_eq!(s.app().read(2000), 1000, "what came before the reset stays readable");
    assert_eq!(s.host.closed.len(), 1);
}

#[test]
fn a_rst_in_close_wait_is_epipe() {
    let mut s = Script::new();
    s.step("AF 0:0 ack 0", &["A 0:0 ack 1"]);
    s.step("R 1:1 ack 0", &[]);
    assert_eq!(s.app().error(), 32);
}

#[test]
fn a_syn_is_challenged_whatever_its_number() {
    let mut s = Script::new();
    s.step("S -1:-1 ack 0", &["A 0:0 ack 0"]);
    s.pass(500);
    s.step("S 5:5 ack 0", &["A 0:0 ack 0"]);
    s.pass(500);
    s.step("SA 70000000:70000000 ack 0", &["A 0:0 ack 0"]);
    assert_eq!((s.host.fp.stats().challenge_acks, s.app().state()), (3, SockState::Established));
}

#[test]
fn challenge_acks_are_limited_for_each_flow_and_for_all() {
    let mut s = Script::new();
    for _ in 0..10 {
        s.inject("S 5:5 ack 0");
    }
    s.expect(&["A 0:0 ack 0"]);
    let mut s = Script::with(Agreed::default(), TcpConfig { challenge_ack_limit: 1, ..TcpConfig::default() }, 0);
    s.now = toe_core::Instant::from_millis(2000);
    s.inject("S 5:5 ack 0");
    s.pass(500);
    s.inject("S 5:5 ack 0");
    assert_eq!(s.sent().len(), 1);
    s.pass(500);
    s.inject("S 5:5 ack 0");
    assert_eq!(s.sent().len(), 1);
}

#[test]
fn an_ack_of_what_was_never_sent_is_challenged_a_very_old_one_too() {
    let mut s = Script::new();
    s.step("A 0:100 ack 1", &["A 0:0 ack 0"]);
    assert_eq!(s.app().received(), 0);
    s.pass(500);
    s.step("A 0:100 ack -70000", &["A 0:0 ack 0"]);
    assert_eq!(s.app().received(), 0);
    s.step("A 0:100 ack -100", &["A 0:0 ack 100"]);
}

#[test]
fn a_segment_without_ack_is_dropped() {
    let mut s = Script::new();
    s.step("P 0:100 ack 0", &[]);
    assert_eq!(s.app().received(), 0);
}

#[test]
fn paws_refuses_the_past_and_answers() {
    let mut s = stamped();
    s.step("A 0:100 ack 0 ts 50:0", &["A 0:0 ack 100"]);
    s.step("A 100:200 ack 0 ts 49:0", &["A 0:0 ack 100"]);
    assert_eq!((s.host.fp.stats().paws_rejected, s.app().received()), (1, 100));
    s.step("A 100:200 ack 0 ts none", &[]);
    assert_eq!(s.app().received(), 100);
    s.step("A 100:200 ack 0 ts 50:0", &["A 0:0 ack 200"]);
    // After 24 days the remembered timestamp is void.
    s.pass(25 * 24 * 3600 * 1000);
    s.step("A 200:300 ack 0 ts 1:0", &["A 0:0 ack 300"]);
}

#[test]
fn the_timestamp_echoed_is_that_of_the_segment_that_advanced() {
    let mut s = stamped();
    s.show_ts = true;
    let now = s.now.millis();
    s.step("A 0:100 ack 0 ts 50:0", &[&format!("A 0:0 ack 100 ts {now}:50")]);
    // A segment beyond a hole does not count, the one that fills it does.
    s.step("A 200:300 ack 0 ts 60:0", &[&format!("A 0:0 ack 100 ts {now}:50 sack 200:300")]);
    s.step("A 100:200 ack 0 ts 55:0", &[&format!("A 0:0 ack 300 ts {now}:55")]);
}

#[test]
fn a_keepalive_probe_is_answered() {
    let mut s = Script::new();
    s.step("A 0:100 ack 0", &["A 0:0 ack 100"]);
    s.step("A 99:99 ack 0", &["A 0:0 ack 100"]);
    s.pass(1000);
    s.step("A 99:100 ack 0", &["A 0:0 ack 100 sack 99:100"]);
}

#[test]
fn empty_segments_out_of_the_window_are_answered_twice_a_second() {
    let mut s = Script::new();
    s.step("A 0:100 ack 0", &["A 0:0 ack 100"]);
    for _ in 0..5 {
        s.inject("A 50:50 ack 0");
    }
    s.expect(&["A 0:0 ack 100"]);
    s.pass(500);
    s.step("A 50:50 ack 0", &["A 0:0 ack 100"]);
}

#[test]
fn foreign_and_broken_frames_go_where_they_belong() {
    let mut s = Script::new();
    let good = s.frame("A 0:100 ack 0");
    let mut arp = good.clone();
    arp[12..14].copy_from_slice(&[8, 6]);
    let mut other_port = good.clone();
    other_port[36] ^= 1;
    let mut truncated = good.clone();
    truncated.truncate(60);
    for frame in [arp, other_port, truncated, vec![], vec![0; 13]] {
        s.queue_frame(frame);
    }
    s.poll();
    let stats = s.host.fp.stats();
    assert_eq!((stats.punts, stats.in_errs), (4, 1));
    assert_eq!(s.host.punts, 4);
}
