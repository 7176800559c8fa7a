//! Deletion of topics, and of all topics and groups in a namespace.
//!
//! RocketMQ writes a namespace before a name, separated by `%`: `ns%topic`, `ns%group`, `%RETRY%ns%group`. The files
//! contain a namespace only as a part of such names.
//!
//! A deleted topic gets a floor ([`mqstore_base::topic_floors`]): its records before the end of the log are hidden from
//! then on, and a later topic of the same name continues at new queue offsets. The log keeps the records until their
//! segments go.
//!
//! Across a crash: the log is synced up to the floor, then the floor is synced with the removal of the topic, and only
//! then the queue files go. An open removes the files that a stop left. So a topic is either complete or deleted.
//!
//! Across threads: no dispatch run and no flush is in progress meanwhile. An append that has chosen the topic already
//! is either before the floor or fails with [`StoreError::TopicNotFound`]. A message that was accepted before the
//! floor, and waits for its time or for a decision, never comes: see [`crate::SystemAppends::without_deletions`].

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use mqstore_format::topic::{RETRY_TOPIC_PREFIX, is_system_topic};
use mqstore_format::{CQ_UNIT_BYTES, namespace_of};

use super::Store;
use super::writer::Writer;
use mqstore_base::error::StoreError;
use mqstore_compaction::{JobControl, remove_topic};
use mqstore_io::sync::Arc;

/// Number of topics and groups in a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceInfo {
    /// Number of topics, including those for retries and dead letters.
    pub topics: u64,
    /// Number of consumer groups.
    pub groups: u64,
}

impl Writer {
    /// See [`crate::Store::remove_topic`].
    pub(crate) fn remove_topic(&self, topic: &str) -> Result<(), StoreError> {
        let not_found = || StoreError::TopicNotFound { topic: topic.to_owned(), queue_id: None };
        // A deletion stops the dispatch for a moment, which a topic that does not exist is not worth.
        self.engine.topics.get(topic).ok_or_else(not_found)?;
        let retries = self.pop_retry_topics(topic);
        let topics: Vec<&str> = retries.iter().map(String::as_str).chain([topic]).collect();
        let deleted = self.delete(&topics, &[])?;
        if deleted.topics == 0 { Err(not_found()) } else { Ok(()) }
    }

    /// See [`Namespaces::remove`].
    pub(crate) fn remove_namespace(&self, namespace: &str) -> Result<NamespaceInfo, StoreError> {
        let is_of_it = |name: &&String| namespace_of(name) == Some(namespace);
        let (topics, groups) = (self.engine.topics.names(), self.engine.meta.groups());
        let topics: Vec<&str> = topics.iter().filter(is_of_it).map(String::as_str).collect();
        let groups: Vec<&str> = groups.iter().filter(is_of_it).map(String::as_str).collect();
        if topics.is_empty() && groups.is_empty() {
            return Ok(NamespaceInfo::default());
        }
        self.delete(&topics, &groups)
    }

    /// Deletes those topics and groups that exist, all of them or none. Returns how many it deleted: another thread may
    /// have deleted some of them meanwhile. Durable when it returns.
    ///
    /// # Errors
    /// [`StoreError::Refused`] for a system topic; [`StoreError::Busy`] for a compaction topic during a compaction.
    fn delete(&self, topics: &[&str], groups: &[&str]) -> Result<NamespaceInfo, StoreError> {
        if let Some(topic) = topics.iter().find(|topic| is_system_topic(topic)) {
            let reason = format!(
                "cannot delete topic {topic}: the store or a broker keeps delayed messages, transactions or its own \
                 state in it"
            );
            return Err(StoreError::Refused { reason });
        }
        let compacted = self.engine.topics.compaction_topics();
        if topics.iter().any(|topic| compacted.iter().any(|(known, _)| known == topic)) {
            let control = Arc::new(JobControl::default());
            return self
                .compactions
                .with_compaction_lock(&control, || self.delete_with_floors(topics, groups));
        }
        self.delete_with_floors(topics, groups)
    }

    /// Returns the topics that a broker made for messages of `topic` that groups popped and did not acknowledge in time.
    /// Their messages would come back in a new topic of the name. Source: `AdminBrokerProcessor#deleteTopic`,
    /// `KeyBuilder#buildPopRetryTopicV1`, `#buildPopRetryTopicV2`.
    fn pop_retry_topics(&self, topic: &str) -> Vec<String> {
        let mut retries = self.engine.topics.names();
        retries.retain(|name| {
            let group = name.strip_prefix(RETRY_TOPIC_PREFIX).and_then(|rest| rest.strip_suffix(topic));
            group
                .and_then(|group| group.strip_suffix(['_', '+']))
                .is_some_and(|group| self.engine.meta.has_offset(group, topic))
        });
        retries
    }

    fn delete_with_floors(&self, topics: &[&str], groups: &[&str]) -> Result<NamespaceInfo, StoreError> {
        let _no_delivery = self.engine.topics.deletions().write();
        // The pause is short if little is left to sync.
        self.engine.flusher.flush_all(false)?;
        let units_per_file = (self.engine.queues.file_bytes() / CQ_UNIT_BYTES as u64) as i64;
        let deleted = self.engine.flusher.run_while_idle(|| {
            self.engine.dispatcher.run_while_paused(|_| {
                let (floors, groups) =
                    self.engine.topics.delete(topics, groups, &self.engine.log, units_per_file)?;
                self.engine.dispatcher.rules().floors.set(floors.clone());
                self.engine.live.note_topic_change();
                for (topic, _) in &floors {
                    self.engine.queues.remove_deleted(topic)?;
                    self.engine.dispatcher.rules().batch_topics.remove(topic);
                    remove_topic(&self.engine.files, topic)?;
                }
                Ok::<_, StoreError>(NamespaceInfo { topics: floors.len() as u64, groups: groups as u64 })
            })
        })?;
        self.engine.dispatcher.rules().floors.count_change();
        // The manifest lists queues that are gone.
        self.engine.flusher.set_manifest_len(usize::MAX);
        self.engine.flusher.flush_all(false)?;
        Ok(deleted)
    }
}

/// The namespaces of a store; from [`Store::namespaces`].
#[derive(Clone, Copy)]
pub struct Namespaces<'a>(pub(super) &'a Store);

impl Namespaces<'_> {
    /// Returns the namespaces of all topics and groups, by name.
    pub fn list(&self) -> Result<BTreeMap<String, NamespaceInfo>, StoreError> {
        let mut found: BTreeMap<String, NamespaceInfo> = BTreeMap::new();
        for topic in self.0.topics()? {
            if let Some(namespace) = namespace_of(&topic) {
                found.entry(namespace.to_owned()).or_default().topics += 1;
            }
        }
        for group in self.0.group_table()?.names() {
            if let Some(namespace) = namespace_of(&group) {
                found.entry(namespace.to_owned()).or_default().groups += 1;
            }
        }
        Ok(found)
    }

    /// Removes all topics and groups of a namespace in one step; returns their number. Durable when it returns.
    pub fn remove(&self, namespace: &str) -> Result<NamespaceInfo, StoreError> {
        self.0.writer("remove namespaces")?.remove_namespace(namespace)
    }
}
