//! Moving messages that used up their attempts to `%DLQ%group`, each exactly once.
//!
//! ```text
//! 1  DeadLetter{offset, end of the dead-letter queue} in the metadata log, synced        no worker gets it any more
//! 2  the copy, appended to %DLQ%group, synced
//! 3  Finished{offset}
//! ```
//!
//! After a stop later than step 1, the next open completes the move. It searches the dead-letter queue for a copy,
//! from the offset in the intent on. If it finds one, the message is finished; otherwise it is copied. The intent is
//! durable before the copy can be, so there is no copy without an intent. A copy is identified by `DLQ_ORIGIN_TOPIC`
//! and `DLQ_ORIGIN_MESSAGE_ID`, the offset message id of the original, which is unique in a store.
//!
//! The copy is the one that RocketMQ makes of a message that was returned too often. Body, keys, tags and properties
//! stay, and one number counts the deliveries. A property of ours has the last reason that a worker gave; the metadata
//! log stores it from the return of the message on. `RETRY_TOPIC` and `ORIGIN_MESSAGE_ID` name the first topic and
//! message. Source: `AbstractSendMessageProcessor#consumerSendMsgBack`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use mqstore_base::error::StoreError;
use mqstore_base::message::{NewMessage, StoredRecord};
use mqstore_engine::{AppendMarks, MessageOrigin};
use mqstore_format::properties::{
    DLQ_ORIGIN_MESSAGE_ID, DLQ_ORIGIN_TOPIC, INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET,
    NAME_VALUE_SEPARATOR, ORIGIN_MESSAGE_ID, PROPERTY_CRC, REASON, RETRY_TOPIC, SEPARATOR,
};
use mqstore_format::record::{MAX_PROPERTIES_BYTES, PROPERTY_CRC_BYTES};
use mqstore_format::topic::RETRY_TOPIC_PREFIX;
use mqstore_format::{RecordView, push_property};
use mqstore_meta::ProgressRecord;

use super::inner::{WorkQueueInner, WorkQueueState};
use super::source::{ExhaustedOffsets, QueuePlace};
use crate::error::{BrokerError, view};

/// Number of copies that are appended and synced together.
const TOGETHER: usize = 32;

/// Time until the next try after a copy failed.
const AGAIN: Duration = Duration::from_secs(1);

/// Dead letters in one read of the search for copies.
const AT_ONCE: usize = 128;

/// Maximum length of a stored reason, in bytes.
pub(super) const MAX_REASON_BYTES: usize = 1024;

/// Properties that belong to one record and not to its copies.
const NOT_COPIED: [&str; 5] =
    [PROPERTY_CRC, INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET, DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID];

/// A message that is being moved.
struct DeadLetter {
    place: Arc<QueuePlace>,
    offset: i64,
    record: StoredRecord,
    /// The last reason that a worker gave.
    reason: Option<Arc<str>>,
}

impl WorkQueueInner {
    /// Returns the minimum offset of the next dead letter.
    pub(super) fn dead_letters_end(&self) -> Result<i64, StoreError> {
        match self.store().bounds(self.dead_letter_topic(), 0) {
            Err(StoreError::TopicNotFound { .. }) => Ok(0),
            bounds => Ok(bounds?.1),
        }
    }

    /// Returns the dead letters that are due for another try.
    pub(super) fn retryable_dead_letters(&self, state: &mut WorkQueueState) -> ExhaustedOffsets {
        if self.has_retryable_dead_letters(state) {
            std::mem::take(&mut state.unmoved)
        } else {
            ExhaustedOffsets::new()
        }
    }

    pub(super) fn has_retryable_dead_letters(&self, state: &WorkQueueState) -> bool {
        let waited = self.store().clock().monotonic().saturating_sub(state.last_failure);
        !state.unmoved.is_empty() && waited >= AGAIN
    }

    /// Moves messages whose intents are logged. Errors are noted, and the move is retried later.
    pub(super) fn move_or_retry_later(&self, fresh: ExhaustedOffsets, retryable: ExhaustedOffsets) {
        for (exhausted, tried) in [(fresh, false), (retryable, true)] {
            if let Err(error) = self.move_to_dead_letters(&exhausted, tried) {
                self.note(format!(
                    "{}: cannot move dead letters yet ({error}); mqstore retries",
                    self.name()
                ));
            }
        }
    }

