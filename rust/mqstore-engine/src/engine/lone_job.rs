//! A job of an open store that runs alone: one of its kind at a time, and a close ends it.

use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_compaction::JobControl;
use mqstore_io::sync::Mutex;

/// One job of a kind runs at a time; a close ends it and waits.
#[derive(Debug)]
pub(crate) struct LoneJob {
    /// The name in errors, for example "compaction".
    name: &'static str,
    /// Held during a job.
    running: Mutex<()>,
    /// Ends the running job.
    control: Mutex<Option<Arc<JobControl>>>,
}

impl LoneJob {
    /// Returns the state of a store in which no such job runs.
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, running: Mutex::default(), control: Mutex::default() }
    }

    /// Runs `work`, unless another job of this kind runs; [`Self::stop`] ends it.
    ///
    /// # Errors
    /// [`StoreError::Busy`]; those of `work`.
    pub(crate) fn run<T>(
        &self,
        control: &Arc<JobControl>,
        work: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let Some(_one) = self.running.try_lock() else {
            return Err(StoreError::Busy {
                reason: format!("another {} of the store is running", self.name),
            });
        };
        // A close either finds the control, or was earlier and fails the first check of the work.
        *self.control.lock() = Some(Arc::clone(control));
        let outcome = work();
        self.control.lock().take();
        outcome
    }

    /// Ends a running job and waits for its end.
    pub(crate) fn stop(&self) {
        if let Some(control) = self.control.lock().as_ref() {
            control.end();
        }
        let _ended = self.running.lock();
    }
}
