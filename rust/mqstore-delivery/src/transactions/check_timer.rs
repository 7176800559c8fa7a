//! When the producer groups of undecided transactions are asked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mqstore_base::wake_signal::Signal;
use mqstore_io::sync::{AtomicBool, Mutex};

use crate::error::{BrokerError, invalid};

/// When a group is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckOptions {
    /// How old a transaction is when its group is asked first; RocketMQ's `transactionTimeOut`, 6 s.
    pub after: Duration,
    /// Between two times; RocketMQ's `transactionCheckInterval`, 30 s.
    pub interval: Duration,
    /// How often; RocketMQ's `transactionCheckMax`, 15.
    pub max: u32,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self { after: Duration::from_secs(6), interval: Duration::from_secs(30), max: 15 }
    }
}

impl CheckOptions {
    /// Whether they can be.
    ///
    /// # Errors
    /// `InvalidOption` for an interval of nothing or of more than a year, and for no check at all.
    pub fn check(&self) -> Result<(), BrokerError> {
        let year = Duration::from_secs(365 * 86_400);
        if self.after > year {
            return Err(invalid("check_after", "is at most a year").into());
        }
        if self.interval < Duration::from_millis(1) || self.interval > year {
            return Err(invalid("check_interval", "is between 1 ms and a year").into());
        }
        if self.max == 0 {
            return Err(invalid("check_max", "is at least 1").into());
        }
        Ok(())
    }
}

/// Which groups are asked, and the signal of the thread that asks.
///
/// It is in memory only: a process that opens the store names the groups again.
#[derive(Debug, Default)]
pub(super) struct CheckTimer {
    pub(super) groups: Mutex<BTreeMap<Arc<str>, CheckOptions>>,
    pub(super) signal: Signal,
    /// Whether the thread is to end.
    pub(super) over: AtomicBool,
}

impl CheckTimer {
    /// There may be something to ask earlier than was known.
    pub(super) fn ring(&self) {
        self.signal.ring();
    }
}
