//! Segmentation: what to send next, how large, and the header for it.

use crate::engine::Engine;
use crate::flow::{Ending, Flow};
use crate::ranges::Pos;
use crate::recovery::Phase;
use toe_core::Duration;
use toe_core::nic::{Nic, TxError, TxMeta};
use toe_core::shm::{CHUNK_SIZE, app_flags};
use toe_core::stream::{self, Pieces};
use toe_core::wire::{self, TcpFields, TcpOptions, Timestamps, flags};

/// Bytes one flow may send in one round before others have their turn.
const ROUND: u32 = 512 * 1024;
/// A corked segment leaves at the latest after this (tcp(7), TCP_CORK).
const CORK: Duration = Duration::from_millis(200);

/// Why a flow has stopped sending this round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Nothing more may be sent now.
    Done,
    /// The link's queue is full, or the round's share is used up: go on next round.
    Again,
}

impl Flow {
    /// Sends what windows and options allow: lost segments first, then new ones, then a FIN; at last an ACK if one is due and
    /// no data has carried it.
    pub fn output(&mut self, eng: &mut Engine, nic: &mut dyn Nic) -> Stop {
        if self.ending != Ending::No {
            return Stop::Done;
        }
        self.restart_after_idle(eng);
        let mut budget = ROUND;
        while let Some((start, end, resend)) = self.next_send(eng, nic) {
            match self.send_range(eng, nic, start, end, resend) {
                Ok(sent) => budget = budget.saturating_sub(sent),
                Err(TxError::Full) => return Stop::Again,
                Err(_) => return self.link_refused(eng),
            }
            if budget == 0 {
                return Stop::Again;
            }
        }
        self.arm_persist(eng);
        if self.ack_due() && self.send_ack(eng, nic, self.snd.nxt) == Err(TxError::Full) {
            return Stop::Again;
        }
        Stop::Done
    }

    /// RFC 5681 §4.1: nothing sent for longer than an RTO, nothing in flight: the window is no longer backed by ACKs.
    fn restart_after_idle(&mut self, eng: &Engine) {
        let idle = self.snd.nxt == self.snd.una && self.snd.nxt < self.tx_end();
        if idle && eng.now - self.snd.last > self.rtt.backed_off(0) {
            let mss = self.mss();
            self.cc.on_idle(mss);
        }
    }

    /// The link is down: the retransmission timer will try again.
    fn link_refused(&mut self, eng: &Engine) -> Stop {
        if self.timers.rto.is_none() {
            self.timers.rto = Some(eng.now + self.rtt.backed_off(self.backoff));
            self.timers.persist = self.snd.nxt == self.snd.una;
        }
        Stop::Done
    }

    /// The next range to send, and whether it is a retransmission.
    fn next_send(&mut self, eng: &mut Engine, nic: &dyn Nic) -> Option<(Pos, Pos, bool)> {
        let mss = self.mss();
        let pipe = self.pipe();
        if let Some((start, end)) = self.next_lost() {
            // RFC 6675 §5 step 4.2 and (C); the first retransmission leaves whatever the window says.
            let first = self.recovery.high_rxt <= self.snd.una;
            if first || pipe + mss <= self.cc.cwnd {
                let most = if first { mss } else { (self.cc.cwnd - pipe) / mss * mss };
                return Some((start, end.min(start + Pos::from(most.min(self.largest(nic)))), true));
            }
            self.snd.cwnd_limited = true;
            return None;
        }
        if self.snd.nxt >= self.tx_end() {
            return None;
        }
        self.next_new(eng, nic, mss, pipe)
    }

    fn next_new(&mut self, eng: &mut Engine, nic: &dyn Nic, mss: u32, pipe: u32) -> Option<(Pos, Pos, bool)> {
        let start = self.snd.nxt;
        let window = (self.snd.una + Pos::from(self.snd.wnd) - start).max(0) as u32;
        // RFC 3042: the first two duplicate ACKs each let one new segment out. `pipe` has already fallen by them.
        let room = self.cc.cwnd.saturating_sub(pipe);
        let waiting = (self.snd.tail - start) as u32;
        if waiting == 0 {
            return Some((start, start + 1, false)); // the FIN alone
        }
        let mut len = waiting.min(window).min(self.largest(nic));
        if len > room {
            self.snd.cwnd_limited = true;
            len = if room >= mss {
                room / mss * mss
            } else if pipe == 0 {
                len.min(mss)
            } else {
                0
            };
        }
        if len > mss {
            len -= len % mss; // a tail smaller than the MSS is judged by itself
        }
        if len == 0 || (len < mss && !self.may_send_small(eng, len, waiting)) {
            return None;
        }
        let end = start + Pos::from(len);
        Some((start, end + Pos::from(self.snd.fin && end == self.snd.tail), false))
    }

    /// Largest payload of one `Nic::send`.
    fn largest(&self, nic: &dyn Nic) -> u32 {
        let mss = self.mss();
        let most = (nic.caps().tso_max as u32).min(64_000).max(mss);
        // Pieces: 64 KiB touch at most five chunks.
        debug_assert!(most as usize <= 6 * CHUNK_SIZE);
        most / mss * mss
    }

