//! One queue: its bounds, its files, and reads of its units.
//!
//! This module owns `consumequeue/<topic>/<queue id>/`. Readers see the units from the minimum to the commit position,
//! which is published with release order after the units are in their files. Readers lock only the list of files, for a
//! moment, and read by position, so a writer never waits for them.
//!
//! Source: `ConsumeQueue`, `ConsumeQueueInterface`.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::path::PathBuf;

use mqstore_format::{CQ_UNIT_BYTES, CqUnit, offset_file_name};
use mqstore_io::sync::{Arc, AtomicBool, AtomicI64, Mutex, Ordering, RwLock, Weak};
use mqstore_io::{Access, RecentFiles, RecentMaps, Region, VfsFile};

use super::context::QueueContext;
use super::discover::QueueListing;
use super::layout::{FilePart, QueueLayout, UNIT_BYTES};
use super::uncommitted::UncommittedRanges;
use super::units;
use super::waiters::QueueWaiters;
use mqstore_base::error::{IoContext, StoreError};

/// Maximum bytes of one positional read in [`ConsumeQueue::read`].
const READ_BYTES: u64 = 52_428 * UNIT_BYTES;

/// The units of one queue of one topic: the log offsets of its messages.
///
/// All files have one length, no header, and one unit of 20 bytes for each queue offset. They are sparse, and are
/// written by position, never through a map. A file appears under its name with its first unit already inside:
///
/// ```text
/// consumequeue/<topic>/<queue id>/00000000000006000000
///   byte 0: unit 300,000 | unit 300,001 | ...            | record 8 | size 4 | tags code 8 |
/// ```
#[derive(Debug)]
pub struct ConsumeQueue {
    pub(super) home: Arc<QueueContext>,
    pub(super) this: Weak<Self>,
    topic: Arc<str>,
    queue_id: i32,
    /// Named files in ascending order; the last one contains the last unit.
    pub(super) bases: RwLock<Vec<u64>>,
    pub(super) min: AtomicI64,
    /// Commit position: one past the last unit that readers may see.
    pub(super) committed: AtomicI64,
    pub(super) physical_end: AtomicI64,
    damage: Mutex<Option<Box<QueueDamage>>>,
    pub(super) writing: Mutex<Writing>,
    /// Whether the queue is on the context's list of queues to sync.
    pub(super) dirty: AtomicBool,
    arrivals: QueueWaiters,
    /// Maps of recently read files, in the process that writes.
    maps: RecentMaps,
    /// Recently read files, in other processes.
    files: RecentFiles,
}

/// The place of a unit in a mapped file.
#[derive(Debug)]
pub struct MappedUnit {
    map: Arc<Region>,
    position: usize,
}

impl MappedUnit {
    /// Returns the unit; `None` if it is blank.
    pub fn unit(&self) -> Option<CqUnit> {
        let mut bytes = [0; CQ_UNIT_BYTES];
        self.map.read(self.position, &mut bytes).ok()?;
        Some(CqUnit::decode(&bytes)).filter(|unit| !unit.is_blank())
    }
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
        self.rest();
        staged
    }

    /// Frees the state if it is empty: a store may have written very many queues once.
    pub(super) fn rest(&mut self) {
        let WriteMemory { covered, staged, vacant, dirty_files, recent: _ } = self.busy();
        if covered.is_empty() && staged.is_empty() && vacant.is_empty() && dirty_files.is_empty() {
            self.busy = None;
        }
    }
}

