//! The slow path's poll round, and who gets which message.

use crate::counters::Counters;
use crate::device::Scratch;
use crate::half::HalfOpen;
use crate::hash::{Map, Secret};
use crate::nic::NicState;
use crate::ports::{Ports, SockRef};
use crate::reply::RateLimit;
use crate::routes::Routing;
use crate::setup::{Owner, SlowPathConfig};
use crate::status::WhyCounts;
use crate::table::{Flow, FlowIds, Listener, RegionState, Regions, held};
use crate::time_wait::TimeWaits;
use crate::timers::{Due, Timers};
use core::net::IpAddr;
use std::sync::Arc;
use toe_core::flow::{FlowKey, SHARED};
use toe_core::msg::{CoreStats, Down, Up};
use toe_core::nic::NicCaps;
use toe_core::notify::Waker;
use toe_core::pathq::{Polled, Receiver, Sender};
use toe_core::shm::{DaemonPageMap, Region, SLOW_WORKER};
use toe_core::tcp::TcpConfig;
use toe_core::{CoreId, Instant, NicId, ProcId, RegionId, SockId};

/// Messages taken in one round.
const UP_BUDGET: usize = 256;
/// How often the kick sets are looked through in one round while apps go on kicking.
const KICK_PASSES: usize = 8;

/// The slow path. See the crate's comment.
pub struct SlowPath {
    pub(crate) tcp: TcpConfig,
    pub(crate) secret: Secret,
    pub(crate) downs: Vec<Sender<Down>>,
    up: Receiver<Up>,
    pub(crate) waker: Arc<dyn Waker>,
    pub(crate) nics: Vec<NicState>,
    pub(crate) routing: Routing,
    pub(crate) scratch: Scratch,
    pub(crate) regions: Regions,
    pub(crate) listeners: Map<SockRef, Listener>,
    pub(crate) half: Map<FlowKey, Box<HalfOpen>>,
    pub(crate) flows: Map<FlowKey, Flow>,
    pub(crate) ids: Vec<FlowIds>,
    pub(crate) time_wait: TimeWaits,
    pub(crate) ports: Ports,
    pub(crate) next_ephemeral: u32,
    pub(crate) timers: Timers,
    pub(crate) challenge: RateLimit,
    pub(crate) counters: Counters,
    pub(crate) reports: Vec<CoreStats>,
    /// Where apps read which ports of 127.0.0.1 and ::1 have a listener.
    pub(crate) page: Option<Arc<DaemonPageMap>>,
    /// Reasons that programs which have ended had for the kernel.
    pub(crate) why_before: WhyCounts,
    pub(crate) shutting_down: bool,
    kicked: Vec<(RegionId, SockId)>,
}

impl SlowPath {
    /// A slow path with one `downs` sender for each fast path core (at least one), and the queue they all send to.
    pub fn new(cfg: SlowPathConfig, downs: Vec<Sender<Down>>, up: Receiver<Up>, waker: Arc<dyn Waker>) -> SlowPath {
        let secret = Secret::new(cfg.secret);
        let routing = Routing::new(&cfg.nics, &cfg.routes);
        let nic = |(i, setup)| NicState::new(setup, i, &routing, secret, cfg.seed);
        let nics = cfg.nics.into_iter().enumerate().map(nic).collect();
        let cores = downs.len();
        SlowPath {
            nics,
            routing,
            scratch: Scratch { rx: None, tx: Vec::new(), mtu: 1500 },
            regions: Map::with_hasher(secret),
            listeners: Map::with_hasher(secret),
            half: Map::with_hasher(secret),
            flows: Map::with_hasher(secret),
            ids: (0..cores).map(|_| FlowIds::default()).collect(),
            time_wait: TimeWaits::new(secret, TcpConfig::ms(cfg.tcp.time_wait_ms)),
            ports: Ports::new(secret),
            next_ephemeral: (cfg.seed as u32) ^ (cfg.seed >> 32) as u32,
            timers: Timers::default(),
            challenge: RateLimit::new(cfg.tcp.challenge_ack_limit),
            counters: Counters::default(),
            reports: vec![CoreStats::default(); cores],
            page: None,
            why_before: WhyCounts::new(),
            shutting_down: false,
            kicked: Vec::new(),
            tcp: cfg.tcp,
            secret,
            downs,
            up,
            waker,
        }
    }

    /// One round: messages from below, kicks of all regions, timers. `next` is exact: nothing need be done before it unless a
    /// message or a kick arrives.
    pub fn poll(&mut self, now: Instant) -> Polled {
        let mut busy = false;
        for _ in 0..UP_BUDGET {
            let Some(message) = self.up.recv() else { break };
            self.take(message, now);
            busy = true;
        }
        busy |= self.kicks(now);
        while let Some(due) = self.timers.pop(now) {
            busy = true;
            match due {
                Due::HalfOpen(key) => self.half_timer(key, now),
                Due::Suspect(region, sock, generation) => self.suspect_due(region, sock, generation),
            }
        }
        while let Some((key, entry)) = self.time_wait.expire(now) {
            self.ports.connection_over(key.local_ip, key.local_port, entry.reuse);
        }
        for down in &mut self.downs {
            // A full queue: come again soon.
            busy |= !down.flush();
        }
        let next = [self.timers.next(), self.time_wait.next()].into_iter().flatten().min();
        Polled { busy, next }
    }

