//! Latencies in buckets of about 1.6 % width, so that a percentile costs no memory per sample.

const SUB: u32 = 6;

/// Counts of nanosecond values.
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    sum: u64,
    min: u64,
    max: u64,
}

impl Histogram {
    pub fn new() -> Histogram {
        Histogram { buckets: vec![0; 64 << SUB], count: 0, sum: 0, min: u64::MAX, max: 0 }
    }

    pub fn record(&mut self, nanos: u64) {
        self.buckets[bucket(nanos)] += 1;
        self.count += 1;
        self.sum += nanos;
        self.min = self.min.min(nanos);
        self.max = self.max.max(nanos);
    }

    pub fn merge(&mut self, other: &Histogram) {
        for (a, b) in self.buckets.iter_mut().zip(&other.buckets) {
            *a += b;
        }
        self.count += other.count;
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// The value, in microseconds, that a share `q` of all samples does not exceed.
    pub fn quantile_us(&self, q: f64) -> f64 {
        let rank = ((self.count as f64 * q).ceil() as u64).max(1);
        let mut seen = 0;
        for (i, n) in self.buckets.iter().enumerate() {
            seen += n;
            if seen >= rank {
                return top(i).min(self.max) as f64 / 1e3;
            }
        }
        0.0
    }

    /// Smallest, mean and largest, in microseconds.
    pub fn summary_us(&self) -> (f64, f64, f64) {
        let n = self.count.max(1);
        (self.min.min(self.max) as f64 / 1e3, self.sum as f64 / n as f64 / 1e3, self.max as f64 / 1e3)
    }
}

fn bucket(v: u64) -> usize {
    let high = 63 - (v | 1).leading_zeros();
    if high < SUB {
        return v as usize;
    }
    let shift = high - SUB;
    (((shift + 1) as usize) << SUB) + ((v >> shift) as usize & ((1 << SUB) - 1))
}

/// Largest value of bucket `i`.
fn top(i: usize) -> u64 {
    let (group, sub) = ((i >> SUB) as u32, (i & ((1 << SUB) - 1)) as u64);
    match group {
        0 => sub,
        g => (((1 << SUB) + sub + 1) << (g - 1)).wrapping_sub(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_ordered_and_narrow() {
        for v in (0..1000).chain((10..40).flat_map(|s| [(1 << s) - 1, 1 << s, (1 << s) + 1])) {
            let t = top(bucket(v));
            assert!(t >= v && t - v <= v / 64, "{v} {t}");
        }
        let mut h = Histogram::new();
        (1..=1000).for_each(|v| h.record(v * 1000));
        assert!((h.quantile_us(0.5) - 500.0).abs() < 9.0);
        assert!((h.quantile_us(1.0) - 1000.0).abs() < 1e-9);
    }
}
