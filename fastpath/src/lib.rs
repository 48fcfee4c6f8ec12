//! The fast path: one pinned core's poll loop and the hot functions of TCP.
//!
//! The hybrid-TOE paper found seven functions that take 70-90 % of TCP's time; each has its file here, ③ (waiting) excepted,
//! which is the app's and the slow path's:
//!
//! | no | function | file |
//! | --- | --- | --- |
//! | ① | socket-buffer allocation | `alloc.rs` |
//! | ② | copy to the link | `segment.rs` with `toe_core::stream` (the first copy is the app's) |
//! | ④ | header validation | `validate.rs` |
//! | ⑤ | acknowledgments | `ack.rs` |
//! | ⑥ | copy from the link | `copy_rx.rs` |
//! | ⑦ | socket-buffer free | `free.rs` |
//!
//! The engine reads no clock, descriptor or global: time and links are arguments.

#![forbid(unsafe_code)]

mod ack;
mod alloc;
mod close;
mod congestion;
mod copy_rx;
mod down;
mod engine;
mod flow;
mod free;
mod install;
mod kick;
mod poll;
mod ranges;
mod recovery;
mod rtt;
mod segment;
mod table;
mod timers;
mod validate;
mod wheel;

use alloc::RegionState;
use engine::Engine;
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use table::FlowTable;
use toe_core::msg::{CoreStats, Down, Up};
use toe_core::nic::Nic;
use toe_core::notify::Waker;
use toe_core::pathq::{Receiver, Sender};
use toe_core::tcp::TcpConfig;
use toe_core::{CoreId, FlowId, NicId, RegionId};

/// What a core is told at its start.
pub struct FastPathConfig {
    /// Which core.
    pub core: CoreId,
    /// Of how many.
    pub cores: usize,
    /// Parameters.
    pub tcp: TcpConfig,
    /// Secret for the flow table's hash.
    pub hash_seed: u64,
}

/// One core.
pub struct FastPath {
    eng: Engine,
    flows: FlowTable,
    regions: HashMap<RegionId, RegionState>,
    nics: Vec<Box<dyn Nic>>,
    link_up: Vec<Option<bool>>,
    down: Receiver<Down>,
    transmit_backlog: VecDeque<(NicId, Vec<u8>)>,
    due: Vec<FlowId>,
    finishing: Vec<FlowId>,
}

impl FastPath {
    /// A core with its queue of every link (index = `NicId`).
    pub fn new(
        config: FastPathConfig,
        nics: Vec<Box<dyn Nic>>,
        up: Sender<Up>,
        down: Receiver<Down>,
        waker: Arc<dyn Waker>,
    ) -> FastPath {
        FastPath {
            eng: Engine::new(config.core, config.cores, config.tcp, up, waker),
            flows: FlowTable::new(config.hash_seed),
            regions: HashMap::new(),
            link_up: vec![None; nics.len()],
            nics,
            down,
            transmit_backlog: VecDeque::new(),
            due: Vec::new(),
            finishing: Vec::new(),
        }
    }

    /// Before sleeping: asks links for a wake-up. `false`: something is pending, poll again.
    pub fn arm(&mut self) -> bool {
        let worker = 1 + self.eng.core.index();
        self.nics.iter_mut().fold(true, |quiet, nic| nic.arm() && quiet)
            && self.down.is_empty()
            && self.regions.values().all(|s| s.region.layout().kick[worker].is_empty())
    }

    /// After sleeping (or deciding not to).
    pub fn disarm(&mut self) {
        for nic in &mut self.nics {
            nic.disarm();
        }
    }

    /// The links, for their descriptors.
    pub fn nics(&self) -> &[Box<dyn Nic>] {
        &self.nics
    }

    /// Counters so far.
    pub fn stats(&self) -> CoreStats {
        let mut stats = self.eng.stats.clone();
        stats.flows = self.flows.len() as u64;
        stats.rx_chunks_in_use = self.regions.values().map(RegionState::used).sum();
        stats.nics = self.nics.iter().enumerate().map(|(i, n)| (NicId(i as u8), n.stats())).collect();
        stats
    }
}
