//! Messages between slow path and fast path (`pathq`). A flow has one owner; it moves by `Down::Install` and
//! `Up::Closed`, never by shared state.

use crate::flow::{CongestionControl, FlowInit, FlowKey, TimeWait};
use crate::ids::{CoreId, FlowId, NicId, RegionId, SockId};
use crate::nic::{NicCaps, NicStats, RxMeta};
use crate::shm::Region;
use crate::time::Duration;
use std::sync::Arc;

/// A timer of a flow ran out and the slow path decides what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerKind {
    /// Retransmission (RFC 6298).
    Retransmit,
    /// Zero-window probe (RFC 9293 §3.8.6.1).
    Persist,
    /// Keep-alive (RFC 9293 §3.8.4).
    KeepAlive,
    /// FIN-WAIT-2 of a socket that nobody holds.
    FinWait2,
}

/// How a flow ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseKind {
    /// Both FINs exchanged and acknowledged; we sent ours first: TIME-WAIT.
    TimeWait(TimeWait),
    /// LAST-ACK acknowledged, or nothing to remember.
    Done,
    /// The peer reset it.
    PeerReset,
    /// We gave up or were told to (`Down::Remove`).
    Aborted,
}

/// Fast path to slow path.
pub enum Up {
    /// A frame that belongs to no installed flow of this core, or is no TCP at all.
    Punt {
        /// Core that received it.
        core: CoreId,
        /// Link it came from.
        nic: NicId,
        /// The whole frame.
        frame: Vec<u8>,
        /// What the link said of it.
        meta: RxMeta,
    },
    /// A timer ran out. The flow waits for `Down::Retransmit`, `Down::Probe` or `Down::Remove`.
    Timeout {
        /// Core.
        core: CoreId,
        /// Flow.
        flow: FlowId,
        /// Which timer.
        kind: TimerKind,
        /// How often in a row, this time included.
        count: u32,
        /// Time since the last sign of progress from the peer (an ACK of new data; for probes and keep-alive, any segment).
        silent: Duration,
        /// Nobody holds the socket any more.
        orphan: bool,
    },
    /// The flow is gone from the fast path; the socket slot (state `Closed`, error set, app notified) is the slow path's.
    Closed {
        /// Core.
        core: CoreId,
        /// Its number, free again.
        flow: FlowId,
        /// 4-tuple.
        key: FlowKey,
        /// Link.
        nic: NicId,
        /// Ethernet header for what TIME-WAIT must answer.
        l2: [u8; 14],
        /// App.
        region: RegionId,
        /// Slot.
        sock: SockId,
        /// How.
        how: CloseKind,
    },
    /// A link came up or went down, or its abilities changed.
    Link {
        /// Core that saw it.
        core: CoreId,
        /// Link.
        nic: NicId,
        /// Up?
        up: bool,
        /// Abilities.
        caps: NicCaps,
    },
    /// A request of a socket that the core has no flow of: the app read `owner` just before the flow ended.
    Kick {
        /// App.
        region: RegionId,
        /// Slot.
        sock: SockId,
    },
    /// Answer to `Down::Report`.
    Report {
        /// Core.
        core: CoreId,
        /// What it counted.
        stats: Box<CoreStats>,
    },
}

/// Slow path to fast path.
pub enum Down {
    /// Take this flow.
    Install(Box<FlowInit>),
    /// A region's sockets may be kicked from now on.
    Attach(Arc<Region>),
    /// Forget a region. All its flows are gone already.
    Detach(RegionId),
    /// Send a frame as it is (handshakes, ARP, ICMP, RST ...): complete, checksums included.
    Transmit {
        /// Link.
        nic: NicId,
        /// Whole frame.
        frame: Vec<u8>,
    },
    /// A frame for one of this core's flows that arrived elsewhere, or before the flow was installed.
    Inject {
        /// Link it came from.
        nic: NicId,
        /// Whole frame.
        frame: Vec<u8>,
        /// What the link said of it.
        meta: RxMeta,
    },
    /// Look at this socket as if the app had kicked it (a holder died, an option changed).
    Kick {
        /// App.
        region: RegionId,
        /// Slot.
        sock: SockId,
    },
    /// The slot of a finished flow is free again: give back the chunks of bytes that were never read.
    Release {
        /// App.
        region: RegionId,
        /// Slot.
        sock: SockId,
    },
    /// Retransmission time-out: resend the first unacknowledged segment, back off, restart the timer.
    Retransmit(FlowId),
    /// Send a zero-window or keep-alive probe and restart that timer.
    Probe(FlowId, TimerKind),
    /// End the flow: error for the app (0: none), and whether the peer gets a RST.
    Remove {
        /// Flow.
        flow: FlowId,
        /// errno or 0.
        errno: i32,
        /// Send RST.
        reset: bool,
    },
    /// Path MTU changed (RFC 1191, 8201): new largest payload before options.
    SetMss(FlowId, u16),
    /// New Ethernet header (the neighbour moved).
    SetL2(FlowId, [u8; 14]),
    /// Fix the congestion window (policies that live in the slow path).
    SetWindow(FlowId, u32),
    /// Change the algorithm.
    SetCongestion(FlowId, CongestionControl),
    /// Answer with `Up::Report`.
    Report,
}

/// One fast path core's counters. Names follow Linux's `nstat` where there is one.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[allow(missing_docs)]
pub struct CoreStats {
    pub polls: u64,
    pub idle_polls: u64,
    pub kicks: u64,
    pub flows: u64,
    pub in_segs: u64,
    pub out_segs: u64,
    /// Payload bytes sent for the first time.
    pub bytes_sent: u64,
    /// Payload bytes received in order.
    pub bytes_received: u64,
    pub in_errs: u64,
    pub in_csum_errs: u64,
    pub retrans_segs: u64,
    pub fast_retrans: u64,
    /// Retransmissions found lost without a time-out.
    pub lost_retransmits: u64,
    pub timeouts: u64,
    /// Tail loss probes.
    pub loss_probes: u64,
    pub header_prediction_hits: u64,
    pub out_of_order: u64,
    pub duplicate_segs: u64,
    pub paws_rejected: u64,
    pub challenge_acks: u64,
    pub out_of_window: u64,
    pub acks_sent: u64,
    pub delayed_acks: u64,
    pub zero_windows_sent: u64,
    pub probes_sent: u64,
    pub punts: u64,
    pub punts_dropped: u64,
    pub rx_chunk_shortage: u64,
    pub bad_app_state: u64,
    pub rx_chunks_in_use: u64,
    pub nics: Vec<(NicId, NicStats)>,
}
