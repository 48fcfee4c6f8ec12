//! Sequence numbers exist on the wire only. Inside, a byte is named by its stream position, a `u64` that never wraps and
//! therefore has an order.

use toe_core::SeqNr;

/// One direction's sequence space: position 0 is the first byte after the SYN; a FIN takes the position after the last byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Space {
    first: SeqNr,
}

impl Space {
    /// From the initial sequence number, that of the SYN.
    pub fn new(initial: SeqNr) -> Space {
        Space { first: initial + 1 }
    }

    /// Position to wire.
    #[inline(always)]
    pub fn seq(self, pos: u64) -> SeqNr {
        self.first + pos as u32
    }

    /// Wire to position: of all that `seq` could mean, the one within 2^31 of `near`. Negative: before the first byte.
    #[inline(always)]
    pub fn pos(self, near: u64, seq: SeqNr) -> i64 {
        near as i64 + i64::from((seq - self.seq(near)) as i32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_run_on_where_sequence_numbers_wrap() {
        let s = Space::new(SeqNr(u32::MAX - 10));
        assert_eq!(s.seq(10), SeqNr(0));
        assert_eq!(s.pos(5, SeqNr(3)), 13);
        assert_eq!(s.pos(0, SeqNr(u32::MAX - 10)), -1);
        let far = (7u64 << 32) + 12;
        assert_eq!(s.pos(far, s.seq(far - 100)), far as i64 - 100);
    }
}
