//! Redriving dead letters to their original topics, and deleting them.

use std::collections::BTreeSet;
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::message::{NewMessage, StoredRecord};
use mqstore_engine::{AppendMarks, MessageOrigin};
use mqstore_format::properties::{
    DLQ_ORIGIN_MESSAGE_ID, DLQ_ORIGIN_TOPIC, ORIGIN_MESSAGE_ID, PROPERTY_CRC, RETRY_TOPIC, TIMER_DELIVER_MS,
};
use mqstore_format::push_property;
use mqstore_meta::{ProgressRecord, QueueProgress};

use super::inner::WorkQueueInner;
use super::jobs::DeadLetters;
use crate::error::{BrokerError, view};

/// Number of dead letters that are appended and synced together.
const TOGETHER: usize = 64;

/// Properties that a dead letter has in addition to those of the original message.
const ADDED: [&str; 6] =
    [PROPERTY_CRC, RETRY_TOPIC, ORIGIN_MESSAGE_ID, DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID, TIMER_DELIVER_MS];

/// The end of chosen dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeadLetterEnd {
    /// They are appended again to their original topics.
    Redriven,
    /// They stay in their topic, and are not redriven.
    Deleted,
}

impl WorkQueueInner {
    /// Returns the number of dead letters that were neither redriven nor deleted.
    pub(super) fn dead_letter_count(&self) -> Result<u64, BrokerError> {
        Ok(DeadLetters::of(self.store(), self.group())?.map_or(0, |of| of.count()))
    }

    /// Returns the group's progress in its dead letters. The redriven and the deleted ones are finished; none is ever leased.
    /// `None` without dead letters.
    fn dead_letter_progress(&self) -> Result<Option<Arc<QueueProgress>>, BrokerError> {
        let topic = self.dead_letter_topic();
        let (min, max) = match self.store().bounds(topic, 0) {
            Err(StoreError::TopicNotFound { .. }) => return Ok(None),
            bounds => bounds?,
        };
        let progress = self.meta().progress(self.meta().queue_key(self.group(), topic, 0)?);
        self.meta().clamp_progress(&progress, min, max)?;
        Ok(Some(progress))
    }

    /// Appends up to `limit` dead letters of the group again to their original topics, oldest first, as new messages.
    /// Returns their number. A dead letter that does not name its topic goes to this queue's topic. Those of a topic
    /// that was deleted since are passed over: a new topic of the name has none of the old messages. The group's
    /// progress in its dead-letter topic stores which they are. A stop between the copy and its record redrives up to
    /// 64 messages twice.
    pub(super) fn redrive(&self, limit: Option<u64>) -> Result<u64, BrokerError> {
        let (store, meta, topic) = (self.store(), self.meta(), self.dead_letter_topic());
        // Two calls would read the same position and append its messages twice.
        let _alone = self.redrive_lock().lock();
        let Some(progress) = self.dead_letter_progress()? else { return Ok(0) };
        let mut next = progress.lock().next();
        let mut cursor = store.read(topic, 0, Some(next), None, None)?;
        let mut moved = 0;
        while limit.is_none_or(|limit| moved < limit) {
            let left = limit.map_or(TOGETHER, |limit| TOGETHER.min((limit - moved) as usize));
            let mut records = cursor.next_batch(left)?;
            if records.is_empty() {
                break;
            }
            records.retain(|record| !progress.lock().is_finished(record.queue_offset));
            moved += store.system_appends().without_deletions(|| self.append_originals(&records))??;
            let to = cursor.position();
            meta.append_progress(&progress, &[ProgressRecord::Finished { from: next, to }])?;
            next = to;
        }
        meta.sync(meta.place())?;
        Ok(moved)
    }