    /// Moves messages whose intents are logged. If this fails, they are kept for later and the error is returned.
    /// With `tried`, copies may exist already.
    pub(super) fn move_to_dead_letters(
        &self,
        exhausted: &ExhaustedOffsets,
        tried: bool,
    ) -> Result<(), BrokerError> {
        if exhausted.is_empty() {
            return Ok(());
        }
        self.try_move_to_dead_letters(exhausted, tried).inspect_err(|_| {
            let mut state = self.state.lock();
            state.last_failure = self.store().clock().monotonic();
            state.unmoved.extend(exhausted.iter().cloned());
        })
    }

    fn try_move_to_dead_letters(&self, exhausted: &ExhaustedOffsets, tried: bool) -> Result<(), BrokerError> {
        if self.store().queue_ids(self.dead_letter_topic())?.is_empty() {
            self.store().create_topic(self.dead_letter_topic(), 1, &[])?;
        }
        // A copy must not be durable before its intent.
        self.meta().sync(self.meta().place())?;
        for some in exhausted.chunks(TOGETHER) {
            let mut letters = self.letters(some)?;
            if tried {
                letters = self.without_copies(letters)?;
            }
            self.store().system_appends().without_deletions(|| {
                // A copy after the deletion of the topic would look like one of the new topic.
                letters.retain(|letter| !letter.place.progress.is_removed());
                self.copy(&letters)
            })??;
            for DeadLetter { place, offset, .. } in &letters {
                self.finish_moved(place, *offset)?;
            }
        }
        Ok(())
    }

    /// Reads the messages that are still being moved and can be read.
    fn letters(&self, exhausted: &[(Arc<QueuePlace>, i64)]) -> Result<Vec<DeadLetter>, BrokerError> {
        let (mut letters, mut lost) = (Vec::with_capacity(exhausted.len()), Vec::new());
        for (place, offset) in exhausted {
            let reason = {
                let progress = place.progress.lock();
                if !progress.dead_letters().any(|(on_its_way, _)| on_its_way == *offset) {
                    continue;
                }
                progress.reason(*offset).cloned()
            };
            let record = match self.message(place, *offset) {
                Err(BrokerError::Store(error @ StoreError::Corrupt { .. })) => {
                    self.note(format!("{}: cannot read a dead letter: {error}", self.name()));
                    None
                }
                found => found?,
            };
            match record {
                Some(record) => {
                    letters.push(DeadLetter { place: Arc::clone(place), offset: *offset, record, reason });
                }
                None => lost.push((Arc::clone(place), *offset)),
            }
        }
        self.finish_lost(&lost)?;
        Ok(letters)
    }

    /// Finishes those that have a copy, and returns the others.
    fn without_copies(&self, letters: Vec<DeadLetter>) -> Result<Vec<DeadLetter>, BrokerError> {
        let intents = letters.iter().filter_map(|letter| {
            let progress = letter.place.progress.lock();
            progress
                .dead_letters()
                .find(|(offset, _)| *offset == letter.offset)
                .map(|(_, dlq_offset)| dlq_offset)
        });
        let Some(first) = intents.min() else { return Ok(letters) };
        let (min, max) = self.store().bounds(self.dead_letter_topic(), 0)?;
        let mut wanted: HashMap<(String, String), DeadLetter> = HashMap::with_capacity(letters.len());
        for letter in letters {
            let view = view(&letter.record)?;
            let key = (origin_topic(&view).to_owned(), view.offset_message_id());
            wanted.insert(key, letter);
        }
        let mut found = Vec::new();
        let mut cursor =
            self.store().read(self.dead_letter_topic(), 0, Some(first.clamp(min, max)), None, None)?;
        loop {
            let records = cursor.next_batch(AT_ONCE)?;
            if records.is_empty() || wanted.is_empty() {
                break;
            }
            for record in &records {
                let properties = view(record)?.properties;
                let [topic, id] = properties.get_many([DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID]);
                if let (Some(topic), Some(id)) = (topic, id) {
                    found.extend(wanted.remove(&(topic.to_owned(), id.to_owned())));
                }
            }
        }
        if !found.is_empty() {
            // The copies count once they are durable.
            self.store().flush()?;
        }
        for DeadLetter { place, offset, .. } in &found {
            self.finish_moved(place, *offset)?;
        }
        let mut missing: Vec<_> = wanted.into_values().collect();
        missing.sort_by_key(|letter| letter.record.commit_log_offset);
        Ok(missing)
    }

