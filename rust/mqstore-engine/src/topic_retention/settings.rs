//! The limits of topics: set, listed, and their bounds checked.

use std::collections::BTreeMap;
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::topic_floors::TopicRetention;

use super::limits::{expiry_of, refusal};
use super::older::OlderTopics;
use crate::archive::ArchiveState;
use crate::retention::ExpiredTopic;
use crate::store::{OpenSide, Store};

impl Store {
    /// Sets the limits of a topic: all of them, so a limit that is `None` does not apply any more. Durable when it
    /// returns. The next expiry applies them.
    ///
    /// # Errors [`StoreError::TopicNotFound`]; [`StoreError::Refused`] for a topic of the system, a light queue or a
    /// compaction topic; [`StoreError::InvalidOption`] for a limit outside 1 to 2^53, and for a time that is longer
    /// than the retention of a store without an archive.
    pub fn set_retention(&self, topic: &str, limits: TopicRetention) -> Result<(), StoreError> {
        let writer = self.writer("set the retention of a topic")?;
        let compacted = "it is a compaction topic, which keeps the newest message of each key; `expire_after` of the topic \
                         limits the age of its values";
        // The archive keeps what the log cannot.
        let is_archived = ArchiveState::load(&writer.files)?.is_some();
        writer.topics.set_retention(topic, limits, |state| {
            let reason = refusal(topic).or_else(|| state.is_compaction().then_some(compacted));
            if let Some(reason) = reason.filter(|_| !limits.is_empty()) {
                let reason = format!("topic {topic} can have no retention of its own: {reason}");
                return Err(StoreError::Refused { reason });
            }
            check_bounds(limits, writer.options.retention_ms.filter(|_| !is_archived))
        })?;
        writer.live.note_topic_change();
        Ok(())
    }

    /// Returns the limits of the topics that have a retention, by name.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn retentions(&self) -> Result<BTreeMap<Arc<str>, TopicRetention>, StoreError> {
        self.catch_up()?;
        Ok(match &self.inner.side {
            OpenSide::Writer(writer, _) => writer.meta.retentions(),
            OpenSide::Reader(reader) => reader.retentions(),
        })
    }

    /// Sets the messages from before the log, which the limits of topics count; `None` if no archive has them.
    pub fn set_older_topics(&self, older: Option<Arc<dyn OlderTopics>>) {
        self.inner.older.set(older);
    }

    /// Returns what an expiry would hide now because of the limits of topics.
    pub(crate) fn due_messages(&self) -> Result<Vec<ExpiredTopic>, StoreError> {
        let (end, limits) = (self.view().catch_up()?, self.retentions()?);
        let older = self.inner.older.get();
        expiry_of(
            &*self.view(),
            older.as_deref(),
            limits.iter().map(|(topic, limits)| (&**topic, *limits)),
            end,
        )
    }
}

fn check_bounds(limits: TopicRetention, store_keeps_ms: Option<u64>) -> Result<(), StoreError> {
    let TopicRetention { keep_ms, max_bytes, max_messages } = limits;
    for (option, limit) in [("keep", keep_ms), ("max_bytes", max_bytes), ("max_messages", max_messages)] {
        if let Some(limit) = limit.filter(|limit| !(1..=TopicRetention::LARGEST).contains(limit)) {
            let unit = if option == "keep" { " milliseconds" } else { "" };
            let reason = format!("{limit} is not between 1 and 2^53{unit}");
            return Err(StoreError::InvalidOption { option, reason });
        }
    }
    match (keep_ms, store_keeps_ms) {
        (Some(keep_ms), Some(store_ms)) if keep_ms > store_ms => {
            let reason = format!(
                "{keep_ms} ms is longer than the store keeps any message, {store_ms} ms: open it with a longer \
                 `retention`, or keep old messages in an archive"
            );
            Err(StoreError::InvalidOption { option: "keep", reason })
        }
        _ => Ok(()),
    }
}
