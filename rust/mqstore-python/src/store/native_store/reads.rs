//! Reads that return an iterator: of one queue or of a whole topic, up to the end or beyond it (`follow`).

use std::sync::Arc;
use std::time::Duration;

use mqstore::Store;
use mqstore::message::MessageFilter;
use mqstore::options::DamagePolicy;
use mqstore::read::{ReadBound, TopicFollower, TopicRead};
use pyo3::prelude::*;

use super::NativeStore;
use crate::runtime::about_topic;
use crate::store::iterators::{Follow, FollowTopic, IteratorSource, MessageIterator};

/// The messages that `read` selects.
pub(super) struct Selection<'a> {
    pub(super) topic: &'a str,
    /// The queue; `None` is all queues.
    pub(super) queue_id: Option<i32>,
    pub(super) start: Option<ReadBound>,
    pub(super) end: Option<ReadBound>,
    pub(super) filter: Option<MessageFilter>,
    pub(super) on_damage: DamagePolicy,
}

impl NativeStore {
    /// Returns the iterator of `read`. `timeout` is the longest wait of one step if it follows the topic.
    pub(super) fn messages(
        slf: &Bound<'_, Self>,
        store: &Store,
        selection: Selection<'_>,
        follow: bool,
        timeout: Option<Duration>,
    ) -> PyResult<MessageIterator> {
        let py = slf.py();
        let Selection { topic, queue_id, start, end, filter, on_damage } = selection;
        let read = TopicRead { topic, queue_id, start, end, filter: filter.as_ref(), on_damage };
        let (queue_id, start, end) = match (queue_id, start, end) {
            (Some(queue_id), None | Some(ReadBound::Offset(_)), None | Some(ReadBound::Offset(_))) => {
                (queue_id, start.and_then(ReadBound::offset), end.and_then(ReadBound::offset))
            }
            _ if follow => {
                let follower = about_topic(py, store, || TopicFollower::new(store, &read))?;
                let follow = FollowTopic { follower, timeout };
                return Self::iterator(slf, IteratorSource::FollowTopic(Box::new(follow)));
            }
            _ => {
                let cursor = about_topic(py, store, || store.read_topic(&read))?;
                return Self::iterator(slf, IteratorSource::Topic(Box::new(cursor)));
            }
        };
        let cursor = about_topic(py, store, || store.read(topic, queue_id, start, end, filter.as_ref()))?;
        let cursor = cursor.on_damage(on_damage);
        if !follow {
            return Self::iterator(slf, IteratorSource::Queue(Box::new(cursor)));
        }
        let next = cursor.position();
        let topic = topic.to_owned();
        let follow = Follow {
            topic,
            queue_id,
            filter,
            on_damage,
            end,
            timeout,
            next,
            cursor: Some(cursor),
            waited: false,
        };
        Self::iterator(slf, IteratorSource::Follow(Box::new(follow)))
    }

    /// Returns an iterator of the messages of `source`.
    pub(super) fn iterator(slf: &Bound<'_, Self>, source: IteratorSource) -> PyResult<MessageIterator> {
        let shared = &slf.get().shared;
        shared.say_notes(slf.py())?;
        Ok(MessageIterator::new(slf.clone().unbind(), Arc::clone(shared), source))
    }
}
