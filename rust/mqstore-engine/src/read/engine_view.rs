//! The engine as a view for reads: everything that is appended and visible.
//!
//! Reads see the log up to its visible end, and dispatch everything before it first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mqstore_format::CqUnit;

use super::units::{read_units, sorted_offsets};
use super::view::View;
use crate::engine::Engine;
use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_base::options::{DamagePolicy, RecoveryMode};
use mqstore_base::store_files::{DelayTables, StoreFiles};
use mqstore_base::topic_floors::{FloorTable, TopicRetention};
use mqstore_compaction::ManifestCache;
use mqstore_log::commit_log::{CommitLog, SegmentList};
use mqstore_log::dispatch::RUN_BYTES;

impl View for Engine {
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

    fn log_start(&self) -> u64 {
        self.log.list().min_offset().max(self.removed_to.load(Ordering::SeqCst))
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

    fn count_skipped(&self, text: String) {
        self.lifecycle.count_skipped();
        self.note(text);
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

    fn delays(&self) -> &DelayTables {
        &self.dispatcher.rules().delays
    }

    fn manifests(&self) -> &ManifestCache {
        &self.manifests
    }

    fn messages_near(
        &self,
        topic: &str,
        queue_id: i32,
        offsets: &[i64],
    ) -> Result<Vec<Option<StoredRecord>>, StoreError> {
        self.messages_in_memory(topic, queue_id, offsets)
    }

    fn keeps_newest(&self, topic: &str) -> bool {
        self.topics.get(topic).is_some_and(|state| state.is_compaction())
    }

    fn is_removed(&self, topic: &str) -> bool {
        self.topics.is_removed(topic)
    }

    fn attributes(&self, topic: &str) -> Vec<(String, String)> {
        self.topics.attributes(topic)
    }

    fn expire_after_ms(&self, topic: &str) -> Option<i64> {
        self.topics.expire_after_ms(topic)
    }

    fn retentions(&self) -> BTreeMap<Arc<str>, TopicRetention> {
        self.meta.retentions()
    }

    fn has_batch_queues(&self, topic: &str) -> bool {
        self.topics.get(topic).is_some_and(|state| state.batch)
    }

    fn candidates(&self, hash: i32) -> Result<Option<(Vec<u64>, u64)>, StoreError> {
        let complete_to = self.dispatcher.position();
        let found = self.index.candidates(hash, i64::MIN, i64::MAX)?;
        if let Some(damage) = found.damaged {
            self.note(format!("{damage}; look-ups read the whole log until the index is rebuilt"));
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

impl Engine {
    /// Returns the visible end of the log: the durable offset if readers may see only durable records, else the
    /// readable one.
    pub(crate) fn visible(&self) -> u64 {
        let end = if self.options.durable_only() { self.log.durable() } else { self.log.readable() };
        end.min(self.dispatcher.limit())
    }

    /// Dispatches everything visible. A failure stops the store, unless the disk is full or the process has no free
    /// descriptor or memory.
    pub(crate) fn dispatch(&self) -> Result<u64, StoreError> {
        let visible = self.visible();
        if self.dispatcher.position() >= visible {
            return Ok(visible);
        }
        if visible.saturating_sub(self.dispatcher.position()) > RUN_BYTES {
            self.signals.backlog_grew();
        }
        let reached = self.dispatcher.run_to(&self.log.list(), visible).map_err(|error| match error {
            // The log has all records; the units follow when there is space or a free descriptor again.
            error if is_transient(&error) => error,
            error => self.log.poison("dispatching", &error.to_string()),
        })?;
        Ok(reached)
    }

    pub(crate) fn has_queue(&self, topic: &str, queue_id: i32) -> bool {
        let listed = self.topics.queue_count(topic) as i32;
        // A handle that reads a former queue keeps it after its last message has expired.
        (0..listed).contains(&queue_id) || listed > 0 && self.queues.ids(topic).contains(&queue_id)
    }

    /// Returns the queues after the `listed` ones that still have messages: the topic had more queues before.
    pub(crate) fn former_queues(&self, topic: &str, listed: i32) -> impl Iterator<Item = i32> + '_ {
        let ids = if self.topics.is_removed(topic) { BTreeSet::new() } else { self.queues.ids(topic) };
        let topic = topic.to_owned();
        // The messages of a compaction topic can be in its compaction files only.
        let compacted = self.topics.get(&topic).is_some_and(|state| state.is_compaction());
        ids.into_iter().filter(move |id| {
            let bounds = match self.queues.batch(&topic, *id) {
                Some(queue) => Some((queue.min_offset(), queue.max_offset())),
                None => self.queues.get(&topic, *id).map(|queue| (queue.min_offset(), queue.max_offset())),
            };
            *id >= listed && bounds.is_some_and(|(min, max)| max > if compacted { 0 } else { min })
        })
    }
}

/// Whether a later dispatch can succeed after `error`.
pub(crate) fn is_transient(error: &StoreError) -> bool {
    matches!(error, StoreError::DiskFull { .. }) || error.is_out_of_resources()
}
