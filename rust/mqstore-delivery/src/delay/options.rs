//! Options of delayed messages.

use std::time::Duration;

use mqstore_format::delays::timer::TIMER_LOG_FILE_BYTES;

/// Options of delayed messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayOptions {
    /// Bytes of a new file of the timer log (`mappedFileSizeTimerLog`); the default is 100 MiB. Existing files keep
    /// their length.
    pub timer_log_file_bytes: u64,
    /// Interval between saves of the state (`timerFlushIntervalMs`); the default is 1 s. A short interval makes the
    /// next open faster.
    pub save_interval: Duration,
}

impl Default for DelayOptions {
    fn default() -> Self {
        Self { timer_log_file_bytes: TIMER_LOG_FILE_BYTES, save_interval: Duration::from_secs(1) }
    }
}
