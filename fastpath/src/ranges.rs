//! A sorted set of disjoint, non-touching half-open ranges of stream positions: what has arrived out of order, and what
//! the peer has selectively acknowledged.

/// Positions are `i64`: sequence numbers unwrapped, relative to the first byte of the stream.
pub type Pos = i64;

/// The set. Few ranges are the rule, so a sorted `Vec` beats a tree.
#[derive(Clone, Debug, Default)]
pub struct RangeSet {
    ranges: Vec<(Pos, Pos)>,
}

impl RangeSet {
    /// The ranges, lowest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Pos, Pos)> + '_ {
        self.ranges.iter().copied()
    }

    /// Nothing in it?
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Positions of `[start, end)` that are covered.
    pub fn covered_in(&self, start: Pos, end: Pos) -> i64 {
        self.ranges.iter().map(|&(a, b)| (b.min(end) - a.max(start)).max(0)).sum()
    }

    /// Adds `[start, end)`; returns how many positions were new.
    pub fn insert(&mut self, mut start: Pos, mut end: Pos) -> i64 {
        if start >= end {
            return 0;
        }
        let first = self.ranges.partition_point(|r| r.1 < start);
        let last = self.ranges.partition_point(|r| r.0 <= end);
        let had: i64 = self.ranges[first..last].iter().map(|&(a, b)| (b.min(end) - a.max(start)).max(0)).sum();
        let new = end - start - had;
        if first < last {
            start = start.min(self.ranges[first].0);
            end = end.max(self.ranges[last - 1].1);
        }
        self.ranges.splice(first..last, [(start, end)]);
        new
    }

    /// Drops everything below `pos`.
    pub fn remove_below(&mut self, pos: Pos) {
        let keep = self.ranges.partition_point(|r| r.1 <= pos);
        self.ranges.drain(..keep);
        if let Some(first) = self.ranges.first_mut() {
            first.0 = first.0.max(pos);
        }
    }

    /// The first gap at or after `pos` and before `limit`.
    pub fn first_gap(&self, pos: Pos, limit: Pos) -> Option<(Pos, Pos)> {
        let mut start = pos;
        for &(a, b) in &self.ranges[self.ranges.partition_point(|r| r.1 <= pos)..] {
            if a > start {
                break;
            }
            start = start.max(b);
        }
        let next = self.ranges.iter().find(|r| r.0 > start).map_or(limit, |r| r.0);
        (start < limit).then_some((start, next.min(limit)))
    }

    /// The range that holds `pos`.
    pub fn containing(&self, pos: Pos) -> Option<(Pos, Pos)> {
        let i = self.ranges.partition_point(|r| r.1 <= pos);
        self.ranges.get(i).copied().filter(|r| r.0 <= pos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_a_bitmap(ops in proptest::collection::vec((0i64..200, 0i64..40, any::<bool>()), 1..60)) {
            let mut set = RangeSet::default();
            let mut bits = vec![false; 300];
            for (start, len, remove) in ops {
                if remove && len == 7 {
                    set.remove_below(start);
                    bits[..start as usize].fill(false);
                } else {
                    let new = set.insert(start, start + len);
                    let slice = &mut bits[start as usize..(start + len) as usize];
                    prop_assert_eq!(new as usize, slice.iter().filter(|b| !**b).count());
                    slice.fill(true);
                }
                prop_assert_eq!(set.covered_in(0, 300) as usize, bits.iter().filter(|b| **b).count());
                let mut last = -1;
                for (a, b) in set.iter() {
                    prop_assert!(a > last && b > a, "ranges touch or are out of order");
                    prop_assert!(bits[a as usize..b as usize].iter().all(|b| *b));
                    last = b;
                }
                let gap = (start..250).find(|&p| !bits[p as usize]);
                prop_assert_eq!(set.first_gap(start, 250).map(|g| g.0), gap);
                prop_assert_eq!(set.containing(start).is_some(), bits[start as usize]);
            }
        }
    }
}
