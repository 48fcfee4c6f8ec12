//! Closing, in all its forms (RFC 9293 §3.6, §3.10.7.4 eighth). Which state a flow is in follows from four facts:
//!
//! ```text
//!                     our FIN not sent      sent               acknowledged
//!   no FIN received   ESTABLISHED           FIN-WAIT-1         FIN-WAIT-2
//!   FIN received      CLOSE-WAIT            LAST-ACK/CLOSING   over: TIME-WAIT if ours went first, else CLOSED
//! ```
//!
//! The app sees `Established` until both directions are through; half-closed connections live as long as it likes.

use crate::flow::{Ending, Flow, How};
use crate::poll::Env;
use crate::timers::Timer;
use crate::validate::Arrival;
use core::sync::atomic::Ordering::{Relaxed, Release};
use toe_core::Duration;
use toe_core::flow::{TimeWait, TsInit};
use toe_core::msg::{CloseKind, Up};
use toe_core::notify;
use toe_core::shm::{SLOW_WORKER, SockState, app_flags, daemon_flags};
use toe_core::tcp::TcpConfig;
use toe_core::wire::flags;

impl Flow {
    /// The app will write no more: FIN after its last byte.
    pub fn close_tx(&mut self) {
        if self.snd.fin.is_none() {
            self.snd.fin = Some(self.app.tail);
        }
    }

    /// The last holder is gone. Unread bytes mean that the peer must learn of their loss (RFC 2525 §2.17).
    pub fn orphaned(&mut self) {
        self.app.orphan = true;
        let unread = self.rcv.published > self.app.head;
        if unread {
            self.end(How::Aborted, 0, true);
        } else if self.app.flags & app_flags::LINGER_RST == 0 {
            self.close_tx();
        }
    }

    /// An orphan with SO_LINGER of no time: what it wrote and the windows allow has left by now, as Linux sends it before
    /// close(2) can be called; then comes the RST.
    pub fn abort_if_told(&mut self) {
        if self.app.orphan && self.ending.is_none() && self.app.flags & app_flags::LINGER_RST != 0 {
            self.end(How::Aborted, 0, true);
        }
    }

    /// Eighth: the FIN bit. One that came too early waits at its position for what is missing.
    pub fn take_fin(&mut self, env: &mut Env, a: &Arrival) {
        if a.seg.has(flags::FIN) {
            let at = a.end - 1;
            let fits = at >= self.rcv.nxt as i64 && at <= self.rcv.edge.max(self.rcv.nxt) as i64;
            let above_all = self.rcv.ooo.highest().is_none_or(|top| top as i64 <= at);
            if self.rcv.fin.is_none() && fits && above_all {
                self.rcv.fin = Some(at as u64);
            }
            self.ack.now = true;
        }
        if self.rcv.fin == Some(self.rcv.nxt) && !self.rcv.fin_done {
            self.rcv.fin_done = true;
            self.rcv.nxt += 1;
            self.ack.now = true;
            self.rcv.unannounced += 1;
            let slot = self.slot();
            slot.daemon_flags.fetch_or(daemon_flags::RX_FIN, Release);
            self.close_if_over(env);
        }
    }

    /// After an ACK of new data: was it for our FIN? SO_LINGER waits for that.
    pub fn fin_may_be_acked(&mut self, env: &Env) {
        let slot = self.slot();
        if self.fin_acked() && slot.daemon_flags.load(Relaxed) & daemon_flags::TX_FIN_ACKED == 0 {
            slot.daemon_flags.fetch_or(daemon_flags::TX_FIN_ACKED, Release);
            notify::all(&self.region, self.sock, slot, &*env.waker);
        }
        self.close_if_over(env);
    }

    /// Both directions through: the flow is over. Ours only, and nobody waits for the other: a limited time (FIN-WAIT-2).
    pub fn close_if_over(&mut self, env: &Env) {
        if !self.fin_acked() {
            return;
        }
        if self.rcv.fin_done {
            self.end(How::Orderly, 0, false);
        } else if self.app.orphan {
            let wait = match self.slot().opt_linger2.load(Relaxed) {
                0 => TcpConfig::ms(env.tcp.fin_timeout_ms),
                linger => Duration::from_secs(u64::from(linger) - 1),
            };
            self.timers.start(Timer::FinWait2, env.now + wait);
        }
    }

