//! The files on which an open of delayed messages relies: those of mqstore, those of a broker, or the log alone.

use mqstore_base::error::StoreError;
use mqstore_engine::Store;
use mqstore_format::crc32;
use mqstore_format::delays::timer::{TIMER_CHECK_FIELD_BYTES, TIMER_TOPIC, TimerCheckpoint};

use super::state_file::DelayState;
use super::timer_log::TimerLog;
use super::timer_wheel::TimerWheel;

/// How far before a broker's read time the search for its deliveries starts, in case clocks went back.
pub(crate) const BEFORE_MS: i64 = 60_000;

/// The files on which an open relies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecoveryBasis {
    Ours,
    Broker,
    Queue,
}

/// Returns the position at which the search of a broker's timer log starts: the file before the one of its checkpoint.
pub(crate) fn broker_scan_start(log: &TimerLog, check: &TimerCheckpoint) -> u64 {
    let (begin, files_end) = log.bounds();
    let from = u64::try_from(check.last_timer_log_flush_pos).unwrap_or(0);
    let from = from.saturating_sub(log.file_bytes()).max(begin).min(files_end);
    begin + (from - begin) / log.file_bytes().max(1) * log.file_bytes()
}

/// Returns the fields of `timercheck`, or the part of them that exists.
pub(crate) fn check_bytes_in_use(bytes: &[u8]) -> Vec<u8> {
    bytes.get(..TIMER_CHECK_FIELD_BYTES).unwrap_or(bytes).to_vec()
}

pub(crate) fn basis(
    store: &Store,
    state: Option<&DelayState>,
    (wheel, log): (Option<&TimerWheel>, Option<&TimerLog>),
    check: &[u8],
) -> Result<RecoveryBasis, StoreError> {
    let (Some(wheel), Some(log)) = (wheel, log) else { return Ok(RecoveryBasis::Queue) };
    let (begin, end) = log.bounds();
    let (_, log_end) = store.log().bounds()?;
    let by_us = state.is_some_and(|state| state.check.contains(&crc32(&check_bytes_in_use(check))));
    if let Some(state) = state
        && by_us
        && (state.wheel_end == 0 || wheel.exists())
        && begin <= state.log_begin
        && state.log_end <= end.max(begin)
        && state.as_of <= log_end
        && is_in_queue(store, state)?
    {
        return Ok(RecoveryBasis::Ours);
    }
    let read = TimerCheckpoint::decode(check);
    let cut = state.is_some_and(|state| state.as_of > log_end);
    let by_broker = !by_us && !cut && read.last_read_time_ms > 0;
    Ok(if by_broker && wheel.exists() && end > 0 { RecoveryBasis::Broker } else { RecoveryBasis::Queue })
}

/// Whether the last record that entered the wheel is still at its position.
pub(crate) fn is_in_queue(store: &Store, state: &DelayState) -> Result<bool, StoreError> {
    if state.last_record < 0 || state.queue_next == 0 {
        return Ok(true);
    }
    match store.message_at(TIMER_TOPIC, 0, state.queue_next - 1) {
        Ok(record) => Ok(record.is_some_and(|record| record.commit_log_offset as i64 == state.last_record)),
        // It has expired, and so have all records before it.
        Err(StoreError::OffsetOutOfRange { min_offset, .. }) => Ok(min_offset >= state.queue_next),
        Err(StoreError::TopicNotFound { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}
