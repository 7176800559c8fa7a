//! The background tasks of a store: how they begin, are stepped by hand, and end.
//!
//! A task is a plain struct; `services.rs` has one thread for each that calls its step and lets it rest, [`Store::step`]
//! calls the steps by hand. The store holds its tasks weakly: a task holds the store.

use std::sync::Arc;
use std::time::Duration;

use super::background_task::BackgroundTask;
use super::services::Services;
use super::{OpenSide, Store};
use mqstore_base::error::StoreError;

impl Store {
    /// Has `task` done in the background from now on, until it is dropped or the store closes: by a thread of its own,
    /// unless the file system's [`mqstore_io::Environment::threads`] forbids them, and by [`Self::step`].
    ///
    /// # Errors
    /// `ReadOnly`, `Closed`, and the system's error where it has no thread to give.
    pub fn run_in_background(&self, task: &Arc<dyn BackgroundTask>) -> Result<(), StoreError> {
        let writer = self.writer("work in the background")?;
        let OpenSide::Writer(_, services) = &self.inner.side else { return Ok(()) };
        writer.lifecycle.add_task(task);
        services.run(writer, task)
    }

    /// Ends the tasks while the store is still open; the first error counts.
    pub(super) fn end_tasks(&self) -> Result<(), StoreError> {
        self.each_task(|task| task.end())
    }

    /// Steps the tasks in this thread.
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
    /// How long a task that failed is left alone.
    pub(super) const AGAIN: Duration = Duration::from_millis(200);
}
