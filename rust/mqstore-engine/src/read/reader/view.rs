//! The reader as a view for reads: the visible log, the queue files that the reader trusts, and the units that it
//! derived.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mqstore_format::CqUnit;
use mqstore_format::json::TopicConfig;

use super::super::units::{read_units, sorted_offsets};
use super::super::view::View;
use super::{OVERLAY_BYTES, Reader, ReaderState, SMALL_LOG_BYTES, SMALL_REMOTE_LOG_BYTES};
use mqstore_base::error::StoreError;
use mqstore_base::live_page::LiveState;
use mqstore_base::message::StoredRecord;
use mqstore_base::retry::{poll_interval, retry_if_gone};
use mqstore_base::store_files::{DelayTables, StoreFiles};
use mqstore_base::topic_floors::{FloorTable, TopicRetention};
use mqstore_compaction::ManifestCache;
use mqstore_log::commit_log::SegmentList;
use mqstore_log::consume_queue::ConsumeQueue;
use mqstore_log::dispatch::{ANY_TAGS, DerivedQueue};
use mqstore_log::index::Candidates;

/// Number of tries of one look at queue files that the writer changes meanwhile.
const LOOK_TRIES: u32 = 20;

impl View for Reader {
    fn files(&self) -> &StoreFiles {
        &self.files
    }

    fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn catch_up(&self) -> Result<u64, StoreError> {
        retry_if_gone(&*self.files.clock, || self.catch_up_once())
    }

    fn list(&self) -> Arc<SegmentList> {
        Arc::clone(&self.state.lock().list)
    }

    fn open_files(&self) -> [(usize, usize); 2] {
        [self.state.lock().queues.open_files(), self.index.open_files()]
    }

    fn topics(&self) -> Result<Vec<String>, StoreError> {
        self.look()?;
        let state = self.state.lock();
        let listed = self.listed();
        let mut names: BTreeSet<String> = listed.table.topics.keys().cloned().collect();
        names.extend(state.queues.topics().into_keys());
        names.extend(state.overlay.topics().map(str::to_owned));
        names.extend(state.replaced.topics().map(str::to_owned));
        names.retain(|name| !listed.removed.contains(name));
        Ok(names.into_iter().collect())
    }

    fn queue_ids(&self, topic: &str) -> Result<Vec<i32>, StoreError> {
        self.look()?;
        if self.listed().removed.contains(topic) {
            return Ok(Vec::new());
        }
        let floors = self.floors.now();
        let state = self.state.lock();
        let mut ids: BTreeSet<i32> = (0..self.listed_queues(topic)).collect();
        // The floor of a deleted topic keeps queues that a new topic of the name may not have.
        let is_kept = |id: &i32| floors.first_offset(topic, *id) == 0 || state.queues.has_units(topic, *id);
        ids.extend(state.queues.ids(topic).into_iter().filter(is_kept));
        ids.extend(state.overlay.queue_ids(topic));
        ids.extend(state.replaced.queue_ids(topic));
        Ok(ids.into_iter().collect())
    }

    fn bounds(&self, topic: &str, queue_id: i32) -> Result<Option<(i64, i64)>, StoreError> {
        self.look_at(topic, queue_id)?;
        self.look_at_queue(topic, queue_id, || self.bounds_once(topic, queue_id))
    }

    fn units(
        &self,
        topic: &str,
        queue_id: i32,
        from: i64,
        max: usize,
        units: &mut Vec<(i64, CqUnit)>,
    ) -> Result<(), StoreError> {
        self.look_at(topic, queue_id)?;
        let had = units.len();
        self.look_at_queue(topic, queue_id, || {
            units.truncate(had);
            self.units_once(topic, queue_id, from, max, units)
        })?;
        if self.files.tiered().is_some() {
            // A damaged hash must not hide a message from a filter: the record decides.
            units.iter_mut().skip(had).for_each(|(_, unit)| unit.tags_code = ANY_TAGS);
        }
        Ok(())
    }

