//! Background work of the floors above: they bring the step, the store brings the thread.
//!
//! A task is a plain struct; `services.rs` has one thread for each that calls its step and lets it rest, [`Store::step`]
//! calls the steps by hand. The store holds its tasks weakly: a task holds the store.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::services::Services;
use super::{OpenSide, Store};
use mqstore_base::error::StoreError;

/// Something to do in the background of a store that is open for writing.
pub trait BackgroundTask: Send + Sync {
    /// What its thread is called; at most 15 bytes.
    fn name(&self) -> &'static str;

    /// Does what is due, and says how long it may rest then.
    fn step(&self) -> Result<Duration, StoreError>;

    /// Sleeps for `longest`, or until something is due earlier or [`Self::wake`] is called.
    fn rest(&self, longest: Duration);

    /// Ends a rest early.
    fn wake(&self);

    /// The last call before the store closes, while it still takes appends. It may come more than once.
    fn end(&self) -> Result<(), StoreError>;
}

impl Store {
    /// Has `task` done in the background from now on, until it is dropped or the store closes: by a thread of its own,
    /// unless the file system's [`mqstore_io::Environment::threads`] forbids them, and by [`Self::step`].
    ///
    /// # Errors
    /// `ReadOnly`, `Closed`, and the system's error where it has no thread to give.
    pub fn run_in_background(&self, task: &Arc<dyn BackgroundTask>) -> Result<(), StoreError> {
        let writer = self.writer("work in the background")?;
        let OpenSide::Writer(_, services) = &self.inner.side else { return Ok(()) };
        writer.tasks.lock().push(Arc::downgrade(task));
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
        let tasks: Vec<_> = writer.tasks.lock().iter().filter_map(Weak::upgrade).collect();
        tasks.iter().map(|task| call(&**task)).fold(Ok(()), Result::and)
    }
}

impl Services {
    /// How long a task that failed is left alone.
    pub(super) const AGAIN: Duration = Duration::from_millis(200);
}
