//! The first delayed message and the first half message that wait in a store: their segments must stay.
//!
//! Both come from the files, in which they are exact as of the end of the log, so this works for a store that is open
//! for writing or for reading. The retention of the engine calls [`first_unfinished`] when a segment is due. The cost
//! grows with the number of waiting messages.

use mqstore_base::error::StoreError;
use mqstore_engine::{HolderKind, SegmentHolder, Store};
use mqstore_format::properties::REAL_TOPIC;
use mqstore_format::topic::HALF_TOPIC;
use mqstore_format::transaction::HalfRecord;

use crate::delay::{Delays, WaitingDelays};
use crate::error::view;
use crate::transactions::undecided_halves;

/// Returns the first delayed message with an exact time, the first one with a delay level, and the first half message
/// without a decision, as far as they exist.
///
/// # Errors
/// Errors of reading the queues and the files of delayed messages.
pub fn first_unfinished(store: &Store) -> Result<Vec<SegmentHolder>, StoreError> {
    let mut found = Vec::new();
    if Delays::are_there(store)? {
        let (waiting, _) = WaitingDelays::of(store)?;
        let levels = waiting.levels.first().map(|(log_offset, _)| *log_offset);
        for log_offset in waiting.timer.first().copied().into_iter().chain(levels) {
            found.extend(delayed(store, log_offset)?);
        }
    }
    if !store.queue_ids(HALF_TOPIC)?.is_empty() {
        found.extend(undecided(store)?);
    }
    Ok(found)
}

/// Describes the delayed message whose record is at `log_offset`; `None` if the record no longer exists.
fn delayed(store: &Store, log_offset: u64) -> Result<Option<SegmentHolder>, StoreError> {
    let Some(record) = store.log().record_at(log_offset)? else { return Ok(None) };
    let view = view(&record)?;
    Ok(Some(SegmentHolder {
        kind: HolderKind::Delayed,
        group: None,
        topic: view.properties.get(REAL_TOPIC).unwrap_or(view.topic).to_owned(),
        queue_id: view.queue_id,
        offset: record.queue_offset,
        log_offset,
    }))
}

fn undecided(store: &Store) -> Result<Option<SegmentHolder>, StoreError> {
    for offset in undecided_halves(store)? {
        let record = match store.message_at(HALF_TOPIC, 0, offset) {
            Ok(Some(record)) => record,
            // It was deleted meanwhile.
            Ok(None) | Err(StoreError::OffsetOutOfRange { .. }) => continue,
            Err(error) => return Err(error),
        };
        let view = view(&record)?;
        // An open ignores a half message without topic or group too.
        let Some(half) = HalfRecord::of(&view) else { continue };
        return Ok(Some(SegmentHolder {
            kind: HolderKind::Transaction,
            group: Some(half.group.to_owned()),
            topic: half.topic.to_owned(),
            queue_id: view.queue_id,
            offset,
            log_offset: record.commit_log_offset,
        }));
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
