//! ⑦ Freeing: TX chunks when the peer has acknowledged them, RX chunks when the app has read them, the rest when a flow ends.

use crate::alloc::{CHUNK, RegionState, Regions};
use crate::flow::{Flow, NO_CHUNK};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use toe_core::shm::{Region, STREAM_CHUNKS};
use toe_core::{Duration, Instant, SockId};

/// RX chunks of an ended flow with unread bytes. They stay until the app has read to `tail` or the slot is used anew.
#[derive(Debug)]
pub(crate) struct Remnant {
    generation: u32,
    tail: u64,
    chunks: Vec<u32>,
}

/// How often all remnants are looked at, at most, when chunks run short.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);

impl RegionState {
    /// A socket gets a new flow: nobody reads what the last one left.
    pub fn reuse(&mut self, sock: SockId) {
        if let Some(old) = self.remnants.remove(&sock) {
            old.chunks.into_iter().for_each(|c| self.pool.push(c));
        }
    }

    /// The slow path says that something happened to a socket without a flow.
    pub fn look_at(&mut self, sock: SockId) {
        if self.remnants.get(&sock).is_some_and(|r| r.is_done(&self.region, sock)) {
            self.reuse(sock);
        }
    }

    /// Short of chunks: look at all remnants.
    pub fn sweep(&mut self, now: Instant) {
        if now.since(self.swept) < SWEEP_INTERVAL {
            return;
        }
        self.swept = now;
        let (region, pool) = (&self.region, &mut self.pool);
        self.remnants.retain(|&sock, r| {
            let done = r.is_done(region, sock);
            if done {
                r.chunks.drain(..).for_each(|c| pool.push(c));
            }
            !done
        });
    }
}

impl Remnant {
    /// Read to the end, or the slot was given back.
    fn is_done(&self, region: &Region, sock: SockId) -> bool {
        region.sock(sock).is_none_or(|slot| {
            slot.generation.load(Relaxed) != self.generation || slot.rx_head.load(Acquire) >= self.tail
        })
    }
}

impl Flow {
    /// Chunks between the old and the new TX head go back to the app's pool, then the head is published.
    pub fn free_acked(&mut self, from: u64) {
        let to = self.data_acked();
        if let Some(table) = self.region.tx_table(self.sock) {
            for n in from / CHUNK..to / CHUNK {
                // The app wrote this number; `push` refuses what is out of range. A lie costs the liar its own chunks.
                self.region.layout().tx_pool.push(table[n as usize % STREAM_CHUNKS].load(Relaxed));
            }
        }
        self.slot().tx_head.store(to, Release);
    }

    /// Chunks that the app has read to their end go back to the core's pool.
    pub fn free_read(&mut self, regions: &mut Regions) {
        let to = self.app.head / CHUNK;
        if self.rcv.freed >= to {
            return;
        }
        let Some(state) = regions.get(self.region_id) else { return };
        for n in self.rcv.freed..to {
            let entry = &mut self.rcv.chunks[n as usize % STREAM_CHUNKS];
            if *entry != NO_CHUNK {
                state.pool.push(core::mem::replace(entry, NO_CHUNK));
            }
        }
        self.rcv.freed = to;
    }

    /// The flow ends: all RX chunks go back, except those with bytes that the app may still read.
    pub fn free_all(&mut self, regions: &mut Regions) {
        let Some(state) = regions.get(self.region_id) else { return };
        let tail = self.rcv.published;
        // Never below what the app was seen to have read, whatever it says now.
        let head = self.slot().rx_head.load(Acquire).max(self.app.head);
        let unread = if self.app.orphan || head >= tail { 0..0 } else { head / CHUNK..tail.div_ceil(CHUNK) };
        let mut kept = Vec::new();
        for n in unread {
            let entry = &mut self.rcv.chunks[n as usize % STREAM_CHUNKS];
            if *entry != NO_CHUNK {
                kept.push(core::mem::replace(entry, NO_CHUNK));
            }
        }
        for entry in self.rcv.chunks.iter_mut().filter(|e| **e != NO_CHUNK) {
            state.pool.push(core::mem::replace(entry, NO_CHUNK));
        }
        if !kept.is_empty() {
            let generation = crate::flow::slot(&self.region, self.sock).generation.load(Relaxed);
            state.remnants.insert(self.sock, Remnant { generation, tail, chunks: kept });
        }
    }
}
