//! The fast path: TCP's data path, one [`FastPath`] for each pinned core.
//!
//! It reads no clock, file or global: time, links and queues are arguments, so the same code runs live and in virtual time.
//! Each of the hot functions that the hybrid-TOE paper found has a file:
//!
//! | | function | file |
//! | --- | --- | --- |
//! | ① | buffer allocation | `alloc.rs` |
//! | ② | copy on the sending side | `copy_tx.rs` (a gather; the link's DMA does the copy) |
//! | ③ | waiting | not here: apps wait by `notify`, the slow path decides about time-outs |
//! | ④ | header validation | `validate.rs` |
//! | ⑤ | ACK processing and generation | `ack.rs` |
//! | ⑥ | copy on the receiving side | `copy_rx.rs` |
//! | ⑦ | freeing | `free.rs` |
//!
//! Around them: `poll.rs` (the loop), `table.rs` and `flow.rs` (whose segment is it), `space.rs`, `ranges.rs`, `reassembly.rs`,
//! `recovery.rs`, `congestion/`, `rtt.rs`, `segment.rs` and `output.rs` (what leaves), `timers.rs` and `wheel.rs`, `buffers.rs`
//! (sizes and windows), `install.rs`, `close.rs`, `kick.rs` (what apps say) and `messages.rs` (what the slow path says).
//!
//! What it does not do: handshakes, time-out policy, TIME-WAIT, ICMP, neighbours. Those are the slow path's.

#![forbid(unsafe_code)]

mod ack;
mod alloc;
mod buffers;
mod close;
mod congestion;
mod copy_rx;
mod copy_tx;
mod flow;
mod free;
mod install;
mod kick;
mod messages;
mod output;
mod poll;
mod ranges;
mod reassembly;
mod recovery;
mod rtt;
mod segment;
mod space;
mod table;
mod timers;
mod validate;
mod wheel;

use crate::alloc::Regions;
use crate::poll::Env;
use crate::table::FlowTable;
use crate::validate::ChallengeLimit;
use crate::wheel::Wheel;
use std::collections::VecDeque;
use std::sync::Arc;
use toe_core::msg::{CoreStats, Down, Up};
use toe_core::nic::Nic;
use toe_core::tcp::TcpConfig;
use toe_core::{CoreId, FlowId, Instant, NicId, notify, pathq};

/// What a fast path must know.
#[derive(Clone, Debug)]
pub struct FastPathConfig {
    /// Its core's position: kicks come to worker `1 + core`.
    pub core: CoreId,
    /// Number of fast path cores: each has an equal share of every region's RX arena.
    pub cores: usize,
    /// TCP parameters.
    pub tcp: TcpConfig,
    /// Secret of the flow table's hash.
    pub hash_seed: u64,
}

/// One core's fast path.
pub struct FastPath {
    env: Env,
    table: FlowTable,
    wheel: Wheel,
    /// Flows that want a turn.
    ready: VecDeque<FlowId>,
    /// Scratch for kicks.
    kicked: Vec<FlowId>,
    kicker_cpu: Option<usize>,
    /// The slow path's frames that wait for a full link.
    waiting_frames: VecDeque<(NicId, Vec<u8>)>,
    nics: Vec<Box<dyn Nic>>,
    links_up: Vec<bool>,
    links_used: Vec<bool>,
    down: pathq::Receiver<Down>,
}

impl FastPath {
    /// A fast path over `nics` (a link's position is its `NicId`).
    pub fn new(
        cfg: FastPathConfig,
        nics: Vec<Box<dyn Nic>>,
        up: pathq::Sender<Up>,
        down: pathq::Receiver<Down>,
        waker: Arc<dyn notify::Waker>,
    ) -> FastPath {
        let env = Env {
            now: Instant::ZERO,
            core: cfg.core,
            stats: CoreStats::default(),
            regions: Regions::new(cfg.core, cfg.cores),
            up,
            waker,
            challenge: ChallengeLimit::new(cfg.tcp.challenge_ack_limit),
            tcp: cfg.tcp,
        };
        FastPath {
            env,
            table: FlowTable::new(cfg.hash_seed),
            wheel: Wheel::new(),
            ready: VecDeque::new(),
            kicked: Vec::new(),
            kicker_cpu: None,
            waiting_frames: VecDeque::new(),
            links_up: vec![false; nics.len()],
            links_used: vec![false; nics.len()],
            nics,
            down,
        }
    }

    /// About to sleep: arms the links. `true`: nothing is pending anywhere, sleep until the time that `poll` gave.
    pub fn arm(&mut self) -> bool {
        let worker = 1 + self.env.core.index();
        let kicks = |s: &alloc::RegionState| s.region.layout().kick.get(worker).is_none_or(|set| set.is_empty());
        let mut quiet = true;
        for nic in &mut self.nics {
            quiet &= nic.arm(); // every link, even if an earlier one has something pending
        }
        quiet && self.down.is_empty() && self.env.regions.iter().all(kicks)
    }

    /// Awake again.
    pub fn disarm(&mut self) {
        self.nics.iter_mut().for_each(|nic| nic.disarm());
    }

    /// Where the app ran that kicked in the last round; `None`: nobody did.
    pub fn kicker_cpu(&self) -> Option<usize> {
        self.kicker_cpu
    }

    /// The links, for their `wait_fds`.
    pub fn nics(&self) -> &[Box<dyn Nic>] {
        &self.nics
    }

    /// Counters so far.
    pub fn stats(&self) -> CoreStats {
        let mut stats = self.env.stats.clone();
        stats.flows = self.table.len() as u64;
        stats.rx_chunks_in_use = self.env.regions.iter().map(|r| u64::from(r.pool.in_use)).sum();
        stats.nics = self.nics.iter().enumerate().map(|(at, n)| (NicId(at as u8), n.stats())).collect();
        stats
    }
}
