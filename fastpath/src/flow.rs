//! A flow: one established connection's transmission control block (RFC 9293 §3.3.1), in stream positions (`space.rs`).

use crate::congestion::Congestion;
use crate::reassembly::Reassembly;
use crate::recovery::Scoreboard;
use crate::rtt::Rtt;
use crate::space::Space;
use crate::timers::Timers;
use std::sync::Arc;
use toe_core::flow::{FlowKey, TsInit};
use toe_core::shm::{Region, STREAM_CHUNKS, SockSlot};
use toe_core::{FlowId, Instant, NicId, RegionId, SockId};

/// No chunk.
pub(crate) const NO_CHUNK: u32 = u32::MAX;

/// One connection. Everything the app could touch is copied in here first (`kick.rs`).
pub(crate) struct Flow {
    pub id: FlowId,
    pub key: FlowKey,
    pub nic: NicId,
    /// Ethernet header of outgoing frames.
    pub l2: [u8; 14],
    /// Symmetric hash for the link's queues.
    pub link_hash: u32,
    pub region: Arc<Region>,
    pub region_id: RegionId,
    /// Checked against the region at installation.
    pub sock: SockId,
    pub app: AppView,
    pub snd: Send,
    pub rcv: Receive,
    pub ack: AckState,
    pub rtt: Rtt,
    pub cc: Congestion,
    pub board: Scoreboard,
    pub timers: Timers,
    /// Timestamps, if agreed (RFC 7323).
    pub ts: Option<Stamps>,
    /// SACK agreed (RFC 2018).
    pub sack: bool,
    /// How the flow ends, once that is decided; acted upon when the flow has its turn to send.
    pub ending: Option<Ending>,
    /// In the list of flows that want a turn.
    pub queued: bool,
    pub counts: Counts,
}

/// The app's words about the socket, as last read.
///
/// ```text
///   TX:  snd.una ≤ snd.nxt ≤ tail (+1 for FIN)          RX:  head ≤ rcv.nxt
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AppView {
    /// Bytes written.
    pub tail: u64,
    /// Bytes read.
    pub head: u64,
    /// `app_flags`.
    pub flags: u32,
    /// Nobody holds the socket any more (and somebody once did).
    pub orphan: bool,
    /// IP_TTL and IP_TOS.
    pub ttl: u8,
    pub tos: u8,
}

/// Sending.
///
/// ```text
///        acknowledged     in flight        allowed       not yet
///   ────────────────┬───────────────┬──────────────┬──────────────►
///                  una             nxt         una + wnd
/// ```
#[derive(Debug)]
pub(crate) struct Send {
    pub space: Space,
    /// SND.UNA.
    pub una: u64,
    /// SND.NXT.
    pub nxt: u64,
    /// SND.WND, bytes.
    pub wnd: u64,
    /// Window field of the last segment that updated it.
    pub raw_wnd: u16,
    /// Largest window ever offered (RFC 9293 §3.8.6.2.1, RFC 5961 §5).
    pub max_wnd: u64,
    /// Their window scale.
    pub wscale: u8,
    /// SND.WL1 and SND.WL2.
    pub wl1: i64,
    pub wl2: u64,
    /// Largest payload before TCP options.
    pub mss: u32,
    /// The send buffer is tuned no further.
    pub buf_max: u64,
    /// Position of our FIN, once the sending side is closed.
    pub fin: Option<u64>,
    /// Our FIN left before the peer's arrived: TIME-WAIT is ours.
    pub closed_first: bool,
    /// End of the last segment shorter than the MSS (Minshall's variant of Nagle's algorithm).
    pub small_end: u64,
    /// The congestion window held us back when `nxt` was here.
    pub limited: u64,
    /// A segment being timed: its end and when it left. Nothing of it was resent (Karn).
    pub timed: Option<(u64, Instant)>,
    /// When something was last sent.
    pub last: Instant,
    /// Last progress: an ACK of new data, or the start of a flight.
    pub progress: Instant,
    /// The slow path was told of a time-out and has not answered; progress makes its answer void.
    pub timed_out: bool,
    /// A tail loss probe is to go out.
    pub tail_probe: bool,
    /// One went out, and nothing was acknowledged since.
    pub tail_probed: bool,
    /// It was a copy, which ends here.
    pub probe_end: Option<u64>,
    /// Zero-window or keep-alive probes since the peer was last heard.
    pub probes: u32,
    /// Doublings of the persist timer.
    pub persist_backoff: u32,
    /// A probe is to be sent.
    pub probe_due: bool,
    /// A silly window may be used: the override time is over.
    pub sws_over: bool,
    /// A corked rest may go: its 200 ms are over.
    pub cork_over: bool,
}

