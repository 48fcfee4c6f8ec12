//! What is lost and what is in flight: the scoreboard of RFC 6675, and its emulation for peers without SACK (RFC 6582).
//!
//! ```text
//!   una            rtx_to           lost_to              nxt
//!    |--- resent -----|--- to resend ---|--- in flight ----|        SACKed ranges lie anywhere between and count nowhere
//! ```
//!
//! Loss is monotone (what lies below a lost byte and is not SACKed is lost as well), so one edge is enough. Whoever adds
//! another detector (RACK, RFC 8985) raises `lost_to`; whoever paces recovery (PRR, RFC 6937) changes only the congestion window.
//!
//! What was resent may be lost once more, which RFC 6675 leaves to the retransmission timer. Here a resent stretch is lost
//! again as soon as the peer has SACKed, above what SND.NXT was at that time, as much as proves any segment lost: all of
//! that left later. These stretches stand in `again`, and go first.

use crate::ranges::RangeSet;
use crate::space::Space;
use arrayvec::ArrayVec;
use toe_core::wire::SackBlocks;

/// RFC 5681 §3.2, RFC 6675 §2.
pub(crate) const DUP_THRESH: u32 = 3;
/// Most SACKed ranges kept; SACK is advice (RFC 2018 §8), a peer that sends more is not believed further.
const MOST_RANGES: usize = 1024;
/// Resent stretches watched for being lost again. Beyond that, neighbours are watched as one.
const MOST_RESENT: usize = 16;

/// What the sender is doing about loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing known to be lost.
    Open,
    /// Fast recovery until `point` is acknowledged.
    Recovery { point: u64 },
    /// After a time-out, until `point` is acknowledged.
    Loss { point: u64 },
}

/// A stretch that was sent again.
#[derive(Clone, Copy, Debug)]
struct Resent {
    start: u64,
    end: u64,
    /// SND.NXT at that time.
    mark: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Scoreboard {
    pub phase: Phase,
    pub dup_acks: u32,
    /// The next segment goes out whatever the congestion window says (RFC 6675 §5 step 4.3).
    pub force: bool,
    sacked: RangeSet,
    lost_to: u64,
    rtx_to: u64,
    /// Without SACK: bytes that duplicate ACKs say have left the network.
    dup_bytes: u64,
    /// SND.NXT when recovery or a time-out last began: duplicate ACKs for less are echoes of our own resending (RFC 6582 §4).
    recover: Option<u64>,
    /// New data sent on the first duplicate ACKs (RFC 3042), which does not count as flight when the window is halved.
    limited_transmit: u64,
    /// In the order of sending, thus of `mark`.
    resends: ArrayVec<Resent, MOST_RESENT>,
    /// Lost again, and not yet resent again.
    again: ArrayVec<(u64, u64), MOST_RESENT>,
    /// RFC 6675 NextSeg rule (4): the last segment was resent already.
    rescued: bool,
}

impl Scoreboard {
    pub fn new() -> Scoreboard {
        Scoreboard {
            phase: Phase::Open,
            dup_acks: 0,
            force: false,
            sacked: RangeSet::default(),
            lost_to: 0,
            rtx_to: 0,
            dup_bytes: 0,
            recover: None,
            limited_transmit: 0,
            resends: ArrayVec::new(),
            again: ArrayVec::new(),
            rescued: false,
        }
    }

    /// Nothing unusual: header prediction may apply.
    #[inline(always)]
    pub fn is_calm(&self) -> bool {
        self.phase == Phase::Open && self.dup_acks == 0 && self.sacked.is_empty()
    }

    /// Notes SACK blocks; returns how many bytes of them were news. Blocks outside of what is outstanding and D-SACKs
    /// (RFC 2883) are no news.
    pub fn sack(&mut self, blocks: &SackBlocks, space: Space, una: u64, nxt: u64) -> u64 {
        let mut news = 0;
        for &(left, right) in blocks {
            let (start, end) = (space.pos(una, left), space.pos(una, right));
            if start >= end || start < una as i64 || end > nxt as i64 {
                continue;
            }
            // A receiver that SACKs the byte it does not acknowledge has thrown data away (RFC 2018 §8): no news either.
            if start > una as i64 {
                news += self.sacked.insert(start as u64, end as u64, MOST_RANGES).unwrap_or(0);
            }
        }
        news
    }

    /// RFC 6675 `Update()`: how far IsLost() reaches. `true`: something that was resent is lost again.
    pub fn find_lost(&mut self, mss: u64) -> bool {
        let (mut bytes, mut ranges) = (0, 0);
        let enough = u64::from(DUP_THRESH - 1) * mss + 1;
        let proves = |&(start, end): &(u64, u64)| {
            bytes += end - start;
            ranges += 1;
            ranges >= DUP_THRESH || bytes >= enough
        };
        let Some((edge, _)) = self.sacked.top_down().find(proves) else { return false };
        self.lost_to = self.lost_to.max(edge);
        // A resent stretch needs its proof above its mark, which may lie within the range.
        self.lost_again(edge + bytes.saturating_sub(enough))
    }

