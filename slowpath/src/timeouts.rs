//! What follows when a flow's timer has run out.

use std::sync::atomic::Ordering::Relaxed;
use toe_core::Duration;
use toe_core::msg::TimerKind;
use toe_core::shm::SockSlot;
use toe_core::tcp::TcpConfig;

/// The decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// `Down::Retransmit`.
    Retransmit,
    /// `Down::Probe`.
    Probe,
    /// `Down::Remove` with this errno; RST or silently.
    GiveUp {
        /// For the app.
        errno: i32,
        /// Tell the peer.
        reset: bool,
    },
}

/// What is known of the time-out.
#[derive(Clone, Copy, Debug)]
pub struct Timeout {
    /// Which timer.
    pub kind: TimerKind,
    /// How often in a row.
    pub count: u32,
    /// Since the peer last showed life.
    pub silent: Duration,
    /// Nobody holds the socket.
    pub orphan: bool,
}

/// RFC 9293 §3.8.3 (R2), RFC 5482 (user time-out), tcp(7).
pub fn decide(tcp: &TcpConfig, slot: &SockSlot, t: Timeout) -> Decision {
    let soft = slot.soft_error.load(Relaxed) as i32;
    let give_up = Decision::GiveUp { errno: if soft != 0 { soft } else { libc::ETIMEDOUT }, reset: false };
    let user = slot.opt_user_timeout.load(Relaxed);
    if user != 0 && t.kind != TimerKind::FinWait2 && t.silent >= Duration::from_millis(user.into()) {
        return give_up;
    }
    match t.kind {
        TimerKind::Retransmit => {
            let most = if t.orphan { tcp.orphan_retries } else { tcp.retries };
            if t.count > most && user == 0 { give_up } else { Decision::Retransmit }
        }
        // An open, closed window is kept for ever as long as the peer answers (RFC 9293 MUST-37), an orphan's is not.
        TimerKind::Persist => {
            let answered = t.silent < Duration::from_millis(tcp.rto_max_ms);
            let most = if t.orphan { tcp.orphan_retries } else { tcp.retries };
            if t.count > most && (t.orphan || !answered) { give_up } else { Decision::Probe }
        }
        TimerKind::KeepAlive => {
            let asked = slot.opt_keepcnt.load(Relaxed);
            let most = if asked == 0 { tcp.keepalive_probes } else { asked };
            if t.count > most { Decision::GiveUp { errno: libc::ETIMEDOUT, reset: true } } else { Decision::Probe }
        }
        TimerKind::FinWait2 => Decision::GiveUp { errno: 0, reset: false },
    }
}
