//! What arrived out of order. The bytes themselves already stand in the RX chunks at their place; only ranges are kept.

use crate::ranges::RangeSet;
use crate::space::Space;
use arrayvec::ArrayVec;
use toe_core::wire::SackBlocks;

/// Most ranges of one flow: the largest window (4 MiB) in segments of 256 bytes with every second one missing. Beyond it a
/// segment that would open one more range is dropped unacknowledged, so that a hostile peer cannot make us shift megabytes.
const MOST_RANGES: usize = 8192;

/// The receiver's out-of-order ranges and what of them to report. All ranges lie above RCV.NXT.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    ranges: RangeSet,
    /// A position in each range reported or touched last, most recent first (RFC 2018 §4).
    recent: ArrayVec<u64, 4>,
    /// A duplicate to report once (RFC 2883).
    duplicate: Option<(u64, u64)>,
}

impl Reassembly {
    /// No hole: everything received is in order.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// End of the highest range.
    pub fn highest(&self) -> Option<u64> {
        self.ranges.last().map(|r| r.1)
    }

    /// The first stretch of `start..end` not yet here.
    pub fn gap(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        self.ranges.gap(start, end)
    }

    /// Notes `start..end`; `false`: too many ranges.
    pub fn insert(&mut self, start: u64, end: u64) -> bool {
        if self.ranges.insert(start, end, MOST_RANGES).is_none() {
            return false;
        }
        self.touch(start);
        true
    }

    /// The in-order edge after all that is here from `nxt` on; what lies below is forgotten.
    pub fn advance(&mut self, nxt: u64) -> u64 {
        let edge = self.ranges.containing(nxt).map_or(nxt, |r| r.1);
        self.ranges.remove_below(edge);
        edge
    }

    /// `start..end` arrived although it was here already.
    pub fn note_duplicate(&mut self, start: u64, end: u64) {
        if start < end {
            self.duplicate = Some((start, end));
            if self.ranges.containing(start).is_some() {
                self.touch(start);
            }
        }
    }

    /// The SACK option of the next ACK: a duplicate first (RFC 2883 §4), then the ranges, the most recently changed first.
    pub fn blocks(&self, space: Space, most: usize) -> SackBlocks {
        let mut out = SackBlocks::new();
        let wire = |r: (u64, u64)| (space.seq(r.0), space.seq(r.1));
        if let Some(d) = self.duplicate.filter(|_| most > 0) {
            out.push(wire(d));
        }
        let mut seen: ArrayVec<u64, 4> = ArrayVec::new();
        for &p in &self.recent {
            let Some(r) = self.ranges.containing(p) else { continue };
            if out.len() < most && !seen.contains(&r.0) {
                seen.push(r.0);
                out.push(wire(r));
            }
        }
        out
    }

    /// The blocks have been sent.
    #[inline(always)]
    pub fn reported(&mut self) {
        self.duplicate = None;
    }

    /// How many blocks [`blocks`](Self::blocks) would return at most.
    #[inline(always)]
    pub fn pending_blocks(&self) -> usize {
        if self.duplicate.is_none() && self.ranges.is_empty() {
            return 0;
        }
        usize::from(self.duplicate.is_some()) + self.recent.len()
    }

    fn touch(&mut self, pos: u64) {
        let Some(range) = self.ranges.containing(pos) else { return };
        let ranges = &self.ranges;
        self.recent.retain(|p| ranges.containing(*p).is_some_and(|r| r.0 != range.0));
        self.recent.truncate(self.recent.capacity() - 1);
        self.recent.insert(0, pos);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use toe_core::SeqNr;

    #[test]
    fn the_latest_block_comes_first() {
        let space = Space::new(SeqNr(u32::MAX));
        let mut r = Reassembly::default();
        for start in [10, 30, 50, 70, 90] {
            assert!(r.insert(start, start + 5));
        }
        let block = |a: u32, b: u32| (SeqNr(a), SeqNr(b));
        assert_eq!(r.blocks(space, 3).as_slice(), [block(90, 95), block(70, 75), block(50, 55)]);
        assert!(r.insert(35, 40));
        assert_eq!(r.blocks(space, 3).as_slice(), [block(30, 40), block(90, 95), block(70, 75)]);
        r.note_duplicate(32, 34);
        assert_eq!(r.blocks(space, 3).as_slice(), [block(32, 34), block(30, 40), block(90, 95)]);
        r.reported();
        assert_eq!(r.blocks(space, 4).len(), 4);
        assert_eq!(r.advance(0), 0);
        assert!(r.insert(0, 10));
        assert_eq!(r.advance(0), 15);
    }

    proptest! {
        #[test]
        fn in_order_edge_equals_the_naive_one(segs in proptest::collection::vec((0u64..100, 1u64..20), 1..60)) {
            let (mut r, mut model, mut nxt) = (Reassembly::default(), BTreeSet::new(), 0u64);
            for (start, len) in segs {
                let (s, e) = (start.max(nxt), start + len);
                model.extend(start..start + len);
                if s < e {
                    prop_assert!(r.insert(s, e));
                    nxt = r.advance(nxt);
                }
                let naive = (0..).find(|p| !model.contains(p)).unwrap();
                prop_assert_eq!(nxt, naive);
                let above: BTreeSet<u64> = model.iter().copied().filter(|&p| p >= nxt).collect();
                prop_assert_eq!(r.is_empty(), above.is_empty());
                for (a, b) in r.blocks(Space::new(SeqNr(u32::MAX)), 4) {
                    prop_assert!((a.0..b.0).all(|p| above.contains(&u64::from(p))));
                    prop_assert!(!above.contains(&u64::from(b.0)));
                }
            }
        }
    }
}