    fn prefetch_units(&self, topic: &str, queue_id: i32, from: i64, units: i64) {
        let queue = Self::file_queue(&self.state.lock(), topic, queue_id);
        if let Some(queue) = queue {
            queue.prefetch(from, units);
        }
    }

    fn start_of(&self, topic: &str, queue_id: i32, offset: i64) -> Result<i64, StoreError> {
        self.look_at(topic, queue_id)?;
        if !self.batch.contains(topic) {
            return Ok(offset);
        }
        self.look_at_queue(topic, queue_id, || {
            let state = self.state.lock();
            if let Some(queue) = Self::batch_queue(&state, topic, queue_id)
                && offset < queue.max_offset_for(state.overlay_from)?
            {
                return queue.start_of(offset);
            }
            Ok(Self::derived(&state, topic, queue_id).map_or(offset, |queue| queue.start_of(offset)))
        })
    }

    fn distrust(&self, topic: &str, queue_id: i32, reason: &str) -> Result<bool, StoreError> {
        self.look_at(topic, queue_id)?;
        let mut state = self.state.lock();
        // The units of a tiered store are checked against the records already.
        if Self::is_derived(&state, topic, queue_id) || self.files.tiered().is_some() {
            return Ok(false);
        }
        self.replace(&mut state, &BTreeSet::from([(topic.to_owned(), queue_id)]), reason)?;
        Ok(true)
    }

    fn count_skipped(&self, text: String) {
        self.skipped.fetch_add(1, Ordering::Relaxed);
        self.note(text);
    }

    fn skipped(&self) -> u64 {
        self.skipped.load(Ordering::Relaxed)
    }

    fn delays(&self) -> &DelayTables {
        &self.delays
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
        Ok(self.messages_in_files(topic, queue_id, offsets).unwrap_or_default())
    }

    fn keeps_newest(&self, topic: &str) -> bool {
        self.listed().table.topics.get(topic).is_some_and(TopicConfig::is_compaction)
    }

    fn is_removed(&self, topic: &str) -> bool {
        self.listed().removed.contains(topic)
    }

    fn expire_after_ms(&self, topic: &str) -> Option<i64> {
        self.listed().table.topics.get(topic)?.expire_after_ms()
    }

    fn retentions(&self) -> BTreeMap<Arc<str>, TopicRetention> {
        self.listed().retentions.clone()
    }

    fn attributes(&self, topic: &str) -> Vec<(String, String)> {
        let listed = self.listed();
        let topic = listed.table.topics.get(topic);
        topic.map(|topic| topic.attributes.clone()).unwrap_or_default().into_iter().collect()
    }

    fn has_batch_queues(&self, topic: &str) -> bool {
        self.batch.contains(topic)
    }

    fn floors(&self) -> Arc<FloorTable> {
        self.floors.now()
    }

    fn floor_changes(&self) -> u64 {
        self.floors.changes()
    }

    fn has_unread_floors(&self) -> bool {
        self.live.topic_changes().is_some_and(|changes| changes != self.topic_changes.load(Ordering::Acquire))
    }

    fn candidates(&self, hash: i32) -> Result<Option<(Vec<u64>, u64)>, StoreError> {
        self.look()?;
        let (min, end, complete_to) = {
            let state = self.state.lock();
            (state.list.min_offset(), state.end, state.index_complete_to)
        };
        let is_remote = self.files.vfs.is_remote();
        let small = if is_remote { SMALL_REMOTE_LOG_BYTES } else { SMALL_LOG_BYTES };
        if end - min <= small || complete_to <= min {
            return Ok(None);
        }
        let found = self.index_candidates(hash)?;
        if let Some(damage) = found.damaged {
            self.note(format!("{damage}; the index is not used, and look-ups read the whole log"));
            return Ok(None);
        }
        Ok(Some((sorted_offsets(found.offsets, min, complete_to), complete_to)))
    }

    /// Another process writes and sends no events here: checks again after a sleep, which is short at first.
    fn wait_for(
        &self,
        _topic: &str,
        _places: &[(i32, i64)],
        timeout: Duration,
        round: u32,
    ) -> Result<(), StoreError> {
        self.files.clock.sleep(poll_interval(round).min(timeout));
        Ok(())
    }
}

