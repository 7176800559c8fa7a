//! The message with an id: the one that consumers get, or the record in which it waits.
//!
//! A delayed message and a message of a transaction have a record in a topic of the system, with the same unique id as
//! the message that consumers get later. This record is the answer only while the message waits. The rules are those of
//! an export; see [`crate::ExportRules`].

use mqstore_base::error::StoreError;
use mqstore_base::message::{Appended, StoredRecord};
use mqstore_engine::Store;
use mqstore_format::SCHEDULE_TOPIC;
use mqstore_format::delays::timer::TIMER_TOPIC;
use mqstore_format::properties::REAL_TOPIC;
use mqstore_format::topic::HALF_TOPIC;

use crate::delay::WaitingDelays;
use crate::error::view;
use crate::transactions::is_undecided;

/// Number of records that one step of a look-up by unique key reads.
const LOOKED_UP_TOGETHER: usize = 16;

/// Returns the position of the newest message of `topic` that has this unique key, if there is one. In a store that is
/// open for reading, it is not known to be durable.
///
/// # Errors
/// Those of [`Store::lookup`] and of its reads; a topic that does not exist has no message.
pub fn appended_with_key(
    store: &Store,
    topic: &str,
    unique_key: &str,
) -> Result<Option<Appended>, StoreError> {
    let writes = store.mode().writes();
    if writes {
        store.make_visible()?;
    }
    let mut cursor = match store.lookup(topic, unique_key, None, None, None) {
        Err(StoreError::TopicNotFound { .. }) => return Ok(None),
        cursor => cursor?.newest_first(),
    };
    loop {
        let records = cursor.next_batch(LOOKED_UP_TOGETHER)?;
        if records.is_empty() {
            return Ok(None);
        }
        for record in &records {
            let view = view(record)?;
            // The key of another message can have the same text.
            if view.unique_key() != Some(unique_key) {
                continue;
            }
            let size = record.bytes().len() as u32;
            let end = record.commit_log_offset.saturating_add(size.into());
            return Ok(Some(Appended {
                queue_id: view.queue_id,
                queue_offset: record.queue_offset,
                commit_log_offset: record.commit_log_offset,
                size,
                store_timestamp_ms: view.store_timestamp,
                durable: writes && end <= store.system_appends().durable_position()?,
                unique_id: unique_key.to_owned().into(),
            }));
        }
    }
}

/// Returns the message with an offset message id or a unique id; `None` if there is none. An offset message id names one
/// record, whatever became of its message.
///
/// # Errors
/// Those of [`Store::get`]; errors of reading the files of delayed messages.
pub fn message_of_id(store: &Store, id: &str) -> Result<Option<StoredRecord>, StoreError> {
    let Some(record) = store.get(id)? else { return Ok(None) };
    let (found, store) = (view(&record)?, &store.log_only());
    let is_answer = found.unique_key() != Some(id)
        || match found.topic {
            TIMER_TOPIC | SCHEDULE_TOPIC => {
                is_of_topic(store, &record)? && WaitingDelays::contains(store, &record)?
            }
            HALF_TOPIC => is_of_topic(store, &record)? && is_undecided(store, found.queue_offset)?,
            _ => true,
        };
    Ok(is_answer.then_some(record))
}

/// Whether the topic of the message in a waiting record was not deleted since.
fn is_of_topic(store: &Store, record: &StoredRecord) -> Result<bool, StoreError> {
    match view(record)?.properties.get(REAL_TOPIC) {
        Some(topic) => Ok(!store.system_appends().is_deleted_since(topic, record.commit_log_offset)?),
        None => Ok(false),
    }
}
