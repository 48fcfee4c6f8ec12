//! Whatever an app writes into its shared memory, and whatever a peer sends, nothing panics and nobody else suffers.

mod common;

use common::Rng;
use common::host::{Agreed, flow_init};
use common::script::Script;
use proptest::prelude::*;
use std::sync::atomic::Ordering::Relaxed;
use toe_core::shm::*;
use toe_core::tcp::TcpConfig;

#[test]
fn a_lie_costs_the_liar_its_connection() {
    let lies: [fn(&SockSlot); 4] = [
        |s| s.tx_tail.store(u64::MAX, Relaxed),
        |s| s.tx_tail.store(50, Relaxed),
        |s| s.rx_head.store(1001, Relaxed),
        |s| s.rx_head.store(u64::MAX, Relaxed),
    ];
    for lie in lies {
        let mut s = Script::new();
        s.app().write(100);
        s.poll();
        s.inject("AP 0:1000 ack 0");
        s.sent();
        lie(s.app().slot());
        s.app().kick();
        s.poll();
        let sent = s.sent();
        assert!(sent.last().unwrap().starts_with("AR 100:100"), "{sent:?}");
        assert_eq!((s.host.fp.stats().bad_app_state, s.app().error()), (1, 104));
    }
}

#[test]
fn a_chunk_number_out_of_range_is_a_lie_too() {
    let mut s = Script::new();
    s.app().slot().tx_tail.store(100, Relaxed);
    s.host.region.tx_table(s.app().sock).unwrap()[0].store(u32::MAX, Relaxed);
    s.app().kick();
    s.poll();
    s.expect(&["AR 0:0 ack 0"]);
    assert_eq!(s.host.fp.stats().bad_app_state, 1);
}

#[test]
fn a_used_up_arena_drops_and_counts() {
    let agreed = Agreed { timestamps: false, ..Agreed::default() };
    let mut s = Script::with(agreed.clone(), TcpConfig { rcvbuf: 4 << 20, ..TcpConfig::default() }, 0);
    // Fill the arena: each flow takes one chunk for every sixteenth KiB touched.
    let mut at = 0u64;
    for flow in 1..300u16 {
        s.host.install(flow_init(&agreed, 0, flow, &s.host.region.clone()));
        s.host.apps.last_mut().unwrap().reading = false;
    }
    s.poll();
    while at < 4_000_000 {
        let frame = s.frame(&format!("A {at}:{} ack 0", at + 1));
        for flow in 0..300u16 {
            let mut frame = frame.clone();
            frame[34..36].copy_from_slice(&80u16.to_be_bytes());
            frame[36..38].copy_from_slice(&(40_000 + flow).to_be_bytes());
            fix_checksum(&mut frame, flow);
            s.queue_frame(frame);
        }
        s.poll();
        s.sent();
        at += CHUNK_SIZE as u64;
    }
    let stats = s.host.fp.stats();
    assert_eq!(stats.rx_chunks_in_use, ARENA_CHUNKS as u64);
    assert!(stats.rx_chunk_shortage > 0);
    assert_eq!(stats.flows, 300);
}

/// The destination port was raised by `by` from that of flow 0.
fn fix_checksum(frame: &mut [u8], by: u16) {
    let old = u16::from_be_bytes([frame[50], frame[51]]);
    let mut sum = u32::from(!old) + u32::from(by);
    sum = (sum & 0xffff) + (sum >> 16);
    let new = !(sum as u16);
    frame[50..52].copy_from_slice(&new.to_be_bytes());
}

fn scribble(s: &Script, rng: &mut Rng) {
    let slot = s.app().slot();
    let word = match rng.below(4) {
        0 => rng.next(),
        1 => rng.below(5000),
        2 => slot.rx_tail.load(Relaxed).wrapping_add(rng.below(3)).wrapping_sub(1),
        _ => slot.tx_head.load(Relaxed).wrapping_add(rng.below(200_000)),
    };
    let entry = rng.below(STREAM_CHUNKS as u64) as usize;
    match rng.below(16) {
        0 => slot.tx_tail.store(word, Relaxed),
        1 => slot.rx_head.store(word, Relaxed),
        2 => slot.app_flags.store(word as u32, Relaxed),
        3 => slot.holders[0].store(word, Relaxed),
        4 => slot.tx_head.store(word, Relaxed),
        5 => slot.rx_tail.store(word, Relaxed),
        6 => slot.tx_limit.store(word as u32, Relaxed),
        7 => slot.rx_limit.store(word as u32, Relaxed),
        8 => slot.opt_rcvbuf.store(word as u32, Relaxed),
        9 => slot.opt_sndbuf.store(word as u32, Relaxed),
        10 => slot.sets[rng.below(4) as usize].store(word, Relaxed),
        11 => slot.opt_keepidle.store(word as u32, Relaxed),
        12 => slot.opt_linger2.store(word as u32, Relaxed),
        13 => s.host.region.tx_table(s.app().sock).unwrap()[entry].store(word as u32, Relaxed),
        14 => s.host.region.rx_table(s.app().sock).unwrap()[entry].store(word as u32, Relaxed),
        _ => {
            let header = &s.host.region.layout().header;
            header.id.store(word as u32, Relaxed);
            s.host.region.layout().tx_pool.head.store(word, Relaxed);
            s.host.region.layout().tx_pool.next[entry].store(word as u32, Relaxed);
        }
    }
}

fn random_segment(rng: &mut Rng) -> String {
    let flags = ["A", "AP", "AF", "R", "S", "SA", "APU", "AR", "P"][rng.below(40).saturating_sub(31) as usize];
    let start = rng.below(20_000) as i64 - 2000;
    let len = rng.below(3) * rng.below(700);
    let a = rng.below(10_000);
    let (b, win) = (a + rng.below(4000), rng.below(65_535));
    format!("{flags} {start}:{} ack {} win {win} sack {a}:{b}", start + len as i64, rng.below(9000) as i64 - 100)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn no_scribble_and_no_segment_panics(seed: u64, timestamps: bool, sack: bool) {
        let agreed = Agreed { timestamps, sack, ..Agreed::default() };
        let mut s = Script::with(agreed, TcpConfig { rcvbuf: 20_000, ..TcpConfig::default() }, 0);
        s.host.obliging = true;
        let mut rng = Rng(seed);
        for _ in 0..150 {
            match rng.below(5) {
                0 => scribble(&s, &mut rng),
                1 => s.queue(&random_segment(&mut rng)),
                2 => {
                    let tail = s.app().slot().tx_tail.load(Relaxed);
                    s.app().slot().tx_tail.store(tail.wrapping_add(rng.below(3000)), Relaxed);
                    s.app().kick();
                }
                3 => {
                    s.host.region.kick(1, s.app().sock);
                    s.now += toe_core::Duration::from_millis(rng.below(500));
                }
                _ => {}
            }
            for _ in 0..4 {
                s.host.round(s.now);
            }
        }
        let stats = s.host.fp.stats();
        prop_assert!(stats.flows <= 1);
        prop_assert_eq!(s.host.closed.len() as u64 + stats.flows, 1);
    }
}
