//! The quotas: maximum messages of a topic, and maximum bytes of the log.
//!
//! This module owns [`TopicQuotaState`], one for each topic, and the check of `max_bytes`. Both checks run under the put
//! lock, before a record gets its offsets. So no quota is ever exceeded, whatever threads append, and an append
//! is refused as a whole. For a topic without a quota, the check is one read of a constant.
//!
//! Nothing is on disk, so nothing needs recovery: the message count of a topic follows from the offsets of its queues,
//! and the bytes of the log from its segments.

use std::path::Path;

use mqstore_io::sync::{Arc, AtomicI64, AtomicU64, Ordering, Raise};

use mqstore_base::error::StoreError;

/// Checks that the quota of the log at `root` allows `more` bytes of segments than the `used` ones.
pub(super) fn check_max_bytes(root: &Path, limit: u64, used: u64, more: u64) -> Result<(), StoreError> {
    if used.saturating_add(more) <= limit {
        return Ok(());
    }
    Err(StoreError::Full { path: root.to_path_buf(), topic: None, quota: "max_bytes", limit, used })
}

/// The quota of one topic, and its use.
///
/// It has its own cache line: appends read it, and neighbouring fields change.
#[derive(Debug)]
#[repr(align(64))]
pub struct TopicQuotaState {
    topic: Arc<str>,
    /// Quota in messages; 0 for none, [`CLOSED`] for a deleted topic.
    limit: AtomicU64,
    /// Sum of the next offsets of all queues, kept only with a quota. Changes under the put lock.
    drawn: AtomicI64,
    /// Sum of the minimum offsets of all queues, as last reported.
    freed: AtomicU64,
    /// Messages that the append under the put lock requests.
    wanted: AtomicI64,
}

/// The limit of a topic that accepts no messages, because it was deleted.
const CLOSED: u64 = u64::MAX;

impl TopicQuotaState {
    /// Creates the state of a topic without a quota.
    pub fn new(topic: &Arc<str>) -> Self {
        Self {
            topic: Arc::clone(topic),
            limit: AtomicU64::new(0),
            drawn: AtomicI64::new(0),
            freed: AtomicU64::new(0),
            wanted: AtomicI64::new(0),
        }
    }

    /// Name of the topic.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Quota in messages.
    #[inline]
    pub fn limit(&self) -> Option<u64> {
        Some(self.limit.load(Ordering::Relaxed)).filter(|limit| *limit > 0 && *limit != CLOSED)
    }

    /// Whether appends need no further check.
    #[inline]
    pub(super) fn is_unlimited(&self) -> bool {
        self.limit.load(Ordering::Relaxed) == 0
    }

    /// Whether the topic was deleted.
    pub(super) fn is_closed(&self) -> bool {
        self.limit.load(Ordering::Relaxed) == CLOSED
    }

    /// Refuses all further appends, also those that have chosen the topic already. Returns the quota for
    /// [`Self::reopen`]. No append may run meanwhile, as for [`Self::set`].
    pub fn close(&self) -> Option<u64> {
        let before = self.limit();
        self.limit.store(CLOSED, Ordering::Relaxed);
        before
    }

    /// Ends [`Self::close`].
    pub fn reopen(&self, limit: Option<u64>) {
        self.limit.store(limit.unwrap_or(0), Ordering::Relaxed);
    }

    /// Sets the quota of a topic. `drawn` is the sum of the next offsets of its queues. No append may run meanwhile:
    /// see [`super::CommitLog::block_appends`].
    pub fn set(&self, limit: Option<u64>, drawn: i64) {
        self.drawn.store(drawn, Ordering::Relaxed);
        self.limit.store(limit.unwrap_or(0), Ordering::Relaxed);
    }

    /// Reports the sum of the minimum offsets of all queues. Returns whether it frees messages of the quota.
    pub fn free(&self, freed: u64) -> bool {
        let before = self.freed.load(Ordering::Acquire);
        self.freed.raise(freed, Ordering::AcqRel);
        freed > before
    }

    pub(super) fn used(&self) -> i64 {
        self.drawn.load(Ordering::Relaxed).saturating_sub_unsigned(self.freed.load(Ordering::Acquire))
    }

    /// Requests `messages` more for the current append. Returns whether the quota allows all of its requests.
    pub(super) fn request_messages(&self, messages: i64, limit: u64) -> bool {
        let wanted = self.wanted.load(Ordering::Relaxed) + messages;
        self.wanted.store(wanted, Ordering::Relaxed);
        i128::from(self.used()) + i128::from(wanted) <= i128::from(limit)
    }

    /// Clears the requests of [`Self::request_messages`].
    pub(super) fn end_request(&self) {
        self.wanted.store(0, Ordering::Relaxed);
    }

    /// Counts messages that got their offsets.
    #[inline]
    pub(super) fn draw(&self, messages: u16) {
        if self.limit().is_some() {
            let drawn = self.drawn.load(Ordering::Relaxed);
            self.drawn.store(drawn + i64::from(messages), Ordering::Relaxed);
        }
    }
}
