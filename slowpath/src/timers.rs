//! The slow path's own timers, ordered by time. TIME-WAIT has its own queue (`time_wait.rs`).

use std::collections::BTreeMap;
use toe_core::flow::FlowKey;
use toe_core::{Instant, RegionId, SockId};

/// What is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// A handshake: retransmit, ask for the neighbour again, or give up.
    HalfOpen(FlowKey),
    /// An app slot that seemed abandoned before we ever heard of it (generation as seen): look again.
    Suspect(RegionId, SockId, u32),
}

/// A running timer, for [`Timers::cancel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimerId(Instant, u64);

#[derive(Default)]
pub(crate) struct Timers {
    queue: BTreeMap<TimerId, Due>,
    serial: u64,
}

impl Timers {
    pub(crate) fn add(&mut self, at: Instant, due: Due) -> TimerId {
        self.serial += 1;
        let id = TimerId(at, self.serial);
        self.queue.insert(id, due);
        id
    }

    pub(crate) fn cancel(&mut self, id: Option<TimerId>) {
        if let Some(id) = id {
            self.queue.remove(&id);
        }
    }

    pub(crate) fn pop(&mut self, now: Instant) -> Option<Due> {
        let first = self.queue.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.queue.first_key_value().map(|(id, _)| id.0)
    }
}
