//! Receiving, as tables of segments: order, holes, duplicates, ACK timing, windows.

mod common;

use common::host::Agreed;
use common::script::Script;
use toe_core::shm::app_flags;
use toe_core::tcp::TcpConfig;

fn no_sack() -> Script {
    let agreed = Agreed { sack: false, timestamps: false, wscale: 0, ..Agreed::default() };
    Script::with(agreed, TcpConfig::default(), 0)
}

/// Past the quick ACKs of a new flow: 16 full segments, read by the app.
fn settled(s: &mut Script) -> u64 {
    for n in 0..16 {
        s.inject(&format!("A {}:{} ack 0", n * 1000, (n + 1) * 1000));
    }
    assert_eq!(s.sent().len(), 16);
    s.app().read(16_000);
    s.poll();
    s.sent();
    16_000
}

#[test]
fn in_order_data_is_acknowledged_and_readable() {
    let mut s = Script::new();
    s.step("AP 0:1000 ack 0", &["A 0:0 ack 1000"]);
    s.step("AP 1000:1001 ack 0", &["A 0:0 ack 1001"]);
    assert_eq!(s.app().read(5000), 1001);
}

#[test]
fn every_second_segment_is_acknowledged_at_once_the_odd_one_after_40_ms() {
    let mut s = Script::new();
    let at = settled(&mut s);
    s.step(&format!("A {}:{} ack 0", at, at + 1000), &[]);
    s.step(&format!("A {}:{} ack 0", at + 1000, at + 2000), &[&format!("A 0:0 ack {}", at + 2000)]);
    s.step(&format!("A {}:{} ack 0", at + 2000, at + 3000), &[]);
    s.pass(39);
    s.expect(&[]);
    s.pass(1);
    s.expect(&[&format!("A 0:0 ack {}", at + 3000)]);
    assert_eq!(s.host.fp.stats().delayed_acks, 1);
}

#[test]
fn quickack_turns_delaying_off() {
    let mut s = Script::new();
    let at = settled(&mut s);
    s.app().set_flags(app_flags::QUICKACK, 0);
    s.step(&format!("A {}:{} ack 0", at, at + 10), &[&format!("A 0:0 ack {}", at + 10)]);
}

#[test]
fn an_answer_carries_the_ack() {
    let mut s = Script::new();
    let at = settled(&mut s);
    s.step(&format!("AP {}:{} ack 0", at, at + 100), &[]);
    s.app().write(50);
    s.poll();
    s.expect(&[&format!("AP 0:50 ack {}", at + 100)]);
    s.pass(100);
    s.expect(&[]);
}

#[test]
fn a_batch_is_acknowledged_once() {
    let mut s = Script::new();
    for n in 0..10 {
        s.queue(&format!("A {}:{} ack 0", n * 1000, (n + 1) * 1000));
    }
    s.poll();
    s.expect(&["A 0:0 ack 10000"]);
}

#[test]
fn out_of_order_data_is_reported_at_once_and_as_blocks() {
    let mut s = Script::new();
    s.step("A 2000:3000 ack 0", &["A 0:0 ack 0 sack 2000:3000"]);
    s.step("A 4000:5000 ack 0", &["A 0:0 ack 0 sack 4000:5000,2000:3000"]);
    s.step("A 6000:7000 ack 0", &["A 0:0 ack 0 sack 6000:7000,4000:5000,2000:3000"]);
    s.step("A 3000:4000 ack 0", &["A 0:0 ack 0 sack 2000:5000,6000:7000"]);
    s.step("A 0:1000 ack 0", &["A 0:0 ack 1000 sack 2000:5000,6000:7000"]);
    s.step("A 1000:2000 ack 0", &["A 0:0 ack 5000 sack 6000:7000"]);
    s.step("A 5000:6000 ack 0", &["A 0:0 ack 7000"]);
    assert_eq!(s.app().read(9000), 7000);
}

