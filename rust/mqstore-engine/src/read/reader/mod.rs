//! A store that is open for reading only.
//!
//! It takes no lock and changes no byte. While a writer of ours runs, it stops at the log offset that the writer
//! publishes; otherwise at the end of the last valid record. It uses the queue files that it knows to be complete.
//! Units that are missing or damaged are derived from the log in memory, and a note reports that once.
//!
//! It learns whether queue files are complete from the first of these that exists: the writer's live page; the durable
//! mark together with the queue manifest; for a log of at most [`FULL_WALK_BYTES`], a walk of the log. Otherwise it
//! uses the files up to the furthest unit and checks each unit when it uses it.

pub(crate) mod accessors;
mod last_look;
mod live_reader;
mod lost_records;
mod raft;
mod random;
mod unread;
mod unread_queues;
mod view;

use std::collections::{BTreeSet, HashMap};
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mqstore_format::{EntryFields, IndexGeometry, RecordView};
use mqstore_io::Access;
use mqstore_io::sync::{Mutex, RwLock};

use live_reader::confirm_problems;
use unread_queues::Unread;

use crate::engine::damage_notes::damage_notes;
use crate::engine::topics::{batch_topics, load_listed};
use crate::read::view::View;
use mqstore_base::durable_mark::{DurableMark, DurableMarkFile};
use mqstore_base::error::StoreError;
use mqstore_base::live_page::{LiveState, LiveWatch};
use mqstore_base::options::StoreOptions;
use mqstore_base::retry::retry_if_gone;
use mqstore_base::store_files::{DelayTables, QUEUES_IN_ROCKSDB, StoreFiles};
use mqstore_base::topic_floors::TopicFloors;
use mqstore_compaction::ManifestCache;
use mqstore_log::commit_log::{
    LogScanner, ScanChecks, ScanItem, SegmentList, damaged_place_note, has_damaged_place,
};
use mqstore_log::consume_queue::{BatchQueue, ConsumeQueue, QueueSet};
use mqstore_log::dispatch::{BatchTopics, DerivedQueue, DerivedQueues, WalkItem};
use mqstore_log::index::IndexSet;
use mqstore_log::recovery::{PUT_BACK, QueueManifest, log_end, lost_end, mark_fits, missed_by_index};
use mqstore_meta::{ListedTables, read_state};

/// Maximum bytes of a log that is walked to derive queues if nothing shows that their files are complete.
const FULL_WALK_BYTES: u64 = 2 << 30;

/// Maximum bytes of a log that a look-up walks instead of using the index.
const SMALL_LOG_BYTES: u64 = 64 << 20;

/// The same for a store at a URL, which fetches what it walks.
const SMALL_REMOTE_LOG_BYTES: u64 = 512 << 10;

/// Derived units that cover more bytes of the log than this are dropped once the files contain them.
const OVERLAY_BYTES: u64 = 64 << 20;

/// Maximum number of queues for which a note names each queue.
const MOST_NAMED: usize = 8;

/// The reason why the files of a queue are not used.
const ODD_FILES: &str = "its files have changed or are damaged";

/// Topics and ids of queues whose files are not used.
type Suspects = BTreeSet<(String, i32)>;

/// See the header of this module.
pub(crate) struct Reader {
    files: StoreFiles,
    options: StoreOptions,
    /// Topics and groups, as of the open or the last change by a writer that readers must know.
    listed: RwLock<Arc<ListedTables>>,
    floors: TopicFloors,
    /// Number of the writer's changes of topics for which the floors were read.
    topic_changes: AtomicU64,
    batch: BatchTopics,
    index: IndexSet,
    mark: Option<DurableMark>,
    delays: DelayTables,
    live: LiveWatch,
    state: Mutex<ReaderState>,
    /// Number of damaged records that reads skipped.
    skipped: AtomicU64,
    /// The manifests of the compaction files, as reads last saw them.
    manifests: ManifestCache,
    /// The queues that were not read yet. Lock it before `state`.
    unread: Mutex<Unread>,
}

