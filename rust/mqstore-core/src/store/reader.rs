//! A store that is open for reading only.
//!
//! Takes no lock and changes no byte. Beside a writer of ours it stops at the position that the writer
//! publishes; otherwise at the end of the last record that holds together. Queue files are used where
//! they can be shown to be complete; what is missing, behind or damaged is derived from the log in
//! memory and said once in [`Reader::notes`].
//!
//! How completeness is known: from the writer's live page; else from the durable mark together with
//! the queue manifest; else, for a log of at most [`FULL_WALK_BYTES`], by walking it; else the files
//! are taken up to the furthest entry and each entry is checked when it is used.

mod facts;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use mqstore_format::json::{TopicConfig, TopicTable};
use mqstore_format::{CqUnit, IndexGeometry};
use mqstore_io::Access;
use mqstore_io::sync::Mutex;

use super::beside::{again, nap, renewed, settled};
use super::topics::{batch_topics, load_table};
use super::view::View;
use crate::commit_log::{LogScanner, ScanChecks, ScanItem, SegmentList};
use crate::consume_queue::{BatchQueue, ConsumeQueue, QueueSet};
use crate::dispatch::{BatchTopics, DerivedQueue, DerivedQueues};
use crate::error::StoreError;
use crate::files::StoreFiles;
use crate::index::IndexSet;
use crate::live::{LiveState, read_live};
use crate::mark::{Mark, MarkFile};
use crate::options::StoreOptions;
use crate::recovery::{QueueManifest, log_end, mark_fits, missed_by_index};

/// Up to this many bytes a log is walked to derive queues that nothing vouches for.
const FULL_WALK_BYTES: u64 = 2 << 30;

/// Up to this many bytes a look-up walks the log instead of trusting the index.
const SMALL_LOG_BYTES: u64 = 64 << 20;

/// Derived entries that cover more than this are dropped once the files hold them.
const OVERLAY_BYTES: u64 = 64 << 20;

/// Queues that notes name one by one.
const MOST_NAMED: usize = 8;

/// See the module's text.
pub(crate) struct Reader {
    files: StoreFiles,
    options: StoreOptions,
    table: TopicTable,
    batch: BatchTopics,
    index: IndexSet,
    mark: Option<Mark>,
    state: Mutex<State>,
    notes: Mutex<Vec<String>>,
    /// What was there before the queues were listed, until they are looked at.
    unseen: Mutex<Option<(Option<LiveState>, Option<QueueManifest>)>>,
}

struct State {
    list: Arc<SegmentList>,
    /// Where the visible log ends.
    end: u64,
    queues: Arc<QueueSet>,
    /// Entries of records in `overlay_from..end`; the files are used for what comes before, since after
    /// a stop anything behind it may be torn.
    overlay: DerivedQueues,
    overlay_from: u64,
    /// Queues whose files are not used at all.
    replaced: DerivedQueues,
    replaced_ids: BTreeSet<(String, i32)>,
    /// Whether `replaced` holds every queue.
    all_replaced: bool,
    index_complete_to: u64,
}

impl Reader {
    /// Opens the store at `files` without changing it.
    pub(crate) fn open(files: &StoreFiles, options: &StoreOptions) -> Result<Self, StoreError> {
        again(|| {
            let reader = Self::open_once(files, options)?;
            reader.look()?;
            Ok(reader)
        })
    }

    /// As [`Self::open`], for who may want the log alone: queues are looked at when they are asked for.
    pub(crate) fn open_log(files: &StoreFiles, options: &StoreOptions) -> Result<Self, StoreError> {
        again(|| Self::open_once(files, options))
    }

