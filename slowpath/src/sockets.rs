//! Life and death of sockets and of the processes that hold them.

use crate::engine::SlowPath;
use crate::errno;
use crate::ports::SockRef;
use crate::table::{Phase, held};
use crate::timers::Due;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use toe_core::msg::Down;
use toe_core::shm::{
    APP_SOCKS, CHUNK_SIZE, MAX_PROCS, Region, SLOW_WORKER, STREAM_CHUNKS, SockSlot, SockState, app_flags,
};
use toe_core::{Duration, Instant, ProcId, RegionId, SockId};

/// An app takes far less than this from popping a slot to holding it.
const SUSPECT_AFTER: Duration = Duration::from_millis(1000);

impl SlowPath {
    /// An app asks us to look at a socket.
    pub(crate) fn kick(&mut self, region: RegionId, sock: SockId, now: Instant) {
        let at = (region, sock);
        let Some(r) = self.regions.get(&region) else { return };
        let Some(slot) = r.region.sock(sock) else { return };
        let known = r.socks.contains_key(&sock);
        if !known && sock.index() >= APP_SOCKS {
            return;
        }
        if let Some(seq) = slot.pending_request() {
            self.request(at, seq, now);
        } else if !known {
            return self.suspect(at, now);
        }
        let Some(r) = self.regions.get(&region) else { return };
        let Some((s, slot)) = r.socks.get(&sock).zip(r.region.sock(sock)) else { return };
        let flags = slot.app_flags.load(Acquire);
        let (phase, core) = (s.phase, s.core);
        if !held(slot, s.in_ring) {
            return self.let_go(at);
        }
        match (phase, core) {
            (Phase::Flow(_), Some(core)) => self.down(core, Down::Kick { region, sock }),
            // shutdown(2) of a listener or of a connection attempt (Linux: tcp_disconnect).
            (Phase::Listening, _) if flags & app_flags::SHUT_RD != 0 => {
                self.close_listener(at);
                self.set_phase(at, Phase::Idle, SockState::Closed);
            }
            (Phase::Connecting(key), _) if flags & (app_flags::SHUT_RD | app_flags::SHUT_WR) != 0 => {
                if let Some(half) = self.half.remove(&key) {
                    self.over(half, errno::ECONNRESET);
                }
            }
            _ => {}
        }
    }

    /// A slot that we never heard of, perhaps closed unused, perhaps just being taken (a late kick of its former life): look
    /// again later.
    fn suspect(&mut self, (region, sock): SockRef, now: Instant) {
        let Some(slot) = self.regions.get(&region).and_then(|r| r.region.sock(sock)) else { return };
        if abandoned(slot) {
            let generation = slot.generation.load(Relaxed);
            self.timers.add(now + SUSPECT_AFTER, Due::Suspect(region, sock, generation));
        }
    }

    /// It is still as it was: nobody will ever use it.
    pub(crate) fn suspect_due(&mut self, region: RegionId, sock: SockId, generation: u32) {
        let Some(r) = self.regions.get(&region) else { return };
        let Some(slot) = r.region.sock(sock) else { return };
        if !r.socks.contains_key(&sock) && abandoned(slot) && slot.generation.load(Relaxed) == generation {
            self.free((region, sock));
        }
    }

    /// Nobody holds the socket any more.
    pub(crate) fn let_go(&mut self, at: SockRef) {
        let Some(s) = self.regions.get(&at.0).and_then(|r| r.socks.get(&at.1)) else { return };
        match (s.phase, s.core) {
            (Phase::Idle | Phase::Closed, _) => self.free(at),
            (Phase::Listening, _) => {
                self.close_listener(at);
                self.free(at);
            }
            (Phase::Connecting(key), _) => {
                // Linux sends nothing for a socket closed in SYN-SENT.
                if let Some(half) = self.half.remove(&key) {
                    self.forget(&half);
                }
                self.free(at);
            }
            // FIN or RST is the fast path's decision (RFC 2525 §2.17).
            (Phase::Flow(_), Some(core)) => self.down(core, Down::Kick { region: at.0, sock: at.1 }),
            (Phase::Flow(_), None) => {}
        }
    }

    /// Resets a connection that nobody will take, or frees what is left of it.
    pub(crate) fn abort(&mut self, at: SockRef) {
        let Some(r) = self.regions.get(&at.0) else { return };
        match r.socks.get(&at.1).map(|s| s.phase) {
            Some(Phase::Flow(key)) => self.remove_flow(&key, errno::ECONNRESET, true),
            Some(_) => self.free_if_unheld(at),
            None => {}
        }
    }

    /// Frees a socket that is over, unless somebody still has it open.
    pub(crate) fn free_if_unheld(&mut self, at: SockRef) {
        let Some(r) = self.regions.get(&at.0) else { return };
        let Some((s, slot)) = r.socks.get(&at.1).zip(r.region.sock(at.1)) else { return };
        if matches!(s.phase, Phase::Idle | Phase::Closed) && !held(slot, s.in_ring) && !self.shutting_down {
            self.free(at);
        }
    }

    /// Clears a slot and gives it back.
    fn free(&mut self, at: SockRef) {
        let Some(r) = self.regions.get_mut(&at.0) else { return };
        let record = r.socks.remove(&at.1);
        let region = r.region.clone();
        let Some(slot) = region.sock(at.1) else { return };
        return_tx_chunks(&region, at.1, slot);
        reset(slot);
        region.layout().kick[SLOW_WORKER as usize].take(at.1.0);
        if let Some((_, port)) = record.as_ref().and_then(|s| s.bound) {
            self.ports.unbind(port, at);
        }
        // Its core may still keep RX chunks with unread bytes: nobody will read them.
        if let Some(core) = record.and_then(|s| s.core) {
            self.down(core, Down::Release { region: at.0, sock: at.1 });
        }
        if let Some(r) = self.regions.get_mut(&at.0) {
            r.give_slot(at.1);
        }
    }

