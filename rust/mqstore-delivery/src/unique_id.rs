//! The message with an id: the one that consumers get, or the record in which it waits.
//!
//! A delayed message and a message of a transaction have a record in a topic of the system, with the same unique id as
//! the message that consumers get later. This record is the answer only while the message waits. The rules are those of
//! an export; see [`crate::ExportRules`].

use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_engine::Store;
use mqstore_format::SCHEDULE_TOPIC;
use mqstore_format::delays::timer::TIMER_TOPIC;
use mqstore_format::properties::REAL_TOPIC;
use mqstore_format::topic::HALF_TOPIC;

use crate::delay::WaitingDelays;
use crate::error::view;
use crate::transactions::is_undecided;

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
