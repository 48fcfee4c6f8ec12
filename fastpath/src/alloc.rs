//! ① Allocation. A chunk is taken when a stream's received bytes enter it: from a private stack, last freed first, or fresh
//! from the core's share of the region's RX arena. TX chunks are the app's to allocate; frame headers live on the stack.

use crate::flow::{Flow, NO_CHUNK};
use crate::free::Remnant;
use core::sync::atomic::Ordering::Relaxed;
use std::collections::HashMap;
use std::sync::Arc;
use toe_core::shm::{ARENA_CHUNKS, CHUNK_SIZE, Region, STREAM_CHUNKS};
use toe_core::{CoreId, FlowId, Instant, RegionId, SockId};

/// Bytes of one chunk, as positions count.
pub(crate) const CHUNK: u64 = CHUNK_SIZE as u64;

/// Free RX chunks of one region, in this core's share of its arena. Nothing of it is in shared memory.
#[derive(Debug)]
pub(crate) struct ChunkPool {
    free: Vec<u32>,
    /// Chunks from here to `end` were never used.
    fresh: u32,
    end: u32,
    pub in_use: u32,
}

impl ChunkPool {
    /// The share of `core` out of `cores`.
    pub fn new(core: CoreId, cores: usize) -> ChunkPool {
        let share = ARENA_CHUNKS / cores.max(1);
        let first = (core.index() * share).min(ARENA_CHUNKS) as u32;
        ChunkPool { free: Vec::new(), fresh: first, end: (first as usize + share).min(ARENA_CHUNKS) as u32, in_use: 0 }
    }

    pub fn pop(&mut self) -> Option<u32> {
        let chunk = self.free.pop().or_else(|| {
            let chunk = self.fresh;
            (chunk < self.end).then(|| {
                self.fresh += 1;
                chunk
            })
        })?;
        self.in_use += 1;
        Some(chunk)
    }

    pub fn push(&mut self, chunk: u32) {
        self.in_use -= 1;
        self.free.push(chunk);
    }
}

/// A region whose sockets this core serves.
pub(crate) struct RegionState {
    pub region: Arc<Region>,
    pub pool: ChunkPool,
    /// Ended flows whose unread bytes the app may still read.
    pub remnants: HashMap<SockId, Remnant>,
    /// When all remnants were last looked at.
    pub swept: Instant,
    /// Flow number + 1 by socket.
    flows: Vec<u32>,
}

impl RegionState {
    /// The flow of a socket.
    pub fn flow_of(&self, sock: SockId) -> Option<FlowId> {
        self.flows.get(sock.index()).and_then(|f| f.checked_sub(1)).map(FlowId)
    }

    /// Notes (or forgets) the flow of a socket.
    pub fn set_flow(&mut self, sock: SockId, flow: Option<FlowId>) {
        if sock.index() >= self.flows.len() {
            self.flows.resize(sock.index() + 1, 0);
        }
        self.flows[sock.index()] = flow.map_or(0, |f| f.0 + 1);
    }
}

/// All regions of one core.
pub(crate) struct Regions {
    list: Vec<RegionState>,
    /// Position in `list` + 1 by region number.
    index: Vec<u32>,
    core: CoreId,
    cores: usize,
    /// This poll round's time.
    pub now: Instant,
}

/// Region numbers beyond are refused.
const MOST_REGIONS: usize = 1 << 20;

impl Regions {
    pub fn new(core: CoreId, cores: usize) -> Regions {
        Regions { list: Vec::new(), index: Vec::new(), core, cores, now: Instant::ZERO }
    }

    pub fn get(&mut self, id: RegionId) -> Option<&mut RegionState> {
        let at = self.index.get(id.index())?.checked_sub(1)?;
        self.list.get_mut(at as usize)
    }

    /// Makes `region` known; `id` is the daemon's own number for it, read before any app could write the header.
    pub fn attach(&mut self, id: RegionId, region: Arc<Region>) {
        if id.index() >= MOST_REGIONS || self.get(id).is_some() {
            return;
        }
        if id.index() >= self.index.len() {
            self.index.resize(id.index() + 1, 0);
        }
        let pool = ChunkPool::new(self.core, self.cores);
        self.list.push(RegionState { region, pool, remnants: HashMap::new(), swept: Instant::ZERO, flows: Vec::new() });
        self.index[id.index()] = self.list.len() as u32;
    }

    pub fn detach(&mut self, id: RegionId) {
        let Some(at) = self.index.get(id.index()).and_then(|i| i.checked_sub(1)) else { return };
        self.index[id.index()] = 0;
        self.list.swap_remove(at as usize);
        if let Some(moved) = self.index.iter_mut().find(|i| **i == self.list.len() as u32 + 1) {
            *moved = at + 1;
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &RegionState> {
        self.list.iter()
    }
}

impl Flow {
    /// Makes sure that every chunk of `start..end` is there. `false`: the arena is used up; what was allocated stays for later.
    pub fn allocate(&mut self, regions: &mut Regions, start: u64, end: u64) -> bool {
        for n in start / CHUNK..end.div_ceil(CHUNK) {
            let at = n as usize % STREAM_CHUNKS;
            if self.rcv.chunks[at] != NO_CHUNK {
                continue;
            }
            let now = regions.now;
            let Some(state) = regions.get(self.region_id) else { return false };
            let chunk = state.pool.pop().or_else(|| {
                state.sweep(now);
                state.pool.pop()
            });
            let Some(chunk) = chunk else { return false };
            self.rcv.chunks[at] = chunk;
            if let Some(mirror) = self.region.rx_table(self.sock) {
                mirror[at].store(chunk, Relaxed); // published by rx_tail
            }
        }
        true
    }
}