    fn open_once(files: &StoreFiles, options: &StoreOptions) -> Result<Self, StoreError> {
        files.must_be_a_store()?;
        let mut notes = Vec::new();
        // Come first: what is looked at later, queues that were made meanwhile included, is no older.
        let live = read_live(files);
        let manifest = QueueManifest::load(files);
        let list = SegmentList::load(files)?;
        for stray in &list.strays {
            notes.push(format!("{}: ignored, {}", stray.path.display(), stray.reason));
        }
        for (from, to) in &list.gaps {
            notes.push(format!("the segments from offset {from} to {to} are missing"));
        }
        let mark = MarkFile::new(files).load().filter(|mark| mark_fits(files, &list, mark));
        let table = load_table(files, &mut notes);
        let batch = batch_topics(files, &table);
        let configured = IndexGeometry { slots: options.index_slots, entries: options.index_entries };
        let known = mark.map(|mark| mark.index_geometry());
        let index = IndexSet::load(files, known, configured, Access::Read)?;
        let file_bytes = mark.map_or(options.queue_file_bytes(), |mark| mark.queue_file_bytes);
        let queues = QueueSet::load(files, file_bytes, Access::Read)?;
        for stray in queues.strays().iter().chain(index.strays()) {
            notes.push(format!("{}: not used, {}", stray.path.display(), stray.reason));
        }
        let state = State {
            end: list.min_offset(),
            list: Arc::new(list),
            queues: Arc::new(queues),
            overlay: DerivedQueues::default(),
            overlay_from: 0,
            replaced: DerivedQueues::default(),
            replaced_ids: BTreeSet::new(),
            all_replaced: false,
            index_complete_to: 0,
        };
        Ok(Self {
            files: files.clone(),
            options: options.clone(),
            table,
            batch,
            index,
            mark,
            state: Mutex::new(state),
            notes: Mutex::new(notes),
            unseen: Mutex::new(Some((live, manifest))),
        })
    }

    /// Looks at the queues, if nobody did.
    fn look(&self) -> Result<(), StoreError> {
        let mut unseen = self.unseen.lock();
        if let Some((live, manifest)) = &*unseen {
            self.first_look(*live, manifest.as_ref())?;
            *unseen = None;
        }
        Ok(())
    }

    /// Gives back maps and descriptors, but for those that somebody uses.
    pub(crate) fn release(&self) {
        let state = self.state.lock();
        for segment in state.list.segments() {
            segment.unmap();
            segment.close_file();
        }
        state.queues.release();
        self.index.release();
    }

