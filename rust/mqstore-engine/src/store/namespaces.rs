//! Changing and removing topics, and namespaces, which are a part of the names of topics and groups.
//!
//! RocketMQ writes a namespace in front of a name, with `%` between: `ns%topic`, `ns%group`, `%RETRY%ns%group`. The name
//! is all that the files have of it; here the topics and groups of one are found and removed together.
//!
//! A topic that is removed is not shown any more, by nobody, and neither is what groups know of it. Its records stay in
//! the log until they expire: [`Store::open_log`] scans them, and who has a message's id gets it. A topic of that name
//! that is made later goes on behind them.

use std::collections::BTreeMap;

use mqstore_format::namespace_of;

use super::Store;
use super::topics::TopicChange;
use mqstore_base::error::StoreError;

/// How much of a namespace there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Topics, those of retries and dead letters included.
    pub topics: u64,
    /// Consumer groups.
    pub groups: u64,
}

impl Store {
    /// Makes a topic different: how many queues appends and readers use, who may. Durable when it returns.
    ///
    /// # Errors
    /// [`StoreError::TopicNotFound`], [`StoreError::InvalidOption`] for a value out of its bounds.
    pub fn change_topic(&self, topic: &str, change: TopicChange) -> Result<(), StoreError> {
        let writer = self.writer("change topics")?;
        writer.topics.change(topic, change)?;
        writer.refresh_quota(topic);
        writer.topics.store()
    }

    /// Removes a topic, with the offsets and the progress of groups in it. Durable when it returns.
    ///
    /// # Errors
    /// [`StoreError::TopicNotFound`].
    pub fn remove_topic(&self, topic: &str) -> Result<(), StoreError> {
        let writer = self.writer("remove topics")?;
        if writer.topics.get(topic).is_none() {
            return Err(StoreError::TopicNotFound { topic: topic.to_owned(), queue_id: None });
        }
        writer.topics.remove(&[topic], &[])
    }

    /// The namespaces that topics and groups are in, by name.
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

    /// Removes all topics and groups of a namespace, in one step; how many there were. Durable when it returns.
    pub fn remove_namespace(&self, namespace: &str) -> Result<NamespaceInfo, StoreError> {
        let writer = self.writer("remove namespaces")?;
        let is_of_it = |name: &&String| namespace_of(name) == Some(namespace);
        let (topics, groups) = (writer.topics.names(), writer.meta.groups());
        let topics: Vec<&str> = topics.iter().filter(is_of_it).map(String::as_str).collect();
        let groups: Vec<&str> = groups.iter().filter(is_of_it).map(String::as_str).collect();
        if !topics.is_empty() || !groups.is_empty() {
            writer.topics.remove(&topics, &groups)?;
        }
        Ok(NamespaceInfo { topics: topics.len() as u64, groups: groups.len() as u64 })
    }
}
