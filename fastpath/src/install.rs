//! Taking over an established connection from the slow path.

use crate::ack::QUICK_ACKS;
use crate::alloc::CHUNK;
use crate::buffers::buffer_size;
use crate::congestion::Congestion;
use crate::flow::{AckState, AppView, Counts, Flow, NO_CHUNK, Receive, Send, Stamps};
use crate::kick::DEFAULT_TTL;
use crate::poll::Env;
use crate::reassembly::Reassembly;
use crate::recovery::Scoreboard;
use crate::rtt::Rtt;
use crate::space::Space;
use crate::timers::Timers;
use core::sync::atomic::Ordering::Relaxed;
use toe_core::flow::FlowInit;
use toe_core::notify;
use toe_core::shm::{STREAM_CHUNKS, SockState};
use toe_core::wire::{Segment, TcpOptions, flags};

/// Least MSS we believe, so that options always leave room for data (Linux's TCP_MIN_SND_MSS is 48).
pub(crate) const LEAST_MSS: u16 = 64;
/// "Full-sized" until the peer has shown what it sends (RFC 9293 §3.7.1's default).
const FIRST_SEGMENT_SIZE: u32 = 536;
/// What the handshake has told the peer of our window, at most: SYN windows are not scaled.
const SYN_WINDOW: u64 = 65_535;

impl Flow {
    /// A flow as it stands after the handshake: position 0 both ways, nothing in flight.
    pub fn new(init: &FlowInit, env: &Env) -> Flow {
        let limit = buffer_size(env.tcp.rcvbuf.into());
        let mut flow = Flow {
            id: init.id,
            key: init.key,
            nic: init.nic,
            l2: init.l2,
            link_hash: init.key.link_hash(),
            region: init.region.clone(),
            region_id: init.region.id(),
            sock: init.sock,
            app: AppView { ttl: DEFAULT_TTL, ..AppView::default() },
            snd: sending(init, env),
            rcv: receiving(init, env, limit),
            ack: AckState { quick: QUICK_ACKS, ..AckState::default() },
            rtt: Rtt::new(&env.tcp, init.rtt, init.syn_retransmitted),
            cc: Congestion::new(init.congestion, 1, false),
            board: Scoreboard::new(),
            timers: Timers::new(),
            ts: init.timestamps.map(|ts| Stamps::new(ts, env.now)),
            sack: init.sack,
            ending: None,
            queued: false,
            counts: Counts::default(),
        };
        flow.cc = Congestion::new(init.congestion, flow.mss(), init.syn_retransmitted);
        flow
    }

    /// Fills in the slot and hands the app what has already arrived.
    pub fn begin(&mut self, env: &mut Env, init: &FlowInit) {
        let slot = self.slot();
        slot.rx_limit.store(self.rcv.limit as u32, Relaxed);
        slot.tx_limit.store(buffer_size(env.tcp.sndbuf.into()) as u32, Relaxed);
        let options = u32::from(self.ts.is_some()) | u32::from(self.sack) << 1 | u32::from(init.rcv_wscale > 0) << 2;
        slot.info.options.store(options, Relaxed);
        slot.info.wscale.store(u32::from(init.snd_wscale & 15) | u32::from(init.rcv_wscale & 15) << 4, Relaxed);
        self.read_options(env);
        self.take_early(env, init);
        self.ack.now |= init.ack_due; // the third segment of the handshake (RFC 9293 §3.10.7.3)
        let slot = self.slot();
        // The slow path says when a connect is done.
        if slot.state.load(Relaxed) == SockState::Established as u32 {
            notify::all(&self.region, self.sock, slot, &*env.waker);
        }
        self.publish_info();
    }

    /// Data and FIN that came with the handshake: as if they arrived now in one segment.
    fn take_early(&mut self, env: &mut Env, init: &FlowInit) {
        if init.early_data.is_empty() && !init.early_fin {
            return;
        }
        let seg = Segment {
            key: init.key,
            seq: init.irs + 1,
            ack: init.iss + 1,
            flags: flags::ACK | if init.early_fin { flags::FIN } else { 0 },
            window: self.snd.raw_wnd,
            urgent: 0,
            options: TcpOptions {
                timestamps: init.timestamps.map(|ts| toe_core::wire::Timestamps { val: ts.recent, ecr: 0 }),
                ..TcpOptions::default()
            },
            l4_offset: 0,
            payload_offset: 0,
            payload_len: init.early_data.len(),
            ecn: 0,
            ttl: DEFAULT_TTL,
        };
        self.input(env, &seg, &init.early_data, 0);
        self.ack.now = true;
    }
}

fn sending(init: &FlowInit, env: &Env) -> Send {
    let wnd = u64::from(init.snd_wnd);
    Send {
        space: Space::new(init.iss),
        una: 0,
        nxt: 0,
        wnd,
        raw_wnd: (wnd >> init.snd_wscale.min(14)).min(u16::MAX.into()) as u16,
        max_wnd: wnd,
        wscale: init.snd_wscale.min(14),
        wl1: 0,
        wl2: 0,
        mss: init.snd_mss.max(LEAST_MSS).into(),
        buf_max: buffer_size(env.tcp.buf_max.into()),
        fin: None,
        closed_first: false,
        small_end: 0,
        limited: 0,
        timed: None,
        last: env.now,
        progress: env.now,
        timed_out: false,
        tail_probe: false,
        tail_probed: false,
        probe_end: None,
        probes: 0,
        persist_backoff: 0,
        probe_due: false,
        sws_over: false,
        cork_over: false,
    }
}

fn receiving(init: &FlowInit, env: &Env, limit: u64) -> Receive {
    debug_assert!(limit <= STREAM_CHUNKS as u64 * CHUNK);
    Receive {
        space: Space::new(init.irs),
        nxt: 0,
        edge: limit,
        told: limit.min(SYN_WINDOW),
        acked: 0,
        advertised: limit.min(SYN_WINDOW),
        wscale: init.rcv_wscale.min(14),
        mss: u32::from(init.rcv_mss).max(LEAST_MSS.into()),
        seg_size: FIRST_SEGMENT_SIZE.min(u32::from(init.rcv_mss).max(LEAST_MSS.into())),
        limit,
        fin: None,
        fin_done: false,
        published: 0,
        ooo: Reassembly::default(),
        chunks: Box::new([NO_CHUNK; STREAM_CHUNKS]),
        freed: 0,
        unannounced: 0,
        last: env.now,
        tuned: (0, env.now),
    }
}