    /// An acceptable RST (RFC 9293 §3.10.7.4, second). In CLOSE-WAIT Linux says EPIPE.
    pub fn reset_by_peer(&mut self) {
        let errno = if self.rcv.fin_done && self.snd.fin.is_none() { libc::EPIPE } else { libc::ECONNRESET };
        self.end(How::PeerReset, errno, false);
    }

    /// Linux's TCP_* number of the state, for TCP_INFO.
    pub fn state_number(&self) -> u32 {
        match (self.rcv.fin_done, self.fin_sent(), self.fin_acked()) {
            (false, false, _) => 1,
            (false, true, false) => 4,
            (false, true, true) => 5,
            (true, false, _) => 8,
            (true, true, false) if self.snd.closed_first => 11,
            (true, true, false) => 9,
            (true, true, true) if self.snd.closed_first => 6,
            (true, true, true) => 7,
        }
    }

    /// The flow leaves the fast path: chunks back, the app told, the slot and the rest of the story to the slow path.
    pub fn finish(mut self: Box<Flow>, env: &mut Env) {
        let ending = self.ending.unwrap_or(Ending { how: How::Aborted, errno: 0, reset: false });
        let how = match ending.how {
            How::Orderly if self.snd.closed_first => CloseKind::TimeWait(self.time_wait()),
            How::Orderly => CloseKind::Done,
            How::PeerReset => CloseKind::PeerReset,
            How::Aborted => CloseKind::Aborted,
        };
        self.free_all(&mut env.regions);
        let slot = self.slot();
        if ending.how != How::Orderly {
            if ending.errno != 0 {
                slot.error.store(ending.errno as u32, Release);
            }
            slot.daemon_flags.fetch_or(daemon_flags::RESET, Release);
        }
        slot.info.tcp_state.store(7, Relaxed);
        slot.state.store(SockState::Closed as u32, Release);
        slot.owner.store(SLOW_WORKER, Release);
        notify::all(&self.region, self.sock, slot, &*env.waker);
        env.up.send(Up::Closed {
            core: env.core,
            flow: self.id,
            key: self.key,
            nic: self.nic,
            l2: self.l2,
            region: self.region_id,
            sock: self.sock,
            how,
        });
    }

    fn time_wait(&self) -> TimeWait {
        TimeWait {
            snd_nxt: self.snd.space.seq(self.snd.nxt),
            rcv_nxt: self.rcv.space.seq(self.rcv.nxt),
            window: (self.rcv.advertised >> self.rcv.wscale) as u16,
            timestamps: self.ts.map(|ts| TsInit { recent: ts.recent, offset: ts.offset }),
        }
    }

    /// TCP_INFO and `toe status`: one cache line, written by this core only.
    pub fn publish_info(&self) {
        let (i, micros) = (&self.slot().info, |d: Duration| d.as_micros().min(u32::MAX.into()) as u32);
        let small = |n: u64| n.min(u32::MAX.into()) as u32;
        i.cwnd.store(small(self.cc.cwnd()), Relaxed);
        i.ssthresh.store(small(self.cc.ssthresh()), Relaxed);
        i.srtt_us.store(self.rtt.srtt().map_or(0, micros), Relaxed);
        i.rttvar_us.store(micros(self.rtt.rttvar()), Relaxed);
        i.rto_us.store(micros(self.rtt.rto()), Relaxed);
        i.mss.store(self.mss() as u32, Relaxed);
        i.rcv_mss.store(self.rcv.seg_size, Relaxed);
        i.snd_wnd.store(small(self.snd.wnd), Relaxed);
        i.rcv_wnd.store(small(self.rcv.advertised), Relaxed);
        i.total_retrans.store(self.counts.retrans, Relaxed);
        i.retransmits.store(self.rtt.backoff, Relaxed);
        i.tcp_state.store(self.state_number(), Relaxed);
        i.segs_out.store(self.counts.segs_out, Relaxed);
        i.segs_in.store(self.counts.segs_in, Relaxed);
    }
}
