//! ④ Header validation: RFC 9293 §3.10.7.4 in the order of its clauses, PAWS (RFC 7323 §5), and the defences of RFC 5961. A
//! segment that is just what was expected skips all of it (header prediction).

use crate::flow::{Flow, How};
use crate::poll::Env;
use toe_core::wire::{Segment, flags};
use toe_core::{Duration, Instant};

/// A segment in stream positions.
#[derive(Debug)]
pub(crate) struct Arrival<'a> {
    pub seg: &'a Segment,
    pub payload: &'a [u8],
    /// Position of its first byte in our RX stream; negative: before the stream.
    pub start: i64,
    /// Position after its last byte or FIN.
    pub end: i64,
    /// What it acknowledges of our TX stream.
    pub ack: i64,
    /// Size of the segments that the link merged into it, or 0.
    pub gso_size: u16,
}

/// Why a segment is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Neither answered nor believed: no ACK flag, a RST out of the window, a missing timestamp.
    Ignored,
    /// Timestamp from the past: answered by an ACK.
    Paws,
    /// Outside the window: answered by an ACK.
    OutOfWindow,
    /// Possibly forged: answered by a challenge ACK (RFC 5961).
    Suspicious,
    /// The peer reset the connection.
    Reset,
    /// Data for a socket that nobody holds, or that is shut down both ways.
    NobodyReads,
    /// No chunk for the data.
    NoChunk,
    /// Too many holes.
    TooManyRanges,
}

const ODD: u8 = flags::SYN | flags::FIN | flags::RST | flags::URG;
/// RFC 7323 §5.5: a TS.Recent older than this is void.
const TS_VALID: Duration = Duration::from_secs(24 * 24 * 3600);
/// Empty segments out of the window are answered this seldom, or two confused ends would go on for ever.
const INVALID_INTERVAL: Duration = Duration::from_millis(500);

impl Flow {
    /// Everything a segment does to a flow, except for what is sent in answer (that is the flow's turn, later in the round).
    pub fn input(&mut self, env: &mut Env, seg: &Segment, payload: &[u8], gso_size: u16) {
        env.stats.in_segs += 1;
        self.counts.segs_in = self.counts.segs_in.wrapping_add(1);
        if self.ending.is_some() {
            return;
        }
        let start = self.rcv.space.pos(self.rcv.nxt, seg.seq);
        let ack = self.snd.space.pos(self.snd.una, seg.ack);
        let a = Arrival { seg, payload, start, end: start + i64::from(seg.len()), ack, gso_size };
        let outcome = if self.predicted(&a) {
            env.stats.header_prediction_hits += 1;
            self.accept(env, &a)
        } else {
            self.validate(env, &a).and_then(|()| self.accept(env, &a))
        };
        if let Err(refusal) = outcome {
            self.refuse(env, refusal, &a);
        }
    }

    /// Van Jacobson's header prediction: the next in-order data, or an ACK of what is outstanding, and nothing else.
    #[inline]
    fn predicted(&self, a: &Arrival) -> bool {
        let timestamps_fit = match (&self.ts, a.seg.options.timestamps) {
            (Some(ours), Some(theirs)) => !older(theirs.val, ours.recent),
            (None, _) => true,
            (Some(_), None) => false,
        };
        a.seg.flags & (ODD | flags::ACK) == flags::ACK
            && a.start == self.rcv.nxt as i64
            && a.end <= self.rcv.edge as i64
            && a.seg.window == self.snd.raw_wnd
            && a.ack >= self.snd.una as i64
            && a.ack <= self.snd.nxt as i64
            && timestamps_fit
            && a.seg.options.sack.is_empty()
            && self.rcv.ooo.is_empty()
            && self.rcv.fin.is_none()
            && self.board.is_calm()
    }

    fn validate(&mut self, env: &mut Env, a: &Arrival) -> Result<(), Refusal> {
        self.check_reset(a)?;
        self.check_syn(a)?;
        self.check_timestamp(env, a)?;
        self.check_sequence(env, a)?;
        self.check_ack(a)
    }

    /// Second: the RST bit (RFC 5961 §3.2): exactly the next byte, or it may be forged.
    fn check_reset(&self, a: &Arrival) -> Result<(), Refusal> {
        if !a.seg.has(flags::RST) {
            return Ok(());
        }
        let nxt = self.rcv.nxt as i64;
        Err(match a.start {
            s if s == nxt => Refusal::Reset,
            s if s > nxt && s < self.rcv.edge as i64 => Refusal::Suspicious,
            _ => Refusal::Ignored,
        })
    }

    /// Fourth: the SYN bit, whatever its number (RFC 5961 §4.2).
    fn check_syn(&self, a: &Arrival) -> Result<(), Refusal> {
        if a.seg.has(flags::SYN) { Err(Refusal::Suspicious) } else { Ok(()) }
    }