    /// Things a person should know, each once.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.notes.lock().clone()
    }

    pub(crate) fn note(&self, text: String) {
        let mut notes = self.notes.lock();
        if !notes.contains(&text) {
            notes.push(text);
        }
    }

    /// Moves `state.end` to where the visible log ends now: beside a writer of ours to what it publishes, else
    /// to the end of the last record that holds together.
    fn find_end(&self, state: &mut State, live: Option<LiveState>) -> Result<(), StoreError> {
        if let Some(live) = live {
            let known = state.list.end_offset();
            if live.visible > known {
                state.list = Arc::new(SegmentList::load(&self.files)?);
            }
            state.end = state.end.max(live.visible);
            return Ok(());
        }
        let beside = self.files.vfs.lock_holder(&self.files.lock()).ok().flatten().is_some();
        let found = log_end(&self.files, &state.list, self.mark.as_ref(), state.end, beside)?;
        state.end = found.end;
        if let Some(damage) = found.damage.filter(|_| !beside) {
            self.note(damage);
        }
        Ok(())
    }

    fn first_look(
        &self,
        live: Option<LiveState>,
        manifest: Option<&QueueManifest>,
    ) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        self.find_end(&mut state, live)?;
        state.queues.recover_bounds()?;
        let vouched = match live {
            Some(live) => Some(live.dispatched),
            None => self.mark.filter(|_| manifest.is_some()).map(|mark| mark.dispatched),
        };
        match vouched.map(|complete_to| complete_to.min(state.end)) {
            Some(complete_to) => self.trust(&mut state, complete_to, manifest, live.is_some())?,
            None if state.end - state.list.min_offset() <= FULL_WALK_BYTES => self.walk_all(&mut state)?,
            None => {
                let furthest = state.queues.all().iter().map(|queue| queue.max_physical_end()).max();
                let complete_to = u64::try_from(furthest.unwrap_or(0)).unwrap_or(0).min(state.end);
                let complete_to = complete_to.max(state.list.min_offset());
                self.trust(&mut state, complete_to, manifest, false)?;
                state.index_complete_to = self.index.end_physical().max(0) as u64;
            }
        }
        let as_left = self.mark.is_some_and(|mark| mark.is_as_left(state.end, self.index.extent()));
        if live.is_none() && !as_left && missed_by_index(&state.list, &self.index, state.end)?.is_some() {
            self.note("index files are missing; look-ups walk the log".to_owned());
            state.index_complete_to = 0;
        }
        Ok(())
    }

    /// Uses the queue files up to `complete_to` and derives the rest; single queues that are short or
    /// damaged are derived whole. The `manifest` must have been read before the queues were listed. `beside` a
    /// writer of ours the files change meanwhile.
    fn trust(
        &self,
        state: &mut State,
        complete_to: u64,
        manifest: Option<&QueueManifest>,
        beside: bool,
    ) -> Result<(), StoreError> {
        state.overlay_from = complete_to;
        state.overlay = DerivedQueues::default();
        let end = state.end;
        self.walk_into_overlay(state, complete_to, end)?;
        state.index_complete_to = match self.mark {
            Some(mark) if self.index.end_physical() < mark.index.end => 0,
            _ => complete_to,
        };
        let mut suspects: BTreeSet<(String, i32)> = BTreeSet::new();
        let is_odd = |queue: &ConsumeQueue| Ok(queue.damaged_before(complete_to)?.is_some());
        for queue in settled(&self.files, beside, state.queues.all(), is_odd, ConsumeQueue::recover_bounds)? {
            suspects.insert((queue.topic().to_owned(), queue.queue_id()));
        }
        let is_odd = |queue: &BatchQueue| Ok(queue.damaged().is_some());
        for queue in settled(&self.files, beside, state.queues.batches(), is_odd, BatchQueue::recover_bounds)?
        {
            suspects.insert((queue.topic().to_owned(), queue.queue_id()));
        }
        if let Some(manifest) = manifest {
            let log_min = state.list.min_offset();
            state.queues.correct_min_offsets(log_min)?;
            let missing = manifest.missing_from(&state.queues, log_min, complete_to);
            suspects.extend(missing.into_iter().map(|(topic, queue_id)| (topic.to_owned(), queue_id)));
        }
        self.replace(state, &suspects, "its files are not as they were left")
    }

    /// Derives every queue from the log.
    fn walk_all(&self, state: &mut State) -> Result<(), StoreError> {
        let (from, end) = (state.list.min_offset(), state.end);
        let mut all = DerivedQueues::default();
        self.walk(state, from, end, |record, offset| all.add(record, offset))?;
        if state.queues.all().is_empty() && end > from {
            self.note(
                "the store has no queue files; its queues are derived from the log in memory".to_owned(),
            );
        }
        state.replaced = all;
        state.all_replaced = true;
        state.overlay_from = end;
        state.index_complete_to = self.index.end_physical().max(0) as u64;
        Ok(())
    }

    fn walk_into_overlay(&self, state: &mut State, from: u64, end: u64) -> Result<(), StoreError> {
        let mut overlay = std::mem::take(&mut state.overlay);
        let outcome = self.walk(state, from, end, |record, offset| overlay.add(record, offset));
        state.overlay = overlay;
        outcome
    }

    fn walk(
        &self,
        state: &State,
        from: u64,
        end: u64,
        mut visit: impl FnMut(&mqstore_format::RecordView<'_>, u64),
    ) -> Result<(), StoreError> {
        let from = from.max(state.list.min_offset());
        let mut scanner = LogScanner::new(Arc::clone(&state.list), from, end, ScanChecks { crc: false });
        loop {
            let offset = scanner.position();
            let item = match scanner.next_item() {
                // What a writer deletes while it is walked needs no entries.
                Err(error) if error.is_gone() => {
                    let list = SegmentList::load(&self.files)?;
                    let min = list.min_offset();
                    if min <= offset {
                        return Err(error);
                    }
                    scanner.renew(Arc::new(list));
                    scanner.seek(min);
                    continue;
                }
                item => item?,
            };
            match item {
                ScanItem::Record(record) => visit(&record, offset),
                ScanItem::Filler { .. } => {}
                ScanItem::End { .. } => return Ok(()),
                ScanItem::Damaged(damage) => {
                    let Some(next) = scanner.skip(&damage)? else { return Ok(()) };
                    self.note(damage.skipped(next - damage.offset));
                }
            }
        }
    }

    /// Derives some queues from the log, all in one walk, and stops using their files.
    fn replace(
        &self,
        state: &mut State,
        queues: &BTreeSet<(String, i32)>,
        reason: &str,
    ) -> Result<(), StoreError> {
        for (topic, queue_id) in queues.iter().take(MOST_NAMED) {
            self.note(format!("queue {topic}/{queue_id}: {reason}; derived from the log in memory"));
        }
        if let Some(more) = queues.len().checked_sub(MOST_NAMED).filter(|more| *more > 0) {
            self.note(format!("and {more} queues more: {reason}; derived from the log in memory"));
        }
        if queues.is_empty() {
            return Ok(());
        }
        let mut topics: HashMap<&str, BTreeSet<i32>> = HashMap::new();
        for (topic, queue_id) in queues {
            topics.entry(topic).or_default().insert(*queue_id);
        }
        let mut wanted = DerivedQueues::default();
        self.walk(state, state.list.min_offset(), state.end, |record, offset| {
            if topics.get(record.topic).is_some_and(|ids| ids.contains(&record.queue_id)) {
                wanted.add(record, offset);
            }
        })?;
        for (topic, queue_id) in queues {
            state.replaced.adopt(&mut wanted, topic, *queue_id);
            state.replaced_ids.insert((topic.clone(), *queue_id));
        }
        Ok(())
    }

    fn is_replaced(state: &State, topic: &str, queue_id: i32) -> bool {
        state.all_replaced || state.replaced_ids.contains(&(topic.to_owned(), queue_id))
    }

    /// Takes note that a writer deleted the oldest segments, if it did.
    fn follow_expiry(&self, state: &mut State) -> Result<(), StoreError> {
        let Some(first) = state.list.segments().first() else { return Ok(()) };
        match self.files.vfs.stat(&first.path()) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            // Whatever else is wrong with it, whoever reads it meets.
            _ => return Ok(()),
        }
        state.list = Arc::new(SegmentList::load(&self.files)?);
        let min = state.list.min_offset();
        state.overlay.drop_below(min);
        state.replaced.drop_below(min);
        state.end = state.end.max(min);
        self.index.forget_below(min);
        again(|| state.queues.recover_bounds())
    }

    /// The files' batch queue, when it is used.
    fn batch_queue(state: &State, topic: &str, queue_id: i32) -> Option<Arc<BatchQueue>> {
        if Self::is_replaced(state, topic, queue_id) { None } else { state.queues.batch(topic, queue_id) }
    }

    /// What was derived of a queue: all of it, or what its files lack.
    fn derived<'a>(state: &'a State, topic: &str, queue_id: i32) -> Option<&'a DerivedQueue> {
        let replaced = Self::is_replaced(state, topic, queue_id);
        let source = if replaced { &state.replaced } else { &state.overlay };
        source.get(topic, queue_id)
    }

    /// The files' queue, when it is used: its maximum clamped to the visible log.
    fn file_queue(state: &State, topic: &str, queue_id: i32) -> Option<Arc<ConsumeQueue>> {
        if Self::is_replaced(state, topic, queue_id) { None } else { state.queues.get(topic, queue_id) }
    }
}

