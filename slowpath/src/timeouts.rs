//! What follows when a flow's timer runs out. The fast path counts and waits; the decisions, with Linux's limits and the
//! socket's own options, are made here.

use crate::engine::SlowPath;
use crate::errno::ETIMEDOUT;
use crate::reply::backoff;
use core::sync::atomic::Ordering::Relaxed;
use toe_core::msg::{Down, TimerKind};
use toe_core::shm::SockSlot;
use toe_core::tcp::TcpConfig;
use toe_core::{CoreId, Duration, FlowId};

/// What to do with the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Resend the first unacknowledged segment.
    Retransmit,
    /// Send a probe.
    Probe,
    /// End it; the app gets this errno unless a soft error says more; with or without RST.
    GiveUp { errno: i32, reset: bool },
}

/// One expiry, as reported.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expiry {
    pub kind: TimerKind,
    pub count: u32,
    pub silent: Duration,
    pub orphan: bool,
}

/// The socket's own options.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    /// TCP_USER_TIMEOUT; zero: none.
    pub user_timeout: Duration,
    /// TCP_KEEPCNT; 0: the default.
    pub keep_count: u32,
}

impl Limits {
    fn of(slot: &SockSlot) -> Limits {
        Limits {
            user_timeout: Duration::from_millis(slot.opt_user_timeout.load(Relaxed).into()),
            keep_count: slot.opt_keepcnt.load(Relaxed),
        }
    }
}

/// Decides. Pure, so that every case stands in a table of tests.
pub(crate) fn decide(tcp: &TcpConfig, limits: Limits, e: Expiry) -> Decision {
    let dead = Decision::GiveUp { errno: ETIMEDOUT, reset: false };
    let user_over = !limits.user_timeout.is_zero() && e.silent >= limits.user_timeout;
    match e.kind {
        // RFC 9293 §3.8.3 R2; tcp_retries2, tcp_orphan_retries.
        TimerKind::Retransmit => {
            let most = if e.orphan { tcp.orphan_retries } else { tcp.retries };
            if e.count > most || user_over { dead } else { Decision::Retransmit }
        }
        // RFC 9293 §3.8.6.1: as long as the peer answers, for ever; a peer that is silent is dead as with retransmissions.
        TimerKind::Persist => {
            let orphan_over = e.orphan && e.count > tcp.orphan_retries;
            if orphan_over || user_over || e.silent >= patience(tcp) { dead } else { Decision::Probe }
        }
        // The first expiry comes after the idle time, each further one after an unanswered probe.
        TimerKind::KeepAlive => {
            let most = if limits.keep_count == 0 { tcp.keepalive_probes } else { limits.keep_count };
            let user_over = user_over && e.count > 1;
            // With a user timeout, it alone decides (RFC 5482, tcp(7)).
            let over = if limits.user_timeout.is_zero() { e.count > most } else { user_over };
            if over { Decision::GiveUp { errno: ETIMEDOUT, reset: true } } else { Decision::Probe }
        }
        // tcp_fin_timeout: nobody waits for the rest; what still comes is answered with RST.
        TimerKind::FinWait2 => Decision::GiveUp { errno: 0, reset: false },
    }
}

/// How long `tcp.retries` retransmissions take, from the least RTO (Linux's reckoning of tcp_retries2: 924.6 s).
fn patience(tcp: &TcpConfig) -> Duration {
    let step = |n| backoff(TcpConfig::ms(tcp.rto_min_ms), n, TcpConfig::ms(tcp.rto_max_ms));
    (0..=tcp.retries.min(100)).map(step).sum()
}

impl SlowPath {
    /// A timer of a flow ran out.
    pub(crate) fn timeout(
        &mut self,
        core: CoreId,
        id: FlowId,
        kind: TimerKind,
        count: u32,
        silent: Duration,
        orphan: bool,
    ) {
        let key = self.ids.get(core.index()).and_then(|ids| ids.get(id));
        let Some((key, flow)) = key.and_then(|k| Some((k, self.flows.get(&k)?))) else { return };
        let Some(slot) = self.regions.get(&flow.sock.0).and_then(|r| r.region.sock(flow.sock.1)) else { return };
        self.counters.timeouts += 1;
        let soft = slot.soft_error.load(Relaxed) as i32;
        match decide(&self.tcp, Limits::of(slot), Expiry { kind, count, silent, orphan }) {
            Decision::Retransmit => self.down(core, Down::Retransmit(id)),
            Decision::Probe => self.down(core, Down::Probe(id, kind)),
            Decision::GiveUp { errno, reset } => {
                self.counters.abort_on_timeout += u64::from(errno != 0);
                // Linux (tcp_write_err): the soft error, if there is one, tells more than ETIMEDOUT.
                let errno = if errno != 0 && (1..4096).contains(&soft) { soft } else { errno };
                self.remove_flow(&key, errno, reset);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use TimerKind::*;

    fn d(limits: Limits, kind: TimerKind, count: u32, silent_s: u64, orphan: bool) -> Decision {
        decide(&TcpConfig::default(), limits, Expiry { kind, count, silent: Duration::from_secs(silent_s), orphan })
    }

    #[test]
    fn a_table_of_decisions() {
        let none = Limits::default();
        let user = Limits { user_timeout: Duration::from_secs(30), ..none };
        let dead = Decision::GiveUp { errno: ETIMEDOUT, reset: false };
        let dead_reset = Decision::GiveUp { errno: ETIMEDOUT, reset: true };
        let table = [
            (none, Retransmit, 1, 0, false, Decision::Retransmit),
            (none, Retransmit, 15, 900, false, Decision::Retransmit),
            (none, Retransmit, 16, 900, false, dead),
            (none, Retransmit, 8, 10, true, Decision::Retransmit),
            (none, Retransmit, 9, 10, true, dead),
            (user, Retransmit, 2, 29, false, Decision::Retransmit),
            (user, Retransmit, 2, 30, false, dead),
            (none, Persist, 10_000, 60, false, Decision::Probe),
            (none, Persist, 9, 60, true, dead),
            (none, Persist, 10, 925, false, dead),
            (user, Persist, 2, 31, false, dead),
            (none, KeepAlive, 1, 7200, false, Decision::Probe),
            (none, KeepAlive, 9, 7800, false, Decision::Probe),
            (none, KeepAlive, 10, 7875, false, dead_reset),
            (Limits { keep_count: 2, ..none }, KeepAlive, 3, 10, false, dead_reset),
            (user, KeepAlive, 1, 31, false, Decision::Probe),
            (user, KeepAlive, 2, 31, false, dead_reset),
            (none, FinWait2, 1, 60, true, Decision::GiveUp { errno: 0, reset: false }),
        ];
        for (limits, kind, count, silent, orphan, want) in table {
            assert_eq!(d(limits, kind, count, silent, orphan), want, "{kind:?} {count} {silent} {orphan}");
        }
    }

    #[test]
    fn patience_is_linux_s() {
        assert_eq!(patience(&TcpConfig::default()), Duration::from_millis(924_600));
    }
}
