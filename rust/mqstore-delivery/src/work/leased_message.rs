//! A leased message and its lease.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use mqstore_base::message::StoredRecord;
use mqstore_base::notes::Notes;
use mqstore_io::sync::{AtomicBool, AtomicI64, Ordering};

use super::inner::WorkQueueInner;
use super::source::QueuePlace;

/// The right to finish a message, until the lease ends and another worker gets the message.
#[derive(Clone)]
pub struct Lease {
    pub(super) core: Arc<WorkQueueInner>,
    pub(super) place: Arc<QueuePlace>,
    pub(super) offset: i64,
    pub(super) attempt: u32,
    pub(super) token: u64,
    shared: Arc<LeaseState>,
}

/// The state that the copies of a lease share.
struct LeaseState {
    invisible_until_ms: AtomicI64,
    /// Whether the caller acknowledged or returned the message.
    is_settled: AtomicBool,
}

impl Lease {
    pub(super) fn new(core: &Arc<WorkQueueInner>, place: &Arc<QueuePlace>, held: LeaseNumbers) -> Self {
        let LeaseNumbers { offset, attempt, token, invisible_until_ms } = held;
        Self {
            core: Arc::clone(core),
            place: Arc::clone(place),
            offset,
            attempt,
            token,
            shared: Arc::new(LeaseState {
                invisible_until_ms: invisible_until_ms.into(),
                is_settled: false.into(),
            }),
        }
    }

    /// Returns the number of the delivery; 1 is the first.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns the end of the lease, in epoch milliseconds.
    pub fn invisible_until_ms(&self) -> i64 {
        self.shared.invisible_until_ms.load(Ordering::Relaxed)
    }

    /// Whether the caller acknowledged or returned the message with this lease.
    pub fn is_settled(&self) -> bool {
        self.shared.is_settled.load(Ordering::Acquire)
    }

    /// Returns the notes of the store for the user.
    pub fn user_notes(&self) -> &Notes {
        self.core.store().user_notes()
    }

    pub(super) fn set_settled(&self) {
        self.shared.is_settled.store(true, Ordering::Release);
    }

    pub(super) fn set_invisible_until(&self, invisible_until_ms: i64) {
        self.shared.invisible_until_ms.store(invisible_until_ms, Ordering::Relaxed);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("topic", &self.place.topic)
            .field("queue_id", &self.place.queue_id)
            .field("offset", &self.offset)
            .field("attempt", &self.attempt)
            .field("invisible_until_ms", &self.invisible_until_ms())
            .finish_non_exhaustive()
    }
}

/// The numbers of a lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseNumbers {
    pub(super) offset: i64,
    pub(super) attempt: u32,
    pub(super) token: u64,
    pub(super) invisible_until_ms: i64,
}

/// A leased message: its record and its lease.
#[derive(Clone, Debug)]
pub struct LeasedMessage {
    /// The message.
    pub record: StoredRecord,
    /// The lease of this delivery.
    pub lease: Lease,
}

impl Deref for LeasedMessage {
    type Target = StoredRecord;

    fn deref(&self) -> &StoredRecord {
        &self.record
    }
}