impl View for Reader {
    fn files(&self) -> &StoreFiles {
        &self.files
    }

    fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn catch_up(&self) -> Result<u64, StoreError> {
        let seen = self.unseen.lock().is_none();
        let mut state = self.state.lock();
        self.follow_expiry(&mut state)?;
        let before = state.end;
        let live = read_live(&self.files);
        let at_segment_end = state.list.find(before).is_none();
        if at_segment_end {
            state.list = Arc::new(SegmentList::load(&self.files)?);
        }
        self.find_end(&mut state, live)?;
        let end = state.end;
        if end > before && seen {
            if state.all_replaced {
                let mut all = std::mem::take(&mut state.replaced);
                let outcome = self.walk(&state, before, end, |record, offset| all.add(record, offset));
                state.replaced = all;
                outcome?;
            } else {
                if end - state.overlay_from > OVERLAY_BYTES
                    && live.is_some_and(|live| live.dispatched > before)
                {
                    let file_bytes = state.queues.file_bytes();
                    let manifest = QueueManifest::load(&self.files);
                    state.queues = Arc::new(QueueSet::load(&self.files, file_bytes, Access::Read)?);
                    state.queues.recover_bounds()?;
                    let complete_to = live.map_or(before, |live| live.dispatched.min(end));
                    self.trust(&mut state, complete_to, manifest.as_ref(), live.is_some())?;
                } else {
                    self.walk_into_overlay(&mut state, before, end)?;
                }
                let replaced = state.replaced_ids.clone();
                self.replace(&mut state, &replaced, "its files are not used")?;
            }
        }
        Ok(end)
    }

