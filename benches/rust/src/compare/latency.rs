//! Counts of durations in nanoseconds, in buckets whose width is at most 1/32 of their value.

use serde_json::{Value, json};

const STEPS: u64 = 32;
const STEP_BITS: u32 = 5;

/// Durations of calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Latencies {
    counts: Vec<u64>,
    total: u64,
    max: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { counts: vec![0; (STEPS * 64) as usize], total: 0, max: 0 }
    }
}

impl Latencies {
    /// Counts one duration.
    #[inline]
    pub(crate) fn record(&mut self, nanos: u64) {
        if let Some(count) = self.counts.get_mut(bucket(nanos)) {
            *count += 1;
        }
        self.total += 1;
        self.max = self.max.max(nanos);
    }

    /// Adds the counts of another thread.
    pub(crate) fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.total += other.total;
        self.max = self.max.max(other.max);
    }

    /// The upper end of the bucket that contains the quantile `part`, which is between 0 and 1.
    fn quantile(&self, part: f64) -> u64 {
        let wanted = (part * self.total as f64).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted && *count > 0 {
                return upper_end(bucket as u64).min(self.max);
            }
        }
        self.max
    }
}

/// The quantiles that the report shows.
pub(crate) fn quantiles(latencies: &Latencies) -> Value {
    json!({
        "p50_ns": latencies.quantile(0.5),
        "p99_ns": latencies.quantile(0.99),
        "p999_ns": latencies.quantile(0.999),
        "p9999_ns": latencies.quantile(0.9999),
        "max_ns": latencies.max,
    })
}

fn bucket(value: u64) -> usize {
    if value < STEPS {
        return value as usize;
    }
    let shift = value.ilog2() - STEP_BITS;
    ((u64::from(shift) + 1) * STEPS + (value >> shift) - STEPS) as usize
}

fn upper_end(bucket: u64) -> u64 {
    if bucket < STEPS {
        return bucket;
    }
    let shift = bucket / STEPS - 1;
    ((bucket % STEPS + STEPS + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_a_narrow_bucket() {
        for value in (0..200_000).chain([1 << 40, (1 << 50) + 12_345]) {
            let upper = upper_end(bucket(value) as u64);
            assert!(upper >= value && upper - value <= value / STEPS, "{value} in a bucket to {upper}");
        }
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_values() {
        let mut latencies = Latencies::default();
        (1..=10_000).for_each(|value| latencies.record(value));
        for (part, exact) in [(0.5, 5_000), (0.99, 9_900), (0.9999, 9_999)] {
            let found = latencies.quantile(part);
            assert!((exact..=exact + exact / STEPS).contains(&found), "{part}: {found}");
        }
        assert_eq!(latencies.max, 10_000);
    }
}
