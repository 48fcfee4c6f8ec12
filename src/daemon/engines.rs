//! The engines as a [`Worker`](super::worker::Worker) runs them.

use super::worker::Engine;
use fastpath::FastPath;
use mio::Waker;
use slowpath::{Owner, SlowPath};
use std::os::fd::RawFd;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use toe_core::Instant;
use toe_core::ids::{ProcId, RegionId};
use toe_core::msg::CoreStats;
use toe_core::pathq::{Polled, Receiver};
use toe_core::shm::Region;

/// A status waits at most so long for the cores' own counters.
const REPORT_WAIT: Duration = Duration::from_millis(200);
/// Commands of one round.
const COMMANDS: usize = 64;

/// From the control socket's thread to the slow path.
pub enum Command {
    /// A new region.
    Attach(Arc<Region>, Owner),
    /// A process holds its sockets by a bit of its own, or has another pid now.
    ProcAttached(RegionId, ProcId, u32),
    /// A process is gone.
    ProcDied(RegionId, ProcId),
    /// Connection `.0` of the control socket wants the status.
    Status(u64),
    /// Close everything properly.
    Shutdown,
    /// Reset what is left.
    Abort,
}

/// From the slow path and the relay to the control socket's thread.
pub enum Event {
    /// The status for connection `.0`, as JSON.
    Status(u64, serde_json::Value),
    /// Nothing is left to close.
    Drained,
    /// The relay is done with kept socket `.0`.
    RelayEnded(usize),
}

/// Fast path core.
pub struct FastEngine(pub FastPath);

impl Engine for FastEngine {
    fn poll(&mut self, now: Instant) -> Polled {
        self.0.poll(now)
    }

    fn arm(&mut self) -> bool {
        self.0.arm()
    }

    fn disarm(&mut self) {
        self.0.disarm();
    }

    fn kicker_cpu(&self) -> Option<usize> {
        self.0.kicker_cpu()
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        self.0.nics().iter().flat_map(|n| n.wait_fds()).collect()
    }

    fn wait_fds_epoch(&self) -> u64 {
        self.0.nics().iter().fold(0, |sum, n| sum.wrapping_add(n.wait_fds_epoch()))
    }
}

/// A status request that waits for the cores' reports.
struct Wanted {
    /// Connection.
    id: u64,
    /// Answered by then, whatever is missing.
    deadline: Instant,
    /// Poll rounds that each core's last report had counted. A newer report has counted more.
    polls: Vec<u64>,
}

/// Slow path, with the commands that come from the control socket.
pub struct SlowEngine {
    slow: SlowPath,
    commands: Receiver<Command>,
    events: mpsc::Sender<Event>,
    events_wake: Arc<Waker>,
    wanted: Vec<Wanted>,
    /// Shutting down and not yet drained.
    draining: bool,
}

impl SlowEngine {
    /// Wraps `slow`; whoever reads `events` is woken by `events_wake`.
    pub fn new(
        slow: SlowPath,
        commands: Receiver<Command>,
        events: mpsc::Sender<Event>,
        events_wake: Arc<Waker>,
    ) -> SlowEngine {
        SlowEngine { slow, commands, events, events_wake, wanted: vec![], draining: false }
    }

    fn obey(&mut self, now: Instant, command: Command) {
        match command {
            Command::Attach(region, owner) => self.slow.attach(region, owner),
            Command::ProcAttached(region, proc, pid) => self.slow.proc_attached(region, proc, pid),
            Command::ProcDied(region, proc) => self.slow.proc_died(now, region, proc),
            Command::Status(id) => {
                self.slow.request_reports();
                let polls = self.slow.reports().iter().map(|r| r.polls).collect();
                self.wanted.push(Wanted { id, deadline: now + REPORT_WAIT, polls });
            }
            Command::Shutdown => {
                self.slow.begin_shutdown(now);
                self.draining = true;
            }
            Command::Abort => self.slow.abort_all(),
        }
    }

    fn answer(&mut self, now: Instant) {
        while let Some(at) = self.wanted.iter().position(|w| self.is_due(w, now)) {
            let wanted = self.wanted.swap_remove(at);
            let status = serde_json::to_value(self.slow.status()).unwrap_or_default();
            self.tell(Event::Status(wanted.id, status));
        }
        if self.draining && self.slow.is_drained() {
            self.draining = false;
            self.tell(Event::Drained);
        }
    }

    fn is_due(&self, wanted: &Wanted, now: Instant) -> bool {
        let newer = |(report, polls): (&CoreStats, &u64)| report.polls > *polls;
        wanted.deadline <= now || self.slow.reports().iter().zip(&wanted.polls).all(newer)
    }

    fn tell(&self, event: Event) {
        // The other side is gone only when the daemon ends.
        let _ = self.events.send(event);
        let _ = self.events_wake.wake();
    }
}

impl Engine for SlowEngine {
    fn poll(&mut self, now: Instant) -> Polled {
        let mut commands = 0;
        while commands < COMMANDS
            && let Some(command) = self.commands.recv()
        {
            self.obey(now, command);
            commands += 1;
        }
        let polled = self.slow.poll(now);
        self.answer(now);
        let due = self.wanted.iter().map(|w| w.deadline).min();
        Polled { busy: polled.busy || commands > 0, next: polled.next.into_iter().chain(due).min() }
    }

    fn arm(&mut self) -> bool {
        self.commands.is_empty() && self.slow.is_quiet()
    }

    fn disarm(&mut self) {}
}
