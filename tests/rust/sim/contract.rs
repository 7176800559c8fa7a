//! The required bytes of a disk at any moment, before and after recovery.
//!
//! Recovery could handle many violations of these rules. RocketMQ reads the same files and might not. A file
//! that claims more than a sync covered is a future loss.
//!
//! * A segment under its name has its full length.
//! * The durable mark names a log offset. Below it, the log on this disk is complete and the queues hold
//!   every entry. The same is true for the checkpoint.
//! * While a writer has the store open, a mark and `abort` exist. After a close, `abort` is gone and the mark
//!   is clean.
//! * Bytes that recovery truncates from the log are complete in `mqstore/lost+found` from then on.
//! * After a flush, the checkpoint names everything that the flush covered.
//! * Neither mark nor checkpoint names a deleted record.
//! * A sequence of files loses its oldest file first, and a file that was reported as deleted does not come
//!   back.
//! * A segment to wipe keeps its name, or a name in the folder `wipe`, until its bytes are zeros on the
//!   device.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use mqstore_base::durable_mark::{DurableMark, DurableMarkFile};
use mqstore_base::message::Appended;
use mqstore_base::options::StoreOptions;
use mqstore_engine::Store;
use mqstore_format::{BatchCqUnit, CqUnit, RecordView};
use mqstore_io::{FileKind, SimVfs, Vfs};

use crate::check::lost_and_found;
use crate::states::{Image, Rng};
use crate::workload::{BATCHED, FAR_LOGS, History, World, explain, root};

const LIMIT: u64 = 1 << 22;

/// Checks the disk that a crash left.
pub(crate) fn image(
    image: &Image,
    history: &History,
    call: u64,
    options: &StoreOptions,
) -> Result<(), String> {
    let vfs = &image.vfs;
    whole_segments(vfs, options)?;
    removed_in_order(vfs, history, call)?;
    wiped(vfs, history, call, options)?;
    let mark = DurableMarkFile::new(&World::on(vfs.clone()).files()).load();
    let log = Log::read(vfs, options.segment_bytes);
    if let Some(mark) = &mark {
        mark_claims(mark, &log, vfs, history, options)?;
    }
    checkpoint_claims(vfs, &log, history, options)?;
    checkpoint_is_flushed(vfs, history, call)?;
    let abort = vfs.stat(&root().join("abort")).is_ok();
    if history.is_open(call) && !abort {
        return Err("a writer has the store open, and abort is missing".to_owned());
    }
    if history.is_open(call) && mark.is_none() {
        return Err("a writer has the store open, and there is no mark".to_owned());
    }
    if history.is_closed(call) && (abort || !mark.is_some_and(|mark| mark.clean)) {
        return Err(format!("the store was closed; abort: {abort}, mark: {mark:?}"));
    }
    Ok(())
}

/// Checks that the disk holds everything that its mark and checkpoint claim.
pub(crate) fn claims(vfs: &SimVfs, history: &History, options: &StoreOptions) -> Result<(), String> {
    let log = Log::read(vfs, options.segment_bytes);
    if let Some(mark) = DurableMarkFile::new(&World::on(vfs.clone()).files()).load() {
        mark_claims(&mark, &log, vfs, history, options)?;
    }
    checkpoint_claims(vfs, &log, history, options)
}

fn whole_segments(vfs: &SimVfs, options: &StoreOptions) -> Result<(), String> {
    for folder in log_folders() {
        for entry in vfs.list(&folder).unwrap_or_default() {
            if entry.stat.kind == FileKind::File && entry.stat.len != options.segment_bytes {
                let len = options.segment_bytes;
                return Err(format!(
                    "segment {} has {} of {len} bytes",
                    entry.name.display(),
                    entry.stat.len
                ));
            }
        }
    }
    Ok(())
}

/// Checks that deletion removes the oldest file first, in each folder and in the sequence of segments. After
/// a deletion returned, none of its files exists.
fn removed_in_order(vfs: &SimVfs, history: &History, call: u64) -> Result<(), String> {
    let done = history.expiries.iter().map(|expiry| expiry.ended).filter(|ended| *ended < call).max();
    let mut rows: BTreeMap<&Path, &Path> = BTreeMap::new();
    for (at, path) in history.removals.iter().filter(|(at, _)| *at < call) {
        let there = vfs.stat(path).is_ok();
        if there && done.is_some_and(|done| *at <= done) {
            return Err(format!("{} was deleted, and is there again", path.display()));
        }
        let folder = path.parent().unwrap_or(path);
        let row = if log_folders().iter().any(|log| log == folder) { Path::new("the log") } else { folder };
        if folder.ends_with("wipe") {
            // These files wait for their readers, not for each other.
        } else if there {
            rows.entry(row).or_insert(path);
        } else if let Some(older) = rows.get(row) {
            return Err(format!(
                "{} is gone, and {} is not, which is older",
                path.display(),
                older.display()
            ));
        }
    }
    Ok(())
}