    /// Redrives or deletes the dead letters with these ids: of the job, or of the dead letter. If one is unknown, nothing
    /// is changed.
    pub(super) fn end_dead_letters(&self, ids: &[String], end: DeadLetterEnd) -> Result<u64, BrokerError> {
        let meta = self.meta();
        let _alone = self.redrive_lock().lock();
        let mut missing: BTreeSet<&str> = ids.iter().map(String::as_str).collect();
        let progress = self.dead_letter_progress()?;
        let chosen = match &progress {
            Some(progress) => self.dead_letters_with(&mut missing, progress)?,
            None => Vec::new(),
        };
        if let Some(id) = missing.first() {
            let group = self.group();
            let reason = format!(
                "group {group} has no dead letter with the id {id:?}; list the dead letters of the group for their ids"
            );
            return Err(StoreError::Refused { reason }.into());
        }
        for some in chosen.chunks(TOGETHER) {
            if end == DeadLetterEnd::Redriven {
                self.store().system_appends().without_deletions(|| self.append_originals(some))??;
            }
            let finished: Vec<_> =
                some.iter().map(|record| ProgressRecord::finished(record.queue_offset)).collect();
            progress.iter().try_for_each(|progress| meta.append_progress(progress, &finished).map(drop))?;
        }
        meta.sync(meta.place())?;
        Ok(chosen.len() as u64)
    }

    /// Returns the open dead letters with one of these ids, and removes the ids that they have.
    fn dead_letters_with(
        &self,
        missing: &mut BTreeSet<&str>,
        progress: &QueueProgress,
    ) -> Result<Vec<StoredRecord>, BrokerError> {
        let from = progress.lock().next();
        let mut cursor = self.store().read(self.dead_letter_topic(), 0, Some(from), None, None)?;
        let mut found = Vec::new();
        while !missing.is_empty() {
            let records = cursor.next_batch(TOGETHER)?;
            if records.is_empty() {
                break;
            }
            for record in records {
                if !progress.lock().is_finished(record.queue_offset) && remove_ids(&record, missing)? {
                    found.push(record);
                }
            }
        }
        Ok(found)
    }

    /// Appends the messages of dead letters again, except those whose topic was deleted since. Returns their number.
    fn append_originals(&self, letters: &[StoredRecord]) -> Result<u64, BrokerError> {
        let mut parts = Vec::with_capacity(letters.len());
        for letter in letters {
            let view = view(letter)?;
            let [origin, retry] = view.properties.get_many([DLQ_ORIGIN_TOPIC, RETRY_TOPIC]);
            let topic = origin.or(retry).unwrap_or(self.topic());
            if self.store().system_appends().is_deleted_since(topic, letter.commit_log_offset)? {
                self.note(format!(
                    "{}: dead letters of topic {topic} are not redriven, because the topic was deleted",
                    self.name()
                ));
                continue;
            }
            let mut properties = Vec::with_capacity(view.properties.raw().len());
            for (name, value) in view.properties.iter_raw() {
                if !ADDED.iter().any(|added| added.as_bytes() == name) {
                    push_property(&mut properties, name, value);
                }
            }
            parts.push((view, topic, properties));
        }
        let messages: Vec<_> = parts
            .iter()
            .map(|(view, topic, properties)| NewMessage {
                topic,
                body: view.body,
                properties,
                unique_key: Some(view.unique_key().unwrap_or_default()),
                queue_id: None,
                flag: view.flag,
                born_timestamp_ms: Some(view.born_timestamp),
                durable: true,
                ..NewMessage::default()
            })
            .collect();
        let origins: Vec<_> = parts
            .iter()
            .map(|(view, ..)| MessageOrigin {
                sys_flag: view.sys_flag,
                born_host: view.born_host,
                reconsume_times: 0,
            })
            .collect();
        self.store().system_appends().append_marked(&messages, AppendMarks::Origins(&origins))?;
        Ok(messages.len() as u64)
    }
}

/// Removes the ids that a dead letter has: its own, or those of the message from which it was made. Returns whether there
/// were any.
fn remove_ids(letter: &StoredRecord, ids: &mut BTreeSet<&str>) -> Result<bool, StoreError> {
    let view = view(letter)?;
    let [origin, first] = view.properties.get_many([DLQ_ORIGIN_MESSAGE_ID, ORIGIN_MESSAGE_ID]);
    let own = view.offset_message_id();
    let known = [view.unique_key(), Some(&*own), origin, first];
    let before = ids.len();
    ids.retain(|id| !known.contains(&Some(*id)));
    Ok(ids.len() < before)
}
