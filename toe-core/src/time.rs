//! Engine time: a plain number that callers pass in, so that engines never read a clock.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};
pub use core::time::Duration;

/// Nanoseconds since an arbitrary start (live: `CLOCK_MONOTONIC`; in tests: virtual time).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// The start of time.
    pub const ZERO: Instant = Instant(0);

    /// Whole milliseconds since the start.
    pub fn millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Whole microseconds since the start.
    pub fn micros(self) -> u64 {
        self.0 / 1_000
    }

    /// An instant `ms` milliseconds after the start.
    pub fn from_millis(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }

    /// Time since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, d: Duration) -> Instant {
        Instant(self.0.saturating_add(d.as_nanos() as u64))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, d: Duration) {
        *self = *self + d;
    }
}

impl Sub<Instant> for Instant {
    type Output = Duration;
    fn sub(self, other: Instant) -> Duration {
        self.since(other)
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}s", self.0 / 1_000_000_000, self.0 / 1_000 % 1_000_000)
    }
}
