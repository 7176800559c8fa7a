//! The limits of topics: set, and their bounds checked; and a preview of an expiry by them.

use mqstore_base::error::StoreError;
use mqstore_base::topic_floors::TopicRetention;

use super::limits::{expiry_of, refusal};
use super::state::TopicRetentions;
use crate::archive::ArchiveState;
use crate::read::older::OlderSlot;
use crate::read::view::View;
use crate::retention::ExpiredTopic;

impl TopicRetentions {
    /// See [`crate::Retentions::set`].
    pub(crate) fn set(&self, topic: &str, limits: TopicRetention) -> Result<(), StoreError> {
        let compacted = "it is a compaction topic, which keeps the newest message of each key; `expire_after` of the topic \
                         limits the age of its values";
        // The archive keeps what the log cannot.
        let is_archived = ArchiveState::load(&self.engine.files)?.is_some();
        self.engine.topics.set_retention(topic, limits, |state| {
            let reason = refusal(topic).or_else(|| state.is_compaction().then_some(compacted));
            if let Some(reason) = reason.filter(|_| !limits.is_empty()) {
                let reason = format!("topic {topic} can have no retention of its own: {reason}");
                return Err(StoreError::Refused { reason });
            }
            check_bounds(limits, self.engine.options.retention_ms.filter(|_| !is_archived))
        })?;
        self.engine.live.note_topic_change();
        Ok(())
    }
}

/// Returns what an expiry would hide now because of the limits of topics. `older` has the messages from before the log.
pub(crate) fn due_messages(view: &dyn View, older: &OlderSlot) -> Result<Vec<ExpiredTopic>, StoreError> {
    let (end, limits) = (view.catch_up()?, view.retentions());
    let limits = limits.iter().map(|(topic, limits)| (&**topic, *limits));
    expiry_of(view, older.get().as_deref(), limits, end)
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
