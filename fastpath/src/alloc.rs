//! ① Allocation: chunks for received bytes. TX chunks are allocated by the app's side, headers stand on the stack.
//!
//! Each core owns an equal part of every region's RX arena: a LIFO of chunks used before (warm in the cache), then
//! fresh ones.

use crate::flow::{Flow, NO_CHUNK};
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use toe_core::shm::{ARENA_CHUNKS, CHUNK_SIZE, Region, STREAM_CHUNKS};
use toe_core::{CoreId, FlowId, SockId};

/// What a core keeps for each region.
pub struct RegionState {
    /// The region.
    pub region: Arc<Region>,
    free: Vec<u32>,
    fresh: u32,
    end: u32,
    flows: Vec<u32>,
    /// Chunks of finished flows whose app may still read.
    unread: HashMap<SockId, VecDeque<u32>>,
    first: u32,
}

impl RegionState {
    /// Core `core` of `cores` gets its part of the arena.
    pub fn new(region: Arc<Region>, core: CoreId, cores: usize) -> RegionState {
        let part = ARENA_CHUNKS / cores.max(1);
        let fresh = (core.index() * part) as u32;
        RegionState {
            region,
            free: Vec::new(),
            fresh,
            end: fresh + part as u32,
            flows: Vec::new(),
            unread: HashMap::new(),
            first: fresh,
        }
    }

    /// A chunk, or `None` if the core's part is used up.
    #[inline]
    pub fn alloc(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            (self.fresh < self.end).then(|| {
                self.fresh += 1;
                self.fresh - 1
            })
        })
    }

    /// Gives a chunk back.
    #[inline]
    pub fn free(&mut self, chunk: u32) {
        self.free.push(chunk);
    }

    /// Chunks in use.
    pub fn used(&self) -> u64 {
        u64::from(self.fresh - self.first) - self.free.len() as u64
    }

    /// A flow has ended; its bytes stay readable until the slow path says [`release`](Self::release).
    pub fn keep_unread(&mut self, sock: SockId, chunks: VecDeque<u32>) {
        if !chunks.is_empty() {
            self.unread.insert(sock, chunks);
        }
    }

    /// The socket is free again.
    pub fn release(&mut self, sock: SockId) {
        for chunk in self.unread.remove(&sock).into_iter().flatten() {
            if chunk != NO_CHUNK {
                self.free(chunk);
            }
        }
    }

    /// The flow of a socket.
    #[inline]
    pub fn flow_of(&self, sock: SockId) -> Option<FlowId> {
        self.flows.get(sock.index()).copied().filter(|&f| f != u32::MAX).map(FlowId)
    }

    /// Ties a socket to its flow, or unties it.
    pub fn set_flow(&mut self, sock: SockId, flow: Option<FlowId>) {
        if self.flows.len() <= sock.index() {
            self.flows.resize(sock.index() + 1, u32::MAX);
        }
        self.flows[sock.index()] = flow.map_or(u32::MAX, |f| f.0);
    }
}

impl Flow {
    /// The RX chunk of chunk number `number`, allocated if need be and entered in the app's table.
    #[inline]
    pub fn rx_chunk(&mut self, regions: &mut RegionState, number: i64) -> Option<u32> {
        let index = usize::try_from(number - self.rcv.first_chunk).ok().filter(|&i| i < STREAM_CHUNKS)?;
        while self.rcv.chunks.len() <= index {
            self.rcv.chunks.push_back(NO_CHUNK);
        }
        if self.rcv.chunks[index] == NO_CHUNK {
            let chunk = regions.alloc()?;
            self.rcv.chunks[index] = chunk;
            let table = self.region.rx_table(self.sock)?;
            table[number as usize % STREAM_CHUNKS].store(chunk, Release);
        }
        Some(self.rcv.chunks[index])
    }

    /// Bytes that a stream can hold at most, whatever its limit: one chunk less than the table, for the two partial ones.
    pub const MAX_BUFFER: u32 = ((STREAM_CHUNKS - 1) * CHUNK_SIZE) as u32;

    /// The receive buffer in force: what the app asked (SO_RCVBUF), else the autotuned limit.
    pub fn apply_rcvbuf(&mut self) {
        let asked = self.slot().opt_rcvbuf.load(Relaxed);
        if asked != 0 {
            // A window once announced is not taken back (RFC 9293 §3.8.6.2.2): `window_edge` never moves left.
            self.rcv.limit = asked.min(Self::MAX_BUFFER);
            self.slot().rx_limit.store(self.rcv.limit, Relaxed);
        }
    }
}
