//! The slow path's private tables: regions, their sockets, listeners, installed flows. Nothing in them is read from
//! memory that an app can write.

use crate::hash::{Map, Secret};
use crate::ports::SockRef;
use crate::setup::Owner;
use core::net::IpAddr;
use core::sync::atomic::Ordering::SeqCst;
use std::collections::VecDeque;
use std::sync::Arc;
use toe_core::flow::FlowKey;
use toe_core::shm::{APP_SOCKS, MAX_SOCKS, Region, SockSlot, app_flags};
use toe_core::{CoreId, FlowId, ProcId, RegionId, SeqNr, SockId};

/// Where a socket stands, as the slow path knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// New or bound, or a connection attempt that failed.
    Idle,
    /// A listener.
    Listening,
    /// SYN sent.
    Connecting(FlowKey),
    /// The fast path's.
    Flow(FlowKey),
    /// The flow is over.
    Closed,
}

/// One socket that we have heard of.
#[derive(Clone, Debug)]
pub(crate) struct Sock {
    pub phase: Phase,
    /// Reserved local address (unspecified: wildcard) and port.
    pub bound: Option<(IpAddr, u16)>,
    /// Accepted by us and perhaps still in the accept ring: no holders means nothing before the TAKEN flag.
    pub in_ring: bool,
    /// Core that had its flow.
    pub core: Option<CoreId>,
}

impl Sock {
    pub(crate) fn new(phase: Phase) -> Sock {
        Sock { phase, bound: None, in_ring: false, core: None }
    }
}

/// Has any process the socket open?
pub(crate) fn held(slot: &SockSlot, in_ring: bool) -> bool {
    // TAKEN is set after the holder bit: read it first (layout.rs).
    if in_ring && slot.app_flags.load(SeqCst) & app_flags::TAKEN == 0 {
        return true;
    }
    slot.is_held()
}

/// A region, its processes and sockets.
pub(crate) struct RegionState {
    pub region: Arc<Region>,
    pub owner: Owner,
    pub procs: hashbrown::HashMap<ProcId, u32, Secret>,
    pub socks: hashbrown::HashMap<SockId, Sock, Secret>,
    /// Its last process is gone.
    pub dying: bool,
    /// Flows and handshakes that still name it.
    pub uses: usize,
    free: Vec<u32>,
    fresh: u32,
}

impl RegionState {
    pub(crate) fn new(region: Arc<Region>, owner: Owner, secret: Secret) -> RegionState {
        RegionState {
            region,
            owner,
            procs: hashbrown::HashMap::with_hasher(secret),
            socks: hashbrown::HashMap::with_hasher(secret),
            dying: false,
            uses: 0,
            free: Vec::new(),
            fresh: APP_SOCKS as u32,
        }
    }

    /// A slot for an accepted socket.
    pub(crate) fn take_slot(&mut self) -> Option<SockId> {
        let id = self.free.pop().or_else(|| {
            let fresh = (self.fresh < MAX_SOCKS as u32).then_some(self.fresh)?;
            self.fresh += 1;
            Some(fresh)
        })?;
        Some(SockId(id))
    }

    /// Gives a slot back to whoever hands it out.
    pub(crate) fn give_slot(&mut self, id: SockId) {
        if id.index() < APP_SOCKS {
            self.region.layout().sock_pool.push(id.0);
        } else {
            self.free.push(id.0);
        }
    }

    /// Accepted slots now in use.
    pub(crate) fn accepted(&self) -> usize {
        self.fresh as usize - APP_SOCKS - self.free.len()
    }

    /// Slots that were ever used: below the first number, and from `APP_SOCKS` below the second.
    pub(crate) fn ever_used(&self) -> (u32, u32) {
        let app = self.region.layout().sock_pool.fresh.load(SeqCst).min(APP_SOCKS as u32);
        (app, self.fresh)
    }
}

/// A listening socket.
pub(crate) struct Listener {
    pub ip: IpAddr,
    pub port: u16,
    pub backlog: u32,
    pub ring: u32,
    /// Next ring position to fill (private; the shared word only shows it).
    pub tail: u32,
    /// Connections in the ring, by position, as far as we know not yet taken.
    pub untaken: VecDeque<(u32, SockId)>,
    /// Handshakes under way.
    pub half: hashbrown::HashSet<FlowKey, Secret>,
}

/// An installed flow.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    pub core: CoreId,
    pub id: FlowId,
    pub sock: SockRef,
    pub nic: usize,
    pub next: IpAddr,
    pub iss: SeqNr,
    pub mss: u16,
    pub reuse: bool,
    /// `Down::Remove` is on its way.
    pub removing: bool,
}

/// Flow numbers of one core.
#[derive(Default)]
pub(crate) struct FlowIds {
    keys: Vec<Option<FlowKey>>,
    free: Vec<u32>,
}

impl FlowIds {
    pub(crate) fn take(&mut self, key: FlowKey) -> FlowId {
        match self.free.pop() {
            Some(i) => {
                self.keys[i as usize] = Some(key);
                FlowId(i)
            }
            None => {
                self.keys.push(Some(key));
                FlowId(self.keys.len() as u32 - 1)
            }
        }
    }

    pub(crate) fn get(&self, id: FlowId) -> Option<FlowKey> {
        *self.keys.get(id.index())?
    }

    pub(crate) fn give(&mut self, id: FlowId) {
        if self.keys.get_mut(id.index()).and_then(Option::take).is_some() {
            self.free.push(id.0);
        }
    }
}

/// All regions.
pub(crate) type Regions = Map<RegionId, RegionState>;
