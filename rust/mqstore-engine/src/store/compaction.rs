//! Work on derived files while the store is in use: compaction, and the rebuild of queues and index.

use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::progress::ProgressWatcher;
use mqstore_base::store_files::StoreFiles;
use mqstore_compaction::{
    CompactionOptions, CompactionReport, JobControl, RestoreReport, RestoreRun, StoreLockHeld, restore,
};
use mqstore_log::recovery::RebuildReport;

use super::Store;
use crate::compact::restore::SourceStore;

impl Store {
    /// Keeps the newest message of each key of `topics` (`None`: all compaction topics) in RocketMQ's compaction
    /// folders, on at most `threads` threads; see [`mqstore_compaction`].
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`]; [`StoreError::Busy`] while another compaction runs; [`StoreError::TopicNotFound`];
    /// [`StoreError::InvalidOption`] for a topic that is no compaction topic; [`StoreError::Closed`] if `control` ends
    /// the compaction or the store is closed; errors of the system. After an error every queue is unchanged. Only if
    /// the very last step failed, every queue is compacted.
    pub fn compact(
        &self,
        topics: Option<&[String]>,
        options: &CompactionOptions,
        threads: usize,
        control: &Arc<JobControl>,
    ) -> Result<CompactionReport, StoreError> {
        let compactions = &self.writer("compact")?.compactions;
        compactions.with_compaction_lock(control, || compactions.compact(topics, options, threads, control))
    }

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
        writer.compactions.restore(&source.usable_view()?, topics, options, threads, control)
    }

    /// Rebuilds queues and index from the log while the store is in use. Appends and reads continue; they wait only
    /// while the new files replace the old ones.
    pub fn rebuild(&self, watcher: ProgressWatcher<'_>) -> Result<RebuildReport, StoreError> {
        self.engine("rebuild its queues")?.rebuild(watcher)
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
        &SourceStore { view: &source.usable_view()? },
        &RestoreRun { topics, options, threads, control, log: None },
    )
}
