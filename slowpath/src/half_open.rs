//! The life of half-open connections: their timers, their success, their failure.

use crate::handshake::{HalfOpen, Opener};
use crate::sockets::{Kind, Sock};
use crate::{FlowEntry, SlowPath};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use toe_core::flow::{FlowInit, FlowKey};
use toe_core::msg::Down;
use toe_core::notify;
use toe_core::shm::{SockSlot, SockState, app_flags};
use toe_core::{CoreId, Duration, FlowId, Instant, RegionId, SockId};

/// Options that an accepted socket has from its listener.
const INHERITED: u32 = app_flags::NODELAY
    | app_flags::KEEPALIVE
    | app_flags::LINGER_RST
    | app_flags::RENO
    | app_flags::REUSEADDR
    | app_flags::REUSEPORT
    | app_flags::V6ONLY;

/// Neighbour requests before EHOSTUNREACH (Linux: three, one a second).
const ARP_TRIES: u32 = 3;

impl SlowPath {
    /// Takes a half-open connection into the map and starts its timer.
    pub fn add_half_open(&mut self, now: Instant, mut half: HalfOpen) {
        let wait = if half.sent > 0 { self.tcp.rto_initial_ms } else { 1000 };
        half.deadline = now + Duration::from_millis(wait);
        if half.sent == 0 {
            self.unresolved.insert(half.key);
        }
        if let Opener::Passive(id, sock) = half.opener {
            *self.half_open_by_listener.entry((id, sock)).or_default() += 1;
        }
        self.schedule(half.deadline, half.key);
        self.half_open.insert(half.key, half);
    }

    /// Forgets one, without a word to anybody.
    pub fn drop_half_open(&mut self, key: &FlowKey) -> Option<HalfOpen> {
        let half = self.half_open.remove(key)?;
        self.unresolved.remove(key);
        self.ports.unuse_addr(key.local());
        if let Opener::Passive(id, sock) = half.opener
            && let Some(n) = self.half_open_by_listener.get_mut(&(id, sock))
        {
            *n -= 1;
            if *n == 0 {
                self.half_open_by_listener.remove(&(id, sock));
            }
        }
        Some(half)
    }

    /// A listener has closed.
    pub fn half_open_of_listener_dropped(&mut self, id: RegionId) {
        let of_region = |h: &&HalfOpen| matches!(h.opener, Opener::Passive(r, _) if r == id);
        let gone: Vec<FlowKey> = self
            .half_open
            .values()
            .filter(of_region)
            .filter(|h| self.ports.listener(h.key.local_ip, h.key.local_port, 0).is_none())
            .map(|h| h.key)
            .collect();
        for key in gone {
            self.drop_half_open(&key);
        }
    }

    /// A half-open connection has failed: the app that opened it is told.
    pub fn fail_half_open(&mut self, _now: Instant, key: &FlowKey, errno: i32) {
        let Some(half) = self.drop_half_open(key) else { return };
        let Opener::Active(id, sock) = half.opener else { return };
        let Some(entry) = self.regions.get_mut(&id) else { return };
        let region = entry.region.clone();
        if let Some(s) = entry.socks.get_mut(&sock) {
            s.kind = if s.bound.is_some() { Kind::Bound } else { Kind::Idle };
        }
        if let Some(slot) = region.sock(sock) {
            slot.error.store(errno as u32, Relaxed);
            slot.state.store(SockState::Closed as u32, Release);
            notify::all(&region, sock, slot, &*self.waker);
        }
    }

    /// Deadlines that have come.
    pub fn run_half_open_timers(&mut self, now: Instant) {
        while let Some((&(at, n), &key)) = self.deadlines.first_key_value().filter(|e| e.0.0 <= now) {
            self.deadlines.remove(&(at, n));
            if self.half_open.get(&key).is_some_and(|h| h.deadline <= now) {
                self.half_open_ran_out(now, &key);
            }
        }
    }

