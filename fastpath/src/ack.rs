//! ⑤ ACKs: what one that arrives does, and when one of ours is due.

use crate::flow::{Flow, Stamps};
use crate::poll::Env;
use crate::recovery::Phase;
use crate::timers::Timer;
use crate::validate::Arrival;
use toe_core::notify;
use toe_core::shm::app_flags;
use toe_core::tcp::TcpConfig;
use toe_core::wire::flags;
use toe_core::{Duration, Instant};

/// Segments acknowledged at once when a flow begins (Linux's TCP_MAX_QUICKACKS).
pub(crate) const QUICK_ACKS: u32 = 16;

impl Flow {
    /// RFC 9293 §3.10.7.4, fifth: the ACK field of an acceptable segment.
    pub fn take_ack(&mut self, env: &mut Env, a: &Arrival) {
        if a.ack < self.snd.una as i64 {
            return; // old: says nothing new
        }
        let window_moved = self.update_window(a);
        let news = match self.sack {
            true => self.board.sack(&a.seg.options.sack, self.snd.space, self.snd.una, self.snd.nxt),
            false => 0,
        };
        if a.ack > self.snd.una as i64 {
            self.acked(env, a);
        } else if self.is_duplicate(a, window_moved, news) {
            let outstanding = self.snd.nxt - self.snd.una;
            self.board.duplicate(self.sack, self.mss(), outstanding);
        }
        self.detect_loss(env, news);
    }

    /// SND.WND, from a segment no older than the last that set it. `true`: it changed.
    fn update_window(&mut self, a: &Arrival) -> bool {
        let s = &mut self.snd;
        let newer = s.wl1 < a.start || (s.wl1 == a.start && s.wl2 as i64 <= a.ack) || a.ack > s.una as i64;
        if !newer {
            return false;
        }
        let wnd = u64::from(a.seg.window) << s.wscale;
        let moved = wnd != s.wnd;
        (s.wnd, s.raw_wnd, s.wl1, s.wl2) = (wnd, a.seg.window, a.start, a.ack as u64);
        s.max_wnd = s.max_wnd.max(wnd);
        moved
    }

    /// A duplicate ACK: RFC 5681 §2; with SACK one that brings news (RFC 6675 §2).
    fn is_duplicate(&self, a: &Arrival, window_moved: bool, news: u64) -> bool {
        let outstanding = self.snd.nxt > self.snd.una;
        if self.sack {
            return outstanding && news > 0;
        }
        outstanding && !window_moved && a.payload.is_empty() && !a.seg.has(flags::FIN)
    }

    /// New data is acknowledged.
    fn acked(&mut self, env: &mut Env, a: &Arrival) {
        let (before, data_before) = (self.snd.una, self.data_acked());
        let bytes = a.ack as u64 - before;
        self.measure(env.now, a);
        self.snd.una = a.ack as u64;
        self.snd.progress = env.now;
        self.snd.timed_out = false;
        self.probe_answered(a);
        self.rtt.backoff = 0; // RFC 6298 §5: the estimate is good again once new data is acknowledged
        let phase = self.board.phase;
        let over = self.board.advance(self.snd.una, bytes, self.sack, self.mss());
        match phase {
            Phase::Recovery { .. } if over => self.cc.on_recovered(),
            Phase::Recovery { .. } => {}
            // After a time-out a cumulative ACK may jump: count two segments at most (RFC 3465 §2.3).
            Phase::Loss { .. } => self.cc.on_ack(bytes.min(2 * self.mss()), true, env.now, self.srtt(env)),
            Phase::Open => {
                let limited = before < self.snd.limited;
                self.cc.on_ack(bytes, limited, env.now, self.srtt(env));
            }
        }
        // RFC 6298 §5.2, §5.3
        if self.snd.una == self.snd.nxt {
            self.timers.stop(Timer::Retransmit);
        } else {
            self.timers.set(Timer::Retransmit, env.now + self.rtt.rto());
        }
        self.watch_tail(env.now);
        self.free_acked(data_before);
        self.fin_may_be_acked(env);
        self.tune_tx();
        self.offer_room(env);
    }

