//! The proof that an engine carried a test's bytes: whatever went wrong, a fallback to the kernel's TCP must not pass unseen.

use super::{Rig, Side, wait_for};
use std::time::Duration;

/// Payload that a test's programs moved between client and server, as far as they tell (at least so much).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// From client to server, bytes.
    pub up: u64,
    /// From server to client, bytes.
    pub down: u64,
}

impl Moved {
    /// So much each way.
    pub fn both(bytes: u64) -> Moved {
        Moved { up: bytes, down: bytes }
    }
}

impl std::ops::AddAssign for Moved {
    fn add_assign(&mut self, other: Moved) {
        self.up += other.up;
        self.down += other.down;
    }
}

/// TCP payload (sent, received in order) that a daemon has counted since its start.
pub fn carried(status: &serde_json::Value) -> (u64, u64) {
    let cores = status["cores"].as_array().map(Vec::as_slice).unwrap_or_default();
    let sum = |key: &str| cores.iter().map(|c| c[key].as_u64().unwrap_or(0)).sum();
    (sum("bytes_sent"), sum("bytes_received"))
}

impl Rig {
    /// Each engine has carried what its side sent and received.
    pub fn prove(&self, server: &Side, client: &Side, moved: Moved) {
        assert!(moved != Moved::default(), "a test that moves nothing proves nothing");
        for (name, side, sent, received) in
            [("server", server, moved.down, moved.up), ("client", client, moved.up, moved.down)]
        {
            let Some(control) = &side.control else { continue };
            // The daemon answers without a core's counters if that core is slow to report.
            let limit = Duration::from_secs(10);
            let mut last = (0, 0);
            let enough = || {
                last = carried(&self.status(control)?);
                (last.0 >= sent && last.1 >= received).then_some(())
            };
            let what = format!("the {name}'s engine to have sent {sent} and received {received} bytes");
            wait_for(&what, limit, enough);
        }
    }
}
