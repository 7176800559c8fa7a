//! What a master sends to its replicas: the bytes of the log. It does not keep the store open.

use std::sync::Arc;

use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::options::{MasterOptions, Visibility};
use mqstore_base::replica_acks::ReplicaAcks;

use super::Store;
use super::writer::Writer;
use crate::retention::{HolderKind, SegmentHolder};

/// The log of a store, for its replicas; from [`Store::log_feed`].
#[derive(Clone)]
pub struct LogFeed(Arc<Writer>);

impl Store {
    /// Returns how the store serves its replicas; `None` if it does not.
    pub fn master_options(&self) -> Option<&MasterOptions> {
        self.writing_engine()?.options.replication.as_ref()
    }

    /// Returns the log for replicas.
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`] and [`StoreError::Closed`].
    pub fn log_feed(&self) -> Result<LogFeed, StoreError> {
        Ok(LogFeed(Arc::clone(self.writer("serve replicas")?)))
    }
}

impl LogFeed {
    /// Returns the first log offset, and the end of the bytes that can be sent.
    pub fn bounds(&self) -> (u64, u64) {
        (self.0.engine.log.list().min_offset(), self.end())
    }

    /// Returns the end of the bytes that can be sent. A record ends there.
    pub fn end(&self) -> u64 {
        self.0.engine.log.readable()
    }

    /// Whether readers see confirmed records only.
    pub fn hides_unconfirmed(&self) -> bool {
        self.0.engine.options.visibility == Visibility::Confirmed
    }

    /// Returns the length of a segment.
    pub fn segment_bytes(&self) -> u64 {
        self.0.engine.log.segment_bytes()
    }

    /// Returns how far the replicas are.
    pub fn acks(&self) -> &Arc<ReplicaAcks> {
        self.0.engine.log.replica_acks()
    }

    /// Reads the bytes of one segment from `offset` on into `bytes`, as many as fit, but none from `end` on. Returns
    /// their number, 0 if the segment is deleted.
    ///
    /// # Errors
    /// Errors of the read.
    pub fn read(&self, offset: u64, end: u64, bytes: &mut [u8]) -> Result<usize, StoreError> {
        let list = self.0.engine.log.list();
        let Some(segment) = list.find(offset) else { return Ok(0) };
        let Some(held) = segment.hold() else { return Ok(0) };
        let left = end.min(segment.end_offset()).saturating_sub(offset);
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        let (path, part) = (segment.path(), bytes.get_mut(..count).unwrap_or_default());
        let file = held.file().at(&path, "reading the log for a replica")?;
        file.read_exact_at(part, offset - segment.base_offset())
            .at(&path, "reading the log for a replica")?;
        Ok(count)
    }

    /// Returns the log offset up to which readers may see the log.
    pub fn confirmed(&self) -> u64 {
        self.end().min(self.0.engine.dispatcher.limit())
    }

    /// Shows readers the log up to `covered`, a record border, if they see confirmed records only. Returns whether that
    /// is more than before.
    ///
    /// # Errors
    /// None, unless readers see more already.
    pub fn confirm(&self, covered: u64) -> Result<bool, StoreError> {
        let is_more = self.hides_unconfirmed() && covered > self.0.engine.dispatcher.limit();
        if is_more {
            self.0.engine.set_visible_limit(covered)?;
        }
        Ok(is_more)
    }

    /// Keeps the segments that the replica `name` does not have, from log offset `end` on, from a deletion by age for
    /// `left_ms` milliseconds. `number` identifies the replica.
    pub fn keep(&self, number: u64, name: String, end: u64, left_ms: i64) {
        let until_ms = self.0.engine.files.clock.now_ms().saturating_add(left_ms);
        let holder = SegmentHolder::copy(HolderKind::Follower, name, end);
        self.0.cleaner.keep_for_replica(number, holder, until_ms);
    }
}
