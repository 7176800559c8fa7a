//! Options of a work queue.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mqstore_base::options::DamagePolicy;
use mqstore_format::DelayLevels;

use crate::error::{BrokerError, invalid};

/// The delay before the redelivery of a returned message.
#[derive(Clone, Default)]
pub enum Backoff {
    /// RocketMQ's retry levels: level 3 after the first delivery, then one level more each time, up to the highest
    /// level. With RocketMQ's own table: 10 s, 30 s, 1 min to 10 min, 20 min, 30 min, 1 h, 2 h. Source:
    /// `AbstractSendMessageProcessor#consumerSendMsgBack`.
    #[default]
    Levels,
    /// The result of the function for the number of the failed delivery, counted from 1.
    Function(Arc<dyn Fn(u32) -> Duration + Send + Sync>),
}

impl Backoff {
    /// Returns the delay after failed delivery `attempt`, in a store with these `levels`.
    pub fn delay(&self, attempt: u32, levels: &DelayLevels) -> Duration {
        match self {
            Self::Levels => {
                let level = attempt.saturating_add(2).min(levels.max_level().unsigned_abs());
                let ms = levels.delay_ms(level.cast_signed()).unwrap_or(0);
                Duration::from_millis(ms.unsigned_abs())
            }
            Self::Function(delay) => delay(attempt),
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Levels, Self::Levels) => true,
            (Self::Function(one), Self::Function(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl fmt::Debug for Backoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Levels => "Levels",
            Self::Function(_) => "Function",
        })
    }
}

/// Options of a work queue. All handles of one queue in a process have the same options, except `visibility_timeout`.
#[derive(Clone, Debug)]
pub struct WorkQueueOptions {
    /// Visibility timeout: how long a leased message is hidden from other workers. Default 30 s, 1 ms to 30 days.
    pub visibility_timeout: Duration,
    /// Maximum number of attempts; after the last failed one a message goes to the dead letters. `None` means no
    /// limit. Default 16.
    pub max_attempts: Option<u32>,
    /// The delay of a message that was returned without one.
    pub backoff: Backoff,
    /// Maximum number of messages that no worker has; a put waits while the queue is full. 0, the default, means no
    /// limit.
    pub maxsize: u64,
    /// What to do at a damaged message; a skipped message counts as finished.
    pub on_damage: DamagePolicy,
    /// Whether the handle has the options of an open handle, if there is one, instead of an error for those that differ.
    /// For a handle that leases nothing. Default false.
    pub follows: bool,
}

impl Default for WorkQueueOptions {
    fn default() -> Self {
        Self {
            visibility_timeout: Duration::from_secs(30),
            max_attempts: Some(16),
            backoff: Backoff::Levels,
            maxsize: 0,
            on_damage: DamagePolicy::Raise,
            follows: false,
        }
    }
}

/// Maximum visibility timeout and maximum delay.
pub(super) const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

impl WorkQueueOptions {
    pub(crate) fn check(&self) -> Result<(), BrokerError> {
        check_visibility_timeout(self.visibility_timeout)?;
        if self.max_attempts == Some(0) {
            return Err(invalid("max_attempts", "must be at least 1").into());
        }
        Ok(())
    }

    /// Returns an option that differs from that of another handle of the same queue, which has `other`, and the reason.
    pub(super) fn difference(&self, other: &Self) -> Option<(&'static str, String)> {
        let attempts =
            |most: Option<u32>| most.map_or_else(|| "no limit".to_owned(), |most| most.to_string());
        let policy = |policy| match policy {
            DamagePolicy::Raise => "raise",
            DamagePolicy::Skip => "skip",
        };
        let (option, own, others) = if self.max_attempts != other.max_attempts {
            ("max_attempts", attempts(self.max_attempts), attempts(other.max_attempts))
        } else if self.maxsize != other.maxsize {
            ("maxsize", self.maxsize.to_string(), other.maxsize.to_string())
        } else if self.on_damage != other.on_damage {
            ("on_damage", policy(self.on_damage).to_owned(), policy(other.on_damage).to_owned())
        } else if !self.backoff.is_same(&other.backoff) {
            ("backoff", "another function".to_owned(), "its own".to_owned())
        } else {
            return None;
        };
        let reason = format!("an open handle of this work queue has {own}, and this one asks for {others}");
        Some((option, reason))
    }
}

pub(super) fn check_visibility_timeout(visibility_timeout: Duration) -> Result<(), BrokerError> {
    if (Duration::from_millis(1)..=LONGEST).contains(&visibility_timeout) {
        return Ok(());
    }
    let reason =
        format!("{} s is not between 0.001 and {}", visibility_timeout.as_secs_f64(), LONGEST.as_secs());
    Err(invalid("visibility_timeout", reason).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_wait_as_rocketmq_has_them_wait() {
        let levels = DelayLevels::default();
        let seconds = |attempt| Backoff::Levels.delay(attempt, &levels).as_secs();
        assert_eq!([1, 2, 3, 4].map(seconds), [10, 30, 60, 120]);
        assert_eq!([15, 16, 17, u32::MAX].map(seconds), [3600, 7200, 7200, 7200]);
        let whole: u64 = (1..=16).map(seconds).sum();
        assert_eq!(whole, 4 * 3600 + 45 * 60 + 40, "the sum of levels 3 to 18");
        let double = Backoff::Function(Arc::new(|attempt| Duration::from_secs(2 * u64::from(attempt))));
        assert_eq!(double.delay(3, &levels), Duration::from_secs(6));
        for (table, expected) in [("1s 2s 7s 4m", [7, 240, 240]), ("5s 9s", [9, 9, 9])] {
            let levels = DelayLevels::parse(table).unwrap();
            assert_eq!([1, 2, 3].map(|attempt| Backoff::Levels.delay(attempt, &levels).as_secs()), expected);
        }
    }

    #[test]
    fn bounds() {
        let with = |visibility_timeout| {
            WorkQueueOptions { visibility_timeout, ..WorkQueueOptions::default() }.check()
        };
        assert!(with(Duration::from_millis(1)).is_ok() && with(LONGEST).is_ok());
        assert!(with(Duration::ZERO).is_err() && with(LONGEST + Duration::from_millis(1)).is_err());
        assert!(WorkQueueOptions { max_attempts: Some(0), ..WorkQueueOptions::default() }.check().is_err());
    }
}
