//! One connection as its fast path knows it: the transmission control block.
//!
//! Sequence numbers are unwrapped into [`Pos`]: positions in the byte stream, 0 = first byte after the SYN. A FIN
//! takes one position after the last byte. So comparisons are plain integer comparisons; `tx_seq`, `tx_pos`, `rx_seq`,
//! `rx_pos` are the only places where 32-bit numbers are converted.
//!
//! ```text
//!   send:   una ───── acked by the peer up to here              receive:  rx_head ── read by the app
//!            │  in flight                                                   │  readable
//!           nxt ───── next to send for the first time                     rcv_nxt ── next expected
//!            │  written by the app, not yet sent                            │  window (out-of-order ranges in `ooo`)
//!         tx_tail ─── end of what the app wrote; FIN here if `fin`       rcv_adv ── right edge we have announced
//! ```

use crate::congestion::Congestion;
use crate::ranges::{Pos, RangeSet};
use crate::recovery::Recovery;
use crate::rtt::Rtt;
use std::collections::VecDeque;
use std::sync::Arc;
use toe_core::flow::{FlowKey, TsInit};
use toe_core::shm::{Region, SockSlot, app_flags};
use toe_core::wire::SackBlocks;
use toe_core::{FlowId, Instant, NicId, SeqNr, SockId};

/// What the sender remembers.
pub struct Send {
    /// Our initial sequence number.
    pub iss: SeqNr,
    /// SND.UNA.
    pub una: Pos,
    /// SND.NXT; never moves back, retransmissions are the scoreboard's affair.
    pub nxt: Pos,
    /// End of the app's bytes, as last read from the slot.
    pub tail: Pos,
    /// The app has shut down its side: a FIN follows `tail`.
    pub fin: bool,
    /// SND.WND in bytes.
    pub wnd: u32,
    /// Largest window ever seen (sender SWS avoidance, RFC 9293 §3.8.6.2.1; RFC 5961 §5).
    pub max_wnd: u32,
    /// Segment sequence and acknowledgment number of the last window update (SND.WL1, SND.WL2).
    pub wl1: Pos,
    /// See `wl1`.
    pub wl2: Pos,
    /// Peer's window scale.
    pub wscale: u8,
    /// Largest payload before options.
    pub mss: u16,
    /// End of the last segment sent that was smaller than the MSS (Minshall's variant of Nagle).
    pub small_end: Pos,
    /// Last time data was sent.
    pub last: Instant,
    /// The congestion window kept us from sending since the last ACK.
    pub cwnd_limited: bool,
    /// A small segment leaves though it fills neither the MSS nor half the window: the override timer has run out (RFC 9293
    /// §3.8.6.2.1).
    pub override_sws: bool,
}

/// What the receiver remembers.
pub struct Receive {
    /// Their initial sequence number.
    pub irs: SeqNr,
    /// RCV.NXT.
    pub nxt: Pos,
    /// Right edge announced.
    pub adv: Pos,
    /// Bytes read by the app, as last read from the slot.
    pub head: Pos,
    /// Out-of-order data that is already in its chunks.
    pub ooo: RangeSet,
    /// Starts of the ranges that changed last, newest first (RFC 2018 §4).
    pub recent: arrayvec::ArrayVec<Pos, 4>,
    /// Duplicate bytes to report once (RFC 2883).
    pub dsack: Option<(Pos, Pos)>,
    /// Where the peer's FIN stands, once seen.
    pub fin_at: Option<Pos>,
    /// The FIN has been passed: `nxt` is one beyond the last byte.
    pub fin: bool,
    /// Our window scale.
    pub wscale: u8,
    /// Bytes of buffer.
    pub limit: u32,
    /// Largest segment seen: what counts as full-sized for delayed ACKs.
    pub mss: u32,
    /// Bytes received since our last ACK.
    pub unacked: u32,
    /// An ACK must leave now.
    pub ack_now: bool,
    /// Segments that are still acknowledged at once at the start (Linux's quickack).
    pub quick: u8,
    /// Chunk number (position / CHUNK_SIZE) of `chunks[0]`.
    pub first_chunk: i64,
    /// Chunks from there on; `NO_CHUNK` where nothing has arrived.
    pub chunks: VecDeque<u32>,
    /// Autotuning: position of `head` and time at the start of the measured round trip.
    pub tune: (Pos, Instant),
}

