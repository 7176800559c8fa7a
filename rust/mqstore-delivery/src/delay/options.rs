//! How delayed messages are kept.

use std::time::Duration;

use mqstore_format::delays::timer::TIMER_LOG_FILE_BYTES;

/// How delays behave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayOptions {
    /// Bytes of a file of the timer log where there is none yet (`mappedFileSizeTimerLog`), 100 MiB.
    pub timer_log_file_bytes: u64,
    /// How often what happened is saved, so that an open finds it without looking for it (`timerFlushIntervalMs`), 1 s.
    pub save_interval: Duration,
}

impl Default for DelayOptions {
    fn default() -> Self {
        Self { timer_log_file_bytes: TIMER_LOG_FILE_BYTES, save_interval: Duration::from_secs(1) }
    }
}
