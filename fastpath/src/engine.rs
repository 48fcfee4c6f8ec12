//! What every function of the fast path may use beside the flow it works on.

use crate::flow::Flow;
use crate::wheel::Wheel;
use std::sync::Arc;
use toe_core::msg::{CoreStats, Up};
use toe_core::notify::Waker;
use toe_core::pathq::Sender;
use toe_core::tcp::TcpConfig;
use toe_core::{CoreId, FlowId, Instant};

/// One core's surroundings.
pub struct Engine {
    /// Which core.
    pub core: CoreId,
    /// Of how many.
    pub cores: usize,
    /// Parameters.
    pub tcp: TcpConfig,
    /// Counters.
    pub stats: CoreStats,
    /// Time of this round.
    pub now: Instant,
    /// Timers.
    pub wheel: Wheel,
    /// To the slow path.
    pub up: Sender<Up>,
    /// Wakes apps.
    pub waker: Arc<dyn Waker>,
    /// Flows to finish at the end of this round.
    pub dirty: Vec<FlowId>,
    challenges: (u64, u32),
}

impl Engine {
    /// Nothing happened yet.
    pub fn new(core: CoreId, cores: usize, tcp: TcpConfig, up: Sender<Up>, waker: Arc<dyn Waker>) -> Engine {
        Engine {
            core,
            cores,
            tcp,
            stats: CoreStats::default(),
            now: Instant::ZERO,
            wheel: Wheel::default(),
            up,
            waker,
            dirty: Vec::new(),
            challenges: (0, 0),
        }
    }

    /// Has the flow looked at by the end of the round.
    #[inline]
    pub fn touch(&mut self, flow: &mut Flow) {
        if !flow.dirty {
            flow.dirty = true;
            self.dirty.push(flow.id);
        }
    }

    /// Timestamp clock: 1 ms a tick (RFC 7323 §5.4 allows 1 ms to 1 s).
    #[inline]
    pub fn ts_now(&self) -> u32 {
        self.now.millis() as u32
    }

    /// May a challenge ACK leave in this second (RFC 5961 §7)?
    pub fn allow_challenge(&mut self) -> bool {
        let second = self.now.0 / 1_000_000_000;
        if self.challenges.0 != second {
            self.challenges = (second, 0);
        }
        self.challenges.1 += 1;
        self.challenges.1 <= self.tcp.challenge_ack_limit
    }
}
