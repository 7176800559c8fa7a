//! The running reclaim of an open store, and the control that ends it.

use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_compaction::JobControl;
use mqstore_io::sync::Mutex;

/// One reclaim runs at a time; a close ends it and waits.
#[derive(Debug, Default)]
pub(crate) struct ReclaimState {
    /// Held during a reclaim.
    running: Mutex<()>,
    /// Ends the running reclaim.
    control: Mutex<Option<Arc<JobControl>>>,
}

impl ReclaimState {
    /// Runs `work`, unless another reclaim runs; [`Self::stop`] ends it.
    ///
    /// # Errors
    /// [`StoreError::Busy`]; those of `work`.
    pub(super) fn run_alone<T>(
        &self,
        control: &Arc<JobControl>,
        work: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let Some(_one) = self.running.try_lock() else {
            return Err(StoreError::Busy { reason: "another reclaim of the store is running".into() });
        };
        // A close either finds the control, or was earlier and fails the first check of the work.
        *self.control.lock() = Some(Arc::clone(control));
        let outcome = work();
        self.control.lock().take();
        outcome
    }

    /// Ends a running reclaim and waits for its end.
    pub(crate) fn stop(&self) {
        if let Some(control) = self.control.lock().as_ref() {
            control.end();
        }
        let _ended = self.running.lock();
    }
}
