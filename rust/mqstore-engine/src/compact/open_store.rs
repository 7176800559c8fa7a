//! Compaction of an open store; appends and reads continue meanwhile.
//!
//! This process holds the store's lock, so no other process changes `compaction/`; one compaction runs at a time.
//! Records come from the commit log through the queues in the writer's memory, up to the dispatched offset when the
//! plan is made. Later appends wait for the next run. A close ends a running compaction, which then leaves every queue
//! unchanged. A thread removes the replaced files; the next compaction and the close wait for it.

use std::sync::Arc;

use super::compaction_state::Compactions;
use crate::read::view::View;
use mqstore_base::error::StoreError;
use mqstore_compaction::{
    CompactionOptions, CompactionReport, DEFAULT_LOG_FILE_BYTES, DEFAULT_QUEUE_FILE_BYTES, JobControl,
    OpenStore, PlannedJob, ReplacedFiles, StoreLockHeld, plan, publish, rehearse, run_all,
};

impl Compactions {
    /// Runs `work`, which changes compaction files, unless other such work runs; a close ends it.
    pub(crate) fn with_compaction_lock<T>(
        &self,
        control: &Arc<JobControl>,
        work: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        // A close either finds the control, or was earlier and fails the check.
        self.run_alone(control, || self.engine.check().and_then(|()| work()))
    }

    pub(crate) fn compact(
        &self,
        topics: Option<&[String]>,
        options: &CompactionOptions,
        threads: usize,
        control: &Arc<JobControl>,
    ) -> Result<CompactionReport, StoreError> {
        let options = &self.with_own_lengths(options);
        self.with_lock_held(|held| {
            let PlannedJob { plan, job } = plan(&self.engine.files, held, topics, options)?;
            let (job, results) =
                run_all(&self.engine.files, Some(&self.engine.log), job, &plan.tasks, threads, control)?;
            if options.dry_run {
                return rehearse(&self.engine.files, job, &plan, &results);
            }
            let done = publish(&self.engine.files, held, job, &plan, &results)?;
            done.replaced.map_or(Ok(()), |replaced| self.remove_replaced(replaced))?;
            Ok(done.report)
        })
    }

    /// Calls `work` with the proof that this process holds the store's lock, after it has written the topics.
    pub(super) fn with_lock_held<T>(
        &self,
        work: impl FnOnce(&StoreLockHeld<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.engine.topics.store()?;
        let catch_up = || self.engine.catch_up();
        let flush = || self.flush_for_compaction();
        let queues = &self.engine.queues;
        work(&StoreLockHeld::Open(OpenStore { queues, catch_up: &catch_up, flush: &flush }))
    }

    /// Makes the log durable; returns its durable offset. A compacted record must not outlive its original after a
    /// crash. For records that are not in the file yet, only the log's own sync guarantees that.
    fn flush_for_compaction(&self) -> Result<u64, StoreError> {
        self.engine.flusher.flush_all(false)?;
        Ok(self.engine.log.durable())
    }

    /// Removes the files that a compaction replaced, in a thread if threads are allowed.
    fn remove_replaced(&self, replaced: ReplacedFiles) -> Result<(), StoreError> {
        if !self.engine.files.vfs.environment().threads {
            return replaced.sweep(&self.engine.files);
        }
        self.wait_for_removal();
        self.set_removal((self.start_removal)(&self.engine.files, replaced));
        Ok(())
    }

    /// Returns `options` with the file lengths of this store, unless `options` has other lengths than the defaults.
    pub(crate) fn with_own_lengths(&self, options: &CompactionOptions) -> CompactionOptions {
        let mut options = options.clone();
        if options.log_file_bytes == DEFAULT_LOG_FILE_BYTES {
            options.log_file_bytes = self.engine.options.compaction_log_file_bytes;
        }
        if options.queue_file_bytes == DEFAULT_QUEUE_FILE_BYTES {
            options.queue_file_bytes = self.engine.options.compaction_queue_file_bytes;
        }
        options
    }
}
