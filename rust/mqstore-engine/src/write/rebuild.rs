//! Rebuild of queues and index from the log while the store is in use.
//!
//! The new files are built next to the old ones; dispatch and flush pause only while the last records are added and
//! the files are swapped. If the swap fails half-way, the store is poisoned, because memory and disk may disagree.

use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::progress::{Progress, ProgressWatcher};
use mqstore_log::recovery::{RebuildInput, RebuildReport, RebuildRun};

use crate::engine::Engine;
use crate::read::view::View;

impl Engine {
    /// See [`crate::Store::rebuild`].
    pub(crate) fn rebuild(&self, watcher: ProgressWatcher<'_>) -> Result<RebuildReport, StoreError> {
        let Some(_one) = self.rebuilding.try_lock() else {
            return Err(StoreError::Busy { reason: "another rebuild of the store is running".into() });
        };
        let seen = self.catch_up()?;
        let list = self.log.list();
        let helpers = self.options.dispatch_workers(&self.files.vfs.environment()).saturating_sub(1);
        let what = RebuildInput { list: Arc::clone(&list), rules: self.dispatcher.rules().clone(), helpers };
        let made = RebuildRun::begin(&self.files, (&self.queues, &self.index), what)?;
        let mut watch =
            |reached| self.check().and_then(|()| watcher(Progress::of_log(list.min_offset(), reached, seen)));
        let built = made.build_to(&list, seen, &mut watch).and_then(|()| {
            // A flush dispatches, so it must come before or after this.
            self.flusher.run_while_idle(|| {
                self.dispatcher.run_while_paused(|end| {
                    made.build_to(&self.log.list(), end, &mut |_| Ok(()))?;
                    self.take_over(&made).map(|()| end)
                })
            })
        });
        let end = built.inspect_err(|_| made.abandon())?;
        let report = made.report(end);
        self.flusher.flush_all(false)?;
        Ok(report)
    }

    /// Replaces queues and index by the new files, while dispatch and sync pause.
    fn take_over(&self, made: &RebuildRun) -> Result<(), StoreError> {
        made.swap()?;
        let reloaded = self.queues.reload(self.log.list().min_offset()).and_then(|()| self.index.reload());
        // After an error, memory and disk may disagree.
        reloaded.map_err(|error| self.log.poison("using rebuilt queues", &error.to_string()))
    }
}
