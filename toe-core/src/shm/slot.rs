//! What daemon and app both do to a whole [`SockSlot`]: its option words, and emptying it.

use super::layout::{SLOW_WORKER, SockSlot};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

impl SockSlot {
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
