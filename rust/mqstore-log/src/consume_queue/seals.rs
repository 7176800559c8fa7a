//! What an open found in the folders of very many queues, so that the next one need not look into those that
//! nobody touched.
//!
//! Owns `mqstore/seals`: where each queue began and ended, with inode and time of change of its last file, and of its
//! folder and its first file where there are several, or the one is full. Where these are the same still, the queue is
//! as it was found, and one look at a name takes the place of ten calls; wherever anything differs, its folder is looked
//! into. What somebody put beside the one file of a queue is seen when the queue needs its second one (`write`). It is a
//! cache: an open can do without.
//!
//! ```text
//! "MQSSEAL1" boot id:16 file length:8 log minimum:8 consumequeue/:16 topics:4
//!   { name length:2 name folder:16 queues:4
//!     { id:4 last file:16 [ first base:8 min:8 max:8 first record:8 end of last record:8 [ folder:16 first file:16 ] ] }*
//!   }* CRC:4
//! ```
//! (of a folder or a file: inode:8 time of change:8; zeros for a folder that may hold something else, and for the last
//! file of a queue that is to be looked into, of which nothing follows; the last two where there are several files, or
//! the one is full)
//!
//! Why it may be believed: everything that changes a file, or the names in a folder, sets its time of change to that
//! of the clock, and nothing sets it otherwise. The clock stands still for some milliseconds, so that a change may
//! not be told from one just before. Only what was last changed well before the open began is written down: whatever
//! changes later has a later time. A loss of power may keep a change and lose its time, so that nothing is believed
//! that was written before the machine started. Where memory is a file system, writes through a map leave no time;
//! a broker that makes them appends to the log, and the caller asks for seals only where the log is as a close of
//! ours left it.
//!
//! Across a crash: written aside and renamed, not synced; a damaged one is none. Across threads: used while a store
//! opens, by the threads of the open.

use std::ffi::OsStr;
use std::fmt::Write;
use std::iter;
use std::ops::Range;
use std::path::{Path, PathBuf};

use mqstore_format::{Fields, crc31, offset_file_name, validate_stored_topic};
use mqstore_io::sync::{Arc, map_with_helpers};
use mqstore_io::{FileStat, Vfs, switch};

use super::layout::{QueueLayout, offset_at};
use super::queue::ConsumeQueue;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::files::StoreFiles;

/// Fewer queues than this are looked into in a millisecond.
const LEAST_QUEUES: usize = 64;

/// When one queue in so many had to be looked into, all is written down anew.
const RENEW_ONE_IN: usize = 8;

/// So long before the open the last change must lie, whatever the steps of the file system's clock.
const MARGIN_NS: i64 = 2_000_000_000;

/// A queue of more files is looked at anew.
const MOST_FILES: u64 = 1 << 16;

/// What the threads are called that look with the caller.
const THREAD: &str = "mq-seals";

/// Looks that a thread makes from one folder on.
const TOGETHER: usize = 64;

const MAGIC: &[u8; 8] = b"MQSSEAL1";
const LIMIT_BYTES: u64 = 1 << 30;

/// What differs when a file, or a name in a folder, was changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    changed_ns: i64,
}

impl Stamp {
    /// Stands for what is to be looked at anew.
    const NONE: Self = Self { inode: 0, changed_ns: 0 };

    /// Of a file system that keeps no times nothing is believed.
    fn of(stat: &FileStat) -> Self {
        let FileStat { inode, changed_ns, .. } = *stat;
        if changed_ns > 0 { Self { inode, changed_ns } } else { Self::NONE }
    }

    /// Itself, if the change came before `early_ns`.
    fn if_early(self, early_ns: i64) -> Self {
        if self.changed_ns < early_ns || !switch::on("seals.early") { self } else { Self::NONE }
    }
}

/// What `names` in the folder `root` have; nothing where they are gone.
fn stamps(vfs: &dyn Vfs, root: &Path, names: &[PathBuf]) -> Result<Vec<Stamp>, StoreError> {
    let stats = vfs.stat_below(root, names).at(root, "looking at queues")?;
    Ok(stats.iter().map(|stat| stat.as_ref().map_or(Stamp::NONE, Stamp::of)).collect())
}

