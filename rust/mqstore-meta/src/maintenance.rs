//! Periodic work on the log: a sync of changes that no caller waits for, a new generation, the JSON files.
//!
//! A thread of the store calls [`MetaLog::step`] every [`SYNC_INTERVAL_MS`], or earlier if [`MetaLog::sync_within`]
//! asked for it. A step only affects how much a power loss removes: at most the changes since the last step.

use std::time::Duration;

use mqstore_io::sync::Ordering;

use super::log::MetaLog;
use super::maintenance_timer::NEVER;
use super::record::MetaPosition;
use mqstore_base::error::StoreError;

/// Milliseconds between background syncs of topics, groups and offsets.
pub const SYNC_INTERVAL_MS: u64 = 100;
/// Minimum time between two writes of the JSON files, in milliseconds.
const JSON_INTERVAL_MS: i64 = 60_000;

impl MetaLog {
    /// Requests that everything before `place` becomes durable within `ms` milliseconds, if the next step would be
    /// later. Does not wait. In a store without its own threads, the next step does it.
    pub fn sync_within(&self, place: MetaPosition, ms: u64) {
        if self.tail.durable() >= place {
            return;
        }
        let by_ms = self.interval_ms().saturating_add(ms);
        let sooner = |known: u64| (by_ms < known).then_some(by_ms);
        if self.tick.sync_by_ms.fetch_update(Ordering::SeqCst, Ordering::SeqCst, sooner).is_ok() {
            self.tick.sooner.notify_all();
        }
    }

    /// Waits until a step is due: after `interval_ms`, or earlier for a requested sync. Also returns when `stopped`
    /// becomes true; call [`Self::wake`] after that change.
    pub fn wait_until_due(&self, interval_ms: u64, stopped: impl Fn() -> bool) {
        let end_ms = self.interval_ms().saturating_add(interval_ms);
        loop {
            let by_ms = self.tick.sync_by_ms.load(Ordering::SeqCst).min(end_ms);
            let left_ms = by_ms.saturating_sub(self.interval_ms());
            if left_ms == 0 || stopped() {
                return;
            }
            let sooner = || stopped() || self.tick.sync_by_ms.load(Ordering::SeqCst) < by_ms;
            self.tick.sooner.wait_until(Some(Duration::from_millis(left_ms)), sooner);
        }
    }

    /// Wakes the caller of [`Self::wait_until_due`], so that it checks `stopped` again.
    pub fn wake(&self) {
        self.tick.sooner.notify_all();
    }

    /// Runs the work that is due at `now_ms`: a sync, a new generation, JSON files.
    pub fn step(&self, now_ms: i64) -> Result<(), StoreError> {
        // Requests from here on may refer to later appends.
        self.tick.sync_by_ms.store(NEVER, Ordering::SeqCst);
        self.sync(self.place())?;
        if self.generation_is_due() {
            let _chores = self.chores.lock();
            self.next_generation()?;
        }
        let exported_ms = self.tick.exported_ms.load(Ordering::Relaxed);
        // A clock that was set back does not block the export.
        if !(exported_ms..exported_ms.saturating_add(JSON_INTERVAL_MS)).contains(&now_ms) {
            self.tick.exported_ms.store(now_ms, Ordering::Relaxed);
            self.export_json()?;
        }
        Ok(())
    }

    /// Milliseconds of the interval clock.
    pub(super) fn interval_ms(&self) -> u64 {
        self.files.clock.monotonic().as_millis() as u64
    }
}
