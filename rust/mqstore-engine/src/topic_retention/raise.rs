//! Applies the limits: raises the floors of topics, then removes queue files before them.

use std::time::Duration;

use mqstore_base::error::StoreError;
use mqstore_base::events::is_in_hook;
use mqstore_base::options::Durability;
use mqstore_base::store_files::OldFile;
use mqstore_base::topic_floors::TopicRetention;
use mqstore_io::sync::{Arc, Ordering};

use super::limits::{DueFloor, TopicPlace};
use super::state::{TopicExpiry, TopicRetentions};
use crate::read::view::View;
use crate::retention::{ExpireReport, hidden};

/// Interval of the background passes.
const INTERVAL: Duration = Duration::from_secs(10);

/// Maximum number of floors that are synced together.
const BATCH: usize = 256;

impl TopicRetentions {
    /// A round of the background: applies the limits of all topics if a pass is due.
    ///
    /// # Errors
    /// Those of [`Self::expire`]; the next call tries again.
    pub(crate) fn step(&self) -> Result<(), StoreError> {
        {
            // An explicit pass is running; the background has nothing to do.
            let Some(mut state) = self.state.try_lock() else { return Ok(()) };
            let now = self.engine.files.clock.monotonic();
            if now < state.next {
                return Ok(());
            }
            state.next = now + INTERVAL;
        }
        self.apply_limits(false, &mut ExpireReport::default(), &mut || Ok(()))
    }

    /// Applies the limits of all topics now, and adds the result to `report`. Calls `carry_on` between two topics; if
    /// it returns an error, the work ends with it.
    ///
    /// # Errors
    /// [`StoreError::Busy`] inside a hook; errors of reads and syncs, after which raised floors stay.
    pub(crate) fn expire(
        &self,
        report: &mut ExpireReport,
        carry_on: &mut dyn FnMut() -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        if is_in_hook() {
            let reason = "a hook that runs during an expiry cannot expire: it would wait for itself".into();
            return Err(StoreError::Busy { reason });
        }
        self.apply_limits(true, report, carry_on)
    }

    fn apply_limits(
        &self,
        asked: bool,
        report: &mut ExpireReport,
        carry_on: &mut dyn FnMut() -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let limits = self.engine.meta.retentions();
        let is_raised = || self.engine.floors().iter().any(|(_, floor)| floor.log_offset > floor.deleted);
        if limits.is_empty() && !is_raised() {
            return Ok(());
        }
        let mut state = self.state.lock();
        let end = match self.engine.catch_up() {
            Err(StoreError::DiskFull { .. }) => self.engine.dispatcher.position(),
            caught_up => caught_up?,
        };
        state.measured.retain(|topic, _| limits.contains_key(topic));
        let mut due = Vec::new();
        let mut failure = None;
        for (topic, limits) in &limits {
            carry_on()?;
            match self.due_floor(&mut state, topic, *limits, end) {
                Ok(floor) => due.extend(floor.map(|floor| (Arc::clone(topic), floor))),
                // An archive that does not answer must not keep the messages of other topics.
                Err(error) => failure = failure.or(Some(error)),
            }
            if due.len() == BATCH {
                self.raise_floors(&mut due, asked, report)?;
            }
        }
        self.raise_floors(&mut due, asked, report)?;
        self.remove_queue_files(&mut state, asked, report)?;
        failure.map_or(Ok(()), Err)
    }

    fn due_floor(
        &self,
        state: &mut TopicExpiry,
        topic: &Arc<str>,
        limits: TopicRetention,
        end: u64,
    ) -> Result<Option<DueFloor>, StoreError> {
        if self.engine.topics.get(topic).is_none_or(|known| known.is_removed()) {
            state.measured.remove(topic);
            return Ok(None);
        }
        let now_ms = self.engine.files.clock.now_ms();
        // After an error, or if the floor is not raised, the topic is measured again.
        let mut measured = state.measured.remove(topic).unwrap_or_default();
        let older = self.older.get();
        let due = TopicPlace { view: &*self.engine, topic, end, older: older.as_deref() }.due_floor(
            limits,
            now_ms,
            &mut measured,
        )?;
        state.measured.insert(Arc::clone(topic), measured);
        Ok(due)
    }

