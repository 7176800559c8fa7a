//! The metadata of the store, copied again and again while a standby of ours is connected.

use std::time::Duration;

use mqstore::Store;
use mqstore::error::StoreError;
use mqstore::io::Clock;
use mqstore::io::sync::{Arc, Mutex};
use mqstore::replication::standby::NewestMetadata;
use mqstore::store::BackgroundTask;

use super::state::State;
use crate::deadline::clock;

/// The pause after a copy, at least, as a multiple of the time of the copy.
const PAUSE_FACTOR: u32 = 9;

/// See the header of this module. A background task of the store.
pub(super) struct Standbys {
    store: Store,
    state: Arc<State>,
    interval: Duration,
    /// Why the last copy failed.
    failure: Mutex<Option<String>>,
}

impl Standbys {
    pub(super) fn new(store: &Store, state: &Arc<State>, interval_ms: u64) -> Self {
        Self {
            store: store.clone(),
            state: Arc::clone(state),
            interval: Duration::from_millis(interval_ms),
            failure: Mutex::default(),
        }
    }

    fn copy(&self) -> Result<(), StoreError> {
        self.state.publish(NewestMetadata::of(&self.store, self.state.metadata())?);
        Ok(())
    }
}

impl BackgroundTask for Standbys {
    fn name(&self) -> &'static str {
        "mqstore-standby"
    }

    fn step(&self) -> Result<Duration, StoreError> {
        if !self.state.has_standby() {
            return Ok(self.interval);
        }
        let begin = clock().monotonic();
        let failure = self.copy().err().map(|error| error.to_string());
        let mut last = self.failure.lock();
        if let Some(reason) = failure.as_ref().filter(|_| failure != *last) {
            self.state.note(format!("standbys get no newer metadata: {reason}"));
        }
        *last = failure;
        let took = clock().monotonic().saturating_sub(begin);
        Ok(self.interval.max(took * PAUSE_FACTOR))
    }

    fn rest(&self, longest: Duration) {
        self.state.rest_until_wake(longest);
    }

    fn wake(&self) {
        self.state.wake();
    }

    fn end(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
