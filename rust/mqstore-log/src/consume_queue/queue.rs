//! One queue of either kind: its name, its bounds, its files and its damage. The kind is the unit in the files.
//!
//! A [`Queue`] owns a folder `<topic>/<queue id>/`. Readers see the units from the minimum to the commit position,
//! which is published with release order after the units are in their files. Readers lock only the list of files, for a
//! moment.
//!
//! Source: `ConsumeQueue`, `BatchConsumeQueue`, `ConsumeQueueInterface`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::mem;
use std::ops::Range;
use std::path::PathBuf;

use mqstore_format::{CqUnit, offset_file_name};
use mqstore_io::sync::{Arc, AtomicBool, AtomicI64, Mutex, Ordering, RwLock, Weak};
use mqstore_io::{RecentFiles, RecentMaps, VfsFile, switch};

use super::context::{QueueContext, UnsyncedQueue};
use super::discover::{self, QueueListing};
use super::layout::{QueueLayout, UNIT_BYTES, offset_at};
use super::uncommitted::UncommittedRanges;
use super::waiters::QueueWaiters;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;

/// The units of one queue of one topic: the log offsets of its messages.
///
/// All files have one length, no header, and one unit of 20 bytes for each queue offset. They are sparse, and are
/// written by position, never through a map. A file appears under its name with its first unit already inside:
///
/// ```text
/// consumequeue/<topic>/<queue id>/00000000000006000000
///   byte 0: unit 300,000 | unit 300,001 | ...            | record 8 | size 4 | tags code 8 |
/// ```
pub type ConsumeQueue = Queue<CqUnit>;

/// A unit that files of a queue consist of, and what follows from it for its queues.
pub trait QueueUnit: Debug + Sized + Send + Sync + 'static {
    /// Byte length of a unit.
    const BYTES: u64;

    /// What the list of files says about the end of the last file, besides the commit position.
    type Tail: Clone + Debug + Default + Send + Sync;

    /// Returns the folder of all queues of this kind.
    fn folder(files: &StoreFiles) -> PathBuf;

    /// Returns the log offset of the record of the first unit in the file `base`.
    fn first_log_offset(queue: &Queue<Self>, base: u64) -> Result<Option<u64>, StoreError>;

    /// Returns the log offset of the record of the last unit in the file `base`, which is full.
    fn last_log_offset(queue: &Queue<Self>, base: u64) -> Result<Option<u64>, StoreError>;

    /// Returns the queue offsets of the file `base`, which is full.
    fn offsets_of(queue: &Queue<Self>, base: u64) -> Result<Range<i64>, StoreError>;

    /// Moves the minimum to the first unit whose record starts at or after `log_min` and the floor of the topic, but
    /// never back. The floor can be before the log: then older messages are in an archive, and files may still have
    /// units of segments that are gone.
    fn advance_min_offset(queue: &Queue<Self>, log_min: u64) -> Result<(), StoreError>;
}

impl QueueUnit for CqUnit {
    const BYTES: u64 = UNIT_BYTES;

    type Tail = ();

    fn folder(files: &StoreFiles) -> PathBuf {
        files.consume_queue()
    }

    fn first_log_offset(queue: &ConsumeQueue, base: u64) -> Result<Option<u64>, StoreError> {
        Ok(queue.first_unit_of(base)?.map(|(_, unit)| unit.physical_offset as u64))
    }

    fn last_log_offset(queue: &ConsumeQueue, base: u64) -> Result<Option<u64>, StoreError> {
        let last = queue.last_unit(base, queue.layout().file_bytes())?;
        Ok(last.map(|(_, unit)| unit.physical_offset as u64))
    }

    fn offsets_of(queue: &ConsumeQueue, base: u64) -> Result<Range<i64>, StoreError> {
        Ok(offset_at(base, 0)..queue.layout().end_of(base))
    }

    fn advance_min_offset(queue: &ConsumeQueue, log_min: u64) -> Result<(), StoreError> {
        queue.move_min_offset(log_min, false)
    }
}

/// One queue with units of type `U`. See [`ConsumeQueue`] and [`super::BatchQueue`].
#[derive(Debug)]
pub struct Queue<U: QueueUnit> {
    pub(super) home: Arc<QueueContext>,
    this: Weak<Self>,
    topic: Arc<str>,
    id: i32,
    pub(super) list: RwLock<FileList<U::Tail>>,
    pub(super) min: AtomicI64,
    /// Commit position: one past the last offset that readers may see.
    pub(super) committed: AtomicI64,
    pub(super) physical_end: AtomicI64,
    damage: Mutex<Option<Box<QueueDamage>>>,
    pub(super) writing: Mutex<Writing>,
    /// Whether the queue is on the context's list of queues to sync.
    dirty: AtomicBool,
    arrivals: QueueWaiters,
    /// Maps of recently read files, in the process that writes.
    pub(super) maps: RecentMaps,
    /// Recently read files, in other processes.
    pub(super) files: RecentFiles,
}