    /// Raises the floors of topics, first on the disk, then in memory. Reports and removes them from `due`.
    fn raise_floors(
        &self,
        due: &mut Vec<(Arc<str>, DueFloor)>,
        asked: bool,
        report: &mut ExpireReport,
    ) -> Result<(), StoreError> {
        if self.engine.options.durability == Durability::Manual && !asked {
            let durable = self.engine.log.durable();
            due.retain(|(_, floor)| floor.log_offset <= durable);
        }
        let Some(end) = due.iter().map(|(_, floor)| floor.log_offset).max() else { return Ok(()) };
        // A log that loses its end would give the log offsets before a floor to new records.
        self.engine.log.flush_to(end)?;
        let wanted: Vec<_> =
            due.iter().map(|(topic, floor)| (&**topic, floor.log_offset, &floor.queues)).collect();
        let raised = self.engine.meta.raise_floors(&wanted)?;
        self.engine.dispatcher.rules().floors.raise(raised.iter().cloned());
        for (topic, _) in &raised {
            self.engine.queues.correct_min_offsets_of(topic)?;
        }
        self.engine.live.note_topic_change();
        self.engine.dispatcher.rules().floors.count_change();
        for (topic, floor) in due.drain(..) {
            if raised.iter().any(|(name, _)| *name == topic) {
                report.topics.push(floor.report(&topic));
            }
        }
        Ok(())
    }

    /// Removes queue files that are completely before a raised floor, also those that an earlier process left.
    fn remove_queue_files(
        &self,
        state: &mut TopicExpiry,
        asked: bool,
        report: &mut ExpireReport,
    ) -> Result<(), StoreError> {
        let floors = self.engine.floors();
        for (topic, floor) in floors.iter().filter(|(_, floor)| floor.log_offset > floor.deleted) {
            let floor = floor.log_offset;
            if state.cleaned.get(topic).is_some_and(|cleaned| *cleaned >= floor) {
                continue;
            }
            if self.has_files_below(topic, floor)? {
                if self.engine.options.durability == Durability::Manual && !asked {
                    continue;
                }
                self.engine.flusher.flush_all(false)?;
                let synced_to = self.engine.flusher.dispatched();
                // Again for the other slot of the durable mark: after a torn write of one slot, an open reads the
                // other.
                self.engine.flusher.flush_all(false)?;
                let mut removed = |file: &OldFile| {
                    let file = hidden(file, floor);
                    self.cleaner.counters.expired_bytes.fetch_add(file.bytes, Ordering::Relaxed);
                    self.engine.options.hooks.tell("queue_file_deleted", Some(&file), file.reason.clone());
                    report.add(file);
                };
                // A rebuild replaces queue files while no flush runs.
                self.engine
                    .flusher
                    .run_while_idle(|| self.remove_files_below(topic, floor, synced_to, &mut removed))?;
            }
            if !self.has_files_below(topic, floor)? {
                state.cleaned.insert(Arc::clone(topic), floor);
            }
        }
        Ok(())
    }

    /// Whether a queue of the topic has a file, except its last one, that is completely before log offset `floor`.
    fn has_files_below(&self, topic: &str, floor: u64) -> Result<bool, StoreError> {
        for queue_id in self.engine.queues.ids(topic) {
            let plain =
                self.engine.queues.get(topic, queue_id).map(|queue| queue.files_below(floor, u64::MAX));
            let batch =
                self.engine.queues.batch(topic, queue_id).map(|queue| queue.files_below(floor, u64::MAX));
            for files in plain.into_iter().chain(batch) {
                if !files?.is_empty() {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn remove_files_below(
        &self,
        topic: &str,
        floor: u64,
        synced_to: u64,
        removed: &mut dyn FnMut(&OldFile),
    ) -> Result<(), StoreError> {
        for queue_id in self.engine.queues.ids(topic) {
            if let Some(queue) = self.engine.queues.get(topic, queue_id) {
                queue.remove_below(floor, synced_to, removed)?;
            }
            if let Some(queue) = self.engine.queues.batch(topic, queue_id) {
                queue.remove_below(floor, synced_to, removed)?;
            }
        }
        Ok(())
    }
}