/// The inode of the live page and, while its writer runs, its token and how often it changed topics so that readers must
/// know it. Another value means that the topics may have changed.
type TopicsVersion = (Option<u64>, Option<(u64, u64)>);

fn topics_version(page: Option<u64>, live: Option<LiveState>) -> TopicsVersion {
    (page, live.map(|live| (live.token, live.topic_changes)))
}

struct ReaderState {
    list: Arc<SegmentList>,
    /// The end of the visible log.
    end: u64,
    queues: Arc<QueueSet>,
    /// Units of the records in `overlay_from..end`. For earlier records the files are used; after a stop, later parts
    /// of the files may be torn.
    overlay: DerivedQueues,
    overlay_from: u64,
    /// Derived queues whose files are not used at all.
    replaced: DerivedQueues,
    replaced_ids: Suspects,
    /// Whether `replaced` contains every queue.
    all_replaced: bool,
    index_complete_to: u64,
    /// Token of the writer whose live page was read last.
    writer: Option<u64>,
    /// What the topics and their floors were read for.
    topics_version: TopicsVersion,
    /// Inode of the live page, as of just before it was read.
    page: Option<u64>,
    /// Whether files and derived units together cover the log up to `end`: not after a catch-up that failed.
    is_complete: bool,
    /// The last look at the end of a log of DLedger.
    raft: Option<last_look::LastLook>,
}

impl Reader {
    /// Opens the store at `files`; changes nothing.
    pub(crate) fn open(files: &StoreFiles, options: &StoreOptions) -> Result<Self, StoreError> {
        retry_if_gone(&*files.clock, || {
            let reader = Self::open_once(files, options)?;
            // The next attempt adds its own notes.
            reader.look().inspect_err(|_| files.notes.clear_warnings())?;
            Ok(reader)
        })
    }

    /// Like [`Self::open`], for a caller that may need only the log: the queues are read at their first use.
    pub(crate) fn open_log(files: &StoreFiles, options: &StoreOptions) -> Result<Self, StoreError> {
        retry_if_gone(&*files.clock, || Self::open_once(files, options))
    }

