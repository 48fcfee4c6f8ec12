//! Regions and their socket slots: who holds them, what each is at the moment, taking and giving back.

use crate::SlowPath;
use crate::config::Owner;
use core::net::SocketAddr;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use toe_core::flow::FlowKey;
use toe_core::msg::Down;
use toe_core::shm::{
    ACCEPT_RING, APP_SOCKS, AcceptRing, CHUNK_SIZE, MAX_LISTENERS, MAX_SOCKS, Region, SLOW_WORKER, STREAM_CHUNKS,
    ShmAddr, SockSlot, SockState, app_flags,
};
use toe_core::{CoreId, Instant, ProcId, RegionId, SockId};

/// What a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing yet, or over.
    Idle,
    /// Bound.
    Bound,
    /// Accepting; index of its ring, its place to fill next, its backlog.
    Listening {
        /// Ring.
        ring: u32,
        /// Private copy of the ring's tail.
        tail: u32,
        /// Most entries.
        backlog: u32,
    },
    /// Half-open.
    Connecting(FlowKey),
    /// With a fast path.
    Flow(FlowKey),
}

/// A socket.
pub struct Sock {
    /// What it is.
    pub kind: Kind,
    /// Bound address.
    pub bound: Option<SocketAddr>,
    /// Last request answered.
    pub answered: u32,
    /// Core that may hold chunks of it.
    pub core: Option<CoreId>,
}

/// A region.
pub struct RegionEntry {
    /// Memory.
    pub region: Arc<Region>,
    /// Whose.
    pub owner: Owner,
    /// Attached processes.
    pub procs: HashSet<ProcId>,
    /// Sockets that have been asked for anything.
    pub socks: HashMap<SockId, Sock>,
    free: Vec<SockId>,
    fresh: u32,
}

impl RegionEntry {
    /// Nothing in it.
    pub fn new(region: Arc<Region>, owner: Owner) -> RegionEntry {
        RegionEntry {
            region,
            owner,
            procs: HashSet::new(),
            socks: HashMap::new(),
            free: Vec::new(),
            fresh: APP_SOCKS as u32,
        }
    }

    /// A slot for an accepted connection.
    pub fn alloc(&mut self) -> Option<SockId> {
        self.free.pop().or_else(|| {
            ((self.fresh as usize) < MAX_SOCKS).then(|| {
                self.fresh += 1;
                SockId(self.fresh - 1)
            })
        })
    }

    /// The ring of a listener.
    pub fn ring(&self, index: u32) -> Option<&AcceptRing> {
        self.region.layout().rings.get(index as usize)
    }

    /// Room in a listener's accept queue? (`head` is the app's: a lie only changes its own backlog.)
    pub fn ring_has_room(&self, sock: SockId) -> bool {
        let Some(Sock { kind: Kind::Listening { ring, tail, backlog }, .. }) = self.socks.get(&sock) else {
            return false;
        };
        self.ring(*ring).is_some_and(|r| tail.wrapping_sub(r.head.load(Acquire)) < *backlog)
    }

    /// Queues a connection for `accept`.
    pub fn push_accept(&mut self, listener: SockId, sock: SockId) {
        let region = self.region.clone();
        if let Some(Sock { kind: Kind::Listening { ring, tail, .. }, .. }) = self.socks.get_mut(&listener)
            && let Some(r) = region.layout().rings.get(*ring as usize)
        {
            r.entry[*tail as usize % ACCEPT_RING].store(sock.0, Relaxed);
            *tail = tail.wrapping_add(1);
            r.tail.store(*tail, Release);
        }
    }
}

/// Does anybody hold the socket (or may still take it from an accept ring)?
pub fn is_held(id: SockId, slot: &SockSlot) -> bool {
    let in_ring = id.index() >= APP_SOCKS && slot.app_flags.load(Acquire) & app_flags::TAKEN == 0;
    in_ring || slot.holders.iter().any(|h| h.load(Acquire) != 0)
}