/// Where a queue begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) first_base: u64,
    pub(super) last_base: u64,
    pub(super) min: i64,
    pub(super) max: i64,
    /// Where the record of `min` starts in the log; `None` where `min` is `max`.
    pub(super) first_record: Option<u64>,
    /// Where the record of the last unit ends.
    pub(super) physical_end: i64,
}

impl Bounds {
    /// Whether files of `layout` can be so.
    fn are_possible(&self, layout: QueueLayout) -> bool {
        let (first, last) = (self.first_base, self.last_base);
        let has_files = layout.is_base(first) && layout.is_base(last) && first <= last;
        has_files
            && (last - first) / layout.file_bytes() < MOST_FILES
            && (offset_at(last, 0) + 1..=layout.end_of(last)).contains(&self.max)
            && (offset_at(first, 0)..=self.max).contains(&self.min)
            && self.first_record.is_some() == (self.min < self.max)
            && self.physical_end >= 0
    }

    /// Whether more must be the same than one file: there are several, of which one may have gone, or it is full, so
    /// that what comes next leaves it as it is.
    fn have_others(&self, layout: QueueLayout) -> bool {
        self.first_base != self.last_base || self.max == layout.end_of(self.last_base)
    }

    /// Where what must be the same lies in `consumequeue/`: the last file, and with the `others` the folder and the
    /// first file.
    fn places(&self, topic: &str, queue_id: i32, others: bool) -> impl Iterator<Item = PathBuf> {
        let file = |base| place(topic, Some(queue_id), Some(base));
        let others = others.then(|| [place(topic, Some(queue_id), None), file(self.first_base)]);
        iter::once(file(self.last_base)).chain(others.into_iter().flatten())
    }

    /// The files, ascending.
    pub(super) fn bases(&self, layout: QueueLayout) -> Vec<u64> {
        (self.first_base..=self.last_base).step_by(layout.file_bytes() as usize).collect()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct SealedQueue {
    queue_id: i32,
    last_file: Stamp,
    /// Folder and first file, if they must be the same, too.
    others: Option<Box<[Stamp; 2]>>,
    bounds: Bounds,
}

impl SealedQueue {
    /// Whether it says more than that there is such a queue.
    fn is_known(&self) -> bool {
        self.last_file != Stamp::NONE
    }

    /// Leaves its number alone.
    fn forget(&mut self) {
        *self = Self { queue_id: self.queue_id, ..UNKNOWN };
    }

    /// Whether a log has all records that it speaks of.
    fn fits(&self, log: &Range<u64>) -> bool {
        let begins_there = self.bounds.first_record.is_none_or(|record| record >= log.start);
        begins_there && u64::try_from(self.bounds.physical_end).is_ok_and(|end| end <= log.end)
    }

    /// Takes from `now` what its places have; whether that is what they had.
    fn holds(&self, now: &mut impl Iterator<Item = Stamp>) -> bool {
        let last_file = now.next() == Some(self.last_file) || !switch::on("seals.last_file");
        let Some([folder, first_file]) = self.others.as_deref() else { return last_file };
        let folder = now.next() == Some(*folder) || !switch::on("seals.folder");
        let first_file = now.next() == Some(*first_file) || !switch::on("seals.first_file");
        last_file && folder && first_file
    }
}

/// One topic.
#[derive(Clone, Copy, Debug)]
pub(super) struct SealedTopic<'a> {
    pub(super) topic: &'a Arc<str>,
    folder: Stamp,
    /// Ascending.
    queues: &'a [SealedQueue],
}

impl<'a> SealedTopic<'a> {
    fn queue(self, queue_id: i32) -> Option<&'a SealedQueue> {
        let place = self.queues.binary_search_by_key(&queue_id, |queue| queue.queue_id).ok()?;
        self.queues.get(place)
    }

    /// The numbers of the queues.
    pub(super) fn ids(self) -> Vec<i32> {
        self.queues.iter().map(|queue| queue.queue_id).collect()
    }
}