    fn half_open_ran_out(&mut self, now: Instant, key: &FlowKey) {
        let Some(half) = self.half_open.get_mut(key) else { return };
        let link = half.link;
        if half.l2.is_none() || half.sent == 0 {
            half.arp_tries += 1;
            if half.arp_tries >= ARP_TRIES {
                return self.fail_half_open(now, key, libc::EHOSTUNREACH);
            }
            half.deadline = now + Duration::from_millis(1000);
            let (deadline, core) = (half.deadline, half.core);
            let frames = half.poll(&mut self.links[link], now, None);
            self.send_frames(core, link, frames);
            self.schedule(deadline, *key);
            return self.resolved(now, key);
        }
        let retries = match half.opener {
            Opener::Active(id, sock) => {
                let slot = self.regions.get(&id).and_then(|e| e.region.sock(sock));
                match slot.map_or(0, |s| s.opt_syncnt.load(Relaxed)) {
                    0 => self.tcp.syn_retries,
                    asked => asked.min(127),
                }
            }
            Opener::Passive(..) => self.tcp.synack_retries,
        };
        if half.sent > retries {
            let errno = if half.soft_error != 0 { half.soft_error } else { libc::ETIMEDOUT };
            return self.fail_half_open(now, key, errno);
        }
        // RFC 6298 §5.5: doubled each time.
        let wait = (self.tcp.rto_initial_ms << half.sent.min(16)).min(self.tcp.rto_max_ms);
        half.deadline = now + Duration::from_millis(wait);
        let (deadline, core) = (half.deadline, half.core);
        let again = half.syn(now);
        self.counters.syn_retrans += 1;
        self.send_frames(core, link, again.into_iter().collect());
        self.schedule(deadline, *key);
    }

    /// The handshake is complete: the fast path gets the flow *before* smoltcp's socket is dropped.
    pub fn establish(&mut self, now: Instant, key: &FlowKey) {
        let Some(half) = self.half_open.get(key) else { return };
        let (opener, link) = (half.opener, half.link);
        let taken = match opener {
            Opener::Active(id, sock) => Some((id, sock)),
            Opener::Passive(id, listener) => self.accepted_slot(id, listener, key).map(|sock| (id, sock)),
        };
        let Some((id, sock)) = taken else {
            self.drop_half_open(key);
            return;
        };
        let Some(init) = self.flow_init(now, key, id, sock) else { return };
        let core = init.core;
        if let Some(slot) = init.region.sock(sock) {
            slot.local.store(Some(key.local()));
            slot.remote.store(Some(key.remote()));
            slot.owner.store(1 + u32::from(core.0), Relaxed);
        }
        let entry = FlowEntry { core, id: init.id, region: id, sock, link };
        if let Some(e) = self.regions.get_mut(&id) {
            let s = e.socks.entry(sock).or_insert(Sock { kind: Kind::Idle, bound: None, answered: 0, core: None });
            s.kind = Kind::Flow(*key);
            s.core = Some(core);
        }
        self.flows.insert(*key, entry);
        self.ports.use_addr(key.local());
        self.flow_keys[core.index()].insert(init.id, *key);
        self.downs[core.index()].send(Down::Install(Box::new(init)));
        self.drop_half_open(key);
        match opener {
            Opener::Active(..) => self.counters.active_opens += 1,
            Opener::Passive(_, listener) => {
                self.counters.passive_opens += 1;
                self.queue_accepted(id, listener, sock);
            }
        }
    }

    fn queue_accepted(&mut self, id: RegionId, listener: SockId, sock: SockId) {
        let Some(entry) = self.regions.get_mut(&id) else { return };
        entry.push_accept(listener, sock);
        let region = entry.region.clone();
        if let Some(slot) = region.sock(listener) {
            notify::readable(&region, listener, slot, &*self.waker);
        }
    }