impl ConsumeQueue {
    pub(super) fn new(home: &Arc<QueueContext>, topic: &Arc<str>, queue_id: i32) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            home: Arc::clone(home),
            this: Weak::clone(this),
            topic: Arc::clone(topic),
            queue_id,
            bases: RwLock::new(Vec::new()),
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
        self.queue_id
    }

    /// Smallest queue offset that can be read; equal to [`Self::max_offset`] if none can. Source:
    /// `ConsumeQueue#getMinOffsetInQueue`.
    pub fn min_offset(&self) -> i64 {
        match self.committed_end() {
            0 => self.first_offset(),
            end => self.min.load(Ordering::Acquire).min(end),
        }
    }

    /// One past the largest queue offset that can be read, which is the commit position. In an empty queue and before
    /// [`Self::recover_bounds`] it is 0, or the offset at which the queue continues after its topic was deleted.
    /// Source: `ConsumeQueue#getMaxOffsetInQueue`.
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
    fn first_offset(&self) -> i64 {
        self.home.floors.first_offset(&self.topic, self.queue_id)
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

    /// Describes why units may be missing or wrong; `None` without known damage. [`Self::recover_bounds`] renews the
    /// answer, and [`Self::truncate`] does for the part that it cuts.
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

    /// Appends the committed units from `from` on to `out`, at most `max_units`.
    ///
    /// Each offset has one unit, exactly as it is on disk: a unit with [`CqUnit::is_blank`], or of size 0, stands for
    /// an offset without a message. At the maximum, the result is empty; an offset outside the queue is
    /// [`StoreError::OffsetOutOfRange`]. After an error, `out` may hold the units before it.
    pub fn read(&self, from: i64, max_units: usize, out: &mut Vec<CqUnit>) -> Result<(), StoreError> {
        self.read_each(from, max_units, |_, unit| out.push(unit))
    }

    /// Like [`Self::read`], and passes the offset of each unit.
    pub fn read_each(
        &self,
        from: i64,
        max_units: usize,
        mut each: impl FnMut(i64, CqUnit),
    ) -> Result<(), StoreError> {
        self.check_range(from)?;
        let outcome = self.read_files(from, max_units, &mut each);
        if outcome.is_err() {
            // Retention may have removed the file since the check of the minimum.
            self.check_range(from)?;
        }
        outcome
    }

    /// Returns the place of the unit of `offset` in memory and prefetches it; `None` if the queue lacks the offset or
    /// the file is not mapped.
    pub fn mapped_unit(&self, offset: i64) -> Option<MappedUnit> {
        if !(self.min_offset()..self.max_offset()).contains(&offset) {
            return None;
        }
        let part = self.layout().parts(offset..offset + 1).next()?;
        self.check_name_exists(&part).ok()?;
        let map = self.in_memory(part.base)?;
        let position = part.position as usize;
        map.expect_read(position, CQ_UNIT_BYTES);
        Some(MappedUnit { map, position })
    }

    /// Asks the system to fetch up to `units` units from `from` on, which will be read soon.
    pub fn expect(&self, from: i64, units: i64) {
        let to = from.saturating_add(units).min(self.max_offset());
        for part in self.layout().parts(from.max(self.min_offset())..to) {
            // The read itself will find and report this error.
            if let Ok(file) = self.file(part.base) {
                let _ = file.expect_read(part.position, part.end_position() - part.position);
            }
        }
    }

    /// Like [`Self::expect`], for a file system that fetches what it reads: a file is divided into equal ranges of at most
    /// `most_bytes`, and the range of the unit at `offset` is fetched. A reader that names one offset after another needs
    /// one request for each range.
    pub fn expect_range(&self, offset: i64, most_bytes: u64) {
        let max = self.max_offset();
        if !(self.min_offset()..max).contains(&offset) || most_bytes == 0 {
            return;
        }
        let (layout, base) = (self.layout(), self.layout().base_of(offset));
        let range_bytes = layout.file_bytes().div_ceil(layout.file_bytes().div_ceil(most_bytes));
        let start = layout.position_of(offset) / range_bytes * range_bytes;
        let end = self.position_in(base, max).min(start + range_bytes);
        // The read itself will find and report this error.
        if let Ok(file) = self.file(base) {
            let _ = file.expect_read(start, end.saturating_sub(start));
        }
    }

    fn check_range(&self, offset: i64) -> Result<(), StoreError> {
        let (min_offset, max_offset) = (self.min_offset(), self.max_offset());
        if (min_offset..=max_offset).contains(&offset) {
            return Ok(());
        }
        let (topic, queue_id) = (self.topic.to_string(), self.queue_id);
        Err(StoreError::OffsetOutOfRange { topic, queue_id, offset, min_offset, max_offset })
    }

    fn read_files(
        &self,
        from: i64,
        max_units: usize,
        each: &mut impl FnMut(i64, CqUnit),
    ) -> Result<(), StoreError> {
        let wanted = i64::try_from(max_units).unwrap_or(i64::MAX).min(self.max_offset() - from);
        let mut buffer = Vec::new();
        let mut offset = from;
        let mut take = |units: &[[u8; CQ_UNIT_BYTES]]| {
            for unit in units {
                each(offset, CqUnit::decode(unit));
                offset += 1;
            }
        };
        for part in self.layout().parts(from..from + wanted) {
            self.check_name_exists(&part)?;
            if let Some(map) = self.in_memory(part.base) {
                // Committed units never change.
                let bytes = map.view(part.position as usize, (part.end_position() - part.position) as usize);
                let bytes = bytes.map_err(|error| self.io(part.base, "reading queue units", error.into()))?;
                take(bytes.as_chunks().0);
                continue;
            }
            let file = self.files.get(part.base, || self.file(part.base))?;
            let mut position = part.position;
            while position < part.end_position() {
                let end = part.end_position().min(position + READ_BYTES);
                let units = units::read_units(&*file, position..end, &mut buffer)
                    .map_err(|source| self.io(part.base, "reading queue units", source))?;
                take(units);
                position = end;
            }
        }
        Ok(())
    }

    /// Returns the map of the file `base`, if it can be mapped. A process that only reads uses no map, because the
    /// writer could cut the file under it.
    fn in_memory(&self, base: u64) -> Option<Arc<Region>> {
        if self.home.access == Access::Read {
            return None;
        }
        let map = || self.home.cache.map(&self.path(base), Access::ReadWrite, self.layout().file_bytes());
        self.maps.get(base, map).ok()
    }

    fn check_name_exists(&self, part: &FilePart) -> Result<(), StoreError> {
        if self.bases.read().binary_search(&part.base).is_err() {
            let reason = format!(
                "the queue file with offsets {} to {} is missing; run `mqstore rebuild` to derive it from the log",
                part.offsets.start, part.offsets.end
            );
            return Err(StoreError::corrupt(&self.path(part.base), 0, reason));
        }
        Ok(())
    }

    pub(super) fn layout(&self) -> QueueLayout {
        self.home.layout
    }

    /// Folder of the queue's files.
    pub(super) fn folder(&self) -> PathBuf {
        let mut folder = self.home.files.consume_queue();
        folder.push(&*self.topic);
        folder.push(self.queue_id.to_string());
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
}