/// The named files of a queue.
#[derive(Clone, Debug, Default)]
pub(super) struct FileList<T> {
    /// Position of the first byte of each file in the queue, ascending; the last file contains the last unit.
    pub(super) bases: Vec<u64>,
    pub(super) tail: T,
}

/// The known damage of a queue.
#[derive(Clone, Debug, Default)]
pub(super) struct QueueDamage {
    /// Description of a missing or wrong file.
    pub(super) files: Option<String>,
    /// Description of a slot near the end that has no unit, or one out of order.
    pub(super) units: Option<String>,
}

/// The state that only writers use.
#[derive(Debug, Default)]
pub(super) struct Writing {
    /// State of a queue that is being written or that recovery will cut; `None` for other queues.
    pub(super) busy: Option<Box<WriteMemory>>,
    /// Every slot at or after this offset is empty.
    pub(super) used_end: i64,
    /// Every slot at or after this offset is in `covered`, blank or empty.
    pub(super) found_end: i64,
    /// The last known minimum: queue offset and log offset of its record.
    pub(super) min_record: Option<(i64, u64)>,
    /// Listing of the folder from the load of the set, until the bounds are found.
    pub(super) listed: Option<Box<QueueListing>>,
}

/// The state of a queue with recent writes, until everything is synced.
#[derive(Debug)]
pub(super) struct WriteMemory {
    /// Slots at or after the commit position that this process wrote.
    pub(super) covered: UncommittedRanges,
    /// Files without a name, and their staging paths.
    pub(super) staged: BTreeMap<u64, PathBuf>,
    /// Named files without a unit, which a new file of that name may replace.
    pub(super) vacant: BTreeSet<u64>,
    /// Named files with unsynced bytes.
    pub(super) dirty_files: BTreeSet<u64>,
    /// File of the last write, while the cache of descriptors keeps it open.
    pub(super) recent: Option<(u64, Weak<dyn VfsFile>)>,
}

impl WriteMemory {
    const fn new() -> Self {
        Self {
            covered: UncommittedRanges::new(),
            staged: BTreeMap::new(),
            vacant: BTreeSet::new(),
            dirty_files: BTreeSet::new(),
            recent: None,
        }
    }
}

impl Writing {
    pub(super) fn busy(&self) -> &WriteMemory {
        static IDLE: WriteMemory = WriteMemory::new();
        self.busy.as_deref().unwrap_or(&IDLE)
    }

    pub(super) fn busy_mut(&mut self) -> &mut WriteMemory {
        self.busy.get_or_insert_with(|| Box::new(WriteMemory::new()))
    }

    /// Drops all uncommitted slots and returns the files without a name.
    pub(super) fn forget_uncommitted(&mut self) -> BTreeMap<u64, PathBuf> {
        let Some(busy) = &mut self.busy else { return BTreeMap::new() };
        busy.covered = UncommittedRanges::new();
        busy.recent = None;
        let staged = mem::take(&mut busy.staged);
        self.free_if_empty();
        staged
    }

    /// Frees the state if it is empty: a store may have written very many queues once.
    pub(super) fn free_if_empty(&mut self) {
        let WriteMemory { covered, staged, vacant, dirty_files, recent: _ } = self.busy();
        if covered.is_empty() && staged.is_empty() && vacant.is_empty() && dirty_files.is_empty() {
            self.busy = None;
        }
    }
}

