//! The position of a group in a queue, by names that may be unknown. These calls assign no numbers to names.

use std::sync::Arc;

use super::log::MetaLog;
use super::progress::Progress;
use super::record::{NameId, QueueKey};
use super::state::MetaState;

/// The position of a group in a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupPosition {
    /// The group's offset: everything below it is finished, or was handed out by a broker. `None` if the group has
    /// none.
    pub offset: Option<i64>,
    /// See [`ProgressRecord::TookOver`](super::ProgressRecord::TookOver).
    pub taken_over: i64,
}

/// A queue and a group that takes its messages one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupQueue {
    /// The group.
    pub group: Arc<str>,
    /// The topic.
    pub topic: Arc<str>,
    /// The queue.
    pub queue_id: i32,
}

impl MetaState {
    /// Visits every progress of a group in a queue.
    pub fn each_progress(&self, mut visit: impl FnMut(GroupQueue, &Progress)) {
        for (queue, progress) in self.progress.iter() {
            if let (Some(group), Some(topic)) = (self.names.name(queue.group), self.names.name(queue.topic)) {
                visit(GroupQueue { group, topic, queue_id: queue.queue_id }, progress);
            }
        }
    }
}

impl MetaLog {
    /// Visits every progress of a group in a queue. No change of it is made during the visit, which must not call into the
    /// log.
    pub fn each_progress(&self, mut visit: impl FnMut(GroupQueue, &Progress)) {
        let all: Vec<_> = self.progress.read().iter().map(|(_, progress)| Arc::clone(progress)).collect();
        for progress in all.iter().filter(|progress| !progress.is_removed()) {
            let QueueKey { group, topic, queue_id } = progress.queue();
            if let (Some(group), Some(topic)) = (self.name(group), self.name(topic)) {
                visit(GroupQueue { group, topic, queue_id }, &progress.lock());
            }
        }
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
