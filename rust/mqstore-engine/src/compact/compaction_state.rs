//! The compaction of an open store that runs, what ends it, and when the next one is due.
//!
//! One compaction runs at a time. A thread removes the files that the last one replaced, because
//! large files take their time; the next compaction and the close wait for it, and the next job removes what it leaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mqstore_io::sync::{JoinHandle, Mutex};

use mqstore_base::error::StoreError;
use mqstore_compaction::{CompactionAppender, JobControl};

/// See the module's text.
pub(crate) struct CompactionState {
    /// Held while topics are compacted.
    running: Mutex<()>,
    /// What ends the one that runs.
    control: Mutex<Option<Arc<JobControl>>>,
    removal: Mutex<Option<JoinHandle<()>>>,
    /// When the background looks next; `None` before the first look.
    next_look: Mutex<Option<Duration>>,
    /// Copies what is appended to compaction topics to their files.
    appender: CompactionAppender,
    /// The end of what was durable when the appender had nothing left to copy.
    copied_to: AtomicU64,
}

impl CompactionState {
    /// Of a store in which no compaction runs.
    pub(crate) fn new(appender: CompactionAppender) -> Self {
        Self {
            running: Mutex::default(),
            control: Mutex::default(),
            removal: Mutex::default(),
            next_look: Mutex::default(),
            appender,
            copied_to: AtomicU64::new(0),
        }
    }

    /// Does `work`, which changes compaction files, unless other work of this kind goes on; [`Self::stop`] ends it.
    ///
    /// # Errors
    /// [`StoreError::Busy`].
    pub(crate) fn run_alone<T>(
        &self,
        control: &Arc<JobControl>,
        work: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let Some(_one) = self.running.try_lock() else {
            return Err(StoreError::Busy { reason: "the store is being compacted already".into() });
        };
        *self.control.lock() = Some(Arc::clone(control));
        let _nothing_is_copied = self.appender.fence();
        let outcome = work();
        self.control.lock().take();
        outcome
    }

    /// Ends a compaction that runs, and waits for its end.
    pub(crate) fn stop(&self) {
        if let Some(control) = self.control.lock().as_ref() {
            control.end();
        }
        let _ended = self.running.lock();
        self.wait_for_removal();
    }

    /// Keeps the thread that removes the files which a compaction replaced, for [`Self::wait_for_removal`].
    pub(crate) fn set_removal(&self, thread: JoinHandle<()>) {
        *self.removal.lock() = Some(thread);
    }

    /// Waits until the files that the last compaction replaced are removed.
    pub(crate) fn wait_for_removal(&self) {
        let thread = self.removal.lock().take();
        if let Some(thread) = thread {
            // It has nothing to say.
            let _ = thread.join();
        }
    }

    /// How long the background has nothing to look at, at time `now`. The first look comes an interval after the open,
    /// so that a program may compact itself before.
    pub(crate) fn delay(&self, now: Duration, interval: Duration) -> Duration {
        self.next_look.lock().get_or_insert(now.saturating_add(interval)).saturating_sub(now)
    }

    /// Has the next look come a whole interval after the next [`Self::delay`].
    pub(crate) fn restart_delay(&self) {
        *self.next_look.lock() = None;
    }

    /// What copies new messages to the compaction files.
    pub(crate) fn appender(&self) -> &CompactionAppender {
        &self.appender
    }

    /// Whether everything up to `durable` was copied.
    pub(crate) fn is_copied_to(&self, durable: u64) -> bool {
        self.copied_to.load(Ordering::Acquire) == durable
    }

    /// Says that everything up to `durable` is copied; 0 has all of it looked at again.
    pub(crate) fn set_copied_to(&self, durable: u64) {
        self.copied_to.store(durable, Ordering::Release);
    }
}
