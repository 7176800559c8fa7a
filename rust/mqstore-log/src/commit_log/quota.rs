//! How many messages a topic may hold, and how many bytes the log.
//!
//! Owns [`Room`], one of each topic, and the question whether the log may have another segment. Both are asked under the
//! put lock, before anything has its place: whatever threads append, no quota is ever exceeded, and what is refused is
//! refused whole. A topic without a quota costs one look at a number that nobody changes.
//!
//! Nothing on disk, and nothing to recover: what a topic holds are the offsets of its queues, and the bytes of the log
//! are those of its segments.

use mqstore_io::sync::{Arc, AtomicI64, AtomicU64, Ordering, Raise};

/// What one topic may hold, and what it holds.
///
/// In a cache line of its own: appends look at it, and what lies beside it changes.
#[derive(Debug)]
#[repr(align(64))]
pub struct TopicQuotaState {
    topic: Arc<str>,
    /// The quota in messages; 0 for none.
    limit: AtomicU64,
    /// The next offsets of all queues together, kept where there is a quota. Changes under the put lock.
    drawn: AtomicI64,
    /// Their first offsets together, as somebody saw them last.
    freed: AtomicU64,
    /// What the append wants that has the put lock.
    wanted: AtomicI64,
}

impl TopicQuotaState {
    /// Of a topic without a quota.
    pub fn new(topic: &Arc<str>) -> Self {
        Self {
            topic: Arc::clone(topic),
            limit: AtomicU64::new(0),
            drawn: AtomicI64::new(0),
            freed: AtomicU64::new(0),
            wanted: AtomicI64::new(0),
        }
    }

    /// The topic.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The quota, in messages.
    #[inline]
    pub fn limit(&self) -> Option<u64> {
        Some(self.limit.load(Ordering::Relaxed)).filter(|limit| *limit > 0)
    }

    /// Sets the quota of a topic whose queues go on at offsets that are `drawn` together. Nobody may append meanwhile:
    /// see [`CommitLog::block_appends`].
    pub fn set(&self, limit: Option<u64>, drawn: i64) {
        self.drawn.store(drawn, Ordering::Relaxed);
        self.limit.store(limit.unwrap_or(0), Ordering::Relaxed);
    }

    /// Takes note of the first offsets of all queues together; whether there is more room than was known.
    pub fn free(&self, freed: u64) -> bool {
        let before = self.freed.load(Ordering::Acquire);
        self.freed.raise(freed, Ordering::AcqRel);
        freed > before
    }

    pub(super) fn used(&self) -> i64 {
        self.drawn.load(Ordering::Relaxed).saturating_sub_unsigned(self.freed.load(Ordering::Acquire))
    }

    /// Asks for room for more messages of this append; whether it is there.
    pub(super) fn request_messages(&self, messages: i64, limit: u64) -> bool {
        let wanted = self.wanted.load(Ordering::Relaxed) + messages;
        self.wanted.store(wanted, Ordering::Relaxed);
        i128::from(self.used()) + i128::from(wanted) <= i128::from(limit)
    }

    /// Forgets what [`Self::request_messages`] asked for.
    pub(super) fn end_request(&self) {
        self.wanted.store(0, Ordering::Relaxed);
    }

    /// Takes note that messages got their offsets.
    #[inline]
    pub(super) fn draw(&self, messages: u16) {
        if self.limit().is_some() {
            let drawn = self.drawn.load(Ordering::Relaxed);
            self.drawn.store(drawn + i64::from(messages), Ordering::Relaxed);
        }
    }
}
