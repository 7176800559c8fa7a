//! Restores compaction files from another open store, see [`mqstore_compaction`].
//!
//! The other store is read like any store: first the messages that its compactions kept, then its commit log. Each
//! message is checked. That store can be in use; its files do not change.

use std::path::Path;
use std::sync::Arc;

use mqstore_format::RecordView;

use crate::Store;
use crate::read::view::View;
use crate::write::writer::Writer;
use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_base::store_files::StoreFiles;
use mqstore_compaction::{
    CompactionOptions, JobControl, OpenStore, RestoreReport, RestoreRun, RestoreSource, StoreLockHeld,
    compacted_end, restore,
};

/// Number of messages that one step reads.
const BATCH: usize = 256;

impl Store {
    /// Restores compaction files that are lost or end before the commit log begins: copies the messages that the commit
    /// log no longer has from `source`, then compacts them together with the commit log. `topics` of `None` means all
    /// compaction topics. The next call continues one that was stopped.
    ///
    /// # Errors
    /// Those of [`Self::compact`]; [`StoreError::InvalidOption`] if `source` is this store; errors of reading the
    /// source, including its damage. After an error every queue is unchanged.
    pub fn restore_compaction(
        &self,
        source: &Self,
        topics: Option<&[String]>,
        options: &CompactionOptions,
        threads: usize,
        control: &Arc<JobControl>,
    ) -> Result<RestoreReport, StoreError> {
        let writer = self.writer("restore a compaction")?;
        let options = &writer.with_own_lengths(options);
        let run = RestoreRun { topics, options, threads, control, log: Some(&writer.log) };
        writer.with_compaction_lock(control, || writer.restore(source, &run))
    }
}

/// Like [`Store::restore_compaction`], for a directory that no process has open.
///
/// # Errors
/// Like there; [`StoreError::Locked`] while a process has the store open for writing.
pub fn restore_compaction(
    files: &StoreFiles,
    source: &Store,
    topics: Option<&[String]>,
    options: &CompactionOptions,
    threads: usize,
    control: &Arc<JobControl>,
) -> Result<RestoreReport, StoreError> {
    restore(
        files,
        &StoreLockHeld::take(files)?,
        &SourceStore { store: source },
        &RestoreRun { topics, options, threads, control, log: None },
    )
}

impl Writer {
    fn restore(&self, source: &Store, run: &RestoreRun<'_>) -> Result<RestoreReport, StoreError> {
        self.topics.store()?;
        let catch_up = || self.catch_up();
        let flush = || self.flush_for_compaction();
        let held =
            StoreLockHeld::Open(OpenStore { queues: &self.queues, catch_up: &catch_up, flush: &flush });
        restore(&self.files, &held, &SourceStore { store: source }, run)
    }
}

/// The store from which messages are copied.
struct SourceStore<'a> {
    store: &'a Store,
}

impl RestoreSource for SourceStore<'_> {
    fn root(&self) -> &Path {
        self.store.path()
    }

    fn generation(
        &self,
        topic: &str,
        queue_id: i32,
        until: i64,
    ) -> Result<Result<String, String>, StoreError> {
        self.store.check()?;
        let view = self.store.view();
        view.catch_up()?;
        let at = self.root().display();
        let Some((first, max)) = view.bounds(topic, queue_id)? else {
            return Ok(Err(format!("{at} has no such queue")));
        };
        let (taken, generation) = compacted_end(view.files(), topic, queue_id)?;
        let taken = if view.keeps_newest(topic) { taken } else { 0 };
        if first > taken {
            return Ok(Err(format!("{at} itself lacks the messages from offset {taken} to {first}")));
        }
        if max < until {
            return Ok(Err(format!("{at} ends at offset {max}, and the log here begins at {until}")));
        }
        Ok(Ok(generation))
    }

    fn message_at(
        &self,
        topic: &str,
        queue_id: i32,
        offset: i64,
    ) -> Result<Option<StoredRecord>, StoreError> {
        let read = self.store.read(topic, queue_id, Some(offset), Some(offset.saturating_add(1)), None);
        let mut cursor = match read {
            Err(StoreError::OffsetOutOfRange { .. } | StoreError::TopicNotFound { .. }) => return Ok(None),
            cursor => cursor?,
        };
        Ok(cursor.next_batch(1)?.into_iter().find(|record| record.queue_offset == offset))
    }

    fn pull(
        &self,
        topic: &str,
        queue_id: i32,
        from: i64,
        until: i64,
        visit: &mut dyn FnMut(&RecordView<'_>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut cursor = self.store.read(topic, queue_id, Some(from), Some(until), None)?;
        loop {
            let batch = cursor.next_batch(BATCH)?;
            if batch.is_empty() {
                return Ok(());
            }
            for record in &batch {
                let view = record.view().map_err(|error| {
                    StoreError::format(self.store.path(), record.commit_log_offset, &error)
                })?;
                visit(&view)?;
            }
        }
    }
}
