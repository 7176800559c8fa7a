//! Background work of the crates that use the store: they provide the step, the store provides the thread.

use std::time::Duration;

use mqstore_base::error::StoreError;

/// A task in the background of a store that is open for writing.
pub trait BackgroundTask: Send + Sync {
    /// Name of its thread; at most 15 bytes.
    fn name(&self) -> &'static str;

    /// Does the due work, and returns how long the task may rest afterwards.
    fn step(&self) -> Result<Duration, StoreError>;

    /// Sleeps for `longest`, or until work is due earlier or [`Self::wake`] is called.
    fn rest(&self, longest: Duration);

    /// Ends a rest early.
    fn wake(&self);

    /// Called last, before the store closes; the store still accepts appends. It can be called more than once.
    fn end(&self) -> Result<(), StoreError>;
}