    /// Resent stretches with a mark up to `edge` have been overtaken by enough that left later.
    fn lost_again(&mut self, edge: u64) -> bool {
        let mut any = false;
        while let Some(r) = self.resends.first().copied().filter(|r| r.mark <= edge) {
            let missing = self.sacked.gap(r.start, r.end).is_some();
            if missing && self.again.try_push((r.start, r.end)).is_err() {
                break;
            }
            self.resends.remove(0);
            any |= missing;
        }
        self.force |= any;
        any
    }

    fn forget_resends(&mut self) {
        self.resends.clear();
        self.again.clear();
    }

    /// One more duplicate ACK (RFC 5681 §2); without SACK it stands for one segment that arrived.
    pub fn duplicate(&mut self, sack: bool, mss: u64, outstanding: u64) {
        self.dup_acks = self.dup_acks.saturating_add(1);
        if !sack && !matches!(self.phase, Phase::Loss { .. }) {
            // At least the missing segment is still out, whatever a peer that splits its ACKs claims.
            self.dup_bytes = (self.dup_bytes + mss).min(outstanding.saturating_sub(mss));
        }
    }

    /// Should fast retransmit begin?
    pub fn should_recover(&self, sack: bool, una: u64) -> bool {
        let echo = self.recover.is_some_and(|r| if sack { una < r } else { una <= r });
        let lost = self.dup_acks >= DUP_THRESH || self.lost_to > una;
        self.phase == Phase::Open && lost && !echo
    }

    /// New data was sent.
    #[inline(always)]
    pub fn sent(&mut self, bytes: u64) {
        if self.dup_acks > 0 && self.phase == Phase::Open {
            self.limited_transmit += bytes;
        }
    }

    /// FlightSize for RFC 5681 equation (4), limited transmit left out (RFC 5681 §3.2 step 2).
    pub fn flight(&self, una: u64, nxt: u64) -> u64 {
        (nxt - una).saturating_sub(self.limited_transmit)
    }

    /// Fast retransmit begins: the first segment is lost, more as SACK tells.
    pub fn enter_recovery(&mut self, una: u64, nxt: u64, mss: u64) {
        self.phase = Phase::Recovery { point: nxt };
        self.recover = Some(nxt);
        self.rtx_to = una;
        self.lost_to = self.lost_to.max((una + mss).min(nxt));
        self.force = true;
        self.rescued = false;
        self.forget_resends();
    }

    /// Time-out: everything outstanding and not SACKed is lost (RFC 5681 §3.1, RFC 6675 §5.1).
    pub fn time_out(&mut self, una: u64, nxt: u64) {
        self.phase = Phase::Loss { point: nxt };
        self.recover = Some(nxt);
        self.dup_acks = 0;
        self.dup_bytes = 0;
        self.rtx_to = una;
        self.lost_to = nxt;
        self.force = true;
        self.forget_resends();
    }

    /// What is in flight was too large for the path (RFC 1191): all of it goes again, which says nothing of congestion.
    pub fn too_large(&mut self, una: u64, nxt: u64) {
        self.recover = Some(nxt);
        self.rtx_to = una;
        self.lost_to = nxt;
        self.dup_bytes = 0;
        self.forget_resends();
    }

    /// `una` moved up by `acked`. Returns `true` if that ends recovery.
    pub fn advance(&mut self, una: u64, acked: u64, sack: bool, mss: u64) -> bool {
        self.sacked.remove_below(una);
        self.rtx_to = self.rtx_to.max(una);
        self.lost_to = self.lost_to.max(una);
        self.limited_transmit = 0;
        self.force = false;
        self.resends.retain(|r| r.end > una);
        self.again.retain(|r| r.1 > una);
        match self.phase {
            Phase::Recovery { point } | Phase::Loss { point } if una >= point => {
                self.phase = Phase::Open;
                self.dup_acks = 0;
                self.dup_bytes = 0;
                self.forget_resends();
                return true;
            }
            // Partial ACK (RFC 6582 §3.2 step 5): the next segment is missing too.
            Phase::Recovery { .. } if !sack => {
                self.dup_bytes = self.dup_bytes.saturating_sub(acked.saturating_sub(mss));
                self.lost_to = una + mss;
                self.rtx_to = una;
                self.force = true;
            }
            Phase::Open => {
                self.dup_acks = 0;
                self.dup_bytes = 0;
            }
            _ => {}
        }
        false
    }

