//! Congestion avoidance of RFC 5681 §3.1, by bytes (RFC 3465).

use super::Acked;

/// Bytes acknowledged towards the next increase.
#[derive(Clone, Debug, Default)]
pub struct NewReno {
    acked: u32,
}

impl NewReno {
    pub(super) fn on_ack(&mut self, cwnd: &mut u32, ack: Acked) {
        self.acked = self.acked.saturating_add(ack.bytes);
        if self.acked >= *cwnd {
            self.acked -= *cwnd;
            *cwnd = cwnd.saturating_add(ack.mss);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toe_core::{Duration, Instant};

    #[test]
    fn one_segment_a_window() {
        let (mut reno, mut cwnd) = (NewReno::default(), 10_000);
        let ack = Acked { bytes: 1000, now: Instant(0), srtt: Duration::ZERO, mss: 1000 };
        for _ in 0..10 {
            reno.on_ack(&mut cwnd, ack);
        }
        assert_eq!(cwnd, 11_000);
    }
}
