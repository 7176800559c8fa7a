//! Deletion of topics.
//!
//! A deleted topic gets a floor ([`mqstore_base::topic_floors`]): its records before the end of the log are hidden from
//! then on, and a later topic of the same name continues at new queue offsets. The log keeps the records until their
//! segments go.
//!
//! Across a crash: the log is synced up to the floor, then the floor is synced with the removal of the topic, and only
//! then the queue files go. An open removes the files that a stop left. So a topic is either complete or deleted.
//!
//! Across threads: no dispatch run and no flush is in progress meanwhile. An append that has chosen the topic already is
//! either before the floor or fails with [`StoreError::TopicNotFound`]. A message that was accepted before the floor, and
//! waits for its time or for a decision, never comes: see [`Store::without_deletions`].

use mqstore_format::CQ_UNIT_BYTES;
use mqstore_format::topic::{RETRY_TOPIC_PREFIX, is_system_topic};

use super::namespaces::NamespaceInfo;
use crate::Store;
use crate::store::OpenSide;
use crate::write::writer::Writer;
use mqstore_base::error::StoreError;
use mqstore_compaction::{JobControl, remove_topic};
use mqstore_io::sync::Arc;

impl Writer {
    /// Deletes those topics and groups that exist, all of them or none. Returns how many it deleted: another thread may
    /// have deleted some of them meanwhile. Durable when it returns.
    ///
    /// # Errors
    /// [`StoreError::Refused`] for a system topic; [`StoreError::Busy`] for a compaction topic during a compaction.
    pub(crate) fn delete(&self, topics: &[&str], groups: &[&str]) -> Result<NamespaceInfo, StoreError> {
        if let Some(topic) = topics.iter().find(|topic| is_system_topic(topic)) {
            let reason = format!(
                "cannot delete topic {topic}: the store or a broker keeps delayed messages, transactions or its own \
                 state in it"
            );
            return Err(StoreError::Refused { reason });
        }
        let compacted = self.topics.compaction_topics();
        if topics.iter().any(|topic| compacted.iter().any(|(known, _)| known == topic)) {
            let control = Arc::new(JobControl::default());
            return self.with_compaction_lock(&control, || self.delete_with_floors(topics, groups));
        }
        self.delete_with_floors(topics, groups)
    }

    /// Returns the topics that a broker made for messages of `topic` that groups popped and did not acknowledge in time.
    /// Their messages would come back in a new topic of the name. Source: `AdminBrokerProcessor#deleteTopic`,
    /// `KeyBuilder#buildPopRetryTopicV1`, `#buildPopRetryTopicV2`.
    pub(crate) fn pop_retry_topics(&self, topic: &str) -> Vec<String> {
        let mut retries = self.topics.names();
        retries.retain(|name| {
            let group = name.strip_prefix(RETRY_TOPIC_PREFIX).and_then(|rest| rest.strip_suffix(topic));
            group
                .and_then(|group| group.strip_suffix(['_', '+']))
                .is_some_and(|group| self.meta.has_offset(group, topic))
        });
        retries
    }

    fn delete_with_floors(&self, topics: &[&str], groups: &[&str]) -> Result<NamespaceInfo, StoreError> {
        let _no_delivery = self.topics.deletions().write();
        // The pause is short if little is left to sync.
        self.flusher.flush_all(false)?;
        let units_per_file = (self.queues.file_bytes() / CQ_UNIT_BYTES as u64) as i64;
        let deleted = self.flusher.run_while_idle(|| {
            self.dispatcher.run_while_paused(|_| {
                let (floors, groups) = self.topics.delete(topics, groups, &self.log, units_per_file)?;
                self.dispatcher.rules().floors.set(floors.clone());
                self.live.note_topic_change();
                for (topic, _) in &floors {
                    self.queues.remove_deleted(topic)?;
                    self.dispatcher.rules().batch_topics.remove(topic);
                    remove_topic(&self.files, topic)?;
                }
                Ok::<_, StoreError>(NamespaceInfo { topics: floors.len() as u64, groups: groups as u64 })
            })
        })?;
        self.dispatcher.rules().floors.count_change();
        // The manifest lists queues that are gone.
        self.flusher.set_manifest_len(usize::MAX);
        self.flusher.flush_all(false)?;
        Ok(deleted)
    }
}

impl Store {
    /// Whether the topic was deleted after log offset `accepted`, at which the store accepted a message for it: it does not
    /// exist, or it was created again since. A new topic has none of the old messages.
    ///
    /// # Errors
    /// [`StoreError::Closed`].
    pub fn is_deleted_since(&self, topic: &str, accepted: u64) -> Result<bool, StoreError> {
        self.check()?;
        let is_removed = match &self.inner.side {
            OpenSide::Writer(writer, _) => writer.topics.is_removed(topic),
            OpenSide::Reader(reader) => reader.is_removed(topic),
        };
        Ok(is_removed || accepted < self.floors().deleted(topic))
    }

    /// Calls `append`, and lets no topic be deleted until it returns, so that an answer of [`Self::is_deleted_since`] stays
    /// right. `append` must not delete a topic.
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`] and [`StoreError::Closed`].
    pub fn without_deletions<T>(&self, append: impl FnOnce() -> T) -> Result<T, StoreError> {
        let writer = self.writer("append")?;
        let _no_deletion = writer.topics.deletions().read();
        Ok(append())
    }
}
