//! Loss recovery: SACK scoreboard and "NextSeg" of RFC 6675, fast retransmit and recovery of RFC 5681/6582 where the
//! peer has no SACK, limited transmit (RFC 3042), and recovery after a time-out (RFC 5681 §3.1, all by the same
//! scoreboard). RACK-TLP and PRR will take the place of `update_lost` and of the window rule in `segment.rs`.

use crate::flow::Flow;
use crate::ranges::{Pos, RangeSet};
use toe_core::wire::SackBlocks;

/// RFC 6675 §2, RFC 5681 §3.2.
const DUP_THRESH: u32 = 3;

/// Phase of the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// No loss known.
    Open,
    /// Fast recovery.
    Fast,
    /// After a retransmission time-out.
    Loss,
}

/// The scoreboard of one flow.
pub struct Recovery {
    /// Phase.
    pub phase: Phase,
    /// Recovery ends when this position is acknowledged (RecoveryPoint, RFC 6675 §2).
    pub point: Pos,
    /// What the peer has selectively acknowledged.
    pub sacked: RangeSet,
    /// Everything not SACKed below this is held lost.
    pub lost_to: Pos,
    /// Everything below this has been retransmitted in this recovery (HighRxt).
    pub high_rxt: Pos,
    /// Duplicate ACKs in a row.
    pub dup_acks: u32,
}

impl Default for Recovery {
    fn default() -> Recovery {
        Recovery { phase: Phase::Open, point: 0, sacked: RangeSet::default(), lost_to: 0, high_rxt: 0, dup_acks: 0 }
    }
}

impl Flow {
    /// Enters a segment's SACK blocks into the scoreboard; returns whether they told anything new. Blocks outside of
    /// what is outstanding are ignored (RFC 6675 §4; DSACK blocks are below SND.UNA).
    pub fn take_sack(&mut self, blocks: &SackBlocks) -> bool {
        let mut new = 0;
        for &(left, right) in blocks {
            let (left, right) = (self.tx_pos(left), self.tx_pos(right));
            if left > self.snd.una && right <= self.snd.nxt {
                new += self.recovery.sacked.insert(left, right);
            }
        }
        new > 0
    }

    /// Bytes that duplicate ACKs tell have left the network where the peer has no SACK.
    fn dup_acked(&self) -> i64 {
        if self.sack {
            return 0;
        }
        let most = (i64::from(self.in_flight()) - i64::from(self.mss())).max(0);
        (i64::from(self.recovery.dup_acks) * i64::from(self.mss())).min(most)
    }

    /// RFC 6675 §4 SetPipe: bytes thought to be in the network.
    pub fn pipe(&self) -> u32 {
        let r = &self.recovery;
        let (una, nxt) = (self.snd.una, self.snd.nxt);
        if r.phase == Phase::Open && r.sacked.is_empty() {
            return (nxt - una - self.dup_acked()).max(0) as u32;
        }
        let unsacked = |a: Pos, b: Pos| if b > a { b - a - r.sacked.covered_in(a, b) } else { 0 };
        let lost_not_resent = unsacked(r.high_rxt.max(una), r.lost_to);
        (unsacked(una, nxt) - lost_not_resent - self.dup_acked()).max(0) as u32
    }

    /// RFC 6675 §4 IsLost for the whole scoreboard: below a point with more than (DupThresh - 1) · SMSS SACKed above it.
    fn update_lost(&mut self) {
        let enough = i64::from((DUP_THRESH - 1) * self.mss());
        let r = &mut self.recovery;
        let mut above = 0;
        for (i, (start, end)) in r.sacked.iter().rev().enumerate() {
            above += end - start;
            if above > enough || i as u32 + 1 >= DUP_THRESH {
                r.lost_to = r.lost_to.max(start);
                break;
            }
        }
    }

    /// After an ACK that acknowledged nothing new: fast retransmit when due. Returns `true` when recovery starts.
    pub fn on_duplicate_ack(&mut self) -> bool {
        self.recovery.dup_acks += 1;
        self.update_lost();
        self.maybe_enter_recovery()
    }

    fn maybe_enter_recovery(&mut self) -> bool {
        let r = &self.recovery;
        let hole_is_lost = r.lost_to > self.snd.una;
        // RFC 6582 §3.2 step 1: not again for losses of the window that is being repaired.
        let fresh = r.phase == Phase::Open && self.snd.una >= r.point;
        if !fresh || !(r.dup_acks >= DUP_THRESH || hole_is_lost) {
            return false;
        }
        let (flight, mss) = (self.in_flight(), self.mss());
        self.cc.on_loss(flight, mss);
        self.rtt.cancel_probe();
        let first = self.recovery.sacked.iter().next().map_or(self.snd.una + Pos::from(mss), |r| r.0);
        let r = &mut self.recovery;
        r.phase = Phase::Fast;
        r.point = self.snd.nxt;
        r.high_rxt = self.snd.una;
        r.lost_to = r.lost_to.max(first.min(self.snd.una + Pos::from(mss)));
        true
    }

    /// After SND.UNA has moved: end of recovery, or the next hole (partial ACK, RFC 6582 §3.2 step 3). Returns `true`
    /// when recovery starts with this ACK.
    pub fn on_new_ack(&mut self) -> bool {
        let (una, mss) = (self.snd.una, Pos::from(self.mss()));
        let r = &mut self.recovery;
        r.sacked.remove_below(una);
        r.dup_acks = 0;
        r.high_rxt = r.high_rxt.max(una);
        if r.phase != Phase::Open && una >= r.point {
            r.phase = Phase::Open;
            r.lost_to = una;
        } else if r.phase == Phase::Fast && (!self.sack || r.lost_to <= una) {
            // The head of what is left was lost too.
            r.lost_to = r.lost_to.max(una + mss);
        }
        r.lost_to = r.lost_to.max(una);
        if self.recovery.sacked.is_empty() {
            return false;
        }
        self.update_lost();
        self.maybe_enter_recovery()
    }

    /// A retransmission time-out: all that is not SACKed is lost, from the start (RFC 6675 §5.1).
    pub fn on_timeout(&mut self, first: bool) {
        let (flight, mss) = (self.in_flight(), self.mss());
        self.cc.on_timeout(flight, mss, first);
        self.rtt.cancel_probe();
        let r = &mut self.recovery;
        r.phase = Phase::Loss;
        r.point = self.snd.nxt;
        r.lost_to = self.snd.nxt;
        r.high_rxt = self.snd.una;
        r.dup_acks = 0;
    }

    /// RFC 6675 §4 NextSeg, rule 1: the next lost bytes not yet retransmitted.
    pub fn next_lost(&self) -> Option<(Pos, Pos)> {
        let r = &self.recovery;
        if r.phase == Phase::Open {
            return None;
        }
        let limit = r.lost_to.min(self.snd.nxt);
        r.sacked.first_gap(r.high_rxt.max(self.snd.una), limit)
    }
}