    /// PAWS (RFC 7323 §5.3 R1; a missing option: §3.2).
    fn check_timestamp(&self, env: &Env, a: &Arrival) -> Result<(), Refusal> {
        let Some(ours) = &self.ts else { return Ok(()) };
        let Some(theirs) = a.seg.options.timestamps else { return Err(Refusal::Ignored) };
        let valid = env.now.since(ours.recent_at) < TS_VALID;
        if valid && older(theirs.val, ours.recent) { Err(Refusal::Paws) } else { Ok(()) }
    }

    /// First: the sequence number. As Linux: a segment is acceptable if any of it lies between the last ACK we sent and the
    /// right edge, both included, so that ACKs overtaken by data and window probes are still heard.
    fn check_sequence(&self, env: &mut Env, a: &Arrival) -> Result<(), Refusal> {
        if a.end >= self.rcv.acked as i64 && a.start <= self.rcv.edge.max(self.rcv.nxt) as i64 {
            return Ok(());
        }
        env.stats.out_of_window += 1;
        Err(Refusal::OutOfWindow)
    }

    /// Fifth: the ACK field, no older than the largest window and not from the future (RFC 5961 §5.2).
    fn check_ack(&self, a: &Arrival) -> Result<(), Refusal> {
        if !a.seg.has(flags::ACK) {
            return Err(Refusal::Ignored);
        }
        let oldest = self.snd.una as i64 - self.snd.max_wnd as i64;
        if a.ack > self.snd.nxt as i64 || a.ack < oldest { Err(Refusal::Suspicious) } else { Ok(()) }
    }

    /// The segment is good: its timestamp, its ACK, its data, its FIN.
    fn accept(&mut self, env: &mut Env, a: &Arrival) -> Result<(), Refusal> {
        self.remember_timestamp(env.now, a);
        self.rcv.last = env.now;
        self.snd.probes = 0;
        self.take_ack(env, a);
        self.take_data(env, a)?;
        self.take_fin(env, a);
        Ok(())
    }

    /// RFC 7323 §4.3 (3): the timestamp to echo is that of the segment that the next ACK answers.
    fn remember_timestamp(&mut self, now: Instant, a: &Arrival) {
        let (Some(ours), Some(theirs)) = (&mut self.ts, a.seg.options.timestamps) else { return };
        if a.start <= self.rcv.acked as i64 {
            ours.recent = theirs.val;
            ours.recent_at = now;
        }
    }

    fn refuse(&mut self, env: &mut Env, refusal: Refusal, a: &Arrival) {
        match refusal {
            Refusal::Ignored => {}
            Refusal::Paws => {
                env.stats.paws_rejected += 1;
                self.answer_invalid(env.now, a);
            }
            Refusal::OutOfWindow => {
                if a.payload.len() as i64 > 0 && a.end <= self.rcv.nxt as i64 {
                    env.stats.duplicate_segs += 1;
                    self.rcv.ooo.note_duplicate(a.start.max(0) as u64, a.end.max(0) as u64);
                }
                self.answer_invalid(env.now, a);
            }
            Refusal::Suspicious => self.challenge(env),
            Refusal::Reset => self.reset_by_peer(),
            Refusal::NobodyReads => {
                let errno = if self.app.orphan { 0 } else { libc::ECONNRESET };
                self.end(How::Aborted, errno, true);
            }
            Refusal::NoChunk | Refusal::TooManyRanges => {
                env.stats.rx_chunk_shortage += 1;
                self.ack.now = true;
            }
        }
    }

    /// RFC 9293 §3.10.7.4: an unacceptable segment is answered by an ACK; empty ones at a limited rate.
    fn answer_invalid(&mut self, now: Instant, a: &Arrival) {
        if a.seg.is_empty() && self.too_soon(now) {
            return;
        }
        self.ack.now = true;
    }

    /// A challenge ACK (RFC 5961 §7): limited for each flow and for the whole core.
    fn challenge(&mut self, env: &mut Env) {
        if !self.too_soon(env.now) && env.challenge.allow(env.now) {
            env.stats.challenge_acks += 1;
            self.ack.now = true;
        }
    }

    fn too_soon(&mut self, now: Instant) -> bool {
        if self.ack.last_invalid.is_some_and(|at| now.since(at) < INVALID_INTERVAL) {
            return true;
        }
        self.ack.last_invalid = Some(now);
        false
    }
}

/// Timestamp order, modulo 2^32 (RFC 7323 §5.2).
#[inline(always)]
fn older(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// The core's budget of challenge ACKs.
#[derive(Debug)]
pub(crate) struct ChallengeLimit {
    per_second: u32,
    second: u64,
    left: u32,
}

impl ChallengeLimit {
    pub fn new(per_second: u32) -> ChallengeLimit {
        ChallengeLimit { per_second, second: 0, left: per_second }
    }

    fn allow(&mut self, now: Instant) -> bool {
        let second = now.millis() / 1000;
        if second != self.second {
            (self.second, self.left) = (second, self.per_second);
        }
        self.left.checked_sub(1).map(|left| self.left = left).is_some()
    }
}