    /// Private and public state of a socket that stays the slow path's.
    pub(crate) fn set_phase(&mut self, at: SockRef, phase: Phase, state: SockState) {
        let Some(r) = self.regions.get_mut(&at.0) else { return };
        if let Some(s) = r.socks.get_mut(&at.1) {
            s.phase = phase;
        }
        if let Some(slot) = r.region.sock(at.1) {
            slot.state.store(state as u32, Release);
        }
        self.tell(at);
    }

    /// A connection attempt failed with `why`.
    pub(crate) fn connect_failed(&mut self, at: SockRef, why: i32) {
        if let Some(slot) = self.regions.get(&at.0).and_then(|r| r.region.sock(at.1)) {
            slot.error.store(why as u32, Release);
        }
        // The socket may try again, as in Linux.
        self.set_phase(at, Phase::Idle, SockState::Closed);
        self.free_if_unheld(at);
    }

    /// A process is gone: whatever it held, it holds no more.
    pub fn proc_died(&mut self, _now: Instant, region: RegionId, proc: ProcId) {
        let Some(r) = self.regions.get_mut(&region) else { return };
        r.procs.remove(&proc);
        let mut let_go = Vec::new();
        if proc.index() < MAX_PROCS {
            let (app, accepted) = r.ever_used();
            for id in (0..app).chain(APP_SOCKS as u32..accepted) {
                let Some(slot) = r.region.sock(SockId(id)) else { continue };
                let had = slot.let_go(proc);
                if had && id >= APP_SOCKS as u32 {
                    // It may have died between taking the socket out of the ring and saying so.
                    slot.app_flags.fetch_or(app_flags::TAKEN, SeqCst);
                }
                if had && !slot.is_held() {
                    let_go.push(SockId(id));
                }
            }
            r.region.layout().proc_pool.push(proc.0);
        }
        let last = r.procs.is_empty();
        if last {
            r.dying = true;
            let region = r.region.clone();
            for (id, s) in &mut r.socks {
                s.in_ring = false;
                if let Some(slot) = region.sock(*id) {
                    slot.holders.iter().for_each(|w| w.store(0, SeqCst));
                }
            }
            let_go = r.socks.keys().copied().collect();
        }
        for id in let_go {
            self.orphaned((region, id), last);
        }
        self.drop_region_if_done(region);
    }

    fn orphaned(&mut self, at: SockRef, last: bool) {
        let Some(r) = self.regions.get(&at.0) else { return };
        let Some(slot) = r.region.sock(at.1) else { return };
        match r.socks.get(&at.1) {
            // Never taken out of an accept ring, and never will be.
            Some(s)
                if last
                    && matches!(s.phase, Phase::Flow(_))
                    && slot.app_flags.load(SeqCst) & app_flags::TAKEN == 0
                    && at.1.index() >= APP_SOCKS =>
            {
                self.abort(at);
            }
            Some(_) => self.let_go(at),
            None if at.1.index() < APP_SOCKS && abandoned(slot) => self.free(at),
            None => {}
        }
    }
}

/// Taken out of the pool, held by nobody.
fn abandoned(slot: &SockSlot) -> bool {
    slot.state.load(SeqCst) == SockState::New as u32 && slot.holders.iter().all(|w| w.load(SeqCst) == 0)
}

/// TX chunks between head and tail, the one that holds the tail included, go back to the app's pool.
fn return_tx_chunks(region: &Region, id: SockId, slot: &SockSlot) {
    let chunk = CHUNK_SIZE as u64;
    let (head, tail) = (slot.tx_head.load(Relaxed), slot.tx_tail.load(Relaxed));
    let (first, end) = (head / chunk, tail.div_ceil(chunk));
    let Some(table) = region.tx_table(id) else { return };
    // An app may have written anything into the counters: never more than the table holds.
    for i in first..end.min(first.saturating_add(STREAM_CHUNKS as u64)) {
        region.layout().tx_pool.push(table[i as usize % STREAM_CHUNKS].load(Relaxed));
    }
}

/// A slot as in a fresh region, but for its generation.
fn reset(s: &SockSlot) {
    s.state.store(SockState::Free as u32, SeqCst);
    s.clear();
    for w in [&s.parent, &s.tx_limit, &s.rx_limit] {
        w.store(0, Relaxed);
    }
    s.resp_seq.store(s.req_seq.load(Relaxed), Relaxed);
    s.resp_err.store(0, Relaxed);
    reset_info(s);
    s.generation.fetch_add(1, Release);
}

fn reset_info(s: &SockSlot) {
    let i = &s.info;
    let words = [
        &i.cwnd,
        &i.ssthresh,
        &i.srtt_us,
        &i.rttvar_us,
        &i.rto_us,
        &i.mss,
        &i.rcv_mss,
        &i.snd_wnd,
        &i.rcv_wnd,
        &i.total_retrans,
        &i.retransmits,
        &i.options,
        &i.wscale,
        &i.tcp_state,
        &i.segs_out,
        &i.segs_in,
    ];
    words.iter().for_each(|w| w.store(0, Relaxed));
}
