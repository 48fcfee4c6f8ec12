//! ⑤ Acknowledgments: taking those of the peer, giving ours.

use crate::congestion::Acked;
use crate::engine::Engine;
use crate::flow::{Ending, Flow};
use crate::ranges::Pos;
use crate::recovery::Phase;
use crate::validate::Arrival;
use std::sync::atomic::Ordering::{Relaxed, Release};
use toe_core::shm::app_flags;
use toe_core::tcp::TcpConfig;
use toe_core::wire::Segment;

impl Flow {
    /// The acknowledgment of an acceptable segment (RFC 9293 §3.10.7.4 fifth step, RFC 5681, RFC 6675).
    #[inline]
    pub fn on_ack(&mut self, eng: &mut Engine, seg: &Segment, a: &Arrival) {
        if a.ack < self.snd.una {
            return;
        }
        let told_new = !seg.options.sack.is_empty() && self.sack && self.take_sack(&seg.options.sack);
        let window_moved = self.update_window(eng, a);
        if a.ack > self.snd.una {
            self.advance_una(eng, a.ack);
        } else if self.snd.nxt > self.snd.una && a.end == a.start && (told_new || !window_moved) {
            // RFC 5681 §2: duplicate if it carries nothing and changes nothing; RFC 6675: or brings new SACK information.
            if self.on_duplicate_ack() {
                eng.stats.fast_retrans += 1;
            }
        }
        if self.timers.persist && self.snd.wnd > 0 {
            self.leave_persist();
        }
    }

    /// RFC 9293 §3.10.7.4: SND.WND, unless the segment is older than the last that set it.
    fn update_window(&mut self, eng: &mut Engine, a: &Arrival) -> bool {
        if a.start < self.snd.wl1 || (a.start == self.snd.wl1 && a.ack < self.snd.wl2) {
            return false;
        }
        let moved = a.window != self.snd.wnd;
        self.snd.wnd = a.window;
        self.snd.wl1 = a.start;
        self.snd.wl2 = a.ack;
        self.snd.max_wnd = self.snd.max_wnd.max(a.window);
        if self.timers.persist || self.timers.keepalive.is_some() {
            // Any acceptable segment shows that the peer lives.
            self.progress = eng.now;
        }
        moved
    }

    fn advance_una(&mut self, eng: &mut Engine, ack: Pos) {
        let bytes = (ack - self.snd.una) as u32;
        let was = self.recovery.phase;
        let (old_head, new_head) = (self.snd.una.min(self.snd.tail), ack.min(self.snd.tail));
        self.snd.una = ack;
        self.progress = eng.now;
        self.backoff = 0;
        self.rtt.acked(ack, eng.now);
        if self.on_new_ack() {
            eng.stats.fast_retrans += 1;
        }
        if was != Phase::Fast && self.recovery.phase != Phase::Fast && self.snd.cwnd_limited {
            let srtt = self.rtt.srtt().unwrap_or_default();
            self.cc.on_ack(Acked { bytes, now: eng.now, srtt, mss: self.mss() });
        }
        self.snd.cwnd_limited = false;
        self.free_tx(old_head, new_head);
        let slot = self.slot();
        slot.tx_head.store(new_head as u64, Release);
        self.grow_tx_limit(&eng.tcp);
        self.tx_news |= self.tx_room_is_news();
        // RFC 6298 §5.2, §5.3.
        self.timers.rto = (self.snd.nxt > self.snd.una).then(|| eng.now + self.rtt.backed_off(0));
        self.timers.persist = false;
    }

    /// Is a third of the TX stream free, so that a waiting writer is told (Linux's sk_stream_is_writeable)?
    fn tx_room_is_news(&self) -> bool {
        let limit = i64::from(self.slot().tx_limit.load(Relaxed));
        let used = self.snd.tail - self.snd.una.min(self.snd.tail);
        limit - used >= limit / 3
    }

    /// Autotuning: room for two congestion windows, unless the app has set SO_SNDBUF.
    fn grow_tx_limit(&self, tcp: &TcpConfig) {
        let slot = self.slot();
        let asked = slot.opt_sndbuf.load(Relaxed);
        let limit = slot.tx_limit.load(Relaxed);
        let want = if asked != 0 { asked } else { limit.max((2 * self.cc.cwnd).min(tcp.buf_max)) };
        let want = want.min(Flow::MAX_BUFFER);
        if want != limit {
            slot.tx_limit.store(want, Relaxed);
        }
    }

    /// Should an ACK leave at the end of this round (RFC 9293 §3.8.6.3, RFC 5681 §4.2)?
    #[inline]
    pub fn ack_due(&self) -> bool {
        self.rcv.ack_now
            || self.rcv.unacked >= 2 * self.rcv.mss
            || (self.rcv.unacked > 0 && (self.rcv.quick > 0 || self.asked(app_flags::QUICKACK)))
    }

    /// An ACK has left, alone or with data.
    #[inline]
    pub fn ack_sent(&mut self) {
        self.rcv.ack_now = false;
        self.rcv.unacked = 0;
        self.rcv.quick = self.rcv.quick.saturating_sub(1);
        self.rcv.dsack = None;
        self.timers.ack = None;
    }

    /// Right edge of the window we can offer. It never moves left (RFC 9293 §3.8.6.2.2), and moves right only by a worthwhile
    /// step (receiver SWS avoidance, §3.8.6.2.2): min(half the buffer, one full-sized segment).
    pub fn window_edge(&self) -> Pos {
        let most = Pos::from(0xffff_u32 << self.rcv.wscale);
        let edge = (self.rcv.head + Pos::from(self.rcv.limit)).min(self.rcv.nxt + most);
        let step = Pos::from((self.rcv.limit / 2).min(self.rcv.mss));
        if edge - self.rcv.adv >= step { edge } else { self.rcv.adv }
    }

    /// The window field: what is left up to `window_edge`, which becomes the announced edge.
    #[inline]
    pub fn announce_window(&mut self, eng: &mut Engine) -> u16 {
        // Rounded down to the scale, so that the peer never believes in more than we have noted.
        let unit = (1 << self.rcv.wscale) - 1;
        let window = (self.window_edge() - self.rcv.nxt).max(0) & !unit;
        self.rcv.adv = self.rcv.adv.max(self.rcv.nxt + window);
        let left = (self.rcv.adv - self.rcv.nxt).max(0) >> self.rcv.wscale;
        eng.stats.zero_windows_sent += u64::from(left == 0);
        left.min(0xffff) as u16
    }

    /// After the app has read: is the window we could offer now worth a segment of its own? (At least twice what the peer
    /// thinks is left, as Linux's tcp_cleanup_rbuf.)
    pub fn window_update_due(&self) -> bool {
        let left = (self.rcv.adv - self.rcv.nxt).max(0);
        let could = self.window_edge() - self.rcv.nxt;
        !self.rcv.fin && self.ending == Ending::No && could > left && could >= 2 * left
    }
}