    fn list(&self) -> Arc<SegmentList> {
        Arc::clone(&self.state.lock().list)
    }

    fn topics(&self) -> Result<Vec<String>, StoreError> {
        self.look()?;
        let state = self.state.lock();
        let mut names: BTreeSet<String> = self.table.topics.keys().cloned().collect();
        names.extend(state.queues.topics().into_keys());
        names.extend(state.overlay.topics().map(str::to_owned));
        names.extend(state.replaced.topics().map(str::to_owned));
        Ok(names.into_iter().collect())
    }

    fn queue_ids(&self, topic: &str) -> Result<Vec<i32>, StoreError> {
        self.look()?;
        let state = self.state.lock();
        let mut ids: BTreeSet<i32> = (0..self.listed_queues(topic)).collect();
        ids.extend(state.queues.topics().remove(topic).unwrap_or_default());
        ids.extend(state.overlay.queue_ids(topic));
        ids.extend(state.replaced.queue_ids(topic));
        Ok(ids.into_iter().collect())
    }

    fn bounds(&self, topic: &str, queue_id: i32) -> Result<Option<(i64, i64)>, StoreError> {
        self.look()?;
        let state = self.state.lock();
        let known = (0..self.listed_queues(topic)).contains(&queue_id)
            || state.queues.get(topic, queue_id).is_some()
            || state.queues.batch(topic, queue_id).is_some()
            || Self::derived(&state, topic, queue_id).is_some();
        if !known {
            return Ok(None);
        }
        if let Some(queue) = Self::file_queue(&state, topic, queue_id) {
            let file_max = renewed(&queue, || {
                queue.correct_min_offset(state.list.min_offset())?;
                queue.max_offset_for(state.overlay_from)
            })?;
            let overlay = state.overlay.get(topic, queue_id);
            let max = overlay.map_or(0, DerivedQueue::max_offset).max(file_max);
            // Where nothing in the files is left of the log, what is derived begins it.
            let derived_min = || overlay.and_then(DerivedQueue::min_offset).unwrap_or(max);
            let min = Some(queue.min_offset()).filter(|min| *min < file_max).unwrap_or_else(derived_min);
            return Ok(Some((min, max)));
        }
        let bounds = Self::derived(&state, topic, queue_id)
            .map_or((0, 0), |queue| (queue.min_offset().unwrap_or(queue.max_offset()), queue.max_offset()));
        if let Some(queue) = Self::batch_queue(&state, topic, queue_id) {
            queue.correct_min_offset(state.list.min_offset())?;
            let file_max = queue.max_offset_for(state.overlay_from)?;
            let min = if file_max > 0 { queue.min_offset().min(file_max) } else { bounds.0 };
            return Ok(Some((min, bounds.1.max(file_max))));
        }
        Ok(Some(bounds))
    }