    /// RFC 8985 §7.4: a probe that was a copy, and that the peer does not call one (RFC 2883), has hidden a loss.
    fn probe_answered(&mut self, a: &Arrival) {
        self.snd.tail_probed = false;
        let Some(end) = self.snd.probe_end.filter(|&end| a.ack >= end as i64) else { return };
        self.snd.probe_end = None;
        let una = self.snd.una;
        let twice = a.seg.options.sack.first().is_some_and(|b| self.snd.space.pos(una, b.1) <= a.ack);
        if !twice && self.board.phase == Phase::Open {
            self.cc.on_loss(self.board.flight(una, end.max(una)));
        }
    }

    /// A round-trip time sample: the timed segment, or while resending the echoed timestamp, which tells the copies apart.
    fn measure(&mut self, now: Instant, a: &Arrival) {
        let resending = self.board.phase != Phase::Open || self.rtt.backoff > 0;
        match (self.snd.timed, &self.ts, a.seg.options.timestamps) {
            (Some((end, sent)), ..) if a.ack as u64 >= end => {
                self.snd.timed = None;
                self.rtt.sample(now.since(sent));
            }
            // Its clock ticks in milliseconds: only where there is nothing better.
            (None, Some(ours), Some(theirs)) if theirs.ecr != 0 && resending => {
                if let Some(sample) = echo_age(ours, theirs.ecr, now) {
                    self.rtt.sample(sample);
                }
            }
            _ => {}
        }
    }

    fn srtt(&self, env: &Env) -> Duration {
        self.rtt.srtt().unwrap_or(TcpConfig::ms(env.tcp.rto_initial_ms))
    }

    /// Tells the app when a third of its buffer is free (Linux: sk_stream_is_writeable).
    fn offer_room(&self, env: &Env) {
        let limit = u64::from(self.slot().tx_limit.load(core::sync::atomic::Ordering::Relaxed)).max(1);
        let used = self.app.tail.saturating_sub(self.data_acked());
        if limit.saturating_sub(used) >= limit.div_ceil(3) {
            notify::writable(&self.region, self.sock, self.slot(), &*env.waker);
        }
    }

    /// RFC 6675 §5: look for loss, and begin fast retransmit.
    fn detect_loss(&mut self, env: &mut Env, news: u64) {
        let (una, nxt) = (self.snd.una, self.snd.nxt);
        if news > 0 && self.board.find_lost(self.mss()) {
            // RFC 5681 §4.3: the loss of a retransmission is a second sign of congestion.
            self.cc.on_loss(self.board.flight(una, nxt));
            env.stats.lost_retransmits += 1;
        }
        if una < nxt && self.board.should_recover(self.sack, una) {
            self.cc.on_loss(self.board.flight(una, nxt));
            self.board.enter_recovery(una, nxt, self.mss());
            self.snd.timed = None;
            env.stats.fast_retrans += 1;
        }
    }

    /// Is an ACK to go out now? If one is only owed, the delayed-ACK timer runs (RFC 9293 §3.8.6.3, RFC 5681 §4.2).
    pub fn ack_due(&mut self, env: &Env) -> bool {
        let owed = self.rcv.nxt - self.rcv.acked;
        if self.ack.now {
            return true;
        }
        if owed == 0 {
            return false;
        }
        let two_segments = owed >= 2 * u64::from(self.rcv.seg_size.max(1));
        if two_segments || self.ack.quick > 0 || self.app.flags & app_flags::QUICKACK != 0 {
            return true;
        }
        self.timers.start(Timer::DelayedAck, env.now + TcpConfig::ms(env.tcp.delayed_ack_ms));
        false
    }

    /// An ACK of everything received is on its way, alone or with data.
    pub fn ack_sent(&mut self, env: &mut Env, with_data: bool) {
        let owed = self.rcv.nxt - self.rcv.acked;
        if owed > 0 {
            // An answer goes with it: the flow is interactive, and ACKs may wait for answers from now on.
            self.ack.quick = if with_data { 0 } else { self.ack.quick.saturating_sub(1) };
        }
        self.rcv.acked = self.rcv.nxt;
        // A peer without SACK counts duplicate ACKs, and one with data is none (RFC 5681 §2): those still have to go.
        self.ack.now = with_data && !self.sack && self.ack.extra > 0;
        self.timers.stop(Timer::DelayedAck);
        if !with_data {
            env.stats.acks_sent += 1;
        }
    }
}

/// How long ago we sent the timestamp that comes back; `None`: not one of ours.
fn echo_age(ours: &Stamps, ecr: u32, now: Instant) -> Option<Duration> {
    let age = ours.value(now).wrapping_sub(ecr);
    (age < 1 << 20).then(|| Duration::from_millis(age.max(1).into()))
}
