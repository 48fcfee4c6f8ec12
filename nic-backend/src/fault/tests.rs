use super::*;
use crate::frame::testing::tcp_header;
use crate::memory::{MemNic, pair};
use proptest::prelude::*;
use toe_core::wire::{parse, verify_checksum};

fn caps(mtu: usize) -> NicCaps {
    NicCaps { mac: [2, 0, 0, 0, 0, 2], mtu, tso_max: 60_000, tx_csum: true, queues: 1 }
}

fn with(tx: FaultSpec, rx: FaultSpec, bound: usize) -> (Fault, MemNic) {
    let (a, b) = pair(caps(9000), bound);
    let cfg = FaultConfig { seed: 42, tx, rx };
    (Fault::new(Box::new(a), &cfg, 0).unwrap(), b)
}

fn numbered(n: u32) -> [u8; 64] {
    let mut f = [0; 64];
    f[60..].copy_from_slice(&n.to_be_bytes());
    f
}

fn number(f: &[u8]) -> u32 {
    u32::from_be_bytes(f[60..64].try_into().unwrap())
}

fn receive(nic: &mut dyn Nic) -> Vec<Vec<u8>> {
    let mut got = vec![];
    while nic.recv(64, &mut |f, _| got.push(f.to_vec())) > 0 {}
    got
}

/// Sends `count` numbered frames, one each 10 microseconds, and lets all leave.
fn run(fault: &mut Fault, peer: &mut MemNic, count: u32) -> Vec<Vec<u8>> {
    let mut got = vec![];
    let mut now = Instant::ZERO;
    for n in 0..count {
        now += Duration::from_micros(10);
        fault.poll(now);
        fault.send(&numbered(n), &[], TxMeta::default()).unwrap();
        fault.flush();
        got.extend(receive(peer));
    }
    fault.poll(now + MAX_HOLD);
    got.extend(receive(peer));
    assert_eq!(fault.tx.waiting(), 0, "all have left");
    got
}

#[test]
fn faults_come_as_often_as_asked() {
    let spec = FaultSpec { loss: 0.1, duplicate: 0.2, corrupt: 0.3, reorder: 0.4, ..FaultSpec::default() };
    let (mut f, mut peer) = with(spec, FaultSpec::default(), 1000);
    let got = run(&mut f, &mut peer, 20_000);
    let s = f.fault_stats().0;
    let near = |n: u64, of: u64, p: f64| assert!((n as f64 / of as f64 - p).abs() < 0.02, "{n} of {of} for {p}");
    assert_eq!(s.frames, 20_000);
    near(s.lost, 20_000, 0.1);
    near(s.duplicated, 18_000, 0.2);
    near(s.corrupted, 18_000, 0.3);
    near(s.reordered, 21_600, 0.4);
    assert_eq!(got.len() as u64, s.frames - s.lost + s.duplicated);
    assert_eq!(f.stats().tx_dropped, s.lost);
    let (mut again, mut peer) = with(f.tx.spec.clone(), FaultSpec::default(), 1000);
    assert_eq!(run(&mut again, &mut peer, 20_000), got, "equal seeds, equal faults");
}

#[test]
fn reordered_frames_are_overtaken_by_at_most_so_many() {
    let spec = FaultSpec { reorder: 0.3, reorder_max: 5, ..FaultSpec::default() };
    let (mut f, mut peer) = with(spec, FaultSpec::default(), 1000);
    let order: Vec<u32> = run(&mut f, &mut peer, 5000).iter().map(|f| number(f)).collect();
    let mut late = 0;
    for (place, &n) in order.iter().enumerate() {
        let overtook = order[..place].iter().filter(|&&m| m > n).count();
        assert!(overtook <= 5, "{n} overtaken {overtook} times");
        late += usize::from(overtook > 0);
    }
    assert!(late > 1000, "{late}");
}

#[test]
fn a_lone_held_frame_leaves_in_time() {
    let spec = FaultSpec { reorder: 1.0, ..FaultSpec::default() };
    let (mut f, mut peer) = with(spec, FaultSpec::default(), 10);
    f.poll(Instant::from_millis(1));
    f.send(&numbered(1), &[], TxMeta::default()).unwrap();
    f.flush();
    assert!(receive(&mut peer).is_empty());
    assert!(!f.arm(), "the last poll's deadline did not know of it");
    let due = f.poll(Instant::from_millis(1)).unwrap();
    assert!(f.arm());
    assert_eq!(due, Instant::from_millis(1) + MAX_HOLD);
    f.poll(due);
    assert_eq!(receive(&mut peer).len(), 1);
}

#[test]
fn delay_and_rate_follow_the_clock() {
    let spec = FaultSpec { delay_us: 1000, rate: 64_000, limit: 3, ..FaultSpec::default() };
    let (mut f, mut peer) = with(spec, FaultSpec::default(), 10);
    f.poll(Instant::ZERO);
    (0..3).for_each(|n| f.send(&numbered(n), &[], TxMeta::default()).unwrap());
    assert_eq!(f.send(&numbered(3), &[], TxMeta::default()), Err(TxError::Full));
    // 64 bytes at 64,000 bytes/s: one each millisecond, and one millisecond of delay.
    for n in 0..3 {
        let due = Instant::from_millis(2 + n);
        f.poll(Instant(due.0 - 1));
        assert!(receive(&mut peer).is_empty());
        f.poll(due);
        assert_eq!(receive(&mut peer).iter().map(|f| number(f)).collect::<Vec<_>>(), [n as u32]);
    }
    assert_eq!(f.poll(Instant::from_millis(9)), None);
}

#[test]
fn a_full_link_loses_nothing() {
    let (mut f, mut peer) = with(FaultSpec::default(), FaultSpec::default(), 4);
    let mut got = vec![];
    for n in 0..100 {
        f.send(&numbered(n), &[], TxMeta::default()).unwrap();
    }
    for round in 0..25u64 {
        f.poll(Instant::from_millis(round));
        got.extend(receive(&mut peer).iter().map(|f| number(f)));
    }
    assert_eq!(got, (0..100).collect::<Vec<_>>());
}

proptest! {
    /// Corruption of a vouched-for frame is caught by the checksum that the middleware has filled in.
    #[test]
    fn received_corruption_is_caught(v6: bool, payload in proptest::collection::vec(any::<u8>(), 1..500), corrupt: bool) {
        let rx = FaultSpec { corrupt: if corrupt { 1.0 } else { 0.0 }, loss: 1e-12, ..FaultSpec::default() };
        let (mut f, mut peer) = with(FaultSpec::default(), rx, 10);
        let header = tcp_header(v6, &[&payload], true);
        let meta = TxMeta { csum_offload: true, ..TxMeta::default() };
        peer.send(header.as_slice(), &[&payload], meta).unwrap();
        peer.flush();
        let mut good = false;
        prop_assert!(!f.arm());
        let n = f.recv(10, &mut |frame, meta| {
            assert_eq!(meta.csum, RxCsum::Unchecked);
            let plain = |s: &toe_core::wire::Segment| s.payload_len == payload.len() && verify_checksum(frame, s);
            good = parse(frame).is_ok_and(|s| plain(&s));
        });
        prop_assert_eq!(n, 1);
        // In IPv6 the traffic class, flow label and hop limit are under no checksum.
        prop_assert!(good != corrupt || v6 && corrupt, "good {good}, corrupt {corrupt}");
    }
}
