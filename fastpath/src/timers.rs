//! Deadlines that have come. The decision what follows a time-out is the slow path's; only the delayed ACK and the cork are
//! decided here.

use crate::engine::Engine;
use crate::flow::{Ending, Flow};
use toe_core::msg::{TimerKind, Up};
use toe_core::nic::Nic;
use toe_core::{Duration, Instant};

impl Flow {
    /// Looks which deadlines have passed.
    pub fn run_timers(&mut self, eng: &mut Engine) {
        self.timers.in_wheel = None;
        let now = eng.now;
        let due = |t: Option<Instant>| t.is_some_and(|t| t <= now);
        if due(self.timers.ack) {
            self.timers.ack = None;
            self.rcv.ack_now = true;
            eng.stats.delayed_acks += 1;
        }
        if due(self.timers.rto) {
            self.rto_ran_out(eng);
        }
        if due(self.timers.keepalive) {
            self.keepalive_ran_out(eng);
        }
        if due(self.timers.fin_wait2) {
            self.timers.fin_wait2 = Some(eng.now + Duration::from_secs(1));
            self.report_timeout(eng, TimerKind::FinWait2, 1, self.heard);
        }
        eng.touch(self);
    }

    fn rto_ran_out(&mut self, eng: &mut Engine) {
        self.backoff += 1;
        let kind = if self.timers.persist { TimerKind::Persist } else { TimerKind::Retransmit };
        eng.stats.timeouts += u64::from(kind == TimerKind::Retransmit);
        // Runs on: should the answer be lost, we ask again.
        self.timers.rto = Some(eng.now + self.rtt.backed_off(self.backoff));
        self.report_timeout(eng, kind, self.backoff, self.progress);
    }

    fn keepalive_ran_out(&mut self, eng: &mut Engine) {
        let idle = self.keepalive_idle(&eng.tcp);
        let busy = self.snd.nxt > self.snd.una || self.snd.nxt < self.snd.tail;
        if self.keepalive_probes == 0 && (busy || eng.now - self.heard < idle) {
            let from = if busy { eng.now } else { self.heard };
            self.timers.keepalive = Some(from + idle);
            return;
        }
        self.keepalive_probes += 1;
        self.timers.keepalive = Some(eng.now + self.keepalive_interval(&eng.tcp));
        self.report_timeout(eng, TimerKind::KeepAlive, self.keepalive_probes, self.heard);
    }

    fn report_timeout(&self, eng: &mut Engine, kind: TimerKind, count: u32, since: Instant) {
        let (core, silent) = (eng.core, eng.now - since);
        eng.up.send(Up::Timeout { core, flow: self.id, kind, count, silent, orphan: self.orphan });
    }

    /// `Down::Retransmit`.
    pub fn retransmit(&mut self, eng: &mut Engine) {
        if self.snd.nxt > self.snd.una && self.ending == Ending::No {
            self.on_timeout(self.backoff <= 1);
            self.timers.rto = Some(eng.now + self.rtt.backed_off(self.backoff));
            eng.touch(self);
        }
    }

    /// `Down::Probe`: one segment below SND.UNA, which the peer must answer; or, with a window too small to be worth
    /// it, what fits.
    pub fn probe(&mut self, eng: &mut Engine, nic: &mut dyn Nic, kind: TimerKind) {
        if self.ending != Ending::No {
            return;
        }
        eng.stats.probes_sent += 1;
        if kind == TimerKind::Persist && self.snd.wnd > 0 {
            self.snd.override_sws = true;
        } else {
            let _ = self.send_ack(eng, nic, self.snd.una - 1);
        }
        eng.touch(self);
    }

    /// Puts the earliest deadline into the wheel, if the wheel does not already hold an earlier one.
    pub fn arm_wheel(&mut self, eng: &mut Engine) {
        let Some(at) = self.timers.earliest() else { return };
        if self.timers.in_wheel.is_none_or(|held| at < held) {
            self.timers.in_wheel = Some(at);
            eng.wheel.insert(self.id, at);
        }
    }
}