    fn units(
        &self,
        topic: &str,
        queue_id: i32,
        from: i64,
        max: usize,
        units: &mut Vec<(i64, CqUnit)>,
    ) -> Result<(), StoreError> {
        self.look()?;
        let state = self.state.lock();
        let mut from = from;
        let had = units.len();
        if let Some(queue) = Self::file_queue(&state, topic, queue_id) {
            let file_max = renewed(&queue, || {
                let file_max = queue.max_offset_for(state.overlay_from)?;
                units.truncate(had);
                super::read_units(&queue, from.max(queue.min_offset()), file_max, max, units)?;
                Ok(file_max)
            })?;
            from = from.max(file_max);
        }
        if let Some(queue) = Self::batch_queue(&state, topic, queue_id) {
            let seen = state.overlay_from;
            match queue.read(from, max, seen, units) {
                Err(error @ StoreError::Corrupt { .. }) => {
                    units.truncate(had);
                    drop(state);
                    self.distrust(topic, queue_id, &error.to_string())?;
                    return self.units(topic, queue_id, from, max, units);
                }
                outcome => outcome?,
            }
            from = from.max(queue.max_offset_for(seen)?);
        }
        if let Some(queue) = Self::derived(&state, topic, queue_id) {
            let room = max.saturating_sub(units.len());
            units.extend(queue.from(from).iter().take(room).copied());
        }
        Ok(())
    }

    fn start_of(&self, topic: &str, queue_id: i32, offset: i64) -> Result<i64, StoreError> {
        self.look()?;
        if !self.batch.contains(topic) {
            return Ok(offset);
        }
        let state = self.state.lock();
        if let Some(queue) = Self::batch_queue(&state, topic, queue_id)
            && offset < queue.max_offset_for(state.overlay_from)?
        {
            return queue.start_of(offset);
        }
        Ok(Self::derived(&state, topic, queue_id).map_or(offset, |queue| queue.start_of(offset)))
    }

    fn distrust(&self, topic: &str, queue_id: i32, reason: &str) -> Result<bool, StoreError> {
        self.look()?;
        let mut state = self.state.lock();
        if Self::is_replaced(&state, topic, queue_id) {
            return Ok(false);
        }
        self.replace(&mut state, &BTreeSet::from([(topic.to_owned(), queue_id)]), reason)?;
        Ok(true)
    }

    fn keeps_newest(&self, topic: &str) -> bool {
        self.table.topics.get(topic).is_some_and(TopicConfig::is_compaction)
    }

    fn candidates(&self, hash: i32) -> Result<Option<(Vec<u64>, u64)>, StoreError> {
        self.look()?;
        let (min, end, complete_to) = {
            let state = self.state.lock();
            (state.list.min_offset(), state.end, state.index_complete_to)
        };
        if end - min <= SMALL_LOG_BYTES || complete_to <= min {
            return Ok(None);
        }
        let found = self.index.candidates(hash, i64::MIN, i64::MAX)?;
        if let Some(damage) = found.damaged {
            self.note(format!("{damage}; the index is not used, look-ups walk the log"));
            return Ok(None);
        }
        Ok(Some((super::sorted_offsets(found.offsets, min, complete_to), complete_to)))
    }

    /// Another process writes, and raises nothing here: looks again after a while, soon at first.
    fn wait_for(
        &self,
        _topic: &str,
        _queue_id: i32,
        _offset: i64,
        timeout: Duration,
        round: u32,
    ) -> Result<(), StoreError> {
        self.files.clock.sleep(nap(round).min(timeout));
        Ok(())
    }
}
