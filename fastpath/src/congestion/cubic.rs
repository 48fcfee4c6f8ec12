//! CUBIC (RFC 9438). Windows inside are in segments, times in seconds, as in the RFC's formulas.

use super::Ack;
use toe_core::Instant;

/// RFC 9438 §5.
const C: f64 = 0.4;
/// RFC 9438 §4.6: multiplicative decrease.
const BETA: f64 = 0.7;
/// RFC 9438 §4.3: additive increase that is as fast as Reno's, given BETA.
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

#[derive(Debug, Default)]
pub(super) struct Cubic {
    /// Window just before the last reduction.
    w_max: f64,
    /// Current stage of congestion avoidance.
    epoch: Option<Epoch>,
    /// When the sender stopped being limited by the window.
    paused: Option<Instant>,
}

#[derive(Debug)]
struct Epoch {
    start: Instant,
    /// Seconds until the plateau.
    k: f64,
    /// Where the plateau is.
    plateau: f64,
    /// What Reno's window would be.
    w_est: f64,
    /// Window at which Reno's estimate goes on with alpha = 1.
    prior: f64,
}

impl Cubic {
    /// The window after an ACK in congestion avoidance (§4.2 - §4.5).
    pub fn avoid(&mut self, ack: Ack) -> u64 {
        let cwnd = ack.cwnd as f64 / ack.mss as f64;
        let segments = ack.bytes as f64 / ack.mss as f64;
        if let Some(since) = self.paused.take() {
            // §4.2: t does not run while the application limits the sender.
            if let Some(e) = &mut self.epoch {
                e.start += ack.now.since(since);
            }
        }
        let w_max = self.w_max;
        let e = self.epoch.get_or_insert_with(|| Epoch::begin(ack.now, cwnd, w_max));
        let t = ack.now.since(e.start).as_secs_f64();
        let alpha = if e.w_est < e.prior { ALPHA } else { 1.0 };
        e.w_est += alpha * segments / cwnd;
        let next = if e.cubic(t) < e.w_est {
            e.w_est.max(cwnd)
        } else {
            let target = e.cubic(t + ack.rtt.as_secs_f64()).clamp(cwnd, 1.5 * cwnd);
            cwnd + (target - cwnd) / cwnd * segments.min(cwnd)
        };
        ack.cwnd.max((next * ack.mss as f64) as u64)
    }

    /// The threshold after a loss at `flight` bytes (§4.6), with fast convergence (§4.7).
    pub fn reduced(&mut self, flight: u64, mss: u64) -> u64 {
        let w = flight as f64 / mss as f64;
        self.w_max = if w < self.w_max { w * (1.0 + BETA) / 2.0 } else { w };
        self.epoch = None;
        self.paused = None;
        (flight as f64 * BETA) as u64
    }

    /// The sender is limited by the application from now on.
    pub fn pause(&mut self, now: Instant) {
        self.paused.get_or_insert(now);
    }
}

impl Epoch {
    fn begin(now: Instant, cwnd: f64, w_max: f64) -> Epoch {
        let plateau = w_max.max(cwnd);
        Epoch { start: now, k: ((plateau - cwnd) / C).cbrt(), plateau, w_est: cwnd, prior: plateau }
    }

    /// W_cubic(t), equation (1).
    fn cubic(&self, t: f64) -> f64 {
        C * (t - self.k).powi(3) + self.plateau
    }
}
