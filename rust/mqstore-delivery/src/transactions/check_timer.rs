//! The times at which the producer groups of pending transactions are asked.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mqstore_base::wake_signal::Signal;
use mqstore_io::sync::{AtomicBool, Mutex};

use crate::error::{BrokerError, invalid};

/// The times of the checks of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckOptions {
    /// Age of a transaction at its first check; RocketMQ's `transactionTimeOut`. The default is 6 s.
    pub after: Duration,
    /// Time between two checks; RocketMQ's `transactionCheckInterval`. The default is 30 s.
    pub interval: Duration,
    /// Maximum number of checks; RocketMQ's `transactionCheckMax`. The default is 15.
    pub max: u32,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self { after: Duration::from_secs(6), interval: Duration::from_secs(30), max: 15 }
    }
}

impl CheckOptions {
    /// Checks the bounds.
    ///
    /// # Errors
    /// `InvalidOption` if `after` is more than a year, if `interval` is not between 1 ms and a year, or if `max` is 0.
    pub fn check(&self) -> Result<(), BrokerError> {
        let year = Duration::from_secs(365 * 86_400);
        if self.after > year {
            return Err(invalid("check_after", "the maximum is one year").into());
        }
        if self.interval < Duration::from_millis(1) || self.interval > year {
            return Err(invalid("check_interval", "must be between 1 ms and one year").into());
        }
        if self.max == 0 {
            return Err(invalid("check_max", "must be at least 1").into());
        }
        Ok(())
    }
}

/// The groups to ask, and the signal of the thread that asks.
///
/// In memory only: each process that opens the store names its groups again.
#[derive(Debug, Default)]
pub(super) struct CheckTimer {
    pub(super) groups: Mutex<BTreeMap<Arc<str>, CheckOptions>>,
    pub(super) signal: Signal,
    /// Whether the thread must end.
    pub(super) over: AtomicBool,
}

impl CheckTimer {
    /// Signals that a check may be due earlier than known.
    pub(super) fn ring(&self) {
        self.signal.ring();
    }
}