impl SlowPath {
    /// A registered process's region: from now on its sockets may be kicked.
    pub fn attach(&mut self, region: Arc<Region>, owner: Owner) {
        for down in &mut self.downs {
            down.send(Down::Attach(region.clone()));
        }
        self.regions.insert(region.id(), RegionEntry::new(region, owner));
    }

    /// A process has the region mapped.
    pub fn proc_attached(&mut self, region: RegionId, proc: ProcId, _pid: u32) {
        if let Some(entry) = self.regions.get_mut(&region) {
            entry.procs.insert(proc);
        }
    }

    /// A process is gone: it lets go of all it held; with the last one go the connections nobody has taken.
    pub fn proc_died(&mut self, now: Instant, id: RegionId, proc: ProcId) {
        let Some(entry) = self.regions.get_mut(&id) else { return };
        if !entry.procs.remove(&proc) {
            return;
        }
        let region = entry.region.clone();
        let (last, bit) = (entry.procs.is_empty(), 1u64 << (proc.0 % 64));
        let app_used = region.layout().sock_pool.fresh.load(Relaxed).min(APP_SOCKS as u32);
        let fresh = entry.fresh;
        for i in (0..app_used).chain(APP_SOCKS as u32..fresh) {
            let sock = SockId(i);
            let Some(slot) = region.sock(sock) else { continue };
            if slot.state.load(Relaxed) == SockState::Free as u32 {
                continue;
            }
            let held = slot.holders[proc.index() / 64].fetch_and(!bit, Release) & bit != 0;
            if last {
                slot.app_flags.fetch_or(app_flags::TAKEN, Release);
            }
            if held || last {
                self.look_at(now, id, sock);
            }
        }
        region.layout().proc_pool.push(proc.0);
        self.detach_if_empty(id);
    }

    /// A region without processes and sockets goes.
    pub fn detach_if_empty(&mut self, id: RegionId) {
        let empty = |e: &RegionEntry| e.procs.is_empty() && e.socks.values().all(|s| !matches!(s.kind, Kind::Flow(_)));
        if self.regions.get(&id).is_some_and(empty) {
            self.regions.remove(&id);
            for down in &mut self.downs {
                down.send(Down::Detach(id));
            }
        }
    }

    /// Lets go of a socket that its last holder has closed.
    pub fn release_if_unheld(&mut self, now: Instant, id: RegionId, sock: SockId) {
        let Some(region) = self.regions.get(&id).map(|e| e.region.clone()) else { return };
        let Some(slot) = region.sock(sock) else { return };
        if slot.state.load(Acquire) != SockState::Free as u32 && !is_held(sock, slot) {
            self.release(now, id, sock);
        }
    }

    /// Nobody holds the socket: ends whatever it is, then frees the slot.
    pub fn release(&mut self, now: Instant, id: RegionId, sock: SockId) {
        let Some(entry) = self.regions.get_mut(&id) else { return };
        let kind = entry.socks.get(&sock).map_or(Kind::Idle, |s| s.kind);
        match kind {
            Kind::Flow(key) => {
                if let Some(flow) = self.flows.get(&key) {
                    self.downs[flow.core.index()].send(Down::Kick { region: id, sock });
                }
                return; // the slot comes back with Up::Closed
            }
            Kind::Connecting(key) => {
                self.drop_half_open(&key);
            }
            Kind::Listening { ring, tail, .. } => self.close_listener(now, id, ring, tail),
            Kind::Idle | Kind::Bound => {}
        }
        self.free_slot(id, sock);
    }