/// The path where a segment waits for its wipe.
fn wipe_place(path: &Path) -> Option<PathBuf> {
    let (folder, name) = (path.parent()?, path.file_name()?);
    let side =
        if folder == root().join("commitlog") { root().join("mqstore") } else { folder.join(".mqstore") };
    Some(side.join("wipe").join(name))
}

/// Checks that a segment to wipe has a name until its bytes are zeros on the device.
fn wiped(vfs: &SimVfs, history: &History, call: u64, options: &StoreOptions) -> Result<(), String> {
    if !options.secure_wipe {
        return Ok(());
    }
    for (at, path) in history.removals.iter().filter(|(at, _)| *at < call) {
        if !log_folders().iter().any(|folder| path.parent() == Some(folder)) || vfs.stat(path).is_ok() {
            continue;
        }
        let Some(place) = wipe_place(path) else { continue };
        let removed = history.removals.iter().find(|(later, other)| later > at && *other == place);
        // The file may be gone after its removal has begun. Before that, the device already holds zeros.
        let may_be_gone = removed.is_some_and(|(removed, _)| *removed < call);
        match vfs.read_file(&place, LIMIT) {
            Err(_) if !may_be_gone => {
                return Err(format!("{} has lost its name and was not wiped", path.display()));
            }
            Ok(bytes)
                if removed.is_some_and(|(removed, _)| *removed <= call)
                    && bytes.iter().any(|byte| *byte != 0) =>
            {
                return Err(format!("{} is not zeros when its name goes", place.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// A flush covers the checkpoint, too.
fn checkpoint_is_flushed(vfs: &SimVfs, history: &History, call: u64) -> Result<(), String> {
    let flushed = history.flushed.iter().filter(|(at, _)| *at < call).filter_map(|(_, last)| *last).max();
    let Some(flushed) = flushed.filter(|last| *last > 0) else { return Ok(()) };
    let bytes = vfs.read_file(&root().join("checkpoint"), LIMIT).unwrap_or_default();
    let named = mqstore_format::Checkpoint::decode(&bytes).confirm_physical_offset;
    // The last record of a log was removed with its segment.
    let is_removed = segments(vfs).keys().next().is_some_and(|start| *start > flushed);
    if named < flushed as i64 && !(named == 0 && is_removed) {
        return Err(format!("a flush covered the record at {flushed}, the checkpoint names {named}"));
    }
    Ok(())
}

/// The log of a disk, read without the engine.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// Whole records with their queue, queue offset, start and size.
    pub(crate) records: Vec<(String, i32, i64, u64, u32)>,
    /// The offset after the last whole record or filler.
    pub(crate) end: u64,
    /// The offset of the first segment.
    start: u64,
}

impl Log {
    pub(crate) fn read(vfs: &SimVfs, segment_bytes: u64) -> Self {
        let segments = segments(vfs);
        let start = segments.keys().next().copied().unwrap_or(0);
        let mut log = Self { end: start, start, ..Self::default() };
        while let Some(bytes) = segments.get(&(log.end - log.end % segment_bytes)) {
            if !log.step(bytes, segment_bytes) {
                break;
            }
        }
        log
    }

    fn step(&mut self, segment: &[u8], segment_bytes: u64) -> bool {
        let at = (self.end % segment_bytes) as usize;
        let word = |at: usize| segment.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes);
        let (Some(size), Some(magic)) = (word(at), word(at + 4)) else { return false };
        if magic == mqstore_format::MAGIC_BLANK && u64::from(size) == segment_bytes - at as u64 {
            self.end += u64::from(size);
            return true;
        }
        let Some(Ok(view)) = segment.get(at..at + size as usize).map(RecordView::decode) else {
            return false;
        };
        let checks = mqstore_format::CrcCheck { body: true, property: true };
        if view.physical_offset != self.end as i64 || view.check_crc(checks).is_err() {
            return false;
        }
        self.records.push((view.topic.to_owned(), view.queue_id, view.queue_offset, self.end, size));
        self.end += u64::from(size);
        true
    }
}

/// The files of the log by their first offset.
pub(crate) fn segments(vfs: &SimVfs) -> BTreeMap<u64, Vec<u8>> {
    let mut segments = BTreeMap::new();
    for folder in log_folders() {
        for entry in vfs.list(&folder).unwrap_or_default() {
            let base = entry.name.to_str().and_then(|name| name.parse().ok());
            if let (Some(base), Ok(bytes)) = (base, vfs.read_file(&folder.join(&entry.name), LIMIT)) {
                segments.insert(base, bytes);
            }
        }
    }
    segments
}

/// All folders in which a run of this suite may have its log.
fn log_folders() -> [PathBuf; 3] {
    let [one, two] = FAR_LOGS.map(PathBuf::from);
    [root().join("commitlog"), one, two]
}

/// Names and bytes of the log files.
pub(crate) fn log_bytes(vfs: &SimVfs) -> BTreeMap<u64, Vec<u8>> {
    segments(vfs)
}

fn mark_claims(
    mark: &DurableMark,
    log: &Log,
    vfs: &SimVfs,
    history: &History,
    options: &StoreOptions,
) -> Result<(), String> {
    if mark.position > log.end {
        return Err(format!("the mark claims {} bytes of log, {} are whole", mark.position, log.end));
    }
    if mark.dispatched > mark.position {
        return Err(format!(
            "the mark claims queues up to {} and a log up to {}",
            mark.dispatched, mark.position
        ));
    }
    if names_deleted(mark, log) {
        return Err(format!("the mark names a record that was deleted: {mark:?}"));
    }
    if options.retains() {
        each_slot(vfs, log)?;
    }
    queues_hold(vfs, history, log.start..mark.dispatched, options)
        .map_err(|what| format!("the mark claims {mark:?}: {what}"))
}

/// Whether a mark names a record that was deleted. It may name the last one of the log if nothing but this record's
/// segment was before its end: then the log begins where the mark ends.
fn names_deleted(mark: &DurableMark, log: &Log) -> bool {
    mark.last_size > 0 && mark.last_offset < log.start && mark.position != log.start
}

/// Checks each slot of the mark: if the newest one decays, the store opens with the other one, which must not
/// name a deleted record.
fn each_slot(vfs: &SimVfs, log: &Log) -> Result<(), String> {
    for other in ["state.a", "state.b"] {
        let alone = vfs.kill().map_err(explain)?;
        if alone.remove_file(&root().join("mqstore").join(other)).is_err() {
            continue;
        }
        let mark = DurableMarkFile::new(&World::on(alone).files()).load();
        if let Some(mark) = mark.filter(|mark| names_deleted(mark, log)) {
            return Err(format!("without {other} the mark names a record that was deleted: {mark:?}"));
        }
    }
    Ok(())
}

fn checkpoint_claims(
    vfs: &SimVfs,
    log: &Log,
    history: &History,
    options: &StoreOptions,
) -> Result<(), String> {
    let Ok(bytes) = vfs.read_file(&root().join("checkpoint"), LIMIT) else { return Ok(()) };
    let checkpoint = mqstore_format::Checkpoint::decode(&bytes);
    if checkpoint.confirm_physical_offset <= 0 {
        return Ok(());
    }
    // A segment that was closed early can be removed with the last record of the log.
    let closes_early = options.allocation_bytes < options.segment_bytes;
    if closes_early && checkpoint.confirm_physical_offset < log.start as i64 {
        return Ok(());
    }
    let newest = log.records.iter().find(|record| record.3 as i64 == checkpoint.confirm_physical_offset);
    if newest.is_none() {
        return Err(format!("the checkpoint names a record that is not whole: {checkpoint:?}"));
    }
    let end = newest.map_or(0, |record| record.3 + u64::from(record.4));
    queues_hold(vfs, history, log.start..end, options)
        .map_err(|what| format!("the checkpoint claims {checkpoint:?}: {what}"))
}

/// Every record in `range` of the log has its entry in a queue file.
fn queues_hold(
    vfs: &SimVfs,
    history: &History,
    range: Range<u64>,
    options: &StoreOptions,
) -> Result<(), String> {
    let mut files: BTreeMap<PathBuf, Vec<u8>> = BTreeMap::new();
    for rec in &history.records {
        let Some(placed) = &rec.placed else { continue };
        let end = placed.commit_log_offset + u64::from(placed.size);
        if placed.commit_log_offset < range.start || end > range.end {
            continue;
        }
        let (topic, queue) = rec.queue();
        if topic == BATCHED {
            batch_queue_holds(vfs, queue, placed)?;
            continue;
        }
        let position = placed.queue_offset as u64 * 20;
        let base = position - position % options.queue_file_bytes();
        let path = root().join(format!("consumequeue/{topic}/{queue}/{base:020}"));
        let bytes =
            files.entry(path).or_insert_with_key(|path| vfs.read_file(path, LIMIT).unwrap_or_default());
        let at = (position - base) as usize;
        let unit = bytes.get(at..at + 20).and_then(|unit| unit.try_into().ok()).map(CqUnit::decode);
        let right = unit.is_some_and(|unit| {
            unit.physical_offset == placed.commit_log_offset as i64 && unit.size == placed.size as i32
        });
        if !right {
            return Err(format!("offset {} of {topic}/{queue} is {unit:?}", placed.queue_offset));
        }
    }
    Ok(())
}

/// The record at `placed` has its unit in a file of a batch queue.
fn batch_queue_holds(vfs: &SimVfs, queue: i32, placed: &Appended) -> Result<(), String> {
    let folder = root().join(format!("batchconsumequeue/{BATCHED}/{queue}"));
    let files = vfs.list(&folder).unwrap_or_default();
    let bytes = files.iter().map(|entry| vfs.read_file(&folder.join(&entry.name), LIMIT).unwrap_or_default());
    let right = |unit: BatchCqUnit| {
        unit.physical_offset == placed.commit_log_offset as i64
            && unit.size == placed.size as i32
            && (unit.base_offset, unit.batch_size) == (placed.queue_offset, 1)
    };
    if bytes.into_iter().any(|bytes| BatchCqUnit::decode_all(&bytes).any(right)) {
        return Ok(());
    }
    Err(format!("offset {} of {BATCHED}/{queue} has no unit", placed.queue_offset))
}

/// The created topics exist.
pub(crate) fn topics(store: &Store) -> Result<(), String> {
    let found = store.topics().map_err(explain)?;
    if ["a", "b"].iter().all(|topic| found.iter().any(|found| found == topic)) {
        return Ok(());
    }
    Err(format!("topics a and b were made for good; there are {found:?}"))
}

/// The bytes of one segment after the end of the log, which a recovery has to truncate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    base: u64,
    at: usize,
    bytes: Vec<u8>,
}

/// The bytes after the end of the log that the recovered `store` found.
pub(crate) fn tail(image: &SimVfs, store: &Store) -> Result<Vec<Tail>, String> {
    let end = store.stats().map_err(explain)?.log_max_offset;
    let mut tails = Vec::new();
    for (base, mut bytes) in segments(image) {
        let at = (end.saturating_sub(base) as usize).min(bytes.len());
        let mut rest = bytes.split_off(at);
        rest.truncate(rest.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
        if !rest.is_empty() {
            tails.push(Tail { base, at, bytes: rest });
        }
    }
    Ok(tails)
}

/// Each tail is at its place or complete in `lost+found`.
pub(crate) fn tail_is_kept(tails: &[Tail], vfs: &SimVfs) -> Result<(), String> {
    if tails.is_empty() {
        return Ok(());
    }
    let kept = lost_and_found(vfs);
    let segments = segments(vfs);
    for tail in tails {
        let there = segments.get(&tail.base).and_then(|bytes| bytes.get(tail.at..tail.at + tail.bytes.len()));
        // A whole segment is kept with all its bytes, zeros included.
        let copied = kept.iter().any(|copy| {
            copy.strip_prefix(&tail.bytes[..]).is_some_and(|rest| rest.iter().all(|byte| *byte == 0))
        });
        if there != Some(&tail.bytes[..]) && !copied {
            let (count, at) = (tail.bytes.len(), tail.base + tail.at as u64);
            return Err(format!(
                "{count} bytes cut at {at} are not in lost+found ({} files are)",
                kept.len()
            ));
        }
    }
    Ok(())
}

/// Removes some derived files. Returns a description of them.
pub(crate) fn lose_derived(vfs: &SimVfs, keep_queues: bool, rng: &mut Rng) -> String {
    let queues = ["consumequeue", "batchconsumequeue"];
    let all = [
        "checkpoint",
        "abort",
        "consumequeue",
        "batchconsumequeue",
        "index",
        "mqstore/queues",
        "config/topics.json",
    ];
    let lost: Vec<&str> = match rng.below(8) {
        0 => all.to_vec(),
        _ => rng.pick(&all).into_iter().collect(),
    };
    let lost: Vec<&str> = lost.into_iter().filter(|name| !(keep_queues && queues.contains(name))).collect();
    for name in &lost {
        remove(vfs, &root().join(name));
    }
    lost.join(", ")
}

fn remove(vfs: &SimVfs, path: &Path) {
    // The file may not exist.
    let _ = match vfs.stat(path).map(|stat| stat.kind) {
        Ok(FileKind::Directory) => vfs.remove_dir_all(path),
        _ => vfs.remove_file(path),
    };
}
