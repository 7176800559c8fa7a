//! Background work of the crates above: they bring the step, the store brings the thread.

use std::time::Duration;

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
