//! Waiting for a condition that no event tells.

use std::time::{Duration, Instant};

/// Polls `condition` until it yields something; panics with `what` after `limit`.
pub fn wait_for<T>(what: &str, limit: Duration, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(start.elapsed() < limit, "gave up after {limit:?} waiting for {what}");
        // The pace of polling, not a guess at how long anything takes.
        std::thread::sleep(Duration::from_millis(2));
    }
}
