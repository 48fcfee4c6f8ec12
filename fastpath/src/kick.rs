//! What the app has done to its socket: bytes written, bytes read, a side shut down, options, the last holder gone. Every
//! word is read once; a lie ends the flow.

use crate::alloc::RegionState;
use crate::engine::Engine;
use crate::flow::{Ending, Flow};
use crate::ranges::Pos;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use toe_core::flow::CongestionControl;
use toe_core::shm::{APP_SOCKS, app_flags};
use toe_core::tcp::TcpConfig;
use toe_core::{Duration, Instant};

/// The app has written what no honest app writes.
pub struct Lie;

impl Flow {
    /// Reads the slot and takes over what is new.
    pub fn take_kick(&mut self, eng: &mut Engine, regions: &mut RegionState) {
        if self.ending != Ending::No {
            return;
        }
        // Holders before counters: whoever let go did so after his last write.
        let held = self.is_held();
        self.take_options(eng);
        if self.take_written().and_then(|()| self.take_read(eng, regions)).is_err() {
            eng.stats.bad_app_state += 1;
            self.ending = Ending::Aborted;
        } else if !held && !self.orphan {
            self.abandon(eng);
        }
        eng.touch(self);
    }

    /// Somebody has the socket open, or it still waits in an accept ring.
    fn is_held(&self) -> bool {
        let slot = self.slot();
        let flags = slot.app_flags.load(Acquire);
        let in_ring = self.sock.index() >= APP_SOCKS && flags & app_flags::TAKEN == 0;
        in_ring || slot.holders.iter().any(|h| h.load(Acquire) != 0)
    }

    fn take_options(&mut self, eng: &Engine) {
        let flags = self.slot().app_flags.load(Acquire);
        let changed = flags ^ self.app;
        self.app = flags;
        if changed & app_flags::RENO != 0 {
            let reno = flags & app_flags::RENO != 0;
            self.cc.set_algorithm(if reno { CongestionControl::Reno } else { CongestionControl::Cubic });
        }
        if changed & app_flags::CORK != 0 {
            self.timers.cork = None;
        }
        self.timers.keepalive = match (self.asked(app_flags::KEEPALIVE), self.timers.keepalive) {
            (true, None) => Some(eng.now + self.keepalive_idle(&eng.tcp)),
            (true, running) => running,
            (false, _) => None,
        };
        self.apply_rcvbuf();
    }

    /// TCP_KEEPIDLE or the default.
    pub fn keepalive_idle(&self, tcp: &TcpConfig) -> Duration {
        seconds_or(self.slot().opt_keepidle.load(Relaxed), tcp.keepalive_time_ms)
    }

    /// TCP_KEEPINTVL or the default.
    pub fn keepalive_interval(&self, tcp: &TcpConfig) -> Duration {
        seconds_or(self.slot().opt_keepintvl.load(Relaxed), tcp.keepalive_intvl_ms)
    }

    fn take_written(&mut self) -> Result<(), Lie> {
        if self.snd.fin {
            return Ok(()); // the end is fixed; what comes after it is ignored
        }
        let tail = Pos::try_from(self.slot().tx_tail.load(Acquire)).map_err(|_| Lie)?;
        if tail < self.snd.tail || tail - self.snd.una > Pos::from(Flow::MAX_BUFFER) {
            return Err(Lie);
        }
        self.snd.tail = tail;
        // SHUT_WR was read before the tail: whoever set it had written all he would.
        self.snd.fin = self.asked(app_flags::SHUT_WR);
        if self.snd.fin {
            self.snd.tail = Pos::try_from(self.slot().tx_tail.load(Acquire)).map_err(|_| Lie)?.max(tail);
            if self.snd.tail - self.snd.una > Pos::from(Flow::MAX_BUFFER) {
                return Err(Lie);
            }
        }
        Ok(())
    }

    fn take_read(&mut self, eng: &Engine, regions: &mut RegionState) -> Result<(), Lie> {
        let head = Pos::try_from(self.slot().rx_head.load(Acquire)).map_err(|_| Lie)?;
        if head < self.rcv.head || head > self.rx_tail() {
            return Err(Lie);
        }
        if head > self.rcv.head {
            self.rcv.head = head;
            self.free_rx(regions);
            self.grow_rx_limit(eng.now, &eng.tcp);
            self.rcv.ack_now |= self.window_update_due();
        }
        Ok(())
    }

    /// Autotuning (as Linux's tcp_rcv_space_adjust): an app that reads half a buffer in a round trip gets twice the buffer.
    fn grow_rx_limit(&mut self, now: Instant, tcp: &TcpConfig) {
        let (head, since) = self.rcv.tune;
        let round = self.rtt.srtt().unwrap_or_default().max(Duration::from_micros(50));
        if now - since < round {
            return;
        }
        let copied = self.rcv.head - head;
        self.rcv.tune = (self.rcv.head, now);
        let fixed = self.slot().opt_rcvbuf.load(Relaxed) != 0;
        if !fixed && copied >= Pos::from(self.rcv.limit / 2) {
            self.rcv.limit = (self.rcv.limit * 2).min(tcp.buf_max).min(Flow::MAX_BUFFER).max(self.rcv.limit);
            self.slot().rx_limit.store(self.rcv.limit, Relaxed);
        }
    }

    /// The last holder is gone: RST if he left bytes unread (RFC 2525 §2.17) or asked for it, else FIN after what is written.
    fn abandon(&mut self, eng: &Engine) {
        self.orphan = true;
        let unread = self.rx_tail() > self.rcv.head || !self.rcv.ooo.is_empty();
        if unread || self.asked(app_flags::LINGER_RST) {
            self.ending = Ending::Aborted;
            self.reset_peer = true;
        }
        self.snd.fin = true;
        self.timers.keepalive = None;
        self.arm_fin_wait2(eng);
    }

    /// FIN-WAIT-2 of an orphan does not last for ever (tcp_fin_timeout, TCP_LINGER2).
    pub fn arm_fin_wait2(&mut self, eng: &Engine) {
        if self.orphan && self.fin_acked() && !self.rcv.fin && self.timers.fin_wait2.is_none() {
            let asked = self.slot().opt_linger2.load(Relaxed);
            let time = match asked {
                0 => Duration::from_millis(eng.tcp.fin_timeout_ms),
                plus_one => Duration::from_secs(u64::from(plus_one - 1)),
            };
            self.timers.fin_wait2 = Some(eng.now + time);
        }
    }

    /// IP_TTL or the default of 64.
    pub fn ttl(&self) -> u8 {
        match self.slot().opt_ttl.load(Relaxed) {
            0 => 64,
            ttl => ttl.min(255) as u8,
        }
    }

    /// IP_TOS; the ECN bits are ours.
    pub fn tos(&self) -> u8 {
        self.slot().opt_tos.load(Relaxed) as u8 & !3
    }
}

fn seconds_or(asked: u32, default_ms: u64) -> Duration {
    if asked == 0 { Duration::from_millis(default_ms) } else { Duration::from_secs(asked.into()) }
}
