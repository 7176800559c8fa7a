//! Changes and removals of topics, and namespaces: prefixes of the names of topics and groups.
//!
//! RocketMQ writes a namespace before a name, separated by `%`: `ns%topic`, `ns%group`, `%RETRY%ns%group`. The files
//! contain a namespace only as a part of such names. This module finds and removes the topics and groups of a namespace
//! together.
//!
//! No list, read, scan or look-up shows a removed topic, its messages or the progress of groups in it; see
//! `topic_deletion`.

use std::collections::BTreeMap;

use mqstore_format::namespace_of;

use super::topics::TopicChange;
use super::{OpenSide, Store};
use mqstore_base::error::StoreError;

/// Number of topics and groups in a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Number of topics, including those for retries and dead letters.
    pub topics: u64,
    /// Number of consumer groups.
    pub groups: u64,
}

impl Store {
    /// Changes the number of queues, the permissions, the quota or the expiry of a topic. Durable when it returns.
    ///
    /// # Errors
    /// [`StoreError::TopicNotFound`]; [`StoreError::InvalidOption`] for a value outside its bounds.
    pub fn change_topic(&self, topic: &str, change: TopicChange) -> Result<(), StoreError> {
        let writer = self.writer("change topics")?;
        writer.topics.change(topic, change)?;
        writer.refresh_quota(topic);
        writer.topics.store()?;
        if change.expire_after_ms.is_some() {
            writer.live.note_topic_change();
        }
        // A wait for the whole topic includes new queues.
        writer.queues.wake_topic(topic);
        Ok(())
    }

    /// Returns the milliseconds after which a value of the table `topic` expires; `None` if it does not. In a reader, the
    /// setting as of its last catch-up.
    ///
    /// # Errors
    /// [`StoreError::Closed`].
    pub fn expire_after_ms(&self, topic: &str) -> Result<Option<i64>, StoreError> {
        self.check()?;
        Ok(match &self.inner.side {
            OpenSide::Writer(writer, _) => writer.topics.expire_after_ms(topic),
            OpenSide::Reader(reader) => reader.expire_after_ms(topic),
        })
    }

    /// Returns the store time in milliseconds up to which values of the table `topic` have expired by now.
    ///
    /// # Errors
    /// [`StoreError::Closed`].
    pub fn expired_to_ms(&self, topic: &str) -> Result<Option<i64>, StoreError> {
        let after_ms = self.expire_after_ms(topic)?;
        Ok(after_ms.map(|after_ms| self.inner.files.clock.now_ms().saturating_sub(after_ms)))
    }

    /// Removes a topic with the committed offsets and the progress of groups in it, and the topics in which RocketMQ keeps
    /// messages that these groups popped from it. Durable when it returns.
    ///
    /// # Errors
    /// [`StoreError::TopicNotFound`]; [`StoreError::Refused`] for a system topic.
    pub fn remove_topic(&self, topic: &str) -> Result<(), StoreError> {
        let writer = self.writer("remove topics")?;
        let not_found = || StoreError::TopicNotFound { topic: topic.to_owned(), queue_id: None };
        // A deletion stops the dispatch for a moment, which a topic that does not exist is not worth.
        writer.topics.get(topic).ok_or_else(not_found)?;
        let retries = writer.pop_retry_topics(topic);
        let topics: Vec<&str> = retries.iter().map(String::as_str).chain([topic]).collect();
        let deleted = writer.delete(&topics, &[])?;
        if deleted.topics == 0 { Err(not_found()) } else { Ok(()) }
    }

    /// Returns the namespaces of all topics and groups, by name.
    pub fn namespaces(&self) -> Result<BTreeMap<String, NamespaceInfo>, StoreError> {
        let mut found: BTreeMap<String, NamespaceInfo> = BTreeMap::new();
        for topic in self.topics()? {
            if let Some(namespace) = namespace_of(&topic) {
                found.entry(namespace.to_owned()).or_default().topics += 1;
            }
        }
        for group in self.groups()? {
            if let Some(namespace) = namespace_of(&group) {
                found.entry(namespace.to_owned()).or_default().groups += 1;
            }
        }
        Ok(found)
    }

    /// Removes all topics and groups of a namespace in one step; returns their number. Durable when it returns.
    pub fn remove_namespace(&self, namespace: &str) -> Result<NamespaceInfo, StoreError> {
        let writer = self.writer("remove namespaces")?;
        let is_of_it = |name: &&String| namespace_of(name) == Some(namespace);
        let (topics, groups) = (writer.topics.names(), writer.meta.groups());
        let topics: Vec<&str> = topics.iter().filter(is_of_it).map(String::as_str).collect();
        let groups: Vec<&str> = groups.iter().filter(is_of_it).map(String::as_str).collect();
        if topics.is_empty() && groups.is_empty() {
            return Ok(NamespaceInfo::default());
        }
        writer.delete(&topics, &groups)
    }
}