/// Returns the end of the units in the files of `queue` for records before log offset `log_end`; 0 without units.
fn end_in_files(queue: &ConsumeQueue, log_end: u64) -> Result<i64, StoreError> {
    if queue.is_empty() { Ok(0) } else { queue.max_offset_for(log_end) }
}

impl Reader {
    fn catch_up_once(&self) -> Result<u64, StoreError> {
        let seen = self.has_looked();
        let mut state = self.state.lock();
        let (page, live) = self.live.look(&self.files);
        self.follow_expiry(&mut state, live)?;
        let before = state.end;
        if state.list.find(before).is_none() {
            self.renew_list(&mut state)?;
        }
        // Before the end moves: if this fails, the next call must still find the same records to be new.
        self.follow_topics(&mut state, page, live)?;
        self.find_end(&mut state, live)?;
        if !seen {
            state.is_complete = true;
            return Ok(state.end);
        }
        let is_new_writer = live.is_some_and(|live| state.writer != Some(live.token));
        let must_renew = !mem::replace(&mut state.is_complete, false) || is_new_writer;
        if must_renew {
            self.renew_queues(&mut state, live)?;
        } else if state.end > before {
            self.follow_log(&mut state, before, live)?;
        }
        if let Some(live) = live.filter(|_| must_renew || state.end > before) {
            self.check_begin(live.visible)?;
        }
        state.is_complete = true;
        state.page = page;
        state.writer = live.map(|live| live.token).or(state.writer);
        Ok(state.end)
    }

    /// Reads all queues again: the recovery of a new writer cuts and rewrites units, the floors of deleted topics
    /// changed, or the last catch-up failed.
    fn renew_queues(&self, state: &mut ReaderState, live: Option<LiveState>) -> Result<(), StoreError> {
        if state.all_replaced { self.walk_all(state) } else { self.reload_queues(state, live) }
    }

    /// Adds the records from `before` to the end of the visible log to the queues.
    fn follow_log(
        &self,
        state: &mut ReaderState,
        before: u64,
        live: Option<LiveState>,
    ) -> Result<(), StoreError> {
        let end = state.end;
        if state.all_replaced {
            let mut all = mem::take(&mut state.replaced);
            let outcome = self.walk(state, before, end, |item| all.add(&item));
            state.replaced = all;
            return outcome.map(drop);
        }
        let are_in_files = live.is_some_and(|live| live.dispatched > before);
        if end - state.overlay_from > OVERLAY_BYTES && are_in_files {
            return self.reload_queues(state, live);
        }
        self.walk_into_overlay(state, before, end)?;
        let replaced = state.replaced_ids.clone();
        self.replace(state, &replaced, "its files are not used")
    }

    /// Returns the result of `look` at the files of a queue that the writer did not change meanwhile: neither did it
    /// restart, nor did it remove a file. A restart cuts units that were not synced, after it has put a new live page in
    /// place.
    fn look_at_queue<T>(
        &self,
        topic: &str,
        queue_id: i32,
        mut look: impl FnMut() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        for round in 0..LOOK_TRIES {
            let page = self.state.lock().page;
            let outcome = look();
            if page != self.page() {
                self.catch_up()?;
            } else if outcome.as_ref().is_err_and(StoreError::is_gone) {
                self.files.clock.sleep(poll_interval(round));
                // The writer counts a deletion of the topic before it removes the files.
                self.catch_up()?;
                self.list_files_of(topic, queue_id)?;
            } else {
                return outcome;
            }
        }
        look()
    }

    /// Lists the files of one queue again.
    fn list_files_of(&self, topic: &str, queue_id: i32) -> Result<(), StoreError> {
        let state = self.state.lock();
        if let Some(queue) = state.queues.get(topic, queue_id) {
            queue.recover_bounds()?;
        }
        state.queues.batch(topic, queue_id).map_or(Ok(()), |queue| queue.recover_bounds())
    }