    /// Connections that wait in the ring are reset; the ring goes back.
    fn close_listener(&mut self, now: Instant, id: RegionId, ring: u32, tail: u32) {
        let Some(region) = self.regions.get(&id).map(|e| e.region.clone()) else { return };
        let Some(r) = region.layout().rings.get(ring as usize) else { return };
        let head = r.head.swap(tail, Acquire);
        for i in 0..tail.wrapping_sub(head).min(ACCEPT_RING as u32) {
            let sock = SockId(r.entry[head.wrapping_add(i) as usize % ACCEPT_RING].load(Relaxed));
            let Some(slot) = region.sock(sock).filter(|_| sock.index() >= APP_SOCKS) else { continue };
            if slot.app_flags.load(Acquire) & app_flags::TAKEN == 0 {
                // RFC 9293 §3.10.4: nobody will ever read it.
                slot.app_flags.fetch_or(app_flags::TAKEN | app_flags::LINGER_RST, Release);
                self.look_at(now, id, sock);
            }
        }
        self.half_open_of_listener_dropped(id);
        r.head.store(0, Relaxed);
        r.tail.store(0, Relaxed);
        if (ring as usize) < MAX_LISTENERS {
            region.layout().ring_pool.push(ring);
        }
    }

    /// Gives the slot's port, chunks and number back.
    pub fn free_slot(&mut self, id: RegionId, sock: SockId) {
        let Some(entry) = self.regions.get_mut(&id) else { return };
        let region = entry.region.clone();
        let Some(slot) = region.sock(sock) else { return };
        if let Some(s) = entry.socks.remove(&sock) {
            if let Some(addr) = s.bound {
                self.ports.unbind(id, sock, addr.port());
            }
            if let Some(core) = s.core {
                self.downs[core.index()].send(Down::Release { region: id, sock });
            }
        }
        free_tx_chunks(&region, sock, slot);
        reset(slot);
        if sock.index() < APP_SOCKS {
            region.layout().sock_pool.push(sock.0);
        } else if let Some(entry) = self.regions.get_mut(&id) {
            entry.free.push(sock);
        }
        self.detach_if_empty(id);
    }
}

/// The TX chunks that the app has filled and nobody has freed.
fn free_tx_chunks(region: &Region, sock: SockId, slot: &SockSlot) {
    let (head, tail) = (slot.tx_head.load(Relaxed), slot.tx_tail.load(Acquire));
    let chunk = CHUNK_SIZE as u64;
    let (first, end) = (head / chunk, tail.div_ceil(chunk));
    let Some(table) = region.tx_table(sock) else { return };
    for number in first..end.min(first + STREAM_CHUNKS as u64) {
        region.layout().tx_pool.push(table[number as usize % STREAM_CHUNKS].load(Relaxed));
    }
}

/// A slot as new.
pub fn reset(slot: &SockSlot) {
    let zero_addr = |a: &ShmAddr| a.store(None);
    for word in [
        &slot.error,
        &slot.daemon_flags,
        &slot.resp_seq,
        &slot.resp_err,
        &slot.parent,
        &slot.soft_error,
        &slot.rx_wait,
        &slot.rx_lock,
        &slot.tx_wait,
        &slot.tx_lock,
        &slot.app_flags,
        &slot.rcv_timeo_ms,
        &slot.snd_timeo_ms,
        &slot.req_seq,
        &slot.req_op,
        &slot.req_arg,
        &slot.accept_ring,
        &slot.req_lock,
        &slot.opt_sndbuf,
        &slot.opt_rcvbuf,
        &slot.opt_keepidle,
        &slot.opt_keepintvl,
        &slot.opt_keepcnt,
        &slot.opt_user_timeout,
        &slot.opt_maxseg,
        &slot.opt_linger2,
        &slot.opt_syncnt,
        &slot.opt_ttl,
        &slot.opt_tos,
        &slot.opt_rcvlowat,
        &slot.opt_notsent_lowat,
    ] {
        word.store(0, Relaxed);
    }
    for word in
        [&slot.rx_tail, &slot.rx_urgent, &slot.tx_head, &slot.tx_sent, &slot.rx_head, &slot.tx_tail, &slot.cookie]
    {
        word.store(0, Relaxed);
    }
    for word in slot.holders.iter().chain(&slot.sets) {
        word.store(0, Relaxed);
    }
    zero_addr(&slot.local);
    zero_addr(&slot.remote);
    zero_addr(&slot.req_addr);
    slot.owner.store(SLOW_WORKER, Relaxed);
    slot.generation.fetch_add(1, Relaxed);
    slot.state.store(SockState::Free as u32, Release);
}