    fn open_once(files: &StoreFiles, options: &StoreOptions) -> Result<Self, StoreError> {
        let files = &files.clone().for_reading()?;
        let mut notes: Vec<String> = files.misnamed_segment().into_iter().collect();
        // Read these first: everything read later, including queues made meanwhile, is at least as new.
        let watch = LiveWatch::default();
        let (page, live) = watch.look(files);
        let manifest = QueueManifest::load(files);
        let marked = DurableMarkFile::new(files).try_load()?;
        let list = SegmentList::load(files)?;
        let lost = marked.as_ref().and_then(|mark| lost_end(&list, mark));
        if let Some(lost) = lost.filter(|_| files.only_segment().is_none()) {
            notes.push(format!("{}: {lost}; {PUT_BACK}", files.commit_log().display()));
        }
        for stray in &list.strays {
            notes.push(format!("{}: ignored, {}", stray.path.display(), stray.reason));
        }
        for (from, to) in &list.gaps {
            notes.push(format!("the segments from offset {from} to {to} are missing"));
        }
        let mark = marked.filter(|mark| mark_fits(files, &list, mark));
        let listed = load_listed(files, &mut notes);
        notes.extend(damage_notes(files, false)?);
        notes.extend(files.rocksdb_notes());
        if let Some(tiered) = files.tiered() {
            notes.extend(tiered.notes().iter().cloned());
            notes.extend(
                tiered.faults().iter().map(|fault| format!("{}: {}", fault.path.display(), fault.detail)),
            );
        }
        let floors = TopicFloors::new(listed.floors.clone());
        let batch = batch_topics(files, &listed.table);
        let configured = IndexGeometry { slots: options.index_slots, entries: options.index_entries };
        let known = mark.map(|mark| mark.index_geometry());
        let index = IndexSet::load(files, known, configured, Access::Read)?;
        let file_bytes = mark.map_or(options.queue_file_bytes(), |mark| mark.queue_file_bytes);
        let queues = QueueSet::load(files, file_bytes, Access::Read, &floors)?;
        for stray in queues.strays().iter().chain(index.strays()) {
            notes.push(if stray.reason == QUEUES_IN_ROCKSDB {
                format!("{}: {}", stray.path.display(), stray.reason)
            } else {
                format!("{}: not used, {}", stray.path.display(), stray.reason)
            });
        }
        let given = options.delay_levels.as_ref();
        let delays = files.delay_tables(given).or_else(|error| match error {
            StoreError::Corrupt { .. } => {
                notes.push(format!("{error}; until then, RocketMQ's delay levels are used"));
                Ok(DelayTables::default())
            }
            error => Err(error),
        })?;
        for note in notes {
            files.notes.warn(note);
        }
        let state = ReaderState {
            end: list.min_offset(),
            list: Arc::new(list),
            queues: Arc::new(queues),
            overlay: DerivedQueues::new(&delays, &floors.now()),
            overlay_from: 0,
            replaced: DerivedQueues::new(&delays, &floors.now()),
            replaced_ids: BTreeSet::new(),
            all_replaced: false,
            index_complete_to: 0,
            writer: live.map(|live| live.token),
            topics_version: topics_version(page, live),
            page,
            is_complete: true,
            raft: None,
        };
        Ok(Self {
            files: files.clone(),
            options: options.clone(),
            listed: RwLock::new(Arc::new(listed)),
            floors,
            topic_changes: live.map_or(0, |live| live.topic_changes).into(),
            batch,
            index,
            mark,
            delays,
            live: watch,
            state: Mutex::new(state),
            skipped: AtomicU64::new(0),
            manifests: ManifestCache::default(),
            unread: Mutex::new(Unread::All(live, manifest)),
        })
    }

    /// Returns the inode of the live page. Each open for writing makes a new page.
    fn page(&self) -> Option<u64> {
        self.live.inode(&self.files)
    }

    /// Releases maps and descriptors that are not in use.
    pub(crate) fn release(&self) {
        let state = self.state.lock();
        for segment in state.list.segments() {
            segment.unmap();
            segment.close_file();
        }
        state.queues.release();
        self.index.release();
    }

