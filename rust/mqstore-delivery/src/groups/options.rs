//! How a consumer is to behave.

use std::time::Duration;

use mqstore_base::message::MessageFilter;

/// Which messages a consumer wants; the others are passed over.
pub type Filter = MessageFilter;

/// Where a group begins in a topic in which it has no offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StartOffset {
    /// At the first message there is.
    #[default]
    Earliest,
    /// Behind the last one.
    Latest,
    /// At the first message stored at or after this time, in epoch milliseconds.
    Time(i64),
}

/// What a consumer does when messages that its group has not read were deleted by the retention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LostMessagePolicy {
    /// Goes on at the first message there is, and says so in [`super::Consumer::take_notes`].
    #[default]
    GoOn,
    /// Fails with [`mqstore_base::error::StoreError::OffsetOutOfRange`] until it is moved.
    Fail,
}

/// How a consumer behaves.
#[derive(Clone, Debug, Default)]
pub struct ConsumerOptions {
    /// Which messages it wants; `None` is all.
    pub filter: Option<Filter>,
    /// Where a group without an offset begins.
    pub start: StartOffset,
    /// Whether a queue stays with this consumer as long as one of its messages was handed out and not committed.
    pub ordered: bool,
    /// Whether it gets the messages of all queues, whatever others of its group get.
    pub broadcast: bool,
    /// Under which name a broadcast consumer's offsets are kept; without one they are not.
    pub name: Option<String>,
    /// How long a commit may be lost to a failure of power, at most; zero syncs each, `None` leaves it to the store's
    /// interval for metadata, which counts where it is shorter.
    pub commit_interval: Option<Duration>,
    /// What happens when the retention was faster than the group.
    pub on_lost: LostMessagePolicy,
    /// Whether each commit is also kept as a message: see [`super::OffsetHistory`].
    pub history: bool,
}