/// Where the folder of a topic, that of a queue and a file lie in `consumequeue/`.
fn place(topic: &str, queue_id: Option<i32>, base: Option<u64>) -> PathBuf {
    let mut text = topic.to_owned();
    if let Some(queue_id) = queue_id {
        _ = write!(text, "/{queue_id}");
    }
    if let Some(base) = base {
        text.push('/');
        text.push_str(&offset_file_name(base));
    }
    text.into()
}

/// What `look` finds of `items`, some at a time and by several threads.
fn in_chunks<T: Sync, R: Send>(
    vfs: &dyn Vfs,
    items: &[T],
    look: impl Fn(&[T]) -> Result<Vec<R>, StoreError> + Sync,
) -> Result<Vec<R>, StoreError> {
    let chunks: Vec<_> = items.chunks(TOGETHER).collect();
    let found = map_with_helpers(vfs.environment().helpers(), THREAD, &chunks, |chunk| look(chunk))?;
    Ok(found.into_iter().flatten().collect())
}

/// Whether the names in the folders of `topics`, in the folder `root`, are the same still.
pub(super) fn topics_hold(
    vfs: &dyn Vfs,
    root: &Path,
    topics: &[Option<SealedTopic<'_>>],
) -> Result<Vec<bool>, StoreError> {
    in_chunks(vfs, topics, |topics| {
        let known = topics.iter().map(|topic| topic.filter(|topic| topic.folder != Stamp::NONE));
        let names: Vec<_> = known.clone().flatten().map(|topic| place(topic.topic, None, None)).collect();
        let mut now = stamps(vfs, root, &names)?.into_iter();
        let mut holds =
            |topic: SealedTopic<'_>| now.next() == Some(topic.folder) || !switch::on("seals.topic_folder");
        Ok(known.map(|topic| topic.is_some_and(&mut holds)).collect())
    })
}

/// The bounds of each of `queues`, in the folder `root` of all topics, whose files nobody has changed; `name` says
/// which one it is.
pub(super) fn unchanged<'a, T: Sync>(
    vfs: &dyn Vfs,
    root: &Path,
    queues: &[T],
    name: impl Fn(&T) -> (Option<SealedTopic<'a>>, i32) + Sync,
) -> Result<Vec<Option<Bounds>>, StoreError> {
    in_chunks(vfs, queues, |queues| {
        let known = queues.iter().map(|queue| {
            let (topic, queue_id) = name(queue);
            Some((topic?, topic?.queue(queue_id).filter(|queue| queue.is_known())?))
        });
        let known: Vec<_> = known.collect();
        let mut names = Vec::with_capacity(queues.len());
        for (topic, queue) in known.iter().flatten() {
            names.extend(queue.bounds.places(topic.topic, queue.queue_id, queue.others.is_some()));
        }
        let mut now = stamps(vfs, root, &names)?.into_iter();
        let held = known.iter().map(|known| known.filter(|(_, queue)| queue.holds(&mut now)));
        Ok(held.map(|held| held.map(|(_, queue)| queue.bounds)).collect())
    })
}

/// What the last open that looked into most of the queues found.
#[derive(Debug, PartialEq, Eq)]
pub struct Seals {
    boot_id: [u8; 16],
    layout: QueueLayout,
    log_min: u64,
    root: Stamp,
    /// Ascending.
    topics: Vec<TopicRow>,
    /// Those of all topics, in their order.
    queues: Vec<SealedQueue>,
}

#[derive(Debug, PartialEq, Eq)]
struct TopicRow {
    topic: Arc<str>,
    folder: Stamp,
    /// Which of all queues are its own.
    queues: Range<usize>,
}

impl Seals {
    /// Reads them, for a log that is as a close left it; `None` when there are none, they are damaged, or not to be
    /// believed.
    pub fn load(files: &StoreFiles, log: &Range<u64>) -> Option<Self> {
        let bytes = files.vfs.read_file(&files.side().join("seals"), LIMIT_BYTES).ok()?;
        let mut seals = Self::decode(&bytes)?;
        let this_boot = seals.boot_id == files.vfs.environment().boot_id && seals.boot_id != [0; 16];
        // A minimum may move up with the log's, but not down.
        let begins_there = seals.log_min <= log.start || !switch::on("seals.log_minimum");
        for queue in &mut seals.queues {
            if !queue.fits(log) {
                queue.forget();
            }
        }
        ((this_boot || !switch::on("seals.boot")) && begins_there).then_some(seals)
    }

    /// The length of queue files.
    pub(super) fn file_bytes(&self) -> u64 {
        self.layout.file_bytes()
    }

    /// The topics, if the names in their folder, `root`, which was just looked at, are the same still.
    pub(super) fn topics(&self, root: &FileStat) -> Option<impl Iterator<Item = SealedTopic<'_>>> {
        let same = self.root != Stamp::NONE && self.root == Stamp::of(root);
        let same = same || !switch::on("seals.root");
        same.then(|| self.topics.iter().map(|row| self.view(row)))
    }

    /// One topic.
    pub(super) fn topic(&self, topic: &str) -> Option<SealedTopic<'_>> {
        let place = self.topics.binary_search_by(|row| (*row.topic).cmp(topic)).ok()?;
        self.topics.get(place).map(|row| self.view(row))
    }

    fn view<'a>(&'a self, row: &'a TopicRow) -> SealedTopic<'a> {
        let queues = self.queues.get(row.queues.clone()).unwrap_or_default();
        SealedTopic { topic: &row.topic, folder: row.folder, queues }
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, crc) = bytes.split_last_chunk::<4>()?;
        if *crc != crc31(body).to_be_bytes() {
            return None;
        }
        let mut fields = Fields(body.strip_prefix(MAGIC)?);
        let boot_id = fields.take()?;
        let file_bytes = fields.u64()?;
        let layout = QueueLayout::new(file_bytes);
        let log_min = fields.u64()?;
        let root = stamp(&mut fields)?;
        let count = fields.u32()?;
        let (mut topics, mut queues) = (Vec::new(), Vec::new());
        for _ in 0..count {
            topics.push(decode_topic(&mut fields, layout, &mut queues)?);
        }
        let whole = fields.0.is_empty() && layout.file_bytes() == file_bytes;
        let in_order = topics.is_sorted_by(|a, b| a.topic < b.topic);
        (whole && in_order).then_some(Self { boot_id, layout, log_min, root, topics, queues })
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&self.boot_id);
        bytes.extend_from_slice(&self.layout.file_bytes().to_be_bytes());
        bytes.extend_from_slice(&self.log_min.to_be_bytes());
        push_stamp(&mut bytes, self.root);
        bytes.extend_from_slice(&(self.topics.len() as u32).to_be_bytes());
        for topic in self.topics.iter().map(|row| self.view(row)) {
            bytes.extend_from_slice(&(topic.topic.len() as u16).to_be_bytes());
            bytes.extend_from_slice(topic.topic.as_bytes());
            push_stamp(&mut bytes, topic.folder);
            bytes.extend_from_slice(&(topic.queues.len() as u32).to_be_bytes());
            topic.queues.iter().for_each(|queue| push_queue(&mut bytes, queue));
        }
        let crc = crc31(&bytes);
        bytes.extend_from_slice(&crc.to_be_bytes());
        bytes
    }

    fn store(&self, files: &StoreFiles) -> Result<(), StoreError> {
        let (path, staged) = (files.side().join("seals"), files.staging().join("seals"));
        let written = files.vfs.create_new(&staged).and_then(|file| file.write_all_at(&self.encode(), 0));
        written
            .and_then(|()| files.vfs.rename(&staged, &path))
            .at(&path, "writing down how queues were found")
    }
}

