//! Round-trip time and retransmission time-out (RFC 6298), from our own clock or from timestamps (RFC 7323 §4).

use toe_core::Duration;
use toe_core::tcp::TcpConfig;

/// Clock granularity G (RFC 6298 §2): the timing wheel's tick.
const GRANULARITY: Duration = Duration::from_millis(1);
/// RTO when data transmission begins after a lost SYN (RFC 6298 §5.7).
const AFTER_LOST_SYN: Duration = Duration::from_secs(3);
/// Doublings beyond which every RTO is at its maximum anyway.
const MOST_DOUBLINGS: u32 = 20;

/// The estimator of one flow.
#[derive(Debug)]
pub(crate) struct Rtt {
    srtt: Option<Duration>,
    least: Option<Duration>,
    rttvar: Duration,
    /// RTO before backing off.
    base: Duration,
    /// Time-outs in a row (RFC 6298 §5.5 doubles for each).
    pub backoff: u32,
    min: Duration,
    max: Duration,
}

impl Rtt {
    pub fn new(tcp: &TcpConfig, handshake: Option<Duration>, syn_lost: bool) -> Rtt {
        let initial = TcpConfig::ms(tcp.rto_initial_ms);
        let mut rtt = Rtt {
            srtt: None,
            least: None,
            rttvar: Duration::ZERO,
            base: if syn_lost { initial.max(AFTER_LOST_SYN) } else { initial },
            backoff: 0,
            min: TcpConfig::ms(tcp.rto_min_ms),
            max: TcpConfig::ms(tcp.rto_max_ms),
        };
        if let Some(sample) = handshake {
            rtt.sample(sample);
        }
        rtt
    }

    /// A measurement of a segment that was not retransmitted (Karn's rule, RFC 6298 §3), or of a timestamp's echo.
    pub fn sample(&mut self, r: Duration) {
        self.least = Some(self.least.map_or(r, |least| least.min(r)));
        match self.srtt {
            // (2.2)
            None => {
                self.srtt = Some(r);
                self.rttvar = r / 2;
            }
            // (2.3): beta = 1/4, alpha = 1/8
            Some(srtt) => {
                self.rttvar = self.rttvar * 3 / 4 + srtt.abs_diff(r) / 4;
                self.srtt = Some(srtt * 7 / 8 + r / 8);
            }
        }
        let srtt = self.srtt.unwrap_or(r);
        self.base = (srtt + GRANULARITY.max(self.rttvar * 4)).clamp(self.min, self.max);
    }

    /// RTO in force, back-off included (§5.5).
    pub fn rto(&self) -> Duration {
        self.doubled(self.backoff)
    }

    /// RTO after `doublings` time-outs in a row.
    pub fn doubled(&self, doublings: u32) -> Duration {
        self.base.saturating_mul(1 << doublings.min(MOST_DOUBLINGS)).min(self.max)
    }

    /// When to probe for a lost tail (RFC 8985 §7.2): two round trips, and a little for our clock and theirs.
    pub fn probe_timeout(&self) -> Option<Duration> {
        self.srtt.map(|srtt| srtt * 2 + GRANULARITY * 2)
    }

    /// Smoothed round-trip time, if measured.
    pub fn srtt(&self) -> Option<Duration> {
        self.srtt
    }

    /// The shortest round trip: that of the path without the queues that we fill ourselves.
    pub fn least(&self) -> Option<Duration> {
        self.least
    }

    /// Its variation.
    pub fn rttvar(&self) -> Duration {
        self.rttvar
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn follows_rfc_6298() {
        let mut r = Rtt::new(&TcpConfig::default(), None, false);
        assert_eq!(r.rto(), ms(1000));
        r.sample(ms(100));
        assert_eq!((r.srtt(), r.rttvar(), r.rto()), (Some(ms(100)), ms(50), ms(300)));
        r.sample(ms(180));
        assert_eq!((r.srtt(), r.rttvar()), (Some(ms(110)), Duration::from_micros(57_500)));
        assert_eq!((r.rto(), r.least()), (ms(340), Some(ms(100))));
        assert_eq!(r.probe_timeout(), Some(ms(222)));
        r.backoff = 3;
        assert_eq!(r.rto(), ms(340 * 8));
        r.backoff = 400;
        assert_eq!(r.rto(), ms(120_000));
    }

    #[test]
    fn bounds_and_lost_syn() {
        let tcp = TcpConfig::default();
        assert_eq!(Rtt::new(&tcp, Some(Duration::from_micros(20)), false).rto(), ms(200));
        assert_eq!(Rtt::new(&tcp, None, true).rto(), ms(3000));
    }
}