#[test]
fn a_duplicate_is_reported_once_as_dsack() {
    let mut s = Script::new();
    s.step("A 0:1000 ack 0", &["A 0:0 ack 1000"]);
    s.step("A 0:1000 ack 0", &["A 0:0 ack 1000 sack 0:1000"]);
    s.step("A 500:1500 ack 0", &["A 0:0 ack 1500 sack 500:1000"]);
    s.step("A 3000:4000 ack 0", &["A 0:0 ack 1500 sack 3000:4000"]);
    // RFC 2883: a duplicate inside an out-of-order block comes before that block.
    s.step("A 3200:3300 ack 0", &["A 0:0 ack 1500 sack 3200:3300,3000:4000"]);
    s.step("A 3500:4500 ack 0", &["A 0:0 ack 1500 sack 3500:4000,3000:4500"]);
    s.step("A 1500:3000 ack 0", &["A 0:0 ack 4500"]);
    assert_eq!(s.app().read(9000), 4500);
}

#[test]
fn without_sack_each_segment_above_a_hole_is_a_duplicate_ack() {
    let mut s = no_sack();
    s.step("A 1000:2000 ack 0", &["A 0:0 ack 0"]);
    for n in 2..5 {
        s.queue(&format!("A {}:{} ack 0", n * 1000, (n + 1) * 1000));
    }
    s.poll();
    s.expect(&["A 0:0 ack 0"; 3]);
    s.step("A 0:1000 ack 0", &["A 0:0 ack 5000"]);
}

#[test]
fn numbers_wrap() {
    let agreed = Agreed { iss: [u32::MAX - 1000, u32::MAX - 1500], timestamps: false, wscale: 0, ..Agreed::default() };
    let mut s = Script::with(agreed, TcpConfig::default(), 0);
    s.step("A 0:1000 ack 0", &["A 0:0 ack 1000"]);
    s.step("A 2000:3000 ack 0", &["A 0:0 ack 1000 sack 2000:3000"]);
    s.step("A 1000:2000 ack 0", &["A 0:0 ack 3000"]);
    s.app().write(1460);
    s.poll();
    s.expect(&["AP 0:1460 ack 3000"]);
    s.step("A 3000:3000 ack 1460", &[]);
    assert_eq!((s.app().read(9000), s.app().acked()), (3000, 1460));
}

#[test]
fn the_window_closes_as_data_piles_up_and_opens_when_it_is_read() {
    let tcp = TcpConfig { rcvbuf: 10_000, ..TcpConfig::default() };
    let agreed = Agreed { timestamps: false, wscale: 0, ..Agreed::default() };
    let mut s = Script::with(agreed, tcp, 0);
    s.show_window = true;
    s.step("A 0:1000 ack 0", &["A 0:0 ack 1000 win 9000"]);
    for n in 1..10 {
        s.inject(&format!("A {}:{} ack 0", n * 1000, (n + 1) * 1000));
    }
    assert_eq!(s.sent().last().unwrap(), "A 0:0 ack 10000 win 0");
    // A probe of one byte is answered, its byte refused.
    s.step("A 10000:10001 ack 0", &["A 0:0 ack 10000 win 0"]);
    // One byte read is not worth telling (silly window), nor is it told with the next ACK.
    s.app().read(1);
    s.poll();
    s.expect(&[]);
    s.step("A 10000:10001 ack 0", &["A 0:0 ack 10000 win 0"]);
    s.app().read(1459);
    s.poll();
    s.expect(&["A 0:0 ack 10000 win 1460"]);
    s.app().read(20_000);
    s.poll();
    s.expect(&["A 0:0 ack 10000 win 10000"]);
}

#[test]
fn the_right_edge_never_moves_left() {
    edge_moves_right(0);
    edge_moves_right(7);
}

