//! TCP sequence numbers (RFC 9293 §3.4): arithmetic modulo 2^32, therefore deliberately no `Ord`.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

/// A sequence number. Compare with [`before`](Self::before) and friends, never with `<`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct SeqNr(pub u32);

impl SeqNr {
    /// `self < other` in sequence space.
    #[inline(always)]
    pub fn before(self, other: SeqNr) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// `self <= other` in sequence space.
    #[inline(always)]
    pub fn before_eq(self, other: SeqNr) -> bool {
        (self.0.wrapping_sub(other.0) as i32) <= 0
    }

    /// `self > other` in sequence space.
    #[inline(always)]
    pub fn after(self, other: SeqNr) -> bool {
        other.before(self)
    }

    /// `self >= other` in sequence space.
    #[inline(always)]
    pub fn after_eq(self, other: SeqNr) -> bool {
        other.before_eq(self)
    }

    /// Is `self` in `[start, start + len)`?
    #[inline(always)]
    pub fn in_window(self, start: SeqNr, len: u32) -> bool {
        self.0.wrapping_sub(start.0) < len
    }

    /// The later of two sequence numbers.
    #[inline(always)]
    pub fn max(self, other: SeqNr) -> SeqNr {
        if self.before(other) { other } else { self }
    }

    /// The earlier of two sequence numbers.
    #[inline(always)]
    pub fn min(self, other: SeqNr) -> SeqNr {
        if self.before(other) { self } else { other }
    }
}

impl Add<u32> for SeqNr {
    type Output = SeqNr;
    #[inline(always)]
    fn add(self, n: u32) -> SeqNr {
        SeqNr(self.0.wrapping_add(n))
    }
}

impl AddAssign<u32> for SeqNr {
    #[inline(always)]
    fn add_assign(&mut self, n: u32) {
        *self = *self + n;
    }
}

impl Sub<u32> for SeqNr {
    type Output = SeqNr;
    #[inline(always)]
    fn sub(self, n: u32) -> SeqNr {
        SeqNr(self.0.wrapping_sub(n))
    }
}

impl Sub<SeqNr> for SeqNr {
    type Output = u32;
    /// Distance from `other` forward to `self`, modulo 2^32.
    #[inline(always)]
    fn sub(self, other: SeqNr) -> u32 {
        self.0.wrapping_sub(other.0)
    }
}

impl fmt::Debug for SeqNr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_wrap() {
        let high = SeqNr(u32::MAX - 1);
        let low = high + 4;
        assert_eq!(low.0, 2);
        assert!(high.before(low) && low.after(high));
        assert!(high.before_eq(high) && high.after_eq(high));
        assert_eq!(low - high, 4);
        assert!(low.in_window(high, 5) && !low.in_window(high, 4));
        assert_eq!(high.max(low), low);
        assert_eq!(high.min(low), high);
    }
}
