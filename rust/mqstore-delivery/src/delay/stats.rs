//! Counters of an engine, and lateness of deliveries.

use serde::{Deserialize, Serialize};

/// Lateness below this number of milliseconds is counted exactly.
const EXACT_MS: usize = 4096;

/// A histogram of lateness.
#[derive(Debug)]
struct Lateness {
    counts: Vec<u64>,
    most_ms: i64,
}

impl Default for Lateness {
    fn default() -> Self {
        Self { counts: vec![0; EXACT_MS], most_ms: 0 }
    }
}

impl Lateness {
    fn add(&mut self, late_ms: i64) {
        let place = usize::try_from(late_ms).unwrap_or(0).min(EXACT_MS - 1);
        if let Some(count) = self.counts.get_mut(place) {
            *count += 1;
        }
        self.most_ms = self.most_ms.max(late_ms);
    }

    fn most_ms(&self) -> i64 {
        self.most_ms
    }

    /// Returns the 99th percentile of lateness in milliseconds. If it is above 4 s, returns the maximum instead.
    fn p99_ms(&self) -> i64 {
        let all: u64 = self.counts.iter().sum();
        let mut left = all / 100;
        for (late_ms, count) in self.counts.iter().enumerate().rev() {
            if *count > left {
                return if late_ms == EXACT_MS - 1 { self.most_ms } else { late_ms as i64 };
            }
            left -= count;
        }
        0
    }
}

/// Number of waiting messages, and counters since the open.
#[derive(Debug, Default)]
pub(super) struct DelayAccounts {
    pending: u64,
    delivered: u64,
    cancelled: u64,
    dropped: u64,
    lateness: Lateness,
}

impl DelayAccounts {
    pub(super) fn pending(&self) -> u64 {
        self.pending
    }

    pub(super) fn add_pending(&mut self, count: u64) {
        self.pending += count;
    }

    pub(super) fn remove_pending(&mut self) {
        self.pending = self.pending.saturating_sub(1);
    }

    pub(super) fn add_delivered(&mut self, count: u64) {
        self.delivered += count;
    }

    /// Counts a message with an exact time that was delivered `late_ms` after it was due.
    pub(super) fn add_delivered_late(&mut self, late_ms: i64) {
        self.delivered += 1;
        self.lateness.add(late_ms);
    }

    pub(super) fn add_cancelled(&mut self) {
        self.cancelled += 1;
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(super) fn add_dropped(&mut self, count: u64) {
        self.dropped += count;
    }

    /// Returns the counts with those of the messages that wait by a level.
    pub(super) fn counts(&self, level_pending: u64, next_due_ms: Option<i64>) -> DelayCounts {
        DelayCounts {
            pending: self.pending + level_pending,
            next_due_ms,
            delivered: self.delivered,
            cancelled: self.cancelled,
            dropped: self.dropped,
            late_p99_ms: self.lateness.p99_ms(),
            late_max_ms: self.lateness.most_ms(),
        }
    }
}

/// The state of a store's delayed messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DelayCounts {
    /// Waiting messages. A message that a client recalled at a broker counts until a second before its due time.
    pub pending: u64,
    /// Due time of the first message, in epoch milliseconds. If it is not near, precise to one second.
    pub next_due_ms: Option<i64>,
    /// Messages delivered since the open.
    pub delivered: u64,
    /// Messages cancelled since the open.
    pub cancelled: u64,
    /// Messages dropped since the open, because their topic was deleted, or their records are gone or name no topic.
    pub dropped: u64,
    /// 99th percentile of the lateness of deliveries since the open, in milliseconds.
    pub late_p99_ms: i64,
    /// Maximum lateness since the open, in milliseconds.
    pub late_max_ms: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ninety_nine_of_a_hundred() {
        let mut late = Lateness::default();
        assert_eq!((late.p99_ms(), late.most_ms()), (0, 0));
        (0..99).for_each(|_| late.add(3));
        late.add(70_000);
        assert_eq!((late.p99_ms(), late.most_ms()), (3, 70_000));
        late.add(80_000);
        late.add(-5);
        assert_eq!((late.p99_ms(), late.most_ms()), (80_000, 80_000));
    }
}
