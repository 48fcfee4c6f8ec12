//! What daemon and app both do to a [`SockSlot`] (requests, holders, options, emptying it), and the daemon page's ports.

use super::layout::{DaemonPage, ReqOp, SLOW_WORKER, SockSlot, SockState};
use crate::ids::ProcId;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

impl SockSlot {
    /// The number of the request that waits for an answer.
    #[inline]
    pub fn pending_request(&self) -> Option<u32> {
        let seq = self.req_seq.load(Acquire);
        (seq != self.resp_seq.load(Relaxed)).then_some(seq)
    }

    /// Answers request `seq`; 0: done. Daemon only, which then tells the app.
    pub fn answer_request(&self, seq: u32, errno: i32) {
        self.resp_err.store(errno as u32, Relaxed);
        self.resp_seq.store(seq, Release);
    }

    /// Process `proc` holds the socket.
    pub fn hold(&self, proc: ProcId) {
        let (word, bit) = holder(proc);
        self.holders[word].fetch_or(bit, SeqCst);
    }

    /// It holds the socket no more. Did it?
    pub fn let_go(&self, proc: ProcId) -> bool {
        let (word, bit) = holder(proc);
        self.holders[word].fetch_and(!bit, SeqCst) & bit != 0
    }

    /// Does any process hold the socket?
    pub fn is_held(&self) -> bool {
        self.holders.iter().any(|w| w.load(SeqCst) != 0)
    }

    /// The words that setsockopt writes and that an accepted or renewed socket has from the one before it.
    pub fn options(&self) -> [&AtomicU32; 15] {
        [
            &self.opt_sndbuf,
            &self.opt_rcvbuf,
            &self.opt_keepidle,
            &self.opt_keepintvl,
            &self.opt_keepcnt,
            &self.opt_user_timeout,
            &self.opt_maxseg,
            &self.opt_linger2,
            &self.opt_syncnt,
            &self.opt_ttl,
            &self.opt_tos,
            &self.opt_rcvlowat,
            &self.opt_notsent_lowat,
            &self.rcv_timeo_ms,
            &self.snd_timeo_ms,
        ]
    }

    /// Copies the options of `from`.
    pub fn inherit_options(&self, from: &SockSlot) {
        for (to, from) in self.options().iter().zip(from.options()) {
            to.store(from.load(Relaxed), Relaxed);
        }
    }

    /// Empties the slot. Left alone: `state` and `generation`, the request numbers (one side follows the other's), the buffer
    /// limits, `parent` and `info`. The caller publishes by a later release store.
    pub fn clear(&self) {
        let words = [
            &self.error,
            &self.daemon_flags,
            &self.soft_error,
            &self.kept,
            &self.rx_wait,
            &self.rx_lock,
            &self.tx_wait,
            &self.tx_lock,
            &self.app_flags,
            &self.req_op,
            &self.req_arg,
            &self.accept_ring,
            &self.req_lock,
        ];
        words.iter().chain(&self.options()).for_each(|w| w.store(0, Relaxed));
        let counters =
            [&self.rx_tail, &self.rx_urgent, &self.tx_head, &self.tx_sent, &self.rx_head, &self.tx_tail, &self.cookie];
        counters.into_iter().chain(&self.holders).chain(&self.sets).for_each(|w| w.store(0, Relaxed));
        self.local.store(None);
        self.remote.store(None);
        self.owner.store(SLOW_WORKER, Relaxed);
    }
}

/// Word and bit of a process in `holders`.
fn holder(proc: ProcId) -> (usize, u64) {
    (proc.index() / 64, 1 << (proc.index() % 64))
}

impl SockState {
    /// From a shared-memory word; anything unknown is `Closed`.
    pub fn from_word(w: u32) -> SockState {
        match w {
            0 => SockState::Free,
            1 => SockState::New,
            2 => SockState::Bound,
            3 => SockState::Listening,
            4 => SockState::Connecting,
            5 => SockState::Established,
            _ => SockState::Closed,
        }
    }
}

impl ReqOp {
    /// From a shared-memory word.
    pub fn from_word(w: u32) -> Option<ReqOp> {
        match w {
            1 => Some(ReqOp::Bind),
            2 => Some(ReqOp::Listen),
            3 => Some(ReqOp::Connect),
            _ => None,
        }
    }
}

impl DaemonPage {
    /// Is there a listener of the engine at `port` of 127.0.0.1 or ::1?
    pub fn is_shared_port(&self, port: u16) -> bool {
        self.shared_ports[usize::from(port / 64)].load(Acquire) >> (port % 64) & 1 != 0
    }

    /// Says so. Daemon only.
    pub fn set_shared_port(&self, port: u16, on: bool) {
        let (word, bit) = (&self.shared_ports[usize::from(port / 64)], 1u64 << (port % 64));
        match on {
            true => word.fetch_or(bit, Release),
            false => word.fetch_and(!bit, Release),
        };
    }
}
