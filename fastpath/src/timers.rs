//! A flow's timers: plain deadlines, the earliest of which stands in the core's timing wheel.

use crate::flow::Flow;
use crate::poll::Env;
use crate::recovery::Phase;
use toe_core::msg::{TimerKind, Up};
use toe_core::shm::app_flags;
use toe_core::tcp::TcpConfig;
use toe_core::{Duration, Instant};

/// What can run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// RFC 6298.
    Retransmit,
    /// RFC 9293 §3.8.6.1.
    Persist,
    /// RFC 9293 §3.8.6.3.
    DelayedAck,
    /// RFC 9293 §3.8.4.
    KeepAlive,
    /// Linux's tcp_fin_timeout.
    FinWait2,
    /// A corked rest leaves after 200 ms.
    Cork,
    /// Tail loss probe (RFC 8985 §7).
    TailLoss,
}

const ALL: [Timer; 7] = [
    Timer::Retransmit,
    Timer::Persist,
    Timer::DelayedAck,
    Timer::KeepAlive,
    Timer::FinWait2,
    Timer::Cork,
    Timer::TailLoss,
];

/// Deadlines; `Instant(u64::MAX)`: not set.
#[derive(Debug)]
pub(crate) struct Timers([Instant; ALL.len()]);

const NEVER: Instant = Instant(u64::MAX);

impl Timers {
    pub fn new() -> Timers {
        Timers([NEVER; ALL.len()])
    }

    pub fn set(&mut self, timer: Timer, at: Instant) {
        self.0[timer as usize] = at;
    }

    /// Sets it unless it is running.
    pub fn start(&mut self, timer: Timer, at: Instant) {
        if !self.is_set(timer) {
            self.set(timer, at);
        }
    }

    pub fn stop(&mut self, timer: Timer) {
        self.0[timer as usize] = NEVER;
    }

    pub fn is_set(&self, timer: Timer) -> bool {
        self.0[timer as usize] != NEVER
    }

    /// The earliest deadline.
    pub fn next(&self) -> Option<Instant> {
        self.0.iter().copied().min().filter(|&at| at != NEVER)
    }

    /// Takes out one that has run out.
    fn take_expired(&mut self, now: Instant) -> Option<Timer> {
        let timer = *ALL.iter().find(|&&t| self.0[t as usize] <= now)?;
        self.stop(timer);
        Some(timer)
    }
}

impl Flow {
    /// Acts on every timer that has run out. What needs a decision goes to the slow path, with the same timer set again in case
    /// that the answer never comes.
    pub fn expire(&mut self, env: &mut Env) {
        while let Some(timer) = self.timers.take_expired(env.now) {
            match timer {
                Timer::DelayedAck => {
                    self.ack.now = true;
                    env.stats.delayed_acks += 1;
                }
                Timer::Cork => self.snd.cork_over = true,
                Timer::TailLoss => self.snd.tail_probe = self.snd.una < self.snd.nxt,
                Timer::Retransmit => self.retransmission_timeout(env),
                Timer::Persist => {
                    self.timers.set(Timer::Persist, env.now + self.rtt.doubled(self.snd.persist_backoff + 1));
                    self.report(env, TimerKind::Persist, self.snd.probes + 1, self.rcv.last);
                }
                Timer::KeepAlive => self.keepalive_timeout(env),
                Timer::FinWait2 => {
                    self.timers.set(Timer::FinWait2, env.now + TcpConfig::ms(env.tcp.fin_timeout_ms.max(1)));
                    self.report(env, TimerKind::FinWait2, 1, self.rcv.last);
                }
            }
        }
    }

    /// RFC 8985 §7.2: once in a row, for more than one segment in flight (the ACK of one alone may be delayed for so long that
    /// the retransmission timer is as good), and not after a time-out. With holes above which too little is SACKed it helps as
    /// well, where the RFC has RACK's reordering timer.
    pub fn watch_tail(&mut self, now: Instant) {
        let several = self.snd.nxt - self.snd.una > self.mss();
        let after_timeout = matches!(self.board.phase, Phase::Loss { .. });
        match self.rtt.probe_timeout() {
            Some(pto) if self.sack && several && !after_timeout && !self.snd.tail_probed => {
                self.timers.set(Timer::TailLoss, now + pto);
            }
            _ => self.timers.stop(Timer::TailLoss),
        }
    }