    /// Moves `state.end` to the current end of the visible log: while a writer of ours runs, to the published offset,
    /// else to the end of the last valid record.
    fn find_end(&self, state: &mut ReaderState, live: Option<LiveState>) -> Result<(), StoreError> {
        if let Some(log) = self.files.raft_log() {
            return self.find_raft_end(state, log);
        }
        if let Some(tiered) = self.files.tiered() {
            state.end = tiered.end();
            return Ok(());
        }
        if let Some(live) = live {
            let known = state.list.end_offset();
            if live.visible > known {
                self.renew_list(state)?;
            }
            // If the path is one segment, it ends before the log does.
            let most = self.files.only_segment().map_or(u64::MAX, |_| state.list.end_offset());
            state.end = state.end.max(live.visible.min(most));
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

    /// Returns the queues that are read later.
    fn load_first_view(
        &self,
        live: Option<LiveState>,
        manifest: Option<&QueueManifest>,
    ) -> Result<Unread, StoreError> {
        let mut state = self.state.lock();
        self.find_end(&mut state, live)?;
        let vouched = match live {
            _ if self.files.is_bare_log() => None,
            // Its log has only the records of the units.
            _ if self.files.tiered().is_some() => Some(u64::MAX),
            Some(live) => Some(live.dispatched),
            None => self.mark.filter(|_| manifest.is_some()).map(|mark| mark.dispatched),
        };
        let vouched = vouched.map(|complete_to| complete_to.min(state.end));
        let mut unread = Unread::Nothing;
        match vouched.zip(manifest) {
            Some((complete_to, manifest)) if live.is_none() && self.files.vfs.is_remote() => {
                unread = self.use_queue_files_later(&mut state, complete_to, manifest)?;
            }
            _ => {
                state.queues.recover_bounds()?;
                self.use_complete_files(&mut state, vouched, manifest, live)?;
            }
        }
        if self.files.tiered().is_some() {
            // Its key index names positions in the logs of queues. Look-ups read the whole log.
            state.index_complete_to = 0;
            return Ok(unread);
        }
        let as_left =
            self.mark.is_some_and(|mark| mark.is_unchanged_since_close(state.end, self.index.extent()));
        let missed = || missed_by_index(&state.list, &self.index, state.end, &self.floors.now());
        if live.is_none() && !as_left && missed()?.is_some() {
            self.note("index files are missing; look-ups read the whole log".to_owned());
            state.index_complete_to = 0;
        }
        Ok(unread)
    }

    /// Uses the queue files up to `vouched`; without it, as far as they reach, or not at all.
    fn use_complete_files(
        &self,
        state: &mut ReaderState,
        vouched: Option<u64>,
        manifest: Option<&QueueManifest>,
        live: Option<LiveState>,
    ) -> Result<(), StoreError> {
        match vouched {
            Some(complete_to) => self.use_queue_files(state, complete_to, manifest, live)?,
            None if state.end - state.list.min_offset() <= FULL_WALK_BYTES => self.walk_all(state)?,
            None => {
                let furthest = state.queues.all().iter().map(|queue| queue.max_physical_end()).max();
                let complete_to = u64::try_from(furthest.unwrap_or(0)).unwrap_or(0).min(state.end);
                let complete_to = complete_to.max(state.list.min_offset());
                self.use_queue_files(state, complete_to, manifest, None)?;
                state.index_complete_to = self.index.end_physical().max(0) as u64;
            }
        }
        Ok(())
    }

    /// Uses the queue files up to `complete_to` and derives later units. A queue that is too short or damaged is
    /// derived completely. The `manifest` must be read before the queues are listed. If a writer of ours runs, the files
    /// change meanwhile; `live` was read before them.
    fn use_queue_files(
        &self,
        state: &mut ReaderState,
        complete_to: u64,
        manifest: Option<&QueueManifest>,
        live: Option<LiveState>,
    ) -> Result<(), StoreError> {
        let beside = live.is_some();
        self.derive_overlay(state, complete_to)?;
        let mut suspects = self.damaged_queues(state, state.queues.all(), beside)?;
        suspects.extend(self.damaged_batch_queues(state, beside)?);
        for queue in state.queues.all() {
            // Otherwise, each read would look for this end again, over all units that the writer has added since.
            queue.clamp(queue.max_offset_for(complete_to)?)?;
        }
        if self.files.tiered().is_some() {
            state.queues.correct_min_offsets(state.list.min_offset())?;
        }
        if let Some(manifest) = manifest {
            let log_min = state.list.min_offset();
            state.queues.correct_min_offsets(log_min)?;
            let lost = manifest.compare(&state.queues, log_min, complete_to).lost;
            suspects.extend(lost.into_iter().map(|(topic, queue_id)| (topic.to_owned(), queue_id)));
        }
        if let Some(live) = live {
            // The writer may have raised it before the list was read, and not removed the file yet.
            self.check_begin(live.log_min.max(state.list.min_offset()))?;
        }
        self.replace(state, &suspects, ODD_FILES)
    }

    /// Returns an error if the writer has deleted the log up to an offset after `known`: the files of queues may then
    /// begin later than the caller expects.
    pub(super) fn check_begin(&self, known: u64) -> Result<(), StoreError> {
        if self.live.look(&self.files).1.is_none_or(|live| live.log_min <= known) {
            return Ok(());
        }
        let action = "reading the begin of the log";
        Err(StoreError::io(&self.files.commit_log(), action, ErrorKind::NotFound.into()))
    }

    /// Derives the units of the records from `complete_to` on.
    fn derive_overlay(&self, state: &mut ReaderState, complete_to: u64) -> Result<(), StoreError> {
        state.overlay_from = complete_to;
        state.overlay = self.no_queues();
        let end = state.end;
        self.walk_into_overlay(state, complete_to, end)?;
        state.index_complete_to = match self.mark {
            Some(mark) if self.index.end_physical() < mark.index.end => 0,
            _ => complete_to,
        };
        Ok(())
    }

    /// Returns those of `queues` whose files are damaged, as far as they are used.
    fn damaged_queues(
        &self,
        state: &ReaderState,
        queues: Vec<Arc<ConsumeQueue>>,
        beside: bool,
    ) -> Result<Suspects, StoreError> {
        let complete_to = state.overlay_from;
        let is_odd = |queue: &ConsumeQueue| Ok(queue.damaged_before(complete_to)?.is_some());
        let odd = confirm_problems(&self.files, beside, queues, is_odd, ConsumeQueue::recover_bounds)?;
        Ok(odd.iter().map(|queue| (queue.topic().to_owned(), queue.queue_id())).collect())
    }

    fn damaged_batch_queues(&self, state: &ReaderState, beside: bool) -> Result<Suspects, StoreError> {
        let queues = state.queues.batches();
        let is_odd = |queue: &BatchQueue| Ok(queue.damaged().is_some());
        let odd = confirm_problems(&self.files, beside, queues, is_odd, BatchQueue::recover_bounds)?;
        Ok(odd.iter().map(|queue| (queue.topic().to_owned(), queue.queue_id())).collect())
    }

    fn no_queues(&self) -> DerivedQueues {
        DerivedQueues::new(&self.delays, &self.floors.now())
    }

    /// Returns the topics and groups.
    pub(super) fn listed(&self) -> Arc<ListedTables> {
        Arc::clone(&self.listed.read())
    }

    /// Reads topics, groups and floors again if a writer may have changed them. After a deletion, the queues are
    /// incomplete until they are read again.
    fn follow_topics(
        &self,
        state: &mut ReaderState,
        page: Option<u64>,
        live: Option<LiveState>,
    ) -> Result<(), StoreError> {
        let version = topics_version(page, live);
        if state.topics_version != version {
            state.is_complete &= !self.reload_topics()?;
            if live.is_some() && self.files.only_segment().is_none() {
                // Segments may have been rewritten. Without readers, the old files free their space.
                self.renew_list(state)?;
            }
            let floors = self.floors.now();
            if state.is_complete {
                state.overlay.set_floors(&floors);
                state.replaced.set_floors(&floors);
            }
            state.topics_version = version;
            self.topic_changes.store(live.map_or(0, |live| live.topic_changes), Ordering::Release);
        }
        Ok(())
    }

    /// Reads topics, groups and floors again. Returns whether topics were deleted since.
    fn reload_topics(&self) -> Result<bool, StoreError> {
        let mut notes = Vec::new();
        let listed = read_state(&self.files, &mut notes)?.into_listed();
        for note in notes {
            self.note(note);
        }
        let changed = !self.floors.now().has_same_deletions(&listed.floors);
        self.floors.replace(listed.floors.clone());
        self.floors.count_change();
        for (topic, _) in listed.floors.iter().filter(|(_, floor)| floor.deleted > 0) {
            self.batch.remove(topic);
        }
        for config in listed.table.topics.values().filter(|config| config.is_batch_queue()) {
            self.batch.insert(&config.name);
        }
        *self.listed.write() = Arc::new(listed);
        Ok(changed)
    }

    /// Lists the queue files again and uses them as far as the writer vouches for them.
    fn reload_queues(&self, state: &mut ReaderState, live: Option<LiveState>) -> Result<(), StoreError> {
        let manifest = QueueManifest::load(&self.files);
        self.list_queues(state)?;
        state.queues.recover_bounds()?;
        let complete_to = live.map_or(state.overlay_from, |live| live.dispatched.min(state.end));
        self.use_queue_files(state, complete_to, manifest.as_ref(), live)?;
        let replaced = state.replaced_ids.clone();
        self.replace(state, &replaced, "its files are not used")
    }

    /// Derives every queue from the log.
    fn walk_all(&self, state: &mut ReaderState) -> Result<(), StoreError> {
        let (from, end) = (state.list.min_offset(), state.end);
        let mut all = self.no_queues();
        self.walk(state, from, end, |item| all.add(&item))?;
        if state.queues.all().is_empty() && end > from && self.files.rocksdb_queues().is_empty() {
            self.note(
                "the store has no queue files; its queues are derived from the log in memory".to_owned(),
            );
        }
        state.overlay_from = end;
        for queue in state.queues.all() {
            self.keep_lost_units(state, &mut all, (queue.topic(), queue.queue_id()))?;
        }
        state.replaced = all;
        state.all_replaced = true;
        state.index_complete_to = self.index.end_physical().max(0) as u64;
        Ok(())
    }

    /// Derives the units of a range of the log. Fails if a writer deleted a part of it meanwhile: a queue may have had its
    /// last message there, and then only its files show where it ends.
    fn walk_into_overlay(&self, state: &mut ReaderState, from: u64, end: u64) -> Result<(), StoreError> {
        let mut overlay = std::mem::replace(&mut state.overlay, self.no_queues());
        let outcome = self.walk(state, from, end, |item| overlay.add(&item));
        state.overlay = overlay;
        outcome?.map_or(Ok(()), Err)
    }

    /// Visits the records of a range of the log. Passes over a part that a writer deletes meanwhile, and returns the
    /// error that it met there.
    fn walk(
        &self,
        state: &ReaderState,
        from: u64,
        end: u64,
        mut visit: impl FnMut(WalkItem<'_>),
    ) -> Result<Option<StoreError>, StoreError> {
        let from = from.max(state.list.min_offset());
        let mut passed = None;
        let mut scanner = LogScanner::new(Arc::clone(&state.list), from, end, ScanChecks { crc: false });
        loop {
            let offset = scanner.position();
            let item = match scanner.next_item() {
                Err(error) if error.is_gone() => {
                    let list = SegmentList::load(&self.files)?;
                    let min = list.min_offset();
                    if min <= offset {
                        return Err(error);
                    }
                    scanner.renew(Arc::new(list));
                    scanner.seek(min);
                    passed = Some(error);
                    continue;
                }
                item => item?,
            };
            match item {
                ScanItem::Record(record) if has_damaged_place(&record.outline()) => {
                    let size = u64::from(record.size);
                    self.note(damaged_place_note(offset, size));
                    visit(WalkItem::Damaged { offset, end: offset + size });
                }
                ScanItem::Record(record) => visit(WalkItem::Record(&record, offset)),
                ScanItem::Filler { .. } => {}
                ScanItem::End { .. } => return Ok(passed),
                ScanItem::Damaged(damage) => {
                    let Some(next) = scanner.skip(&damage)? else { return Ok(passed) };
                    self.note(damage.skipped(next - damage.offset));
                    visit(WalkItem::Damaged { offset: damage.offset, end: next });
                }
            }
        }
    }

    /// Derives some queues from the log, all in one walk, and stops using their files.
    fn replace(&self, state: &mut ReaderState, queues: &Suspects, reason: &str) -> Result<(), StoreError> {
        for (topic, queue_id) in queues.iter().take(MOST_NAMED) {
            self.note(format!("queue {topic}/{queue_id}: {reason}; it is derived from the log in memory"));
        }
        if let Some(more) = queues.len().checked_sub(MOST_NAMED).filter(|more| *more > 0) {
            self.note(format!("{more} more queues: {reason}; they are derived from the log in memory"));
        }
        if queues.is_empty() {
            return Ok(());
        }
        let mut topics: HashMap<&str, BTreeSet<i32>> = HashMap::new();
        for (topic, queue_id) in queues {
            topics.entry(topic).or_default().insert(*queue_id);
        }
        let mut wanted = self.no_queues();
        self.walk(state, state.list.min_offset(), state.end, |item| {
            let names_queue = |record: &RecordView<'_>| {
                topics.get(record.topic).is_some_and(|ids| ids.contains(&record.queue_id))
                    || EntryFields::of(record.properties)
                        .light_queues(record.topic)
                        .any(|(name, _)| topics.contains_key(name))
            };
            let is_wanted = match &item {
                WalkItem::Record(record, _) => names_queue(record),
                WalkItem::Damaged { .. } => true,
            };
            if is_wanted {
                wanted.add(&item);
            }
        })?;
        for (topic, queue_id) in queues {
            self.keep_lost_units(state, &mut wanted, (topic, *queue_id))?;
            state.replaced.adopt(&mut wanted, topic, *queue_id);
            state.replaced_ids.insert((topic.clone(), *queue_id));
        }
        Ok(())
    }

    fn is_derived(state: &ReaderState, topic: &str, queue_id: i32) -> bool {
        let is_replaced = || state.replaced_ids.contains(&(topic.to_owned(), queue_id));
        state.all_replaced || !state.replaced_ids.is_empty() && is_replaced()
    }

    /// Lists the files of all queues again.
    fn list_queues(&self, state: &mut ReaderState) -> Result<(), StoreError> {
        let file_bytes = state.queues.file_bytes();
        state.queues = Arc::new(QueueSet::load(&self.files, file_bytes, Access::Read, &self.floors)?);
        Ok(())
    }

    /// Lists the segments again.
    fn renew_list(&self, state: &mut ReaderState) -> Result<(), StoreError> {
        let list = SegmentList::load(&self.files)?;
        let min = list.min_offset();
        if min > state.list.min_offset() {
            state.overlay.drop_below(min);
            state.replaced.drop_below(min);
            self.index.forget_below(min);
        }
        // If the log begins after the known end, a queue may have had its last message in between.
        state.is_complete &= min <= state.end;
        state.end = state.end.max(min);
        state.list = Arc::new(list);
        Ok(())
    }

    /// Updates the state if a writer removed the oldest segments.
    fn follow_expiry(&self, state: &mut ReaderState, live: Option<LiveState>) -> Result<(), StoreError> {
        let Some(first) = state.list.segments().first() else { return Ok(()) };
        let is_removed = match live {
            Some(live) => live.log_min > first.base_offset(),
            // A read of the segment reports any other error.
            None => {
                self.files.vfs.stat(&first.path()).is_err_and(|error| error.kind() == ErrorKind::NotFound)
            }
        };
        if !is_removed {
            return Ok(());
        }
        self.renew_list(state)?;
        state.queues.recover_bounds()
    }

    /// Returns the batch queue of the files, if it is used.
    fn batch_queue(state: &ReaderState, topic: &str, queue_id: i32) -> Option<Arc<BatchQueue>> {
        if Self::is_derived(state, topic, queue_id) { None } else { state.queues.batch(topic, queue_id) }
    }

    /// Returns the derived units of a queue: all of them, or those that its files lack.
    fn derived<'a>(state: &'a ReaderState, topic: &str, queue_id: i32) -> Option<&'a DerivedQueue> {
        let replaced = Self::is_derived(state, topic, queue_id);
        let source = if replaced { &state.replaced } else { &state.overlay };
        source.get(topic, queue_id)
    }

    /// Returns the queue of the files, if it is used; its maximum is limited to the visible log.
    fn file_queue(state: &ReaderState, topic: &str, queue_id: i32) -> Option<Arc<ConsumeQueue>> {
        // A queue without files can be of either type after its topic was deleted.
        let is_other = || state.queues.batch(topic, queue_id).is_some();
        if Self::is_derived(state, topic, queue_id) || is_other() {
            None
        } else {
            state.queues.get(topic, queue_id)
        }
    }
}
