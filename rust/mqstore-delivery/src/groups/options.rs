//! Options of a consumer.

use std::time::Duration;

use mqstore_base::message::MessageFilter;
use mqstore_base::options::DamagePolicy;

/// The start of a group in a topic in which it has no offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StartOffset {
    /// At the first existing message.
    #[default]
    Earliest,
    /// After the last message.
    Latest,
    /// At the first message stored at or after this time, in epoch milliseconds.
    Time(i64),
}

/// What a consumer does if the retention deleted messages that its group has not read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LostMessagePolicy {
    /// Continues at the first existing message, with a line in the log.
    #[default]
    GoOn,
    /// Fails with [`mqstore_base::error::StoreError::OffsetOutOfRange`] until a seek or reset moves the consumer.
    Fail,
}

/// Options of a consumer.
#[derive(Clone, Debug, Default)]
pub struct ConsumerOptions {
    /// The messages that it wants; `None` means all.
    pub filter: Option<MessageFilter>,
    /// The start of a group without an offset.
    pub start: StartOffset,
    /// Whether a queue stays with this consumer while any of its messages is handed out and not committed.
    pub ordered: bool,
    /// Whether it gets the messages of all queues, independent of the other consumers of its group.
    pub broadcast: bool,
    /// The name under which the offsets of a broadcast consumer are stored; without a name they are not.
    pub name: Option<String>,
    /// Maximum age of a commit that a power loss may undo. Zero syncs each commit. `None` uses the store's interval
    /// for metadata, which also applies if it is shorter.
    pub commit_interval: Option<Duration>,
    /// What to do if the retention deleted messages that the group has not read.
    pub on_lost: LostMessagePolicy,
    /// What to do at a damaged message.
    pub on_damage: DamagePolicy,
    /// Whether each commit is also stored as a message: see [`super::OffsetHistory`].
    pub history: bool,
}
