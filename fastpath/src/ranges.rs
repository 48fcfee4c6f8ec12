//! A set of stream positions as sorted ranges: what arrived out of order, and what the peer has SACKed.

/// Half-open ranges `(start, end)`, sorted, never empty, never touching each other.
#[derive(Debug, Default)]
pub(crate) struct RangeSet {
    ranges: Vec<(u64, u64)>,
}

impl RangeSet {
    /// Nothing in it?
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Adds `start..end`; `None`: it would need one more range than `most`, nothing was changed. Else the bytes that were new.
    pub fn insert(&mut self, start: u64, end: u64, most: usize) -> Option<u64> {
        debug_assert!(start < end);
        let from = self.ranges.partition_point(|r| r.1 < start);
        let to = self.ranges.partition_point(|r| r.0 <= end);
        if from == to {
            if self.ranges.len() >= most {
                return None;
            }
            self.ranges.insert(from, (start, end));
            return Some(end - start);
        }
        let known: u64 = self.ranges[from..to].iter().map(|r| r.1 - r.0).sum();
        let merged = (self.ranges[from].0.min(start), self.ranges[to - 1].1.max(end));
        self.ranges[from] = merged;
        self.ranges.drain(from + 1..to);
        Some(merged.1 - merged.0 - known)
    }

    /// Takes out everything below `pos`.
    pub fn remove_below(&mut self, pos: u64) {
        let gone = self.ranges.partition_point(|r| r.1 <= pos);
        self.ranges.drain(..gone);
        if let Some(first) = self.ranges.first_mut() {
            first.0 = first.0.max(pos);
        }
    }

    /// The highest range.
    pub fn last(&self) -> Option<(u64, u64)> {
        self.ranges.last().copied()
    }

    /// The range that contains `pos`.
    pub fn containing(&self, pos: u64) -> Option<(u64, u64)> {
        let i = self.ranges.partition_point(|r| r.1 <= pos);
        self.ranges.get(i).copied().filter(|r| r.0 <= pos)
    }

    /// How many bytes of `start..end` are in the set.
    pub fn covered(&self, start: u64, end: u64) -> u64 {
        let from = self.ranges.partition_point(|r| r.1 <= start);
        self.ranges[from..].iter().take_while(|r| r.0 < end).map(|r| r.1.min(end) - r.0.max(start)).sum()
    }

    /// The first stretch of `start..end` that is not in the set.
    pub fn gap(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        let i = self.ranges.partition_point(|r| r.1 <= start);
        let (from, next) = match self.ranges.get(i) {
            Some(r) if r.0 <= start => (r.1, self.ranges.get(i + 1)),
            other => (start, other),
        };
        let to = next.map_or(end, |r| r.0.min(end));
        (from < to).then_some((from, to))
    }

    /// All ranges, highest first.
    pub fn top_down(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().rev().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn behaves_like_a_set_of_numbers(ops in proptest::collection::vec((0u64..60, 1u64..12, any::<bool>()), 1..40)) {
            let (mut set, mut model) = (RangeSet::default(), BTreeSet::new());
            for (start, len, remove) in ops {
                let end = start + len;
                if remove {
                    set.remove_below(start);
                    model.retain(|&p| p >= start);
                } else {
                    let before = model.len();
                    model.extend(start..end);
                    prop_assert_eq!(set.insert(start, end, 99), Some((model.len() - before) as u64));
                }
                prop_assert!(set.ranges.iter().all(|r| r.0 < r.1));
                prop_assert!(set.ranges.windows(2).all(|w| w[0].1 < w[1].0));
                let flat: BTreeSet<u64> = set.ranges.iter().flat_map(|r| r.0..r.1).collect();
                prop_assert_eq!(&flat, &model);
                prop_assert_eq!(set.covered(start, end), model.range(start..end).count() as u64);
                let first_gap = (start..end).find(|p| !model.contains(p));
                prop_assert_eq!(set.gap(start, end).map(|g| g.0), first_gap);
                if let Some((a, b)) = set.gap(start, end) {
                    prop_assert!((a..b).all(|p| !model.contains(&p)) && (b == end || model.contains(&b)));
                }
                prop_assert_eq!(set.containing(start).is_some(), model.contains(&start));
            }
        }

        #[test]
        fn never_more_ranges_than_allowed(starts in proptest::collection::vec(0u64..200, 1..60)) {
            let mut set = RangeSet::default();
            for s in starts {
                let _ = set.insert(s * 2, s * 2 + 1, 8);
                prop_assert!(set.ranges.len() <= 8);
            }
        }
    }
}
