//! The running compaction of an open store, and the time of the next one.
//!
//! One compaction runs at a time. A thread removes the files that the last one replaced, because the removal of large
//! files takes time. The next compaction and the close wait for this thread. The next job removes files that it leaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mqstore_io::sync::{JoinHandle, Mutex};

use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;
use mqstore_compaction::{CompactionAppender, JobControl, ReplacedFiles};

use crate::engine::Engine;
use crate::engine::lone_job::LoneJob;

/// Starts a thread that removes the files that a compaction replaced; `None` if the system cannot start one.
pub(crate) type StartRemoval = fn(&StoreFiles, ReplacedFiles) -> Option<JoinHandle<()>>;

/// The compactions of an open store.
pub(crate) struct Compactions {
    pub(super) engine: Arc<Engine>,
    pub(super) start_removal: StartRemoval,
    job: LoneJob,
    removal: Mutex<Option<JoinHandle<()>>>,
    /// The time of the next background check; `None` before the first one.
    next_look: Mutex<Option<Duration>>,
    /// Copies new messages of compaction topics to their files.
    appender: CompactionAppender,
    /// The durable offset up to which the appender has copied everything.
    copied_to: AtomicU64,
}

impl Compactions {
    /// Returns the compactions of `engine`; none runs.
    pub(crate) fn new(
        engine: &Arc<Engine>,
        appender: CompactionAppender,
        start_removal: StartRemoval,
    ) -> Self {
        Self {
            engine: Arc::clone(engine),
            start_removal,
            job: LoneJob::new("compaction"),
            removal: Mutex::default(),
            next_look: Mutex::default(),
            appender,
            copied_to: AtomicU64::new(0),
        }
    }

    /// Runs `work`, which changes compaction files, unless other such work runs; [`Self::stop`] ends it.
    ///
    /// # Errors
    /// [`StoreError::Busy`].
    pub(crate) fn run_alone<T>(
        &self,
        control: &Arc<JobControl>,
        work: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.job.run(control, || {
            let _nothing_is_copied = self.appender.fence();
            work()
        })
    }

    /// Ends a running compaction and waits for its end.
    pub(crate) fn stop(&self) {
        self.job.stop();
        self.wait_for_removal();
    }

    /// Stores the thread, if there is one, that removes the files that a compaction replaced, for
    /// [`Self::wait_for_removal`].
    pub(crate) fn set_removal(&self, thread: Option<JoinHandle<()>>) {
        *self.removal.lock() = thread;
    }

    /// Waits until the files that the last compaction replaced are removed.
    pub(crate) fn wait_for_removal(&self) {
        let thread = self.removal.lock().take();
        if let Some(thread) = thread {
            // A failed removal needs no report: the next job removes the files.
            let _ = thread.join();
        }
    }

    /// Returns the time from `now` until the next background check. The first check comes an interval after the open,
    /// so that a program can start a compaction itself before.
    pub(crate) fn delay(&self, now: Duration, interval: Duration) -> Duration {
        self.next_look.lock().get_or_insert(now.saturating_add(interval)).saturating_sub(now)
    }

    /// Starts the interval again: the next check comes a whole interval after the next call of [`Self::delay`].
    pub(crate) fn restart_delay(&self) {
        *self.next_look.lock() = None;
    }

    /// Returns the appender that copies new messages to the compaction files.
    pub(crate) fn appender(&self) -> &CompactionAppender {
        &self.appender
    }

    /// Whether everything up to `durable` is copied.
    pub(crate) fn is_copied_to(&self, durable: u64) -> bool {
        self.copied_to.load(Ordering::Acquire) == durable
    }

    /// Records that everything up to `durable` is copied; 0 makes the next round check everything again.
    pub(crate) fn set_copied_to(&self, durable: u64) {
        self.copied_to.store(durable, Ordering::Release);
    }
}
