//! The slow path: connection set-up and rare events.
//!
//! smoltcp handles: the SYN handshake's state machine in both directions (one socket in a set of its own for each half-open
//! connection), ARP, NDP, ICMP echo. Ours are: the 4-tuple demultiplexer (`input.rs`), what stands in our SYNs (`handshake.rs`),
//! initial sequence numbers and ports (`secret.rs`, `ports.rs`), backlogs and accept queues (`sockets.rs`, `half_open.rs`),
//! TIME-WAIT (`time_wait.rs`), the decisions about time-outs (`timeouts.rs`), ICMP errors (`icmp.rs`).
//!
//! The engine reads no clock, descriptor or global: time and queues are arguments.

#![forbid(unsafe_code)]

mod config;
mod half_open;
mod handshake;
mod icmp;
mod input;
mod link;
mod ports;
mod requests;
mod secret;
mod sockets;
mod status;
mod time_wait;
mod timeouts;

pub use config::{NicSetup, Owner, Route, SlowPathConfig};
pub use link::contains;
pub use status::{Counters, FlowStatus, ListenerStatus, NicStatus, RegionStatus, Status};

use handshake::HalfOpen;
use link::Link;
use ports::Ports;
use secret::Secret;
use sockets::{Kind, RegionEntry};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;
use timeouts::{Decision, Timeout};
use toe_core::flow::FlowKey;
use toe_core::msg::{CloseKind, CoreStats, Down, TimerKind, Up};
use toe_core::notify::Waker;
use toe_core::pathq::{Polled, Receiver, Sender};
use toe_core::shm::{SLOW_WORKER, app_flags};
use toe_core::tcp::TcpConfig;
use toe_core::{CoreId, Duration, FlowId, Instant, RegionId, SockId};

/// Messages taken in one round.
const MESSAGES: usize = 256;

/// An installed flow: who has it.
#[derive(Clone, Copy, Debug)]
struct FlowEntry {
    core: CoreId,
    id: FlowId,
    region: RegionId,
    sock: SockId,
    link: usize,
}

#[derive(Default)]
struct FreeIds {
    free: Vec<FlowId>,
    fresh: u32,
}

/// The slow path of one daemon.
pub struct SlowPath {
    tcp: TcpConfig,
    links: Vec<Link>,
    routes: Vec<Route>,
    secret: Secret,
    downs: Vec<Sender<Down>>,
    up: Receiver<Up>,
    waker: Arc<dyn Waker>,
    regions: BTreeMap<RegionId, RegionEntry>,
    half_open: HashMap<FlowKey, HalfOpen>,
    half_open_by_listener: HashMap<(RegionId, SockId), u32>,
    /// Half-open connections that wait for a neighbour.
    unresolved: HashSet<FlowKey>,
    flows: HashMap<FlowKey, FlowEntry>,
    flow_keys: Vec<HashMap<FlowId, FlowKey>>,
    free_ids: Vec<FreeIds>,
    time_wait: time_wait::Table,
    ports: Ports,
    next_port: u32,
    /// Deadlines of half-open connections; an entry whose connection has another deadline by then is void.
    deadlines: BTreeMap<(Instant, u64), FlowKey>,
    deadline_count: u64,
    reports: Vec<CoreStats>,
    counters: Counters,
    shutting_down: bool,
    kicked: Vec<(RegionId, SockId)>,
}

impl SlowPath {
    /// A slow path for the links of `config`, with a queue to each fast path core.
    pub fn new(config: SlowPathConfig, downs: Vec<Sender<Down>>, up: Receiver<Up>, waker: Arc<dyn Waker>) -> SlowPath {
        let all: Vec<_> = config.nics.iter().flat_map(|n| n.addrs.clone()).collect();
        let links = config.nics.into_iter().map(|n| Link::new(n, &all, &config.routes, config.seed)).collect();
        let cores = downs.len();
        SlowPath {
            tcp: config.tcp,
            links,
            routes: config.routes,
            secret: Secret::new(config.secret),
            downs,
            up,
            waker,
            regions: BTreeMap::new(),
            half_open: HashMap::new(),
            half_open_by_listener: HashMap::new(),
            unresolved: HashSet::new(),
            flows: HashMap::new(),
            flow_keys: vec![HashMap::new(); cores],
            free_ids: (0..cores).map(|_| FreeIds::default()).collect(),
            time_wait: time_wait::Table::default(),
            ports: Ports::default(),
            next_port: config.seed as u32,
            deadlines: BTreeMap::new(),
            deadline_count: 0,
            reports: vec![CoreStats::default(); cores],
            counters: Counters::default(),
            shutting_down: false,
            kicked: Vec::new(),
        }
    }

    /// One round: messages from below, kicks from apps, timers.
    pub fn poll(&mut self, now: Instant) -> Polled {
        let mut work = 0;
        while work < MESSAGES {
            let Some(message) = self.up.recv() else { break };
            self.take_message(now, message);
            work += 1;
        }
        work += self.take_kicks(now);
        self.run_half_open_timers(now);
        self.time_wait.expire(now, |key| self.ports.unuse_addr(key.local()));
        let told = self.downs.iter_mut().fold(true, |all, d| d.flush() && all);
        let first = self.deadlines.first_key_value().map(|e| e.0.0);
        Polled { busy: work > 0 || !told, next: [first, self.time_wait.next()].into_iter().flatten().min() }
    }