    /// RFC 6675 `SetPipe()`: bytes thought to be in the network.
    pub fn pipe(&self, una: u64, nxt: u64) -> u64 {
        let unsacked = |a: u64, b: u64| b.saturating_sub(a) - if a < b { self.sacked.covered(a, b) } else { 0 };
        let sent_once = unsacked(self.lost_to.max(una), nxt);
        let resent = unsacked(una, self.rtx_to.min(nxt));
        let again: u64 = self.again.iter().map(|&(a, b)| unsacked(a.max(una), b)).sum();
        (sent_once + resent).saturating_sub(again + self.dup_bytes)
    }

    /// NextSeg() rule (1): the first stretch lost again, else the first lost one not yet resent.
    #[inline]
    pub fn next_lost(&self, una: u64, nxt: u64) -> Option<(u64, u64)> {
        if let Some(gap) = self.again.iter().find_map(|&(from, to)| self.sacked.gap(from.max(una), to)) {
            return Some(gap);
        }
        let (from, to) = (self.rtx_to.max(una), self.lost_to.min(nxt));
        if from >= to { None } else { self.sacked.gap(from, to) }
    }

    /// NextSeg() rules (3) and (4), for when there is nothing lost and nothing new to send during recovery: a hole below
    /// the highest SACKed byte, then once the very last segment.
    pub fn next_hole(&self, una: u64, nxt: u64, mss: u64) -> Option<(u64, u64)> {
        if !matches!(self.phase, Phase::Recovery { .. }) {
            return None;
        }
        let (top_start, top_end) = self.sacked.last()?;
        let from = self.rtx_to.max(una);
        if let Some(hole) = (from < top_start).then(|| self.sacked.gap(from, top_start)).flatten() {
            return Some(hole);
        }
        (!self.rescued && top_end < nxt).then(|| (top_end.max(nxt.saturating_sub(mss)), nxt))
    }

    /// What a tail loss probe repeats when there is nothing new: the last segment, or the first that is missing.
    pub fn probe(&self, una: u64, nxt: u64, mss: u64) -> Option<(u64, u64)> {
        let last = nxt.saturating_sub(mss).max(una);
        let (start, end) = self.sacked.gap(last, nxt).or_else(|| self.sacked.gap(una, nxt))?;
        Some((start, end.min(start + mss)))
    }

    /// `start..end` was sent again, when SND.NXT was `nxt`.
    pub fn resent(&mut self, start: u64, end: u64, nxt: u64) {
        self.force = false;
        for a in &mut self.again {
            // It was the first gap of the first stretch that has one: what is below is SACKed.
            if a.0 <= start && start < a.1 {
                a.0 = end;
            }
        }
        self.again.retain(|a| a.0 < a.1);
        self.watch(start, end, nxt);
        if self.sacked.last().is_some_and(|top| start >= top.1) && start >= self.lost_to {
            self.rescued = true; // rule (4) leaves HighRxt alone
        } else {
            self.rtx_to = self.rtx_to.max(end);
        }
    }