fn stamp(fields: &mut Fields<'_>) -> Option<Stamp> {
    Some(Stamp { inode: fields.u64()?, changed_ns: fields.i64()? })
}

fn push_stamp(bytes: &mut Vec<u8>, stamp: Stamp) {
    bytes.extend_from_slice(&stamp.inode.to_be_bytes());
    bytes.extend_from_slice(&stamp.changed_ns.to_be_bytes());
}

/// In place of the position of a record.
const NO_RECORD: u64 = u64::MAX;

/// Adds the queues of the topic to `all`.
fn decode_topic(
    fields: &mut Fields<'_>,
    layout: QueueLayout,
    all: &mut Vec<SealedQueue>,
) -> Option<TopicRow> {
    let length = u16::from_be_bytes(fields.take()?);
    let topic = std::str::from_utf8(fields.bytes(length.into())?).ok()?;
    validate_stored_topic(topic).ok()?;
    let folder = stamp(fields)?;
    let count = fields.u32()?;
    let first = all.len();
    for _ in 0..count {
        all.push(decode_queue(fields, layout)?);
    }
    let in_order = all.get(first..)?.is_sorted_by(|a, b| a.queue_id < b.queue_id);
    in_order.then(|| TopicRow { topic: topic.into(), folder, queues: first..all.len() })
}