impl<U: QueueUnit> Queue<U> {
    pub(super) fn new(home: &Arc<QueueContext>, topic: &Arc<str>, queue_id: i32) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            home: Arc::clone(home),
            this: Weak::clone(this),
            topic: Arc::clone(topic),
            id: queue_id,
            list: RwLock::default(),
            min: AtomicI64::new(0),
            committed: AtomicI64::new(0),
            physical_end: AtomicI64::new(0),
            damage: Mutex::default(),
            writing: Mutex::new(Writing::default()),
            dirty: AtomicBool::new(false),
            arrivals: QueueWaiters::default(),
            maps: RecentMaps::default(),
            files: RecentFiles::default(),
        })
    }

    /// Name of the topic.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Name of the topic as a shared text: all queues of the topic use the same one.
    pub fn shared_topic(&self) -> &Arc<str> {
        &self.topic
    }

    /// Id of the queue in its topic.
    pub fn queue_id(&self) -> i32 {
        self.id
    }

    /// Smallest queue offset that can be read; equal to [`Self::max_offset`] if none can. Where a record holds several
    /// messages, the offset of its first one. Source: `ConsumeQueue#getMinOffsetInQueue`.
    pub fn min_offset(&self) -> i64 {
        match self.committed_end() {
            0 => self.first_offset(),
            end => self.min.load(Ordering::Acquire).min(end),
        }
    }

    /// One past the largest queue offset that can be read, which is the commit position. In an empty queue and before
    /// [`super::QueueSet::recover_bounds`] it is 0, or the offset at which the queue continues after its topic was
    /// deleted. Source: `ConsumeQueue#getMaxOffsetInQueue`.
    pub fn max_offset(&self) -> i64 {
        match self.committed_end() {
            0 => self.first_offset(),
            end => end,
        }
    }

    /// The commit position; 0 without a unit, also after the topic was deleted.
    pub(super) fn committed_end(&self) -> i64 {
        self.committed.load(Ordering::Acquire)
    }

    /// Whether no unit can be read.
    pub fn is_empty(&self) -> bool {
        self.committed_end() == 0
    }

    /// Returns the offset of the first message of an empty queue.
    pub(super) fn first_offset(&self) -> i64 {
        self.home.floors.first_offset(&self.topic, self.id)
    }

    /// Returns the end of the queue if `end` follows a unit whose record ends at `physical_end`. Units from before a
    /// deletion of the topic do not count.
    pub(super) fn end_after(&self, end: i64, physical_end: i64) -> i64 {
        if self.is_deleted(physical_end) { self.first_offset() } else { end }
    }

    /// Whether a record that ends at log offset `physical_end` was deleted with its topic.
    pub(super) fn is_deleted(&self, physical_end: i64) -> bool {
        let deleted = self.deletion_position();
        deleted > 0 && u64::try_from(physical_end).is_ok_and(|end| end <= deleted)
    }

    /// Returns the log offset at which the topic was last deleted; 0 if it never was.
    pub(super) fn deletion_position(&self) -> u64 {
        self.home.floors.deleted(&self.topic)
    }

    /// Returns the log offset before which the records of the topic do not count; 0 for none.
    pub(super) fn floor_position(&self) -> u64 {
        self.home.floors.log_offset(&self.topic)
    }

    /// Returns the waiters for a larger [`Self::max_offset`]. A thread that publishes messages to readers calls
    /// [`QueueWaiters::reached`] after they are visible.
    pub fn arrivals(&self) -> &QueueWaiters {
        &self.arrivals
    }

    /// Log offset at which the record of the last committed unit ends; 0 without a unit. Blank units do not count.
    /// Source: `ConsumeQueue#getMaxPhysicOffset`.
    pub fn max_physical_end(&self) -> i64 {
        self.physical_end.load(Ordering::Acquire)
    }

    /// Describes why units may be missing or wrong; `None` without known damage. [`super::QueueSet::recover_bounds`]
    /// renews the answer, and [`ConsumeQueue::truncate`] does for the part that it cuts.
    pub fn damaged(&self) -> Option<String> {
        let damage = self.damage();
        damage.files.or(damage.units)
    }

    pub(super) fn damage(&self) -> QueueDamage {
        self.damage.lock().as_deref().cloned().unwrap_or_default()
    }

    pub(super) fn change_damage(&self, change: impl FnOnce(&mut QueueDamage)) {
        let mut damage = self.damage.lock();
        let mut now = damage.take().map(|damage| *damage).unwrap_or_default();
        change(&mut now);
        *damage = (now.files.is_some() || now.units.is_some()).then(|| Box::new(now));
    }

    /// Whether no damage of its units is known.
    pub(super) fn has_good_units(&self) -> bool {
        self.damage.lock().as_ref().is_none_or(|damage| damage.units.is_none())
    }

    pub(super) fn layout(&self) -> QueueLayout {
        self.home.layout
    }

    /// Folder of the queue's files.
    pub(super) fn folder(&self) -> PathBuf {
        let mut folder = U::folder(&self.home.files);
        folder.push(&*self.topic);
        folder.push(self.id.to_string());
        folder
    }

    /// Path of the file `base` once it has its name.
    pub(super) fn path(&self, base: u64) -> PathBuf {
        self.folder().join(offset_file_name(base))
    }

    /// Opens the named file `base`.
    pub(super) fn file(&self, base: u64) -> Result<Arc<dyn VfsFile>, StoreError> {
        let path = self.path(base);
        self.home.cache.get(&path, self.home.access).at(&path, "opening a queue file")
    }

    /// Opens the file `base` without keeping it open.
    pub(super) fn open_once(&self, base: u64) -> Result<Arc<dyn VfsFile>, StoreError> {
        let path = self.path(base);
        self.home.files.vfs.open(&path, self.home.access).at(&path, "opening a queue file")
    }

    pub(super) fn io(&self, base: u64, action: &'static str, source: std::io::Error) -> StoreError {
        StoreError::io(&self.path(base), action, source)
    }

    pub(super) fn list_files(&self) -> Result<QueueListing, StoreError> {
        let folder = self.folder();
        let entries = discover::list_queue(&*self.home.files.vfs, &folder)?;
        Ok(discover::classify(&folder, &entries, self.layout()))
    }

    /// Begins to find the bounds: returns the files, forgets the writes and the damage, and says whether the files were
    /// listed by the load of the set.
    pub(super) fn take_listing(&self, writing: &mut Writing) -> Result<(Vec<u64>, bool), StoreError> {
        let listed = writing.listed.take();
        let first_time = listed.is_some();
        let listing = listed.map_or_else(|| self.list_files(), |listed| Ok(*listed))?;
        self.forget_uncommitted(writing);
        if let Some(base) = listing.empty_last {
            writing.busy_mut().vacant.insert(base);
        }
        self.change_damage(|damage| *damage = QueueDamage { files: listing.damaged, units: None });
        Ok((listing.bases, first_time))
    }

    /// Publishes the bounds to readers: minimum, maximum and the end of the last record. A queue whose units are all
    /// from before a deletion of its topic is empty.
    pub(super) fn publish(&self, bounds: (i64, i64, i64)) {
        let (min, max, physical_end) = if self.is_deleted(bounds.2) { (0, 0, 0) } else { bounds };
        self.min.store(min, Ordering::Release);
        self.physical_end.store(physical_end, Ordering::Release);
        self.committed.store(max, Ordering::Release);
    }

    /// Makes the queue empty after its folder was moved away.
    pub(super) fn forget_files(&self) {
        self.forget_files_of(&mut self.writing.lock());
    }

    pub(super) fn forget_files_of(&self, writing: &mut Writing) {
        self.forget_uncommitted(writing);
        *writing = Writing::default();
        self.home.cache.forget_dir(&self.folder());
        *self.list.write() = FileList::default();
        self.change_damage(|damage| *damage = QueueDamage::default());
        self.publish((0, 0, 0));
    }

    /// Drops slots that were written and never committed, and the files created for them.
    pub(super) fn forget_uncommitted(&self, writing: &mut Writing) {
        writing.found_end = writing.used_end;
        for path in writing.forget_uncommitted().into_values() {
            self.home.cache.forget(&path);
            // If a file remains, the next open removes it with the staging folder.
            let _ = self.home.files.vfs.remove_file(&path);
        }
    }

    /// Removes the files `bases`, the last one first, so that a crash leaves a shorter queue.
    pub(super) fn remove_files(&self, mut bases: Vec<u64>) -> Result<(), StoreError> {
        bases.sort_unstable();
        for base in bases.into_iter().rev() {
            self.home.remove_file(&self.path(base), "removing a queue file")?;
            self.home.mark_folder(&self.folder());
        }
        Ok(())
    }

    /// Marks the file `base` as unsynced.
    pub(super) fn touch(&self, writing: &mut Writing, base: u64) {
        writing.busy_mut().dirty_files.insert(base);
        if !self.dirty.swap(true, Ordering::AcqRel) {
            self.home.mark_dirty(self.this.clone());
        }
    }
}

impl<U: QueueUnit> UnsyncedQueue for Queue<U> {
    fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    /// Skips staged files: they are not valid before they get their name.
    fn flush_files(&self) -> Result<(), StoreError> {
        self.dirty.store(false, Ordering::Release);
        let mut dirty = {
            let mut writing = self.writing.lock();
            let dirty = mem::take(&mut writing.busy_mut().dirty_files);
            writing.free_if_empty();
            dirty
        };
        while let Some(base) = dirty.pop_first() {
            if self.list.read().bases.binary_search(&base).is_err() {
                continue;
            }
            let synced = self.file(base).and_then(|file| {
                switch::step("consume_queue.sync_file", || file.sync_data())
                    .map_err(|source| self.io(base, "syncing a queue file", source))
            });
            if let Err(error) = synced {
                let mut writing = self.writing.lock();
                writing.busy_mut().dirty_files.append(&mut dirty);
                self.touch(&mut writing, base);
                return Err(error);
            }
        }
        Ok(())
    }
}