    fn watch(&mut self, start: u64, end: u64, mark: u64) {
        let full = self.resends.is_full();
        match self.resends.last_mut() {
            Some(last) if full || (last.mark == mark && last.end == start) => {
                *last = Resent { start: last.start.min(start), end: last.end.max(end), mark };
            }
            _ => self.resends.push(Resent { start, end, mark }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use toe_core::SeqNr;

    const MSS: u64 = 10;

    fn blocks(space: Space, list: &[(u64, u64)]) -> SackBlocks {
        list.iter().map(|b| (space.seq(b.0), space.seq(b.1))).collect()
    }

    #[test]
    fn three_segments_above_make_a_hole_lost() {
        let space = Space::new(SeqNr(9));
        let mut s = Scoreboard::new();
        assert_eq!(s.sack(&blocks(space, &[(10, 30)]), space, 0, 100), 20);
        s.find_lost(MSS);
        assert!(!s.should_recover(true, 0));
        assert_eq!(s.sack(&blocks(space, &[(10, 40)]), space, 0, 100), 10);
        s.find_lost(MSS);
        assert!(s.should_recover(true, 0));
        s.enter_recovery(0, 100, MSS);
        assert_eq!(s.next_lost(0, 100), Some((0, 10)));
        assert_eq!(s.pipe(0, 100), 60);
        s.resent(0, 10, 100);
        assert_eq!((s.next_lost(0, 100), s.pipe(0, 100)), (None, 70));
        assert!(!s.advance(40, 40, true, MSS));
        assert!(s.advance(100, 60, true, MSS));
    }

    #[test]
    fn what_is_lost_again_is_resent_again() {
        let space = Space::new(SeqNr(9));
        let mut s = Scoreboard::new();
        s.sack(&blocks(space, &[(10, 20), (30, 60)]), space, 0, 100);
        s.find_lost(MSS);
        s.enter_recovery(0, 100, MSS);
        s.resent(0, 10, 100);
        s.resent(20, 30, 100);
        assert_eq!(s.next_lost(0, 120), None);
        // The second arrives, the first does not; 100..130 left after both.
        s.sack(&blocks(space, &[(20, 30), (100, 120)]), space, 0, 140);
        assert!(!s.find_lost(MSS), "two segments are not enough");
        let before = s.pipe(0, 140);
        s.sack(&blocks(space, &[(100, 130)]), space, 0, 140);
        assert!(s.find_lost(MSS));
        assert_eq!((s.next_lost(0, 140), s.force), (Some((0, 10)), true));
        // Gone: what was lost again, what was SACKed, and 60..100, now lost for the first time.
        assert_eq!(s.pipe(0, 140), before - 10 - 10 - 40);
        s.resent(0, 10, 140);
        assert_eq!(s.next_lost(0, 140), Some((60, 100)));
        // And once more.
        s.resent(60, 100, 140);
        s.sack(&blocks(space, &[(60, 100), (140, 170)]), space, 0, 200);
        assert!(s.find_lost(MSS));
        assert_eq!(s.next_lost(0, 200), Some((0, 10)));
        assert!(!s.advance(60, 60, true, MSS));
        assert_eq!(s.next_lost(60, 200), Some((130, 140)));
    }

    #[test]
    fn without_sack_each_partial_ack_resends_one() {
        let mut s = Scoreboard::new();
        (0..3).for_each(|_| s.duplicate(false, MSS, 100));
        assert_eq!(s.pipe(0, 100), 70);
        assert!(s.should_recover(false, 0));
        s.enter_recovery(0, 100, MSS);
        assert_eq!(s.next_lost(0, 100), Some((0, 10)));
        s.resent(0, 10, 100);
        assert!(!s.advance(30, 30, false, MSS));
        assert_eq!(s.next_lost(30, 100), Some((30, 40)));
        s.resent(30, 40, 100);
        assert!(s.advance(100, 70, false, MSS));
        // Duplicates of the final ACK are echoes of what was sent twice.
        (0..3).for_each(|_| s.duplicate(false, MSS, 100));
        assert!(!s.should_recover(false, 100) && s.should_recover(false, 101));
    }

    #[test]
    fn nonsense_blocks_are_no_news() {
        let space = Space::new(SeqNr(0));
        let mut s = Scoreboard::new();
        let bad = blocks(space, &[(50, 40), (90, 120), (0, 10), (5, 5)]);
        assert_eq!(s.sack(&bad, space, 0, 100), 0);
        assert_eq!(s.sack(&blocks(space, &[(10, 20)]), space, 20, 100), 0);
    }

    proptest! {
        #[test]
        fn counts_as_rfc_6675_does_byte_by_byte(
            sacks in proptest::collection::vec((1u64..90, 1u64..15), 0..8), resent in 0u64..40, recover: bool,
        ) {
            let space = Space::new(SeqNr(u32::MAX - 20));
            let (una, nxt) = (0u64, 100u64);
            let (mut s, mut sacked) = (Scoreboard::new(), BTreeSet::new());
            for (start, len) in sacks {
                let end = (start + len).min(nxt);
                s.sack(&blocks(space, &[(start, end)]), space, una, nxt);
                sacked.extend(start..end);
            }
            s.find_lost(MSS);
            let is_lost = |p: u64| {
                let above: Vec<u64> = sacked.iter().copied().filter(|&q| q > p).collect();
                let runs = above.iter().filter(|&&q| !sacked.contains(&(q - 1)) || q - 1 == p).count();
                !sacked.contains(&p) && (above.len() as u64 > 2 * MSS || runs >= 3)
            };
            if recover {
                let any = s.should_recover(true, una);
                prop_assert_eq!(any, (una..nxt).any(is_lost));
                if any && resent > 0 {
                    s.enter_recovery(una, nxt, MSS);
                    s.resent(0, resent, nxt);
                    let pipe: u64 = (una..nxt).filter(|p| !sacked.contains(p))
                        .map(|p| u64::from(!is_lost(p) && p >= MSS) + u64::from(p < resent)).sum();
                    prop_assert_eq!(s.pipe(una, nxt), pipe);
                }
            } else {
                let pipe = (una..nxt).filter(|p| !sacked.contains(p) && !is_lost(*p)).count() as u64;
                prop_assert_eq!(s.pipe(una, nxt), pipe);
                let first = (una..nxt).find(|p| is_lost(*p));
                prop_assert_eq!(s.next_lost(una, nxt).map(|r| r.0), first);
            }
        }
    }
}