/// No chunk allocated.
pub const NO_CHUNK: u32 = u32::MAX;

/// Deadlines; `None`: not running.
#[derive(Default)]
pub struct Timers {
    /// Retransmission or persist (never both, RFC 9293 §3.8.6.1).
    pub rto: Option<Instant>,
    /// The `rto` deadline is a zero-window probe.
    pub persist: bool,
    /// Delayed ACK.
    pub ack: Option<Instant>,
    /// Keep-alive.
    pub keepalive: Option<Instant>,
    /// FIN-WAIT-2 of an orphan.
    pub fin_wait2: Option<Instant>,
    /// A corked small segment leaves at the latest now (Linux: 200 ms).
    pub cork: Option<Instant>,
    /// Earliest entry that the wheel holds.
    pub in_wheel: Option<Instant>,
}

impl Timers {
    /// The earliest deadline.
    pub fn earliest(&self) -> Option<Instant> {
        [self.rto, self.ack, self.keepalive, self.fin_wait2, self.cork].into_iter().flatten().min()
    }
}

/// How far the end of the connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It lives.
    No,
    /// Both FINs are acknowledged, ours was first (or at the same time).
    TimeWait,
    /// Both FINs are acknowledged, theirs was first.
    Done,
    /// The peer sent RST.
    PeerReset,
    /// We gave up.
    Aborted,
}

/// The connection.
pub struct Flow {
    /// Number, chosen by the slow path.
    pub id: FlowId,
    /// 4-tuple.
    pub key: FlowKey,
    /// Link.
    pub nic: NicId,
    /// Ethernet header.
    pub l2: [u8; 14],
    /// App's memory.
    pub region: Arc<Region>,
    /// App's slot.
    pub sock: SockId,
    /// Send side.
    pub snd: Send,
    /// Receive side.
    pub rcv: Receive,
    /// SACK permitted.
    pub sack: bool,
    /// Timestamps, if agreed: TS.Recent and our offset.
    pub ts: Option<TsInit>,
    /// Round-trip time.
    pub rtt: Rtt,
    /// Congestion control.
    pub cc: Congestion,
    /// Loss recovery.
    pub recovery: Recovery,
    /// Deadlines.
    pub timers: Timers,
    /// Time-outs or probes in a row.
    pub backoff: u32,
    /// Keep-alive probes in a row.
    pub keepalive_probes: u32,
    /// When a segment last came.
    pub heard: Instant,
    /// When the peer last acknowledged something new (or sent anything, for probes).
    pub progress: Instant,
    /// `app_flags` as last read.
    pub app: u32,
    /// Nobody holds the socket.
    pub orphan: bool,
    /// The peer's FIN came before ours left.
    pub passive_close: bool,
    /// Over?
    pub ending: Ending,
    /// The peer is to be told by RST.
    pub reset_peer: bool,
    /// In the list of flows to finish this round.
    pub dirty: bool,
    /// New in-order bytes or EOF to tell the app of.
    pub rx_news: bool,
    /// Room to tell the app of.
    pub tx_news: bool,
    /// IPv4 identification.
    pub ident: u16,
    /// Counters for TCP_INFO.
    pub segs_out: u32,
    /// See `segs_out`.
    pub segs_in: u32,
    /// Segments retransmitted in all.
    pub retrans: u32,
}

impl Flow {
    /// The app's slot.
    #[inline(always)]
    pub fn slot(&self) -> &SockSlot {
        self.region.sock(self.sock).expect("checked at install")
    }

