//! The position of a group in a queue, by names that may be unknown. These calls assign no numbers to names.

use std::sync::Arc;

use super::log::MetaLog;
use super::progress::Progress;
use super::record::{NameId, QueueKey};
use super::state::{MetaState, QueueProgress};

/// The position of a group in a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupPosition {
    /// The group's offset: everything below it is finished, or was handed out by a broker. `None` if the group has
    /// none.
    pub offset: Option<i64>,
    /// See [`ProgressRecord::TookOver`](super::ProgressRecord::TookOver).
    pub taken_over: i64,
}

/// The progress of a group in a queue, by names.
#[derive(Clone, Debug)]
pub struct GroupProgress {
    /// The group.
    pub group: Arc<str>,
    /// The topic.
    pub topic: Arc<str>,
    /// The queue.
    pub queue_id: i32,
    /// The progress.
    pub progress: Progress,
}

impl MetaState {
    /// Returns a copy of every progress of a group in a queue.
    pub fn all_progress(&self) -> Vec<GroupProgress> {
        let of = |(queue, progress): (&QueueKey, &Progress)| {
            let (group, topic) = (self.names.name(queue.group)?, self.names.name(queue.topic)?);
            Some(GroupProgress { group, topic, queue_id: queue.queue_id, progress: progress.clone() })
        };
        self.progress.iter().filter_map(of).collect()
    }
}

impl MetaLog {
    /// Returns a copy of every progress of a group in a queue.
    pub fn all_progress(&self) -> Vec<GroupProgress> {
        let all: Vec<_> = self.progress.read().iter().map(|(_, progress)| Arc::clone(progress)).collect();
        let of = |progress: &Arc<QueueProgress>| {
            let QueueKey { group, topic, queue_id } = progress.queue();
            let (group, topic) = (self.name(group)?, self.name(topic)?);
            Some(GroupProgress { group, topic, queue_id, progress: Progress::clone(&progress.lock()) })
        };
        all.iter().filter(|progress| !progress.is_removed()).filter_map(of).collect()
    }
}

impl MetaState {
    /// Returns the position of `group` in a queue.
    pub fn position_of(&self, group: &str, topic: &str, queue_id: i32) -> GroupPosition {
        let id = |name| self.names.id(name);
        let Some(queue) = key(id(group), id(topic), queue_id) else { return GroupPosition::default() };
        let taken_over = self.progress.get(queue).map_or(0, Progress::pop_taken_over_offset);
        GroupPosition { offset: self.offset(queue), taken_over }
    }
}

impl MetaState {
    /// Returns the progress of `group` in a queue; `None` if the group has neither a progress nor an offset there.
    pub fn known_of(&self, group: &str, topic: &str, queue_id: i32) -> Option<Progress> {
        let id = |name| self.names.id(name);
        let queue = key(id(group), id(topic), queue_id)?;
        let known = self.progress.get(queue).cloned();
        known.or_else(|| self.offset(queue).map(Progress::starting_at))
    }
}

impl MetaLog {
    /// Returns the progress of `group` in a queue; `None` if the group has neither a progress nor an offset there.
    pub fn known_of(&self, group: &str, topic: &str, queue_id: i32) -> Option<Progress> {
        let id = |name| self.names.read().id(name);
        let queue = key(id(group), id(topic), queue_id)?;
        let known = self.known_progress(queue).map(|progress| Progress::clone(&progress.lock()));
        known.or_else(|| self.offset(queue).map(Progress::starting_at))
    }

    /// Returns the position of `group` in a queue.
    pub fn position_of(&self, group: &str, topic: &str, queue_id: i32) -> GroupPosition {
        let id = |name| self.names.read().id(name);
        let Some(queue) = key(id(group), id(topic), queue_id) else { return GroupPosition::default() };
        let taken_over =
            self.known_progress(queue).map_or(0, |progress| progress.lock().pop_taken_over_offset());
        GroupPosition { offset: self.offset(queue), taken_over }
    }
}

fn key(group: Option<NameId>, topic: Option<NameId>, queue_id: i32) -> Option<QueueKey> {
    Some(QueueKey { group: group?, topic: topic?, queue_id })
}
