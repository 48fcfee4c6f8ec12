//! Congestion window arithmetic, in bytes: what is common to all algorithms (RFC 5681, 6928), and the choice between them.

mod cubic;
mod newreno;

use cubic::Cubic;
use newreno::NewReno;
use toe_core::flow::CongestionControl;
use toe_core::{Duration, Instant};

/// What the slow path or the app has not limited.
const NO_THRESHOLD: u64 = u64::MAX;

/// Congestion control of one flow.
#[derive(Debug)]
pub(crate) struct Congestion {
    cwnd: u64,
    ssthresh: u64,
    mss: u64,
    algorithm: Algorithm,
}

#[derive(Debug)]
enum Algorithm {
    Cubic(Cubic),
    Reno(NewReno),
}

/// An ACK of new data, as congestion avoidance sees it.
#[derive(Clone, Copy, Debug)]
struct Ack {
    bytes: u64,
    now: Instant,
    rtt: Duration,
    cwnd: u64,
    mss: u64,
}

impl Congestion {
    /// Initial window of RFC 6928, or one segment after a lost SYN (RFC 5681 §3.1).
    pub fn new(kind: CongestionControl, mss: u64, syn_lost: bool) -> Congestion {
        let cwnd = if syn_lost { mss } else { initial_window(mss) };
        Congestion { cwnd, ssthresh: NO_THRESHOLD, mss, algorithm: Algorithm::new(kind) }
    }

    /// Congestion window.
    #[inline(always)]
    pub fn cwnd(&self) -> u64 {
        self.cwnd
    }

    /// Slow start threshold; `u64::MAX` until the first loss.
    pub fn ssthresh(&self) -> u64 {
        self.ssthresh
    }

    /// Below the threshold?
    #[inline(always)]
    pub fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// New data was acknowledged outside of fast recovery. `limited`: the window was what held the sender back (RFC 7661 in
    /// its simplest form, as Linux); else it must not grow.
    pub fn on_ack(&mut self, mut bytes: u64, limited: bool, now: Instant, rtt: Duration) {
        if !limited {
            if let Algorithm::Cubic(c) = &mut self.algorithm {
                c.pause(now);
            }
            return;
        }
        if self.in_slow_start() {
            // Byte counting (RFC 3465); what goes beyond the threshold counts for congestion avoidance.
            let grow = bytes.min(self.ssthresh - self.cwnd);
            self.cwnd += grow;
            bytes -= grow;
        }
        if bytes > 0 && !self.in_slow_start() {
            let ack = Ack { bytes, now, rtt, cwnd: self.cwnd, mss: self.mss };
            self.cwnd = match &mut self.algorithm {
                Algorithm::Cubic(c) => c.avoid(ack),
                Algorithm::Reno(r) => r.avoid(ack),
            };
        }
    }

    /// Loss seen by duplicate ACKs or SACK: fast recovery begins with `flight` bytes outstanding.
    pub fn on_loss(&mut self, flight: u64) {
        self.reduce(flight);
        self.cwnd = self.ssthresh;
    }

    /// Fast recovery is over.
    pub fn on_recovered(&mut self) {
        self.cwnd = self.cwnd.min(self.ssthresh).max(self.mss);
    }

    /// Time-out (RFC 5681 §3.1): one segment; the threshold moves only for the first of a row (`repeated` is false).
    pub fn on_timeout(&mut self, flight: u64, repeated: bool) {
        if !repeated {
            self.reduce(flight);
        }
        self.cwnd = self.mss;
    }

    /// Nothing was sent for more than an RTO (RFC 5681 §4.1).
    pub fn after_idle(&mut self, now: Instant) {
        self.cwnd = self.cwnd.min(initial_window(self.mss));
        if let Algorithm::Cubic(c) = &mut self.algorithm {
            c.pause(now);
        }
    }

    /// The path's MSS changed.
    pub fn set_mss(&mut self, mss: u64) {
        self.mss = mss;
        self.cwnd = self.cwnd.max(mss);
    }

    /// The slow path's policy fixes the window.
    pub fn set_cwnd(&mut self, cwnd: u64) {
        self.cwnd = cwnd.max(self.mss);
    }

