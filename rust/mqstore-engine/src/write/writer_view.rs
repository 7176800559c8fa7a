//! The writer as a view for reads: everything that is appended and visible.

use std::sync::Arc;
use std::time::Duration;

use mqstore_format::CqUnit;

use super::writer::Writer;
use crate::read::view::View;
use crate::store::{read_units, sorted_offsets};
use mqstore_base::error::StoreError;
use mqstore_base::options::{DamagePolicy, RecoveryMode};
use mqstore_base::store_files::StoreFiles;
use mqstore_base::topic_floors::FloorTable;
use mqstore_log::commit_log::{CommitLog, SegmentList};

impl View for Writer {
    fn files(&self) -> &StoreFiles {
        &self.files
    }

    fn check(&self) -> Result<(), StoreError> {
        if self.lifecycle.is_closed() {
            return Err(StoreError::Closed { path: self.files.root.clone() });
        }
        Ok(())
    }

    fn catch_up(&self) -> Result<u64, StoreError> {
        if !self.options.durable_only() {
            // Pooled records become readable when they are written to the file; this loses nothing.
            self.log.make_readable()?;
        }
        self.dispatch()
    }

    fn list(&self) -> Arc<SegmentList> {
        self.log.list()
    }

    fn open_files(&self) -> [(usize, usize); 2] {
        [self.queues.open_files(), self.index.open_files()]
    }

    fn topics(&self) -> Result<Vec<String>, StoreError> {
        Ok(self.topics.names())
    }

    fn queue_ids(&self, topic: &str) -> Result<Vec<i32>, StoreError> {
        let listed = self.topics.queue_count(topic) as i32;
        let mut ids: Vec<i32> = (0..listed).collect();
        ids.extend(self.former_queues(topic, listed));
        Ok(ids)
    }

    fn bounds(&self, topic: &str, queue_id: i32) -> Result<Option<(i64, i64)>, StoreError> {
        if self.topics.is_removed(topic) {
            return Ok(None);
        }
        if let Some(queue) = self.queues.batch(topic, queue_id) {
            return Ok(Some((queue.min_offset(), queue.max_offset())));
        }
        if let Some(queue) = self.queues.get(topic, queue_id) {
            return Ok(Some((queue.min_offset(), queue.max_offset())));
        }
        Ok(self.has_queue(topic, queue_id).then_some((0, 0)))
    }

    fn units(
        &self,
        topic: &str,
        queue_id: i32,
        from: i64,
        max: usize,
        units: &mut Vec<(i64, CqUnit)>,
    ) -> Result<(), StoreError> {
        if let Some(queue) = self.queues.batch(topic, queue_id) {
            return queue.read(from, max, u64::MAX, units);
        }
        match self.queues.get(topic, queue_id) {
            Some(queue) => read_units(&queue, from.max(queue.min_offset()), queue.max_offset(), max, units),
            None => Ok(()),
        }
    }

    fn start_of(&self, topic: &str, queue_id: i32, offset: i64) -> Result<i64, StoreError> {
        self.queues.batch(topic, queue_id).map_or(Ok(offset), |queue| queue.start_of(offset))
    }

    fn damage_policy(&self) -> DamagePolicy {
        if self.options.recovery == RecoveryMode::Salvage { DamagePolicy::Skip } else { DamagePolicy::Raise }
    }

    fn note(&self, text: String) {
        self.lifecycle.note(&text);
    }

    fn count_skipped(&self, text: String) {
        self.lifecycle.count_skipped(&text);
    }

    fn skipped(&self) -> u64 {
        self.lifecycle.skipped()
    }

    fn distrust(&self, _topic: &str, _queue_id: i32, _reason: &str) -> Result<bool, StoreError> {
        Ok(false)
    }

    fn floors(&self) -> Arc<FloorTable> {
        self.dispatcher.rules().floors.now()
    }

    fn floor_changes(&self) -> u64 {
        self.dispatcher.rules().floors.changes()
    }

    fn log(&self) -> Option<Arc<CommitLog>> {
        Some(Arc::clone(&self.log))
    }

    fn keeps_newest(&self, topic: &str) -> bool {
        self.topics.get(topic).is_some_and(|state| state.is_compaction())
    }

    fn has_batch_queues(&self, topic: &str) -> bool {
        self.topics.get(topic).is_some_and(|state| state.batch)
    }

    fn candidates(&self, hash: i32) -> Result<Option<(Vec<u64>, u64)>, StoreError> {
        let complete_to = self.dispatcher.position();
        let found = self.index.candidates(hash, i64::MIN, i64::MAX)?;
        if let Some(damage) = found.damaged {
            let note = format!("{damage}; look-ups read the whole log until the index is rebuilt");
            self.lifecycle.note(&note);
            return Ok(None);
        }
        let min = self.log.list().min_offset();
        Ok(Some((sorted_offsets(found.offsets, min, complete_to), complete_to)))
    }

    fn wait_for(
        &self,
        topic: &str,
        places: &[(i32, i64)],
        timeout: Duration,
        _round: u32,
    ) -> Result<(), StoreError> {
        self.wait_past(topic, places, timeout)
    }
}
