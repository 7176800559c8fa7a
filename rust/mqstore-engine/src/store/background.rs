//! The background tasks of a store: how they start, run a step by hand, and end.
//!
//! A task is a plain struct. `services.rs` has one thread for each task, which calls its step and lets it rest;
//! [`Store::step`] calls the steps by hand. The store holds its tasks weakly, because a task holds the store.

use std::sync::Arc;
use std::time::Duration;

use super::background_task::BackgroundTask;
use super::services::Services;
use super::{OpenSide, Store};
use mqstore_base::error::StoreError;

impl Store {
    /// Runs `task` in the background from now on, until it is dropped or the store closes: in its own thread, unless
    /// [`mqstore_io::Environment::threads`] of the file system is false, and in [`Self::step`].
    ///
    /// # Errors
    /// `ReadOnly`, `Closed`, and the error of the system if it cannot start a thread.
    pub fn run_in_background(&self, task: &Arc<dyn BackgroundTask>) -> Result<(), StoreError> {
        let writer = self.writer("run a background task")?;
        let OpenSide::Writer(_, services) = &self.inner.side else { return Ok(()) };
        writer.lifecycle.add_task(task);
        services.run(writer, task)
    }

    /// Ends the tasks while the store is still open; returns the first error.
    pub(super) fn end_tasks(&self) -> Result<(), StoreError> {
        self.each_task(|task| task.end())
    }

    /// Runs one step of each task in this thread.
    pub(super) fn step_tasks(&self) -> Result<(), StoreError> {
        self.each_task(|task| task.step().map(drop))
    }

    fn each_task(
        &self,
        call: impl Fn(&dyn BackgroundTask) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let OpenSide::Writer(writer, _) = &self.inner.side else { return Ok(()) };
        writer.lifecycle.tasks().iter().map(|task| call(&**task)).fold(Ok(()), Result::and)
    }
}

impl Services {
    /// Pause after a task failed.
    pub(super) const AGAIN: Duration = Duration::from_millis(200);
}