fn decode_queue(fields: &mut Fields<'_>, layout: QueueLayout) -> Option<SealedQueue> {
    let queue_id = Some(i32::from_be_bytes(fields.take()?)).filter(|queue_id| *queue_id >= 0)?;
    let last_file = stamp(fields)?;
    if last_file == Stamp::NONE {
        return Some(SealedQueue { queue_id, ..UNKNOWN });
    }
    let (first_base, min, max) = (fields.u64()?, fields.i64()?, fields.i64()?);
    let first_record = Some(fields.u64()?).filter(|record| *record != NO_RECORD);
    let physical_end = fields.i64()?;
    let last = max.checked_sub(1).filter(|last| *last >= 0 && layout.holds(max))?;
    let bounds = Bounds { first_base, last_base: layout.base_of(last), min, max, first_record, physical_end };
    if !bounds.are_possible(layout) {
        return None;
    }
    let mut sealed = SealedQueue { queue_id, last_file, others: None, bounds };
    if bounds.have_others(layout) {
        sealed.others = Some(Box::new([stamp(fields)?, stamp(fields)?]));
    }
    Some(sealed)
}

fn push_queue(bytes: &mut Vec<u8>, queue: &SealedQueue) {
    let SealedQueue { queue_id, last_file, others, bounds } = queue;
    bytes.extend_from_slice(&queue_id.to_be_bytes());
    push_stamp(bytes, *last_file);
    if !queue.is_known() {
        return;
    }
    bytes.extend_from_slice(&bounds.first_base.to_be_bytes());
    bytes.extend_from_slice(&bounds.min.to_be_bytes());
    bytes.extend_from_slice(&bounds.max.to_be_bytes());
    bytes.extend_from_slice(&bounds.first_record.unwrap_or(NO_RECORD).to_be_bytes());
    bytes.extend_from_slice(&bounds.physical_end.to_be_bytes());
    for other in others.iter().flat_map(|others| **others) {
        push_stamp(bytes, other);
    }
}

/// What is written down of each of `queues`: its number alone where it was changed too late, or is not as an open
/// leaves one that it finds whole.
fn seal(
    files: &StoreFiles,
    queues: &[Arc<ConsumeQueue>],
    early_ns: i64,
) -> Result<Vec<SealedQueue>, StoreError> {
    let found = queues
        .iter()
        .map(|queue| (queue, queue.settled_bounds().filter(|bounds| bounds.are_possible(queue.layout()))));
    let found: Vec<_> = found.collect();
    let mut names = Vec::with_capacity(queues.len());
    for (queue, bounds) in &found {
        let Some(bounds) = bounds else { continue };
        names.extend(bounds.places(queue.topic(), queue.queue_id(), bounds.have_others(queue.layout())));
    }
    let stamps = stamps(&*files.vfs, &files.consume_queue(), &names)?;
    let mut stamps = stamps.into_iter().map(|stamp| stamp.if_early(early_ns));
    let mut next = || stamps.next().unwrap_or(Stamp::NONE);
    let sealed = found.into_iter().map(|(queue, bounds)| {
        let mut sealed = SealedQueue { queue_id: queue.queue_id(), ..UNKNOWN };
        let Some(bounds) = bounds else { return sealed };
        sealed.last_file = next();
        sealed.others = bounds.have_others(queue.layout()).then(|| Box::new([next(), next()]));
        sealed.bounds = bounds;
        if !sealed.is_known() || sealed.others.iter().any(|others| others.contains(&Stamp::NONE)) {
            sealed.forget();
        }
        sealed
    });
    Ok(sealed.collect())
}