    /// A slot for a connection that a listener has got.
    fn accepted_slot(&mut self, id: RegionId, listener: SockId, _key: &FlowKey) -> Option<SockId> {
        let entry = self.regions.get_mut(&id)?;
        let sock = entry.alloc()?;
        let region = entry.region.clone();
        let (slot, from) = (region.sock(sock)?, region.sock(listener)?);
        inherit(slot, from, &region);
        slot.parent.store(listener.0, Relaxed);
        slot.state.store(SockState::Established as u32, Release);
        Some(sock)
    }

    fn flow_init(&mut self, now: Instant, key: &FlowKey, id: RegionId, sock: SockId) -> Option<FlowInit> {
        let half = self.half_open.get(key)?;
        let region = self.regions.get(&id)?.region.clone();
        let slot = region.sock(sock)?;
        let agreed = half.agreed(self.links[half.link].mss(key.remote_ip));
        let peer = half.peer.as_ref()?;
        let reno = slot.app_flags.load(Acquire) & app_flags::RENO != 0;
        let congestion = if reno { toe_core::flow::CongestionControl::Reno } else { self.tcp.congestion };
        let init = FlowInit {
            id: FlowId(0),
            core: half.core,
            key: *key,
            nic: self.links[half.link].id,
            l2: half.l2?,
            region: region.clone(),
            sock,
            iss: half.iss,
            irs: peer.irs,
            snd_wnd: peer.window,
            snd_wscale: agreed.snd_wscale,
            rcv_wscale: agreed.rcv_wscale,
            snd_mss: agreed.snd_mss,
            rcv_mss: agreed.rcv_mss,
            sack: agreed.sack,
            timestamps: agreed.timestamps,
            early_data: Vec::new(),
            early_fin: false,
            rtt: (half.sent == 1).then(|| now - half.sent_at),
            syn_retransmitted: half.sent > 1,
            congestion,
            ack_due: matches!(half.opener, Opener::Active(..)),
        };
        let core = init.core;
        Some(FlowInit { id: self.new_flow_id(core), ..init })
    }

    fn new_flow_id(&mut self, core: CoreId) -> FlowId {
        let ids = &mut self.free_ids[core.index()];
        ids.free.pop().unwrap_or_else(|| {
            ids.fresh += 1;
            FlowId(ids.fresh - 1)
        })
    }
}

/// What an accepted socket has from its listener.
fn inherit(slot: &SockSlot, from: &SockSlot, region: &toe_core::shm::Region) {
    let header = &region.layout().header;
    slot.app_flags.store(from.app_flags.load(Relaxed) & INHERITED, Relaxed);
    for (to, from) in [
        (&slot.opt_sndbuf, &from.opt_sndbuf),
        (&slot.opt_rcvbuf, &from.opt_rcvbuf),
        (&slot.opt_keepidle, &from.opt_keepidle),
        (&slot.opt_keepintvl, &from.opt_keepintvl),
        (&slot.opt_keepcnt, &from.opt_keepcnt),
        (&slot.opt_user_timeout, &from.opt_user_timeout),
        (&slot.opt_maxseg, &from.opt_maxseg),
        (&slot.opt_linger2, &from.opt_linger2),
        (&slot.opt_ttl, &from.opt_ttl),
        (&slot.opt_tos, &from.opt_tos),
        (&slot.opt_rcvlowat, &from.opt_rcvlowat),
        (&slot.opt_notsent_lowat, &from.opt_notsent_lowat),
        (&slot.rcv_timeo_ms, &from.rcv_timeo_ms),
        (&slot.snd_timeo_ms, &from.snd_timeo_ms),
    ] {
        to.store(from.load(Relaxed), Relaxed);
    }
    let or_default = |asked: u32, default: u32| if asked == 0 { default } else { asked };
    let (snd, rcv) = (slot.opt_sndbuf.load(Relaxed), slot.opt_rcvbuf.load(Relaxed));
    slot.tx_limit.store(or_default(snd, header.default_sndbuf.load(Relaxed)), Relaxed);
    slot.rx_limit.store(or_default(rcv, header.default_rcvbuf.load(Relaxed)), Relaxed);
}
