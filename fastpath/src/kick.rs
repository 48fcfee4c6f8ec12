//! What the app wants. Its words are read once into locals, compared with what is possible, and copied into [`AppView`]; a
//! lie costs the liar its connection.
//!
//! A flow's turn begins here whatever brought it about, so a kick only has to make sure that there is a turn.

use crate::alloc::CHUNK;
use crate::flow::{Flow, How};
use crate::poll::Env;
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use toe_core::flow::CongestionControl;
use toe_core::notify;
use toe_core::shm::{APP_SOCKS, ReqOp, STREAM_CHUNKS, app_flags};

/// Default TTL (RFC 1340's successor; Linux's ip_default_ttl).
pub(crate) const DEFAULT_TTL: u8 = 64;

impl Flow {
    /// Reads the app's side of the slot and acts on what is new.
    pub fn observe(&mut self, env: &mut Env) {
        let slot = self.slot();
        // This order: a set TAKEN comes after a holder bit, and the last byte before SHUT_WR and before the last holder goes.
        let flags = slot.app_flags.load(Acquire);
        let held = slot.holders.iter().any(|h| h.load(Acquire) != 0);
        let (tail, head) = (slot.tx_tail.load(Acquire), slot.rx_head.load(Acquire));
        if self.ending.is_some() {
            return;
        }
        if !self.possible(tail, head) {
            return self.distrust(env);
        }
        if self.snd.fin.is_none() {
            self.app.tail = tail;
        }
        self.take_flags(env, flags);
        if head != self.app.head {
            self.app.head = head;
            self.free_read(&mut env.regions);
            self.tune_rx(env);
            self.ack.now |= self.window_update_due();
        }
        let taken = flags & app_flags::TAKEN != 0 || self.sock.index() < APP_SOCKS;
        if taken && !held && !self.app.orphan {
            self.orphaned();
        }
        self.close_if_over(env);
    }

    /// Are these counters what an honest app could have written?
    fn possible(&self, tail: u64, head: u64) -> bool {
        let table = (self.data_acked() / CHUNK + STREAM_CHUNKS as u64) * CHUNK;
        let tail_fits = self.snd.fin.is_some() || (tail >= self.app.tail && tail <= table);
        tail_fits && head >= self.app.head && head <= self.rcv.published
    }

    /// The app wrote what cannot be: its connection is reset.
    pub fn distrust(&mut self, env: &mut Env) {
        env.stats.bad_app_state += 1;
        self.end(How::Aborted, libc::ECONNRESET, true);
    }

    fn take_flags(&mut self, env: &Env, flags: u32) {
        let changed = core::mem::replace(&mut self.app.flags, flags) ^ flags;
        if changed == 0 {
            return;
        }
        if flags & app_flags::SHUT_WR != 0 {
            self.close_tx();
        }
        if changed & app_flags::KEEPALIVE != 0 {
            self.set_keepalive(env);
        }
        if changed & app_flags::RENO != 0 {
            let reno = flags & app_flags::RENO != 0;
            self.cc.set_algorithm(if reno { CongestionControl::Reno } else { env.tcp.congestion });
        }
    }

    /// A request that reaches an established socket: a second connect, or a call that raced with the first one's end. What the
    /// answer is does not depend on anything that the slow path knows.
    pub fn answer_request(&mut self, env: &Env) {
        let slot = self.slot();
        let Some(seq) = slot.pending_request() else { return };
        let errno = match ReqOp::from_word(slot.req_op.load(Relaxed)) {
            Some(ReqOp::Connect) => libc::EISCONN,
            Some(ReqOp::Bind | ReqOp::Listen) => libc::EINVAL,
            None => libc::EOPNOTSUPP,
        };
        slot.answer_request(seq, errno);
        notify::all(&self.region, self.sock, slot, &*env.waker);
    }

    /// An explicit kick: options may have changed too.
    pub fn read_options(&mut self, env: &Env) {
        let slot = self.slot();
        let (ttl, tos) = (slot.opt_ttl.load(Relaxed) as u8, slot.opt_tos.load(Relaxed) as u8);
        self.app.ttl = if ttl == 0 { DEFAULT_TTL } else { ttl };
        self.app.tos = tos & !3; // the ECN bits are ours (RFC 3168), and ECN was not negotiated
        self.tune_tx();
        self.tune_rx(env);
        if self.app.flags & app_flags::KEEPALIVE != 0 {
            self.set_keepalive(env);
        }
    }
}