/// Receiving.
///
/// ```text
///      in order      out of order and holes        beyond
///   ─────────────┬─────────────────────────────┬───────────►
///               nxt                          edge (never moves left, RFC 9293 §3.8.6.2.2)
/// ```
#[derive(Debug)]
pub(crate) struct Receive {
    pub space: Space,
    /// RCV.NXT.
    pub nxt: u64,
    /// Right edge of what we accept: the largest ever advertised, at installation the whole buffer.
    pub edge: u64,
    /// Right edge ever advertised.
    pub told: u64,
    /// Last.ACK.sent (RFC 7323 §4.3), Linux's rcv_wup.
    pub acked: u64,
    /// The window last advertised, in bytes.
    pub advertised: u64,
    /// Our window scale.
    pub wscale: u8,
    /// MSS we announced.
    pub mss: u32,
    /// Largest segment seen: what "full-sized" means for delayed ACKs.
    pub seg_size: u32,
    /// Receive buffer, bytes.
    pub limit: u64,
    /// Position of the peer's FIN, once seen.
    pub fin: Option<u64>,
    /// The peer's FIN is in order (nxt is one past it).
    pub fin_done: bool,
    /// What the app was told of (`rx_tail` in the slot).
    pub published: u64,
    /// Out-of-order ranges.
    pub ooo: Reassembly,
    /// Private chunk table; the app has a mirror of it.
    pub chunks: Box<[u32; STREAM_CHUNKS]>,
    /// Chunks below this number are freed.
    pub freed: u64,
    /// In-order bytes (or FIN) not yet announced to sleepers.
    pub unannounced: u64,
    /// Any acceptable segment.
    pub last: Instant,
    /// Buffer tuning: what was read at the start of the current round trip, and when that was.
    pub tuned: (u64, Instant),
}

/// Acknowledgments due.
#[derive(Debug, Default)]
pub(crate) struct AckState {
    /// Send one with the next turn.
    pub now: bool,
    /// Duplicate ACKs owed beside it to a peer without SACK, who counts them.
    pub extra: u32,
    /// Segments to acknowledge at once before delaying (Linux's quick ACKs).
    pub quick: u32,
    /// When an out-of-window segment was last answered (RFC 5961 §7, Linux's tcp_invalid_ratelimit).
    pub last_invalid: Option<Instant>,
}

/// Timestamps (RFC 7323).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamps {
    /// TS.Recent.
    pub recent: u32,
    /// When it was set; older than 24 days it is void (§5.5).
    pub recent_at: Instant,
    /// Our TSval = milliseconds + this.
    pub offset: u32,
}

impl Stamps {
    pub fn new(init: TsInit, now: Instant) -> Stamps {
        Stamps { recent: init.recent, recent_at: now, offset: init.offset }
    }

    /// Our TSval.
    pub fn value(&self, now: Instant) -> u32 {
        (now.millis() as u32).wrapping_add(self.offset)
    }
}

/// How a flow ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    pub how: How,
    /// For the app; 0: none.
    pub errno: i32,
    /// The peer gets a RST.
    pub reset: bool,
}

/// See [`toe_core::msg::CloseKind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// Both FINs are through, see `close.rs` for TIME-WAIT.
    Orderly,
    PeerReset,
    Aborted,
}

/// For TCP_INFO.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub segs_in: u32,
    pub segs_out: u32,
    pub retrans: u32,
}

impl Flow {
    /// The socket's slot.
    #[inline(always)]
    pub fn slot(&self) -> &SockSlot {
        slot(&self.region, self.sock)
    }

    /// Bytes of payload that fit a segment beside the options every segment carries (RFC 6691).
    #[inline(always)]
    pub fn mss(&self) -> u64 {
        u64::from(self.snd.mss) - if self.ts.is_some() { 12 } else { 0 }
    }

    /// Data acknowledged, without the FIN.
    #[inline(always)]
    pub fn data_acked(&self) -> u64 {
        self.snd.fin.map_or(self.snd.una, |fin| self.snd.una.min(fin))
    }

    /// Data sent at least once, without the FIN.
    #[inline(always)]
    pub fn data_sent(&self) -> u64 {
        self.snd.fin.map_or(self.snd.nxt, |fin| self.snd.nxt.min(fin))
    }

    /// Data received in order, without the FIN.
    #[inline(always)]
    pub fn data_received(&self) -> u64 {
        self.rcv.nxt - u64::from(self.rcv.fin_done)
    }

    /// Our FIN was sent.
    pub fn fin_sent(&self) -> bool {
        self.snd.fin.is_some_and(|fin| self.snd.nxt > fin)
    }

    /// Our FIN was acknowledged.
    pub fn fin_acked(&self) -> bool {
        self.snd.fin.is_some_and(|fin| self.snd.una > fin)
    }

    /// Decides how the flow ends; the first decision stays.
    pub fn end(&mut self, how: How, errno: i32, reset: bool) {
        self.ending.get_or_insert(Ending { how, errno, reset });
    }
}

/// A slot whose number was checked at installation.
#[inline(always)]
pub(crate) fn slot(region: &Region, sock: SockId) -> &SockSlot {
    region.sock(sock).expect("socket number checked at installation")
}
