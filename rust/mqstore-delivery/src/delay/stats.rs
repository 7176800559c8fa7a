//! How late messages were, and what an engine has done.

/// Milliseconds that are told apart.
const TOLD_APART_MS: usize = 4096;

/// How many messages were late by how much.
#[derive(Debug)]
pub(super) struct Lateness {
    counts: Vec<u64>,
    most_ms: i64,
}

impl Default for Lateness {
    fn default() -> Self {
        Self { counts: vec![0; TOLD_APART_MS], most_ms: 0 }
    }
}

impl Lateness {
    /// One message more.
    pub(super) fn add(&mut self, late_ms: i64) {
        let place = usize::try_from(late_ms).unwrap_or(0).min(TOLD_APART_MS - 1);
        if let Some(count) = self.counts.get_mut(place) {
            *count += 1;
        }
        self.most_ms = self.most_ms.max(late_ms);
    }

    /// The most.
    pub(super) fn most_ms(&self) -> i64 {
        self.most_ms
    }

    /// By how much 99 of 100 were late at most; no more than the most where it is beyond 4 s.
    pub(super) fn p99_ms(&self) -> i64 {
        let all: u64 = self.counts.iter().sum();
        let mut left = all / 100;
        for (late_ms, count) in self.counts.iter().enumerate().rev() {
            if *count > left {
                return if late_ms == TOLD_APART_MS - 1 { self.most_ms } else { late_ms as i64 };
            }
            left -= count;
        }
        0
    }
}

/// Delayed messages of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DelayCounts {
    /// Messages that wait. What a client had a broker recall counts until a second before it was due.
    pub pending: u64,
    /// When the first of them is due, in epoch milliseconds; within a second where that is not near.
    pub next_due_ms: Option<i64>,
    /// Messages delivered since the open.
    pub delivered: u64,
    /// Messages cancelled since the open.
    pub cancelled: u64,
    /// Messages that could not be delivered since the open, because their records are gone or say not where they belong.
    pub dropped: u64,
    /// By how much 99 of 100 deliveries since the open were late at most, in milliseconds.
    pub late_p99_ms: i64,
    /// By how much the latest of them was.
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