    /// Before sleeping: nothing to receive, nobody kicked?
    pub fn is_quiet(&self) -> bool {
        self.up.is_empty() && self.regions.values().all(|r| r.region.layout().kick[SLOW_WORKER as usize].is_empty())
    }

    /// A process has registered: from now on its sockets may be kicked. Tells every core.
    pub fn attach(&mut self, region: Arc<Region>, owner: Owner) {
        let id = region.id();
        for down in &mut self.downs {
            down.send(Down::Attach(region.clone()));
        }
        self.regions.insert(id, RegionState::new(region, owner, self.secret));
    }

    /// A process holds sockets of `region` by bit `proc`.
    pub fn proc_attached(&mut self, region: RegionId, proc: ProcId, pid: u32) {
        if let Some(r) = self.regions.get_mut(&region) {
            r.procs.insert(proc, pid);
        }
    }

    /// Does anything still refer to this region?
    pub fn knows(&self, region: RegionId) -> bool {
        self.regions.contains_key(&region)
    }

    /// From now on says in `page` which ports of the shared addresses have a listener.
    pub fn publish_ports(&mut self, page: Arc<DaemonPageMap>) {
        self.page = Some(page);
    }

    /// A listener on `port` came or went.
    pub(crate) fn publish_port(&self, port: u16) {
        let Some(page) = &self.page else { return };
        let served = |&ip: &IpAddr| self.routing.is_own(ip) && self.ports.listener(ip, port, |_| 0).is_some();
        page.get().set_shared_port(port, SHARED.iter().any(served));
    }

    /// Asks every core for its counters; the answers come with a later [`poll`](Self::poll).
    pub fn request_reports(&mut self) {
        self.every_core(|| Down::Report);
    }

    /// Each core's counters, as of its last report.
    pub fn reports(&self) -> &[CoreStats] {
        &self.reports
    }

    fn take(&mut self, message: Up, now: Instant) {
        match message {
            Up::Punt { core, nic, frame, meta } => self.punt(core, nic, frame, meta, now),
            Up::Timeout { core, flow, kind, count, silent, orphan } => {
                self.timeout(core, flow, kind, count, silent, orphan);
            }
            Up::Closed { core, flow, key, l2, how, .. } => self.closed(core, flow, key, l2, how, now),
            Up::Link { nic, up, caps, .. } => self.link(nic, up, caps, now),
            Up::Kick { region, sock } => self.kick(region, sock, now),
            Up::Report { core, stats } => {
                if let Some(slot) = self.reports.get_mut(core.index()) {
                    *slot = *stats;
                }
            }
        }
    }

    /// Sockets that nobody holds come first, so that whoever closes a socket and then asks for its port finds it free. The
    /// sets are emptied until one pass finds nothing: then for every kick in the batch all kicks that came before it are
    /// there, too.
    fn kicks(&mut self, now: Instant) -> bool {
        let mut kicked = core::mem::take(&mut self.kicked);
        for _ in 0..KICK_PASSES {
            let before = kicked.len();
            for (&id, r) in &self.regions {
                r.region.layout().kick[SLOW_WORKER as usize].drain(|s| kicked.push((id, SockId(s))));
            }
            if kicked.len() == before {
                break;
            }
        }
        let any = !kicked.is_empty();
        kicked.retain(|&at| {
            let gone = self.is_let_go(at);
            if gone {
                self.kick(at.0, at.1, now);
            }
            !gone
        });
        for (region, sock) in kicked.drain(..) {
            self.kick(region, sock, now);
        }
        self.kicked = kicked;
        any
    }

    /// Does nobody hold this socket any more?
    fn is_let_go(&self, at: SockRef) -> bool {
        let Some(r) = self.regions.get(&at.0) else { return false };
        r.socks.get(&at.1).zip(r.region.sock(at.1)).is_some_and(|(s, slot)| !held(slot, s.in_ring))
    }

    /// Sends a frame by `core`.
    pub(crate) fn transmit(&mut self, core: CoreId, nic: usize, frame: Vec<u8>) {
        let nic = self.nics[nic].setup.id;
        self.down(core, Down::Transmit { nic, frame });
    }

    /// Sends a message to one core.
    pub(crate) fn down(&mut self, core: CoreId, message: Down) {
        if let Some(d) = self.downs.get_mut(core.index()) {
            d.send(message);
        }
    }

    pub(crate) fn every_core(&mut self, message: impl Fn() -> Down) {
        self.downs.iter_mut().for_each(|d| d.send(message()));
    }

    pub(crate) fn nic_index(&self, id: NicId) -> Option<usize> {
        self.nics.iter().position(|n| n.setup.id == id)
    }

    fn link(&mut self, nic: NicId, up: bool, caps: NicCaps, now: Instant) {
        let Some(i) = self.nic_index(nic) else { return };
        let state = &mut self.nics[i];
        let came_up = up && !state.setup.up;
        // Every core reports the same change; the first one counts.
        if state.setup.up == up && state.setup.caps == caps {
            return;
        }
        state.setup.up = up;
        state.set_caps(caps);
        if came_up {
            self.wake_waiting(i, now);
        }
    }

    /// A region that nothing uses any more.
    pub(crate) fn drop_region_if_done(&mut self, id: RegionId) {
        if self.regions.get(&id).is_some_and(|r| r.dying && r.uses == 0) {
            self.keep_reasons(id);
            self.every_core(|| Down::Detach(id));
            self.regions.remove(&id);
        }
    }
}
