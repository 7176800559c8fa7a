//! Topics and consumer groups: their settings, and namespaces.

use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::topic_floors::FloorTable;
use mqstore_meta::MetaLog;

use super::Store;
use super::settings::Settings;
use super::topic_deletion::Namespaces;
use crate::engine::topics::TopicChange;
use crate::read::group_offsets::GroupTable;

impl Store {
    /// Makes a topic with `queues` queues (1 to 65,536), or adds queues to a topic that has fewer. Durable when it
    /// returns. `attributes` apply to a new topic only.
    pub fn create_topic(
        &self,
        topic: &str,
        queues: u32,
        attributes: &[(String, String)],
    ) -> Result<(), StoreError> {
        let engine = self.engine("make topics")?;
        engine.topics.create(topic, queues, attributes)?;
        engine.refresh_quota(topic);
        engine.topics.store()?;
        // Readers find a topic without messages only in the list of topics.
        engine.live.note_topic_change();
        // A wait for the whole topic includes new queues.
        engine.queues.wake_topic(topic);
        Ok(())
    }

    /// Makes a topic like an append to it, unless the topic exists.
    ///
    /// # Errors
    /// [`StoreError::TopicNotFound`] if `auto_create_topics` is off.
    pub fn make_topic(&self, topic: &str) -> Result<(), StoreError> {
        self.engine("make topics")?.make_missing(topic)
    }

    /// Changes the number of queues, the permissions, the quota or the expiry of a topic. Durable when it returns.
    ///
    /// # Errors
    /// [`StoreError::TopicNotFound`]; [`StoreError::InvalidOption`] for a value outside its bounds.
    pub fn change_topic(&self, topic: &str, change: TopicChange) -> Result<(), StoreError> {
        let engine = self.engine("change topics")?;
        engine.topics.change(topic, change)?;
        engine.refresh_quota(topic);
        engine.topics.store()?;
        engine.live.note_topic_change();
        // A wait for the whole topic includes new queues.
        engine.queues.wake_topic(topic);
        Ok(())
    }

    /// Removes a topic with the committed offsets and the progress of groups in it, and the topics in which RocketMQ
    /// keeps messages that these groups popped from it. Durable when it returns.
    ///
    /// # Errors
    /// [`StoreError::TopicNotFound`]; [`StoreError::Refused`] for a system topic.
    pub fn remove_topic(&self, topic: &str) -> Result<(), StoreError> {
        self.writer("remove topics")?.remove_topic(topic)
    }

    /// Returns the floors of deleted topics, which hide their records.
    pub fn floors(&self) -> Arc<FloorTable> {
        self.view().floors()
    }

    /// Returns the milliseconds after which a value of the table `topic` expires; `None` if it does not. In a reader,
    /// the setting as of its last catch-up.
    ///
    /// # Errors
    /// [`StoreError::Closed`].
    pub fn expire_after_ms(&self, topic: &str) -> Result<Option<i64>, StoreError> {
        Ok(self.usable_view()?.expire_after_ms(topic))
    }

    /// Returns the store time in milliseconds up to which values of the table `topic` have expired by now.
    ///
    /// # Errors
    /// [`StoreError::Closed`].
    pub fn expired_to_ms(&self, topic: &str) -> Result<Option<i64>, StoreError> {
        let after_ms = self.expire_after_ms(topic)?;
        Ok(after_ms.map(|after_ms| self.inner.files.clock.now_ms().saturating_sub(after_ms)))
    }

    /// Returns the consumer groups.
    ///
    /// # Errors
    /// [`StoreError::Closed`].
    pub fn group_table(&self) -> Result<GroupTable<'_>, StoreError> {
        Ok(GroupTable::new(self.usable_view()?, self.writing_engine().map(|engine| &**engine)))
    }

    /// Returns the metadata of the store: topics, groups, committed offsets, progress of groups in queues.
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`] and [`StoreError::Closed`].
    pub fn meta(&self) -> Result<Arc<MetaLog>, StoreError> {
        Ok(Arc::clone(&self.engine("change topics, groups or transactions")?.meta))
    }

    /// Returns the settings of topics and groups.
    pub fn settings(&self) -> Settings<'_> {
        Settings(self)
    }

    /// Returns the namespaces of topics and groups.
    pub fn namespaces(&self) -> Namespaces<'_> {
        Namespaces(self)
    }
}
