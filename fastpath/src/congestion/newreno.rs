//! NewReno's window arithmetic (RFC 5681 §3.1); its recovery is in `recovery.rs`.

use super::Ack;

/// Congestion avoidance by appropriate byte counting (RFC 3465 §2.1).
#[derive(Debug, Default)]
pub(super) struct NewReno {
    acked: u64,
}

impl NewReno {
    /// One segment more for each window acknowledged.
    pub fn avoid(&mut self, ack: Ack) -> u64 {
        self.acked += ack.bytes;
        if self.acked < ack.cwnd {
            return ack.cwnd;
        }
        self.acked -= ack.cwnd;
        ack.cwnd + ack.mss
    }

    /// Half of what was in flight.
    pub fn reduced(&mut self, flight: u64) -> u64 {
        self.acked = 0;
        flight / 2
    }
}