    /// Before sleeping: nothing pending?
    pub fn is_quiet(&self) -> bool {
        let kicks = |e: &RegionEntry| e.region.layout().kick[SLOW_WORKER as usize].is_empty();
        self.up.is_empty() && self.regions.values().all(kicks)
    }

    fn take_kicks(&mut self, now: Instant) -> usize {
        let mut kicked = core::mem::take(&mut self.kicked);
        for (&id, entry) in &self.regions {
            entry.region.layout().kick[SLOW_WORKER as usize].drain(|sock| kicked.push((id, SockId(sock))));
        }
        let count = kicked.len();
        // What was closed goes first: an app that closes a listener and binds its port anew has both kicked by now.
        for &(id, sock) in &kicked {
            self.release_if_unheld(now, id, sock);
        }
        for (id, sock) in kicked.drain(..) {
            self.look_at(now, id, sock);
        }
        self.kicked = kicked;
        count
    }

    fn take_message(&mut self, now: Instant, message: Up) {
        match message {
            Up::Punt { core, nic, frame, meta } => self.frame(now, core, nic, frame, meta),
            Up::Timeout { core, flow, kind, count, silent, orphan } => {
                self.timeout(core, flow, Timeout { kind, count, silent, orphan });
            }
            Up::Closed { core, flow, key, l2, region, sock, how, .. } => {
                self.closed(now, core, flow, key, l2, how);
                self.closed_sock(now, region, sock);
            }
            Up::Link { nic, up, caps, .. } => {
                if let Some(link) = self.links.iter_mut().find(|l| l.id == nic) {
                    link.up = up;
                    link.caps = caps;
                }
            }
            Up::Report { core, stats } => self.reports[core.index()] = *stats,
        }
    }

    fn timeout(&mut self, core: CoreId, id: FlowId, t: Timeout) {
        let Some(flow) = self.flow_keys[core.index()].get(&id).and_then(|key| self.flows.get(key)) else { return };
        let Some(region) = self.regions.get(&flow.region).map(|e| e.region.clone()) else { return };
        let Some(slot) = region.sock(flow.sock) else { return };
        let down = match timeouts::decide(&self.tcp, slot, t) {
            Decision::Retransmit => Down::Retransmit(id),
            Decision::Probe => Down::Probe(id, t.kind),
            Decision::GiveUp { errno, reset } => {
                self.counters.aborts_on_timeout += u64::from(t.kind != TimerKind::FinWait2);
                Down::Remove { flow: id, errno, reset }
            }
        };
        self.downs[core.index()].send(down);
    }

    fn closed(&mut self, now: Instant, core: CoreId, id: FlowId, key: FlowKey, l2: [u8; 14], how: CloseKind) {
        self.flows.remove(&key);
        self.flow_keys[core.index()].remove(&id);
        self.free_ids[core.index()].free.push(id);
        match how {
            CloseKind::TimeWait(tw) if !self.shutting_down => {
                // The local address stays in use until the entry expires.
                let expires = now + Duration::from_millis(self.tcp.time_wait_ms);
                self.time_wait.insert(key, l2, tw, expires);
            }
            _ => self.ports.unuse_addr(key.local()),
        }
    }

    fn closed_sock(&mut self, now: Instant, id: RegionId, sock: SockId) {
        if let Some(s) = self.regions.get_mut(&id).and_then(|e| e.socks.get_mut(&sock)) {
            s.kind = Kind::Idle;
        }
        self.look_at(now, id, sock);
    }

    fn forget_time_wait(&mut self, key: &FlowKey) {
        if self.time_wait.remove(key).is_some() {
            self.ports.unuse_addr(key.local());
        }
    }

    fn schedule(&mut self, at: Instant, key: FlowKey) {
        self.deadline_count += 1;
        self.deadlines.insert((at, self.deadline_count), key);
    }

    fn send_frames(&mut self, core: CoreId, link: usize, frames: Vec<Vec<u8>>) {
        let nic = self.links[link].id;
        for frame in frames {
            self.downs[core.index()].send(Down::Transmit { nic, frame });
        }
    }

    /// SIGTERM: no new connections, FIN on every flow as if its app had shut it down.
    pub fn begin_shutdown(&mut self, _now: Instant) {
        self.shutting_down = true;
        let keys: Vec<FlowKey> = self.half_open.keys().copied().collect();
        for key in keys {
            self.drop_half_open(&key);
        }
        for flow in self.flows.values() {
            if let Some(slot) = self.regions.get(&flow.region).and_then(|e| e.region.sock(flow.sock)) {
                slot.app_flags.fetch_or(app_flags::SHUT_WR, Release);
                self.downs[flow.core.index()].send(Down::Kick { region: flow.region, sock: flow.sock });
            }
        }
    }

    /// The time for an orderly end is over: RST on what is left.
    pub fn abort_all(&mut self) {
        for flow in self.flows.values() {
            let remove = Down::Remove { flow: flow.id, errno: libc::ECONNRESET, reset: true };
            self.downs[flow.core.index()].send(remove);
        }
    }

    /// Nothing left but TIME-WAIT?
    pub fn is_drained(&self) -> bool {
        self.flows.is_empty() && self.half_open.is_empty()
    }
}
