//! What the metadata log is made of: names, changes of offsets, records.

use super::progress::ProgressRecord;

/// The number that stands for a topic's or a group's name in one store. Given once and never to another name while
/// the store is open; not to be kept across an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameId(pub(super) u32);

/// A place in the metadata log: everything appended before it is durable once it is. Grows with each append.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(pub(super) u64);

/// One queue of a topic, as a group sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueKey {
    /// The group.
    pub group: NameId,
    /// The topic.
    pub topic: NameId,
    /// The queue.
    pub queue_id: i32,
}

/// The next offset that a group consumes from a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffsetChange {
    /// Whose offset, of which queue.
    pub queue: QueueKey,
    /// The offset, at least 0. One that is smaller than before is stored as well.
    pub offset: i64,
}

/// One record of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetaRecord<'a> {
    /// From here on `id` stands for `name`.
    Name { id: NameId, name: &'a str },
    /// The topic has this configuration.
    Topic { topic: NameId, config: &'a [u8] },
    /// There is no such topic any more; the offsets and the progress of all groups in it are forgotten.
    TopicRemoved { topic: NameId },
    /// The group has this configuration.
    Group { group: NameId, config: &'a [u8] },
    /// There is no such group any more; its offsets and its progress are forgotten.
    GroupRemoved { group: NameId },
    /// A group's next offset.
    Offset(OffsetChange),
    /// A change of what a group knows of a queue.
    Progress { queue: QueueKey, record: ProgressRecord },
}
