//! Congestion window arithmetic. Windows in bytes. The policy (which algorithm) comes from the slow path.

mod cubic;
mod newreno;

use cubic::Cubic;
use toe_core::flow::CongestionControl;
use toe_core::{Duration, Instant};

/// What an algorithm sees of one ACK.
#[derive(Clone, Copy, Debug)]
pub struct Acked {
    /// Newly acknowledged bytes.
    pub bytes: u32,
    /// Now.
    pub now: Instant,
    /// Smoothed RTT.
    pub srtt: Duration,
    /// Largest segment in force.
    pub mss: u32,
}

/// State common to all algorithms, and the algorithm's own.
#[derive(Clone, Debug)]
pub struct Congestion {
    /// Congestion window.
    pub cwnd: u32,
    /// Slow start threshold.
    pub ssthresh: u32,
    algorithm: Algorithm,
}

#[derive(Clone, Debug)]
enum Algorithm {
    Reno(newreno::NewReno),
    Cubic(Cubic),
}

impl Algorithm {
    fn new(kind: CongestionControl) -> Algorithm {
        match kind {
            CongestionControl::Reno => Algorithm::Reno(newreno::NewReno::default()),
            CongestionControl::Cubic => Algorithm::Cubic(Cubic::default()),
        }
    }
}

/// RFC 6928 §2.
pub fn initial_window(mss: u32) -> u32 {
    (10 * mss).min((2 * mss).max(14_600))
}

impl Congestion {
    /// At the start of a connection.
    pub fn new(kind: CongestionControl, mss: u32, syn_retransmitted: bool) -> Congestion {
        // RFC 5681 §3.1: a lost SYN means an initial window of one segment.
        let cwnd = if syn_retransmitted { mss } else { initial_window(mss) };
        Congestion { cwnd, ssthresh: u32::MAX / 2, algorithm: Algorithm::new(kind) }
    }

    /// Changes the algorithm; the window stays.
    pub fn set_algorithm(&mut self, kind: CongestionControl) {
        self.algorithm = Algorithm::new(kind);
    }

    /// Slow start?
    pub fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// New data acknowledged outside of recovery, the window having been the limit.
    pub fn on_ack(&mut self, acked: Acked) {
        let mut acked = acked;
        if self.in_slow_start() {
            // RFC 5681 §3.1 with RFC 3465 (L = all: stretch ACKs are the rule with large segments).
            let room = self.ssthresh - self.cwnd;
            let used = acked.bytes.min(room);
            self.cwnd = self.cwnd.saturating_add(used);
            acked.bytes -= used;
        }
        if acked.bytes > 0 {
            match &mut self.algorithm {
                Algorithm::Reno(reno) => reno.on_ack(&mut self.cwnd, acked),
                Algorithm::Cubic(cubic) => cubic.on_ack(&mut self.cwnd, acked),
            }
        }
        self.cwnd = self.cwnd.min(1 << 30);
    }

    /// Loss found by duplicate ACKs or SACK; `flight` bytes were outstanding.
    pub fn on_loss(&mut self, flight: u32, mss: u32) {
        self.ssthresh = self.reduced(flight).max(2 * mss);
        self.cwnd = self.ssthresh;
    }

    /// Retransmission time-out (RFC 5681 §3.1, equation 4): one segment. `first`: not a repeated time-out.
    pub fn on_timeout(&mut self, flight: u32, mss: u32, first: bool) {
        if first {
            self.ssthresh = self.reduced(flight).max(2 * mss);
        }
        self.cwnd = mss;
    }

    fn reduced(&mut self, flight: u32) -> u32 {
        match &mut self.algorithm {
            Algorithm::Reno(_) => flight / 2,
            Algorithm::Cubic(cubic) => cubic.on_loss(self.cwnd.min(flight.max(1))),
        }
    }

    /// Idle for more than an RTO (RFC 5681 §4.1).
    pub fn on_idle(&mut self, mss: u32) {
        self.cwnd = self.cwnd.min(initial_window(mss));
        if let Algorithm::Cubic(cubic) = &mut self.algorithm {
            cubic.on_idle();
        }
    }
}