    /// Another algorithm from here on.
    pub fn set_algorithm(&mut self, kind: CongestionControl) {
        let same = matches!(
            (&self.algorithm, kind),
            (Algorithm::Cubic(_), CongestionControl::Cubic) | (Algorithm::Reno(_), CongestionControl::Reno)
        );
        if !same {
            self.algorithm = Algorithm::new(kind);
        }
    }

    fn reduce(&mut self, flight: u64) {
        let at = self.cwnd.min(flight);
        let reduced = match &mut self.algorithm {
            Algorithm::Cubic(c) => c.reduced(at, self.mss),
            Algorithm::Reno(r) => r.reduced(at),
        };
        // RFC 5681 equation (4): never below two segments.
        self.ssthresh = reduced.max(2 * self.mss);
    }
}

impl Algorithm {
    fn new(kind: CongestionControl) -> Algorithm {
        match kind {
            CongestionControl::Cubic => Algorithm::Cubic(Cubic::default()),
            CongestionControl::Reno => Algorithm::Reno(NewReno::default()),
        }
    }
}

/// RFC 6928 §2: ten segments, at most 14,600 bytes unless two segments are more.
pub(crate) fn initial_window(mss: u64) -> u64 {
    (10 * mss).min((2 * mss).max(14_600))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1000;
    const RTT: Duration = Duration::from_millis(100);

    fn round(c: &mut Congestion, now: &mut Instant) {
        *now += RTT;
        let (mut left, cwnd) = (c.cwnd(), c.cwnd());
        while left > 0 {
            c.on_ack(MSS.min(left), true, *now, RTT);
            left = left.saturating_sub(MSS);
        }
        assert!(c.cwnd() >= cwnd);
    }

    #[test]
    fn slow_start_doubles_and_stops_at_the_threshold() {
        for kind in [CongestionControl::Cubic, CongestionControl::Reno] {
            let (mut c, mut now) = (Congestion::new(kind, MSS, false), Instant::ZERO);
            assert_eq!(c.cwnd(), 10 * MSS);
            round(&mut c, &mut now);
            assert_eq!(c.cwnd(), 20 * MSS);
            c.on_timeout(20 * MSS, false);
            assert_eq!(c.cwnd(), MSS);
            let threshold = c.ssthresh();
            c.on_timeout(MSS, true);
            assert_eq!(c.ssthresh(), threshold);
            (0..6).for_each(|_| round(&mut c, &mut now));
            assert!(c.cwnd() >= threshold && c.cwnd() < threshold + 5 * MSS, "{kind:?} {c:?}");
        }
    }

    #[test]
    fn reno_halves_and_grows_by_one_segment_a_round() {
        let (mut c, mut now) = (Congestion::new(CongestionControl::Reno, MSS, false), Instant::ZERO);
        c.on_loss(10 * MSS);
        assert_eq!((c.cwnd(), c.ssthresh()), (5 * MSS, 5 * MSS));
        round(&mut c, &mut now);
        assert_eq!(c.cwnd(), 6 * MSS);
        c.on_loss(MSS);
        assert_eq!(c.ssthresh(), 2 * MSS);
    }

    #[test]
    fn cubic_comes_back_to_its_last_maximum_after_k_seconds() {
        let (mut c, mut now) = (Congestion::new(CongestionControl::Cubic, MSS, false), Instant::ZERO);
        c.set_cwnd(100 * MSS);
        c.on_loss(100 * MSS);
        assert_eq!(c.cwnd(), 70 * MSS);
        // K = cbrt(30 / 0.4) = 4.2 s
        (0..42).for_each(|_| round(&mut c, &mut now));
        assert!((95 * MSS..105 * MSS).contains(&c.cwnd()), "{}", c.cwnd());
        let plateau = c.cwnd();
        (0..40).for_each(|_| round(&mut c, &mut now));
        assert!(c.cwnd() > plateau + 20 * MSS);
    }

    #[test]
    fn an_unused_window_does_not_grow() {
        let mut c = Congestion::new(CongestionControl::Cubic, MSS, false);
        c.on_ack(MSS, false, Instant::ZERO, RTT);
        assert_eq!(c.cwnd(), 10 * MSS);
    }
}