    fn copy(&self, letters: &[DeadLetter]) -> Result<(), BrokerError> {
        let mut parts = Vec::with_capacity(letters.len());
        for letter in letters {
            let view = view(&letter.record)?;
            parts.push((view, properties(&view, letter.reason.as_deref())));
        }
        let messages: Vec<_> = parts
            .iter()
            .map(|(view, properties)| NewMessage {
                topic: self.dead_letter_topic(),
                body: view.body,
                properties,
                // The stored key, or none.
                unique_key: Some(view.unique_key().unwrap_or_default()),
                queue_id: Some(0),
                flag: view.flag,
                born_timestamp_ms: Some(view.born_timestamp),
                durable: true,
                ..NewMessage::default()
            })
            .collect();
        let most = self.options.max_attempts.unwrap_or(0).cast_signed();
        let origins: Vec<_> = parts
            .iter()
            .map(|(view, _)| MessageOrigin {
                sys_flag: view.sys_flag,
                born_host: view.born_host,
                // In a retry topic, the earlier deliveries are already part of the attempts, and may already reach
                // the limit.
                reconsume_times: if view.topic.starts_with(RETRY_TOPIC_PREFIX) {
                    most.max(view.reconsume_times.saturating_add(1))
                } else {
                    view.reconsume_times.saturating_add(most)
                },
            })
            .collect();
        if !messages.is_empty() {
            self.store().system_appends().append_marked(&messages, AppendMarks::Origins(&origins))?;
        }
        Ok(())
    }

    fn finish_moved(&self, place: &QueuePlace, offset: i64) -> Result<(), BrokerError> {
        self.meta().append_progress(&place.progress, &[ProgressRecord::finished(offset)])?;
        self.done.ring();
        Ok(())
    }

    /// Completes the moves that a stop interrupted between the intent and the end.
    pub(super) fn finish_intents(&self) {
        let state = self.state.lock();
        let mut open = ExhaustedOffsets::new();
        for source in &state.sources {
            let progress = source.place.progress.lock();
            open.extend(progress.dead_letters().map(|(offset, _)| (Arc::clone(&source.place), offset)));
        }
        drop(state);
        self.move_or_retry_later(ExhaustedOffsets::new(), open);
    }
}

/// Returns the topic to which a message was sent first, also for a message in a retry topic.
fn origin_topic<'a>(view: &RecordView<'a>) -> &'a str {
    view.properties.get(RETRY_TOPIC).unwrap_or(view.topic)
}

/// Returns the properties of the copy of a message. A redriven message keeps its reason if there is no new one.
fn properties(view: &RecordView<'_>, reason: Option<&str>) -> Vec<u8> {
    let mut text = Vec::with_capacity(view.properties.raw().len() + 160);
    for (name, value) in view.properties.iter_raw() {
        let is_replaced = reason.is_some() && name == REASON.as_bytes();
        if !is_replaced && !NOT_COPIED.iter().any(|other| other.as_bytes() == name) {
            push_property(&mut text, name, value);
        }
    }
    let id = view.offset_message_id();
    let [retry_topic, origin_id] = view.properties.get_many([RETRY_TOPIC, ORIGIN_MESSAGE_ID]);
    if retry_topic.is_none() {
        push_property(&mut text, RETRY_TOPIC, view.topic);
    }
    if origin_id.is_none() {
        push_property(&mut text, ORIGIN_MESSAGE_ID, &id);
    }
    push_property(&mut text, DLQ_ORIGIN_TOPIC, origin_topic(view));
    push_property(&mut text, DLQ_ORIGIN_MESSAGE_ID, &id);
    if let Some(reason) = reason {
        push_reason(&mut text, reason);
    }
    text
}

/// Returns the reason as it is stored: without separators of properties, and not longer than the limit. `None` if it is
/// blank.
pub(super) fn stored_reason(reason: &str) -> Option<Arc<str>> {
    let is_separator = |c: char| c == char::from(NAME_VALUE_SEPARATOR) || c == char::from(SEPARATOR);
    let text = reason.replace(is_separator, " ");
    let text = truncated(text.trim(), MAX_REASON_BYTES).trim_end();
    (!text.is_empty()).then(|| text.into())
}

/// Adds the reason to the properties of a dead letter, as far as the record has space for it.
pub(super) fn push_reason(properties: &mut Vec<u8>, reason: &str) {
    let used = properties.len() + REASON.len() + 2 + PROPERTY_CRC_BYTES;
    let reason = truncated(reason, MAX_PROPERTIES_BYTES.saturating_sub(used));
    if !reason.is_empty() {
        push_property(properties, REASON, reason);
    }
}

/// Returns the start of `text` that has at most `bytes` bytes.
fn truncated(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.get(..end.unwrap_or(0)).unwrap_or_default()
}
