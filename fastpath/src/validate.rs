//! ④ Header validation: may this segment touch the connection? RFC 9293 §3.10.7.4 in its order, with PAWS (RFC 7323 §5)
//! and the blind-attack checks of RFC 5961.

use crate::engine::Engine;
use crate::flow::{Ending, Flow};
use crate::ranges::Pos;
use toe_core::wire::{Segment, flags};

/// The segment goes no further.
pub struct Rejected;

/// What the later steps need to know of a segment, in stream positions.
#[derive(Clone, Copy)]
pub struct Arrival {
    /// First byte.
    pub start: Pos,
    /// Behind the last byte (the FIN not counted).
    pub end: Pos,
    /// Acknowledged position.
    pub ack: Pos,
    /// Window, scaled.
    pub window: u32,
}

impl Flow {
    /// A segment's numbers as positions.
    #[inline]
    pub fn arrival(&self, seg: &Segment) -> Arrival {
        let start = self.rx_pos(seg.seq);
        Arrival {
            start,
            end: start + seg.payload_len as Pos,
            ack: self.tx_pos(seg.ack),
            window: u32::from(seg.window) << self.snd.wscale,
        }
    }

    /// Header prediction (Van Jacobson): the next segment in order, nothing odd about it. Then none of the checks below
    /// can fail.
    #[inline]
    pub fn predicted(&self, seg: &Segment, a: &Arrival) -> bool {
        let ts_ok = match (self.ts, seg.options.timestamps) {
            (Some(ours), Some(ts)) => (ts.val.wrapping_sub(ours.recent) as i32) >= 0,
            (Some(_), None) => false,
            (None, _) => true,
        };
        seg.flags & (flags::SYN | flags::FIN | flags::RST | flags::URG | flags::ACK) == flags::ACK
            && a.start == self.rcv.nxt
            && a.end <= self.rcv.adv
            && a.ack >= self.snd.una
            && a.ack <= self.snd.nxt
            && ts_ok
            && self.rcv.ooo.is_empty()
            && !self.rcv.fin
    }

    /// RFC 9293 §3.10.7.4, first to fifth step.
    pub fn validate(&mut self, eng: &mut Engine, seg: &Segment, a: &Arrival) -> Result<(), Rejected> {
        self.check_paws(eng, seg)?;
        self.check_sequence(eng, seg, a)?;
        self.check_rst(eng, seg, a)?;
        self.check_syn(eng, seg)?;
        self.check_ack(eng, seg, a)
    }

    /// RFC 7323 §5.3 R1. A segment without the option is let through, as Linux does.
    fn check_paws(&mut self, eng: &mut Engine, seg: &Segment) -> Result<(), Rejected> {
        let (Some(ours), Some(ts)) = (self.ts, seg.options.timestamps) else { return Ok(()) };
        if (ts.val.wrapping_sub(ours.recent) as i32) >= 0 || seg.has(flags::RST) {
            return Ok(());
        }
        eng.stats.paws_rejected += 1;
        self.rcv.ack_now = true;
        Err(Rejected)
    }

    /// First step: sequence number. An unacceptable segment is answered with an ACK, unless it is a RST.
    fn check_sequence(&mut self, eng: &mut Engine, seg: &Segment, a: &Arrival) -> Result<(), Rejected> {
        let end = a.end + Pos::from(seg.has(flags::FIN));
        if end >= self.rcv.nxt && a.start <= self.rcv.adv {
            return Ok(());
        }
        if end < self.rcv.nxt && a.end > a.start {
            eng.stats.duplicate_segs += 1;
            self.rcv.dsack = Some((a.start, a.end));
        } else {
            eng.stats.out_of_window += 1;
        }
        if !seg.has(flags::RST) {
            self.rcv.ack_now = true;
        }
        Err(Rejected)
    }

    /// Second step: RST only at exactly RCV.NXT, else a challenge (RFC 5961 §3.2).
    fn check_rst(&mut self, eng: &mut Engine, seg: &Segment, a: &Arrival) -> Result<(), Rejected> {
        if !seg.has(flags::RST) {
            return Ok(());
        }
        if a.start == self.rcv.nxt {
            self.ending = Ending::PeerReset;
        } else {
            self.challenge(eng);
        }
        Err(Rejected)
    }

    /// Fourth step: a SYN in a synchronised state draws a challenge ACK (RFC 5961 §4.2).
    fn check_syn(&mut self, eng: &mut Engine, seg: &Segment) -> Result<(), Rejected> {
        if !seg.has(flags::SYN) {
            return Ok(());
        }
        self.challenge(eng);
        Err(Rejected)
    }

    /// Fifth step: no ACK, no service; an ACK must be in the range of RFC 5961 §5.2.
    fn check_ack(&mut self, eng: &mut Engine, seg: &Segment, a: &Arrival) -> Result<(), Rejected> {
        if !seg.has(flags::ACK) {
            return Err(Rejected);
        }
        if a.ack > self.snd.nxt {
            self.rcv.ack_now = true;
            return Err(Rejected);
        }
        if a.ack < self.snd.una - Pos::from(self.snd.max_wnd) {
            self.challenge(eng);
            return Err(Rejected);
        }
        Ok(())
    }

    /// A challenge ACK, within the core's rate (RFC 5961 §7).
    fn challenge(&mut self, eng: &mut Engine) {
        if eng.allow_challenge() {
            eng.stats.challenge_acks += 1;
            self.rcv.ack_now = true;
        }
    }

    /// RFC 7323 §4.3: TS.Recent follows segments that cover the last ACK sent.
    #[inline]
    pub fn update_ts_recent(&mut self, seg: &Segment, a: &Arrival) {
        if let (Some(ours), Some(ts)) = (&mut self.ts, seg.options.timestamps)
            && (ts.val.wrapping_sub(ours.recent) as i32) >= 0
            && a.start <= self.rcv.nxt - Pos::from(self.rcv.unacked)
        {
            ours.recent = ts.val;
        }
    }
}