    fn retransmission_timeout(&mut self, env: &mut Env) {
        if self.snd.una == self.snd.nxt {
            return;
        }
        self.snd.timed_out = true;
        self.timers.set(Timer::Retransmit, env.now + self.rtt.doubled(self.rtt.backoff + 1));
        self.report(env, TimerKind::Retransmit, self.rtt.backoff + 1, self.snd.progress);
    }

    fn keepalive_timeout(&mut self, env: &mut Env) {
        if self.app.flags & app_flags::KEEPALIVE == 0 {
            return;
        }
        let (idle, interval) = self.keepalive_times(env);
        let quiet = env.now.since(self.rcv.last);
        // Heard in between, or data is under way (its own timers watch then).
        if quiet < idle || self.snd.una < self.snd.nxt {
            self.timers
                .set(Timer::KeepAlive, env.now + idle.saturating_sub(quiet).max(Duration::from_secs(1).min(idle)));
            return;
        }
        self.timers.set(Timer::KeepAlive, env.now + interval);
        self.report(env, TimerKind::KeepAlive, self.snd.probes + 1, self.rcv.last);
    }

    /// Starts or stops keep-alive after the app changed its mind.
    pub fn set_keepalive(&mut self, env: &Env) {
        if self.app.flags & app_flags::KEEPALIVE == 0 {
            self.timers.stop(Timer::KeepAlive);
        } else {
            let (idle, _) = self.keepalive_times(env);
            self.timers.set(Timer::KeepAlive, (self.rcv.last + idle).max(env.now));
        }
    }

    /// TCP_KEEPIDLE and TCP_KEEPINTVL, or their defaults.
    fn keepalive_times(&self, env: &Env) -> (Duration, Duration) {
        use core::sync::atomic::Ordering::Relaxed;
        let slot = self.slot();
        let pick = |seconds: u32, default_ms: u64| match seconds {
            0 => TcpConfig::ms(default_ms.max(1)),
            s => Duration::from_secs(s.into()),
        };
        (
            pick(slot.opt_keepidle.load(Relaxed), env.tcp.keepalive_time_ms),
            pick(slot.opt_keepintvl.load(Relaxed), env.tcp.keepalive_intvl_ms),
        )
    }

    fn report(&self, env: &mut Env, kind: TimerKind, count: u32, since: Instant) {
        env.stats.timeouts += 1;
        env.up.send(Up::Timeout {
            core: env.core,
            flow: self.id,
            kind,
            count,
            silent: env.now.since(since),
            orphan: self.app.orphan,
        });
    }

    /// The slow path says: resend and back off (RFC 6298 §5.4 - 5.6).
    pub fn on_retransmit(&mut self, env: &mut Env) {
        let (una, nxt) = (self.snd.una, self.snd.nxt);
        if !core::mem::take(&mut self.snd.timed_out) || una == nxt {
            return;
        }
        self.cc.on_timeout(self.board.flight(una, nxt), self.rtt.backoff > 0);
        self.rtt.backoff += 1;
        self.board.time_out(una, nxt);
        self.snd.timed = None;
        self.snd.tail_probe = false;
        self.timers.stop(Timer::TailLoss);
        self.timers.set(Timer::Retransmit, env.now + self.rtt.rto());
    }

    /// The slow path says: probe.
    pub fn on_probe(&mut self, env: &mut Env, kind: TimerKind) {
        self.snd.probes += 1;
        // A window too small to be worth a segment is used after all (RFC 9293 §3.8.6.2.1); one of zero is probed.
        if kind == TimerKind::Persist && self.snd.una + self.snd.wnd > self.snd.nxt {
            self.snd.sws_over = true;
        } else {
            self.snd.probe_due = true;
        }
        if kind == TimerKind::Persist && self.timers.is_set(Timer::Persist) {
            self.snd.persist_backoff += 1;
            self.timers.set(Timer::Persist, env.now + self.rtt.doubled(self.snd.persist_backoff));
        }
    }
}