    /// Is an app flag set?
    #[inline(always)]
    pub fn asked(&self, flag: u32) -> bool {
        self.app & flag != 0
    }

    /// Sequence number of a send position.
    #[inline(always)]
    pub fn tx_seq(&self, pos: Pos) -> SeqNr {
        self.snd.iss + 1 + pos as u32
    }

    /// Send position of an acknowledgment number, near SND.UNA.
    #[inline(always)]
    pub fn tx_pos(&self, seq: SeqNr) -> Pos {
        self.snd.una + i64::from((seq - self.tx_seq(self.snd.una)) as i32)
    }

    /// Sequence number of a receive position.
    #[inline(always)]
    pub fn rx_seq(&self, pos: Pos) -> SeqNr {
        self.rcv.irs + 1 + pos as u32
    }

    /// Receive position of a sequence number, near RCV.NXT.
    #[inline(always)]
    pub fn rx_pos(&self, seq: SeqNr) -> Pos {
        self.rcv.nxt + i64::from((seq - self.rx_seq(self.rcv.nxt)) as i32)
    }

    /// End of all we shall ever send so far: bytes plus FIN.
    #[inline(always)]
    pub fn tx_end(&self) -> Pos {
        self.snd.tail + Pos::from(self.snd.fin)
    }

    /// Bytes outstanding.
    #[inline(always)]
    pub fn in_flight(&self) -> u32 {
        (self.snd.nxt - self.snd.una) as u32
    }

    /// Our FIN has been acknowledged.
    #[inline(always)]
    pub fn fin_acked(&self) -> bool {
        self.snd.fin && self.snd.una > self.snd.tail
    }

    /// Our FIN has been sent.
    #[inline(always)]
    pub fn fin_sent(&self) -> bool {
        self.snd.fin && self.snd.nxt > self.snd.tail
    }

    /// Bytes received in order, the FIN not counted.
    #[inline(always)]
    pub fn rx_tail(&self) -> Pos {
        self.rcv.nxt - Pos::from(self.rcv.fin)
    }

    /// Largest payload of a segment with the options we send now (RFC 6691).
    #[inline(always)]
    pub fn mss(&self) -> u32 {
        let mut options = if self.ts.is_some() { 12 } else { 0 };
        let blocks = self.sack_blocks().len();
        if blocks > 0 {
            options += 4 + 8 * blocks.min((40 - 4 - options) / 8);
        }
        u32::from(self.snd.mss).saturating_sub(options as u32).max(1)
    }

    /// SACK blocks to report: a duplicate first (RFC 2883), then the ranges that changed last (RFC 2018 §4).
    #[inline]
    pub fn sack_blocks(&self) -> SackBlocks {
        let mut blocks = SackBlocks::new();
        if !self.sack || (self.rcv.ooo.is_empty() && self.rcv.dsack.is_none()) {
            return blocks;
        }
        let recent = self.rcv.recent.iter().filter_map(|&p| self.rcv.ooo.containing(p));
        for (start, end) in self.rcv.dsack.into_iter().chain(recent) {
            let block = (self.rx_seq(start), self.rx_seq(end));
            if !blocks.is_full() && !blocks.contains(&block) {
                blocks.push(block);
            }
        }
        blocks
    }

    /// Does the app want its small segments out at once?
    pub fn nodelay(&self) -> bool {
        self.asked(app_flags::NODELAY)
    }

    /// Linux's TCP_* number of the state, for TCP_INFO and status.
    pub fn linux_state(&self) -> u32 {
        match (self.fin_sent(), self.fin_acked(), self.rcv.fin) {
            (false, _, false) => 1,
            (true, false, false) => 4,
            (true, true, false) => 5,
            (false, _, true) => 8,
            (true, false, true) if self.passive_close => 9,
            (true, false, true) => 11,
            (true, true, true) => 7,
        }
    }
}
