//! Round-trip time and retransmission time-out (RFC 6298).

use toe_core::tcp::TcpConfig;
use toe_core::{Duration, Instant};

/// Clock granularity G of RFC 6298: that of the timing wheel.
const GRANULARITY: Duration = Duration::from_millis(1);

/// The estimator of one flow.
#[derive(Clone, Debug)]
pub struct Rtt {
    srtt: Option<Duration>,
    rttvar: Duration,
    rto: Duration,
    min: Duration,
    max: Duration,
    /// A segment being timed: its end and when it left. Cleared by any retransmission (Karn).
    probe: Option<(i64, Instant)>,
}

impl Rtt {
    /// Without a sample: RTO is the initial one.
    pub fn new(tcp: &TcpConfig) -> Rtt {
        Rtt {
            srtt: None,
            rttvar: Duration::ZERO,
            rto: Duration::from_millis(tcp.rto_initial_ms),
            min: Duration::from_millis(tcp.rto_min_ms),
            max: Duration::from_millis(tcp.rto_max_ms),
            probe: None,
        }
    }

    /// RFC 6298 §2.2, §2.3.
    pub fn sample(&mut self, r: Duration) {
        match self.srtt {
            None => {
                self.srtt = Some(r);
                self.rttvar = r / 2;
            }
            Some(srtt) => {
                self.rttvar = (self.rttvar * 3 + srtt.abs_diff(r)) / 4;
                self.srtt = Some((srtt * 7 + r) / 8);
            }
        }
        let rto = self.srtt.unwrap_or(r) + GRANULARITY.max(self.rttvar * 4);
        self.rto = rto.clamp(self.min, self.max);
    }

    /// Times the segment that ends at `end`, unless one is being timed.
    #[inline]
    pub fn start_probe(&mut self, end: i64, now: Instant) {
        if self.probe.is_none() {
            self.probe = Some((end, now));
        }
    }

    /// A retransmission makes the sample ambiguous (Karn's algorithm, RFC 6298 §3).
    pub fn cancel_probe(&mut self) {
        self.probe = None;
    }

    /// Everything below `una` is acknowledged.
    #[inline]
    pub fn acked(&mut self, una: i64, now: Instant) {
        if let Some((_, sent)) = self.probe.filter(|p| p.0 <= una) {
            self.probe = None;
            self.sample(now - sent);
        }
    }

    /// RFC 6298 §5.5, for the `n`th time-out in a row.
    pub fn backed_off(&self, n: u32) -> Duration {
        self.rto.checked_mul(1 << n.min(16)).map_or(self.max, |d| d.min(self.max))
    }

    /// Smoothed RTT, if known.
    pub fn srtt(&self) -> Option<Duration> {
        self.srtt
    }

    /// Its variation.
    pub fn rttvar(&self) -> Duration {
        self.rttvar
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_6298_arithmetic() {
        let ms = Duration::from_millis;
        let mut r = Rtt::new(&TcpConfig::default());
        assert_eq!(r.backed_off(0), ms(1000));
        r.sample(ms(100));
        assert_eq!((r.srtt(), r.rttvar(), r.backed_off(0)), (Some(ms(100)), ms(50), ms(300)));
        r.sample(ms(200));
        assert_eq!(r.rttvar(), (ms(50) * 3 + ms(100)) / 4);
        assert_eq!(r.srtt(), Some((ms(100) * 7 + ms(200)) / 8));
        assert_eq!(r.backed_off(1), r.backed_off(0) * 2);
        assert_eq!(r.backed_off(30), ms(120_000));
    }

    #[test]
    fn karn() {
        let mut r = Rtt::new(&TcpConfig::default());
        r.start_probe(10, Instant(0));
        r.cancel_probe();
        r.acked(10, Instant(5));
        assert_eq!(r.srtt(), None);
        r.start_probe(20, Instant(1_000_000));
        r.start_probe(30, Instant(9_000_000));
        r.acked(19, Instant(2_000_000));
        assert_eq!(r.srtt(), None);
        r.acked(20, Instant(3_000_000));
        assert_eq!(r.srtt(), Some(Duration::from_millis(2)));
    }
}