fn edge_moves_right(wscale: u8) {
    let tcp = TcpConfig { rcvbuf: 40_000, ..TcpConfig::default() };
    let mut s = Script::with(Agreed { timestamps: false, wscale, ..Agreed::default() }, tcp, 0);
    // What is rounded up to a unit of the scale comes and goes, and is accepted.
    let unit = (1 << wscale) - 1;
    s.show_window = true;
    let mut edge = 0;
    let mut at = 0;
    for n in 1..60u64 {
        let len = 1 + n * 37 % 1400;
        s.inject(&format!("A {}:{} ack 0", at, at + len));
        at += len;
        if n % 3 == 0 {
            s.app().read(n * 31 % 900);
            s.poll();
        }
        for text in s.sent() {
            let words: Vec<&str> = text.split(' ').collect();
            let told = words[3].parse::<u64>().unwrap() + words[5].parse::<u64>().unwrap();
            assert!(told + unit >= edge, "{text}: edge {edge} moved to {told}");
            assert!(told <= s.app().slot().rx_head.load(std::sync::atomic::Ordering::Relaxed) + 40_000 + unit);
            edge = edge.max(told);
        }
    }
}

#[test]
fn data_beyond_the_window_is_cut_off() {
    let tcp = TcpConfig { rcvbuf: 5000, ..TcpConfig::default() };
    let agreed = Agreed { timestamps: false, wscale: 0, ..Agreed::default() };
    let mut s = Script::with(agreed, tcp, 0);
    s.step("A 4000:6000 ack 0", &["A 0:0 ack 0 sack 4000:5000"]);
    s.step("A 5001:6000 ack 0", &["A 0:0 ack 0 sack 4000:5000"]);
    assert_eq!(s.host.fp.stats().out_of_window, 1);
    s.step("A 0:4000 ack 0", &["A 0:0 ack 5000"]);
}

#[test]
fn after_shut_rd_data_is_taken_all_the_same() {
    let mut s = Script::new();
    s.step("A 0:1000 ack 0", &["A 0:0 ack 1000"]);
    s.app().set_flags(app_flags::SHUT_RD, 0);
    s.poll();
    s.step("A 1000:2000 ack 0", &["A 0:0 ack 2000"]);
    s.step("A 3000:4000 ack 0", &["A 0:0 ack 2000 sack 3000:4000"]);
    s.step("A 2000:3000 ack 0", &["A 0:0 ack 4000"]);
    assert_eq!(s.app().read(9000), 4000);
}

#[test]
fn a_read_position_frees_chunks() {
    let mut s = Script::new();
    let mut at = 0;
    for _ in 0..200 {
        s.inject(&format!("A {at}:{} ack 0", at + 1400));
        at += 1400;
        s.app().read(1400);
    }
    s.poll();
    assert_eq!(s.host.fp.stats().rx_chunks_in_use, 1);
}

#[test]
fn header_prediction_takes_the_plain_cases() {
    let mut s = Script::new();
    s.inject("A 0:1000 ack 0");
    let first = s.host.fp.stats().header_prediction_hits;
    s.inject("A 1000:2000 ack 0");
    assert_eq!(s.host.fp.stats().header_prediction_hits, first + 1);
    s.app().write(10);
    s.poll();
    s.inject("A 2000:2000 ack 10");
    assert_eq!(s.host.fp.stats().header_prediction_hits, first + 2);
    s.inject("A 3000:4000 ack 10");
    s.inject("A 2000:3000 ack 10 win 50000");
    assert_eq!(s.host.fp.stats().header_prediction_hits, first + 2);
}

#[test]
fn a_wrong_checksum_is_believed_in_nothing() {
    let mut s = Script::new();
    let mut frame = s.frame("A 0:1000 ack 0");
    let last = frame.len() - 1;
    frame[last] ^= 1;
    s.queue_frame(frame);
    s.poll();
    s.expect(&[]);
    assert_eq!((s.host.fp.stats().in_csum_errs, s.app().received()), (1, 0));
}
