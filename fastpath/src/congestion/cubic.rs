//! CUBIC (RFC 9438): window growth as a cubic function of the time since the last reduction.

use super::Acked;
use toe_core::Instant;

/// β_cubic (RFC 9438 §4.6).
const BETA: f64 = 0.7;
/// C (RFC 9438 §5.1), in segments per second cubed.
const C: f64 = 0.4;
/// α_cubic (RFC 9438 §4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// Windows in segments, as the RFC's formulas have them.
#[derive(Clone, Debug, Default)]
pub struct Cubic {
    w_max: f64,
    /// Start of the current congestion avoidance stage.
    epoch: Option<Epoch>,
    /// Part of a segment by which the window has grown.
    credit: f64,
}

#[derive(Clone, Debug)]
struct Epoch {
    start: Instant,
    /// Time to grow back to `w_max`, seconds.
    k: f64,
    /// The window AIMD would have (RFC 9438 §4.3).
    w_est: f64,
}

impl Cubic {
    /// RFC 9438 §4.6, §4.7: the new ssthresh, given the window at the loss.
    pub(super) fn on_loss(&mut self, cwnd: u32) -> u32 {
        let w = f64::from(cwnd);
        // Fast convergence; kept in bytes here, turned into segments by `on_ack`, which knows the MSS.
        self.w_max = if w < self.w_max { w * (1.0 + BETA) / 2.0 } else { w };
        self.epoch = None;
        (w * BETA) as u32
    }

    pub(super) fn on_idle(&mut self) {
        self.epoch = None;
    }

    pub(super) fn on_ack(&mut self, cwnd: &mut u32, ack: Acked) {
        let mss = f64::from(ack.mss);
        let w = f64::from(*cwnd) / mss;
        let w_max = (self.w_max / mss).max(w);
        let epoch =
            self.epoch.get_or_insert_with(|| Epoch { start: ack.now, k: ((w_max - w).max(0.0) / C).cbrt(), w_est: w });
        let segments = f64::from(ack.bytes) / mss;
        epoch.w_est += ALPHA * segments / w;
        // RFC 9438 §4.2: the target one RTT ahead, within [cwnd, 1.5 cwnd].
        let t = (ack.now - epoch.start).as_secs_f64() + ack.srtt.as_secs_f64();
        let target = (C * (t - epoch.k).powi(3) + w_max).clamp(w, 1.5 * w);
        let growth = if target < epoch.w_est { epoch.w_est - w } else { (target - w) * segments / w };
        self.credit += growth.max(0.0) * mss;
        let whole = self.credit.floor();
        self.credit -= whole;
        *cwnd = cwnd.saturating_add(whole as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toe_core::Duration;

    #[test]
    fn grows_back_to_w_max_in_k_seconds() {
        let mss = 1000;
        let mut cubic = Cubic::default();
        let mut cwnd = cubic.on_loss(1_000_000);
        assert_eq!(cwnd, 700_000);
        // K = cbrt(1000 * 0.3 / 0.4) = 9.086 s.
        let rtt = Duration::from_millis(100);
        let mut now = Instant::ZERO;
        while now < Instant::from_millis(9_086) {
            for _ in 0..10 {
                let bytes = cwnd / 10;
                cubic.on_ack(&mut cwnd, Acked { bytes, now, srtt: rtt, mss });
            }
            now += rtt;
        }
        assert!((980_000..1_020_000).contains(&cwnd), "{cwnd}");
    }
}
