//! Every order of five segments, and every overlap of a segment with what is already there: the bytes come out right and the
//! ACKs say so.

mod common;

use common::script::Script;
use proptest::prelude::*;

fn last_ack(sent: &[String]) -> u64 {
    let last = sent.last().expect("out of order segments are answered at once");
    last.split(' ').nth(3).unwrap().parse().unwrap()
}

/// Feeds segments into a fresh flow and compares with a set of bytes.
fn feed(segments: &[(u64, u64)]) {
    let mut s = Script::new();
    let mut have = vec![false; 2000];
    for &(from, to) in segments {
        s.inject(&format!("A {from}:{to} ack 0"));
        have[from as usize..to as usize].fill(true);
        let in_order = have.iter().position(|h| !h).unwrap() as u64;
        assert_eq!((last_ack(&s.sent()), s.app().received()), (in_order, in_order), "{segments:?}");
    }
    let rest = have.iter().position(|h| !h).unwrap() as u64;
    assert_eq!(s.app().read(2000), rest);
}

#[test]
fn all_orders_of_five_segments() {
    let mut order = [0usize, 1, 2, 3, 4];
    permute(&mut order, 0, &mut |order| {
        let segments: Vec<(u64, u64)> = order.iter().map(|&n| (n as u64 * 100, (n as u64 + 1) * 100)).collect();
        feed(&segments);
    });
}

/// The same with a FIN on the fifth.
#[test]
fn all_orders_of_five_segments_with_fin() {
    let mut order = [0usize, 1, 2, 3, 4];
    permute(&mut order, 0, &mut |order| {
        let mut s = Script::new();
        for (i, &n) in order.iter().enumerate() {
            let flags = if n == 4 { "AF" } else { "A" };
            s.inject(&format!("{flags} {}:{} ack 0", n * 100, (n + 1) * 100));
            assert_eq!(s.app().eof(), i == 4, "{order:?}");
        }
        assert_eq!(last_ack(&s.sent()), 501);
        assert_eq!(s.app().read(1000), 500);
    });
}

fn permute(order: &mut [usize; 5], from: usize, f: &mut impl FnMut(&[usize; 5])) {
    if from == 5 {
        return f(order);
    }
    for i in from..5 {
        order.swap(from, i);
        permute(order, from + 1, f);
        order.swap(from, i);
    }
}

/// Islands at 100-200, 300-400, 500-600 of 700 bytes; then every segment between multiples of 25; then the rest.
#[test]
fn all_overlaps_with_three_islands() {
    for from in (0..700).step_by(50) {
        for to in (from + 25..=700).step_by(25) {
            feed(&[(100, 200), (300, 400), (500, 600), (from, to), (0, 700)]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_segments(segments in proptest::collection::vec((0u64..1500, 1u64..400), 1..30)) {
        let segments: Vec<(u64, u64)> = segments.into_iter().map(|(a, n)| (a, a + n)).collect();
        feed(&segments);
    }
}