    /// Returns what the index has for `hash`. A writer removes index files together with the segments that they
    /// describe, so a problem counts only if it stays.
    fn index_candidates(&self, hash: i32) -> Result<Candidates, StoreError> {
        let look = || self.index.candidates(hash, i64::MIN, i64::MAX);
        let mut found = look()?;
        for round in 0..LOOK_TRIES {
            if found.damaged.is_none() || self.live.look(&self.files).1.is_none() {
                break;
            }
            self.files.clock.sleep(poll_interval(round));
            self.catch_up()?;
            found = look()?;
        }
        Ok(found)
    }

    fn bounds_once(&self, topic: &str, queue_id: i32) -> Result<Option<(i64, i64)>, StoreError> {
        let state = self.state.lock();
        let known = (0..self.listed_queues(topic)).contains(&queue_id)
            || state.queues.get(topic, queue_id).is_some()
            || state.queues.batch(topic, queue_id).is_some()
            || Self::derived(&state, topic, queue_id).is_some();
        if !known || self.listed().removed.contains(topic) {
            return Ok(None);
        }
        let continues = self.floors.first_offset(topic, queue_id);
        // A queue without messages continues after the deletion of its topic.
        let with_floor = |(min, max)| if max == 0 { (continues, continues) } else { (min, max) };
        if let Some(queue) = Self::file_queue(&state, topic, queue_id) {
            queue.correct_min_offset(state.list.min_offset())?;
            let file_max = end_in_files(&queue, state.overlay_from)?;
            let overlay = state.overlay.get(topic, queue_id);
            let max = overlay.map_or(0, DerivedQueue::max_offset).max(file_max);
            // If no unit of the files points into the log any more, the derived units begin the queue.
            let derived_min = || overlay.and_then(DerivedQueue::min_offset).unwrap_or(max);
            let min = Some(queue.min_offset()).filter(|min| *min < file_max).unwrap_or_else(derived_min);
            return Ok(Some(with_floor((min, max))));
        }
        let bounds = Self::derived(&state, topic, queue_id)
            .map_or((0, 0), |queue| (queue.min_offset().unwrap_or(queue.max_offset()), queue.max_offset()));
        if let Some(queue) = Self::batch_queue(&state, topic, queue_id) {
            queue.correct_min_offset(state.list.min_offset())?;
            let file_max = if queue.is_empty() { 0 } else { queue.max_offset_for(state.overlay_from)? };
            let min = if file_max > 0 { queue.min_offset().min(file_max) } else { bounds.0 };
            return Ok(Some(with_floor((min, bounds.1.max(file_max)))));
        }
        Ok(Some(with_floor(bounds)))
    }

    fn units_once(
        &self,
        topic: &str,
        queue_id: i32,
        from: i64,
        max: usize,
        units: &mut Vec<(i64, CqUnit)>,
    ) -> Result<(), StoreError> {
        let state = self.state.lock();
        let mut from = from;
        let had = units.len();
        if let Some(queue) = Self::file_queue(&state, topic, queue_id) {
            // The derived units before the log are gone: those of the files must not come before a gap.
            queue.correct_min_offset(state.list.min_offset())?;
            let file_max = end_in_files(&queue, state.overlay_from)?;
            read_units(&queue, from.max(queue.min_offset()), file_max, max, units)?;
            from = from.max(file_max);
        }
        if let Some(queue) = Self::batch_queue(&state, topic, queue_id) {
            let seen = state.overlay_from;
            queue.correct_min_offset(state.list.min_offset())?;
            match queue.read(from, max, seen, units) {
                Err(error @ StoreError::Corrupt { .. }) => {
                    units.truncate(had);
                    drop(state);
                    self.distrust(topic, queue_id, &error.to_string())?;
                    return self.units_once(topic, queue_id, from, max, units);
                }
                outcome => outcome?,
            }
            if !queue.is_empty() {
                from = from.max(queue.max_offset_for(seen)?);
            }
        }
        if let Some(queue) = Self::derived(&state, topic, queue_id) {
            let room = max.saturating_sub(units.len());
            units.extend(queue.from(from).iter().take(room).copied());
        }
        Ok(())
    }
}
