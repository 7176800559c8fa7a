//! Settings of topics and groups that an export takes along: queue counts, permissions, attributes, quotas, and the
//! configurations of consumer groups.
//!
//! The target gets a topic in two steps. [`Settings::make_topic_of`] creates it before its first message, so that its
//! kind is right. [`Settings::adopt_topic`] sets the rest after the last message: permissions and a quota can refuse
//! appends. Topics and groups that the target has already keep their settings.

use std::collections::BTreeSet;

use mqstore_format::json::{SubscriptionGroup, TopicConfig};
use mqstore_format::{validate_group, validate_topic};

use super::quota::{TopicQuota, quotas};
use super::{OpenSide, Store};
use crate::engine::topics::load_listed;
use mqstore_base::error::StoreError;

/// The settings of a store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoreSettings {
    /// The topics that have a configuration, sorted by name.
    pub topics: Vec<TopicConfig>,
    /// The groups that have a configuration, sorted by name.
    pub groups: Vec<SubscriptionGroup>,
}

impl StoreSettings {
    /// Removes the topics and groups that [`Self::check`] refuses. Only programs without its rules made them.
    pub fn keep_valid(&mut self) {
        self.topics.retain(|topic| check_topic(topic).is_ok());
        self.groups.retain(|group| validate_group(&group.name).is_ok());
    }

    /// Checks settings from a file.
    ///
    /// # Errors
    /// [`StoreError::InvalidMessage`] for a name or a number that is not valid.
    pub fn check(&self) -> Result<(), StoreError> {
        self.topics.iter().try_for_each(check_topic)?;
        let named = self.groups.iter().try_for_each(|group| validate_group(&group.name));
        named.map_err(|error| StoreError::InvalidMessage { reason: error.to_string() })
    }
}

fn check_topic(topic: &TopicConfig) -> Result<(), StoreError> {
    validate_topic(&topic.name).map_err(|error| StoreError::invalid_message(&error))?;
    let counts = [topic.read_queues, topic.write_queues];
    if counts.iter().all(|count| (0..=65_536).contains(count)) && (0..16).contains(&topic.perm) {
        return Ok(());
    }
    let reason = format!(
        "topic {}: queue counts must be at most 65536, and perm 0 to 15; it has {counts:?} and {}",
        topic.name, topic.perm
    );
    Err(StoreError::InvalidMessage { reason })
}

/// The settings of topics and groups, for a program that takes them along; from [`Store::settings`].
#[derive(Clone, Copy)]
pub struct Settings<'a>(pub(super) &'a Store);

impl Settings<'_> {
    /// Returns the settings of all topics and groups; in a reader those that the last writer wrote to the disk.
    pub fn all(&self) -> Result<StoreSettings, StoreError> {
        self.0.check()?;
        Ok(match &self.0.inner.side {
            OpenSide::Writer(writer, _) => {
                writer.engine.topics.store()?;
                let groups = writer.engine.meta.groups();
                let groups = groups.iter().filter_map(|name| writer.engine.meta.group(name));
                StoreSettings {
                    topics: writer.engine.meta.topics().iter().map(|topic| (**topic).clone()).collect(),
                    groups: groups.map(|group| (*group).clone()).collect(),
                }
            }
            OpenSide::Reader(_) => {
                let listed = load_listed(&self.0.inner.files, &mut Vec::new());
                StoreSettings {
                    topics: listed.table.topics.into_values().collect(),
                    groups: listed.group_configs.into_values().collect(),
                }
            }
        })
    }

    /// Returns the removed topics whose messages may still be in the log. Only for a store that is open for reading.
    pub fn removed_topics(&self) -> BTreeSet<String> {
        match &self.0.inner.side {
            OpenSide::Writer(..) => BTreeSet::new(),
            OpenSide::Reader(reader) => reader.removed_topics(),
        }
    }

    /// Creates a topic with the queues and attributes of `config`, except its quota, its expiry and its permissions.
    /// Returns whether it did; an existing topic stays unchanged.
    ///
    /// # Errors
    /// Those of [`Store::create_topic`].
    pub fn make_topic_of(&self, config: &TopicConfig) -> Result<bool, StoreError> {
        if !self.0.queue_ids(&config.name)?.is_empty() {
            return Ok(false);
        }
        let attributes: Vec<_> = config.attributes.clone().into_iter().collect();
        let later = [TopicConfig::MAX_MESSAGES, TopicConfig::EXPIRE_AFTER];
        let kept: Vec<_> =
            attributes.into_iter().filter(|(name, _)| !later.contains(&name.as_str())).collect();
        let queues = config.read_queues.max(config.write_queues).clamp(1, 65_536) as u32;
        self.0.create_topic(&config.name, queues, &kept)?;
        Ok(true)
    }

    /// Gives an existing topic all settings of `config`. Durable when it returns.
    ///
    /// # Errors
    /// [`StoreError::TopicNotFound`], and errors of the metadata log.
    pub fn adopt_topic(&self, config: &TopicConfig) -> Result<(), StoreError> {
        let engine = self.0.engine("change topics")?;
        engine.topics.replace(config)?;
        engine.refresh_quota(&config.name);
        engine.topics.store()?;
        if config.expire_after_ms().is_some() {
            engine.live.note_topic_change();
        }
        Ok(())
    }

    /// Creates the groups that do not exist. Durable when it returns.
    ///
    /// # Errors
    /// Errors of the metadata log.
    pub fn adopt_groups(&self, groups: &[SubscriptionGroup]) -> Result<(), StoreError> {
        let meta = self.0.meta()?;
        let mut last = None;
        for group in groups {
            last = Some(meta.create_group(group)?);
        }
        last.map_or(Ok(()), |place| meta.sync(place))
    }

    /// Returns the topics that have a quota, sorted by name.
    pub fn quotas(&self) -> Result<Vec<TopicQuota>, StoreError> {
        quotas(&*self.0.usable_view()?)
    }
}
