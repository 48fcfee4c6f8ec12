//! ⑦ Freeing: TX chunks when acknowledged, RX chunks when read. (At the end of a flow: `RegionState::release`.)

use crate::alloc::RegionState;
use crate::flow::{Flow, NO_CHUNK};
use crate::ranges::Pos;
use std::sync::atomic::Ordering::Relaxed;
use toe_core::shm::{CHUNK_SIZE, STREAM_CHUNKS};

const C: i64 = CHUNK_SIZE as i64;

impl Flow {
    /// Gives the app's TX chunks back that lie wholly below `to`, starting from the one that holds `from`.
    #[inline]
    pub fn free_tx(&self, from: Pos, to: Pos) {
        for number in from / C..to / C {
            self.push_tx_chunk(number);
        }
    }

    fn push_tx_chunk(&self, number: i64) {
        if let Some(table) = self.region.tx_table(self.sock) {
            // An index of the app's own making: out of range is refused by the pool, a wrong one hurts its own arena.
            self.region.layout().tx_pool.push(table[number as usize % STREAM_CHUNKS].load(Relaxed));
        }
    }

    /// Gives RX chunks back that lie wholly below `rcv.head`.
    #[inline]
    pub fn free_rx(&mut self, regions: &mut RegionState) {
        let keep = self.rcv.head / C;
        while self.rcv.first_chunk < keep {
            match self.rcv.chunks.pop_front() {
                Some(NO_CHUNK) => {}
                Some(chunk) => regions.free(chunk),
                None => {
                    self.rcv.first_chunk = keep;
                    return;
                }
            }
            self.rcv.first_chunk += 1;
        }
    }
}