const UNKNOWN: SealedQueue = SealedQueue {
    queue_id: 0,
    last_file: Stamp::NONE,
    others: None,
    bounds: Bounds { first_base: 0, last_base: 0, min: 0, max: 0, first_record: None, physical_end: 0 },
};

impl super::QueueSet {
    /// Whether so many folders had to be looked into that [`Self::write_seals`] is worth while, and nothing lies
    /// there that does not belong there.
    pub fn wants_seals(&self) -> bool {
        let count = self.plain_count();
        count >= LEAST_QUEUES && self.looked_into() * RENEW_ONE_IN >= count && self.strays().is_empty()
    }

    /// Writes down where all queues begin and end, for [`Seals::load`]. To be called by an open that has looked for
    /// bounds, for a log that begins at `log_min` and to which all minima were moved. `begun_ns`: the file system's
    /// time at which the open began, before it looked at anything here.
    pub fn write_seals(&self, begun_ns: i64, log_min: u64) -> Result<(), StoreError> {
        let home = self.home();
        let early_ns = begun_ns.saturating_sub(MARGIN_NS);
        let all = self.all();
        let sealed = in_chunks(&*home.files.vfs, &all, |queues| seal(&home.files, queues, early_ns))?;
        let by_topic: Vec<_> = all.chunk_by(|a, b| a.topic() == b.topic()).collect();
        let folders = topic_folders(&home.files, &by_topic, early_ns)?;
        let mut end = 0;
        let topics = folders.into_iter().zip(&by_topic).filter_map(|(folder, queues)| {
            let first = end;
            end += queues.len();
            Some(TopicRow { topic: Arc::clone(queues.first()?.shared_topic()), folder, queues: first..end })
        });
        let topics: Vec<_> = topics.collect();
        let seals = Seals {
            boot_id: home.files.vfs.environment().boot_id,
            layout: home.layout,
            log_min,
            root: root_folder(&home.files, &topics, early_ns)?,
            topics,
            queues: sealed,
        };
        seals.store(&home.files)
    }
}

/// The folders of topics, as far as each holds its queues and nothing else.
fn topic_folders(
    files: &StoreFiles,
    topics: &[&[Arc<ConsumeQueue>]],
    early_ns: i64,
) -> Result<Vec<Stamp>, StoreError> {
    let names =
        topics.iter().filter_map(|queues| queues.first()).map(|queue| place(queue.topic(), None, None));
    let stamps = stamps(&*files.vfs, &files.consume_queue(), &names.collect::<Vec<_>>())?;
    let folders = stamps.into_iter().zip(topics).map(|(stamp, queues)| {
        // A queue without a file may have no folder either.
        let all_have_folders = queues.iter().all(|queue| queue.max_offset() > 0);
        if all_have_folders { stamp.if_early(early_ns) } else { Stamp::NONE }
    });
    Ok(folders.collect())
}

/// The folder of all topics, if it holds `topics` and nothing else: a queue in another one would not be found.
fn root_folder(files: &StoreFiles, topics: &[TopicRow], early_ns: i64) -> Result<Stamp, StoreError> {
    let root = files.consume_queue();
    let stat = files.vfs.stat(&root).at(&root, "looking at queues")?;
    let names = files.vfs.list_kinds(&root).at(&root, "listing queues")?;
    let topics = topics.iter().map(|topic| OsStr::new(&*topic.topic));
    let same = names.iter().map(|(name, _)| name.as_os_str()).eq(topics);
    Ok(if same { Stamp::of(&stat).if_early(early_ns) } else { Stamp::NONE })
}