    /// A segment below the MSS: Nagle (RFC 9293 §3.7.4) in Minshall's variant, cork, and sender SWS avoidance
    /// (§3.8.6.2.1).
    fn may_send_small(&mut self, eng: &mut Engine, len: u32, waiting: u32) -> bool {
        let everything = len == waiting;
        if everything && self.snd.fin {
            return true;
        }
        if everything && self.asked(app_flags::CORK) {
            let due = *self.timers.cork.get_or_insert(eng.now + CORK);
            return eng.now >= due;
        }
        if everything {
            return self.nodelay() || self.snd.small_end <= self.snd.una;
        }
        // Cut short by the peer's window: worth it only if it is half of the largest window ever seen.
        (len >= self.snd.max_wnd / 2 && self.snd.max_wnd > 0) || core::mem::take(&mut self.snd.override_sws)
    }

    /// Sends `[start, end)`, FIN included if `end` lies behind it; updates all that sending moves.
    fn send_range(
        &mut self,
        eng: &mut Engine,
        nic: &mut dyn Nic,
        start: Pos,
        end: Pos,
        resend: bool,
    ) -> Result<u32, TxError> {
        let data_end = end.min(self.snd.tail);
        let len = (data_end - start).max(0) as u32;
        let region = self.region.clone();
        let Some(pieces) = stream::tx_pieces(&region, self.sock, start as u64, len as usize) else {
            eng.stats.bad_app_state += 1;
            self.ending = Ending::Aborted;
            return Ok(0);
        };
        let mut fl = flags::ACK;
        if end > self.snd.tail {
            fl |= flags::FIN;
        }
        if len > 0 && data_end == self.snd.tail {
            fl |= flags::PSH;
        }
        let mss = self.mss();
        self.transmit(eng, nic, start, fl, &pieces, if len > mss { mss as u16 } else { 0 })?;
        if resend {
            self.recovery.high_rxt = end;
            self.retrans += 1;
            eng.stats.retrans_segs += 1;
            self.rtt.cancel_probe();
        } else {
            self.sent_new(eng, end, len < mss && len > 0);
        }
        if self.timers.rto.is_none() || self.timers.persist {
            self.timers.rto = Some(eng.now + self.rtt.backed_off(self.backoff));
            self.timers.persist = false;
        }
        Ok(len.max(1))
    }

    fn sent_new(&mut self, eng: &mut Engine, end: Pos, small: bool) {
        self.snd.nxt = end;
        self.snd.last = eng.now;
        if small {
            self.snd.small_end = end;
        }
        if self.recovery.phase == Phase::Open {
            self.rtt.start_probe(end, eng.now);
        }
        self.timers.cork = None;
        if self.timers.rto.is_none() {
            self.progress = eng.now;
        }
    }

    /// A segment without data at position `at`: an ACK, or a probe below SND.UNA.
    pub fn send_ack(&mut self, eng: &mut Engine, nic: &mut dyn Nic, at: Pos) -> Result<(), TxError> {
        self.transmit(eng, nic, at, flags::ACK, &Pieces::new(), 0)?;
        eng.stats.acks_sent += 1;
        Ok(())
    }

    /// RST at SND.NXT.
    pub fn send_reset(&mut self, eng: &mut Engine, nic: &mut dyn Nic) {
        let at = self.snd.nxt;
        let _ = self.transmit(eng, nic, at, flags::RST | flags::ACK, &Pieces::new(), 0);
    }

    fn transmit(
        &mut self,
        eng: &mut Engine,
        nic: &mut dyn Nic,
        at: Pos,
        fl: u8,
        pieces: &Pieces<'_>,
        gso_size: u16,
    ) -> Result<(), TxError> {
        let before = self.rcv.adv;
        let fields = TcpFields {
            key: self.key,
            seq: self.tx_seq(at),
            ack: self.rx_seq(self.rcv.nxt),
            flags: fl,
            window: self.announce_window(eng),
            urgent: 0,
            options: self.options(eng),
            ttl: self.ttl(),
            tos: self.tos(),
            ident: self.ident,
        };
        let offload = nic.caps().tx_csum;
        let header = wire::emit(&self.l2, &fields, pieces, offload);
        let meta =
            TxMeta { csum_offload: offload, gso_size, l4_offset: header.l4_offset, flow_hash: self.key.link_hash() };
        if let Err(e) = nic.send(header.as_slice(), pieces, meta) {
            self.rcv.adv = before;
            return Err(e);
        }
        self.ident = self.ident.wrapping_add(1);
        self.segs_out = self.segs_out.wrapping_add(1);
        eng.stats.out_segs += 1;
        self.ack_sent();
        Ok(())
    }

    fn options(&self, eng: &Engine) -> TcpOptions {
        TcpOptions {
            timestamps: self.ts.map(|ts| Timestamps { val: eng.ts_now().wrapping_add(ts.offset), ecr: ts.recent }),
            sack: self.sack_blocks(),
            ..Default::default()
        }
    }

    /// Data waits, nothing is in flight and the window lets nothing out: probe it (RFC 9293 §3.8.6.1).
    fn arm_persist(&mut self, eng: &Engine) {
        let stuck = self.snd.nxt < self.tx_end() && self.snd.nxt == self.snd.una && self.timers.cork.is_none();
        let window = Pos::from(self.snd.wnd);
        if stuck && self.timers.rto.is_none() && window < Pos::from(self.mss()).min(self.tx_end() - self.snd.nxt) {
            self.timers.rto = Some(eng.now + self.rtt.backed_off(self.backoff));
            self.timers.persist = true;
        }
    }

    /// The window has opened.
    pub fn leave_persist(&mut self) {
        self.timers.rto = None;
        self.timers.persist = false;
        self.backoff = 0;
    }
}
