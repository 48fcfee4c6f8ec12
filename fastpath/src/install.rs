//! Taking over a connection from the slow path.

use crate::alloc::RegionState;
use crate::congestion::Congestion;
use crate::engine::Engine;
use crate::flow::{Ending, Flow, Receive, Send, Timers};
use crate::ranges::{Pos, RangeSet};
use crate::recovery::Recovery;
use crate::rtt::Rtt;
use crate::validate::Arrival;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Relaxed, Release};
use toe_core::flow::FlowInit;
use toe_core::notify;
use toe_core::shm::SockState;

/// Segments acknowledged at once at the start of a connection (Linux: TCP_MAX_QUICKACKS).
const QUICK_ACKS: u8 = 16;

impl Flow {
    /// The flow that `init` describes; `None` if its socket is not in its region.
    pub fn new(eng: &Engine, init: &FlowInit) -> Option<Flow> {
        let slot = init.region.sock(init.sock)?;
        let limit = slot.rx_limit.load(Relaxed).clamp(2048, Flow::MAX_BUFFER);
        let mut rtt = Rtt::new(&eng.tcp);
        if let Some(r) = init.rtt {
            rtt.sample(r);
        }
        // The window field of a SYN is never scaled: at most 64 KiB are announced yet.
        let adv = Pos::from(limit.min(0xffff));
        let mss = init.snd_mss.max(64);
        Some(Flow {
            id: init.id,
            key: init.key,
            nic: init.nic,
            l2: init.l2,
            region: init.region.clone(),
            sock: init.sock,
            snd: Send {
                iss: init.iss,
                una: 0,
                nxt: 0,
                tail: 0,
                fin: false,
                wnd: init.snd_wnd,
                max_wnd: init.snd_wnd,
                wl1: -1,
                wl2: 0,
                wscale: init.snd_wscale.min(14),
                mss,
                small_end: 0,
                last: eng.now,
                cwnd_limited: false,
                override_sws: false,
            },
            rcv: Receive {
                irs: init.irs,
                nxt: 0,
                adv,
                head: 0,
                ooo: RangeSet::default(),
                recent: Default::default(),
                dsack: None,
                fin_at: None,
                fin: false,
                wscale: init.rcv_wscale.min(14),
                limit,
                mss: u32::from(init.rcv_mss).min(536),
                unacked: 0,
                ack_now: init.ack_due,
                quick: QUICK_ACKS,
                first_chunk: 0,
                chunks: VecDeque::new(),
                tune: (0, eng.now),
            },
            sack: init.sack,
            ts: init.timestamps,
            rtt,
            cc: Congestion::new(init.congestion, u32::from(mss), init.syn_retransmitted),
            recovery: Recovery::default(),
            timers: Timers::default(),
            backoff: 0,
            keepalive_probes: 0,
            progress: eng.now,
            heard: eng.now,
            app: 0,
            orphan: false,
            passive_close: false,
            ending: Ending::No,
            reset_peer: false,
            dirty: false,
            rx_news: false,
            tx_news: false,
            ident: init.iss.0 as u16,
            segs_out: 0,
            segs_in: 0,
            retrans: 0,
        })
    }

    /// First steps: early data, then whatever the app has already asked for.
    pub fn start(&mut self, eng: &mut Engine, regions: &mut RegionState, early_data: &[u8], early_fin: bool) {
        let slot = self.slot();
        slot.state.store(SockState::Established as u32, Release);
        if !early_data.is_empty() || early_fin {
            let end = early_data.len() as Pos;
            self.rcv.adv = self.rcv.adv.max(end + 1);
            let a = Arrival { start: 0, end, ack: 0, window: self.snd.wnd };
            self.on_data(eng, regions, &a, early_data);
            if early_fin {
                self.on_fin(end);
                self.pass_fin();
            }
        }
        self.apply_rcvbuf();
        self.take_kick(eng, regions);
        notify::all(&self.region, self.sock, self.slot(), &*eng.waker);
        eng.touch(self);
    }
}
