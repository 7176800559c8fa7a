//! Recovery: opens a store for writing after any kind of stop.
//!
//! This module decides where the log ends. All bytes before the durable mark were synced, so a bad record there is
//! corruption and recovery refuses the store. After the mark a crash may have left any subset of pages, so the first
//! bad record ends the log. If recovery itself is interrupted, the next run gives the same store; only `lost+found` may
//! hold a tail twice. The caller holds the store's lock and has made `abort` durable.
//!
//! Source (rules for logs of other programs): `CommitLog#recoverNormally`, `#recoverAbnormally`.

mod derived_files;
mod find_end;
mod index_gap;
mod index_tags;
mod manifest;
mod mark_check;
mod parallel_check;
mod progress;
mod raft_end;
mod raft_history;
mod raft_units;
pub mod read_only_end;
mod rebuild;
mod truncate;

use std::sync::Arc;

use mqstore_io::{FileLength, MapAccess, MappedFileQueue};

pub use derived_files::{DerivedFiles, recover_derived};
pub use find_end::rewrite;
pub use index_gap::missed_by_index;
pub use index_tags::tags_are_indexed;
pub use manifest::QueueManifest;
pub use mark_check::last_whole_record;
pub use mark_check::{PUT_BACK, lost_end, mark_fits};
pub use progress::{ProgressReporter, RecoveryProgress, RecoveryStage, RecoveryWatcher};
pub use raft_end::{known_committed_end, raft_end};
pub use raft_history::has_entry;
pub use raft_units::{FoundUnit, RaftUnits};
pub use read_only_end::{LogEnd, log_end};
pub use rebuild::{RebuildInput, RebuildReport, RebuildRun};
pub use truncate::truncate_after;

use crate::commit_log::SegmentList;
use find_end::{FoundEnd, TailRules};
use mark_check::MarkFit;
use mqstore_base::durable_mark::DurableMark;
use mqstore_base::error::StoreError;
use mqstore_base::live_page::no_sync_failed;
use mqstore_base::options::RecoveryMode;
use mqstore_base::store_files::StoreFiles;
use truncate::ShortSegment;

/// The input of a recovery.
#[derive(Clone, Debug)]
pub struct RecoveryInput {
    /// Newest durable mark on disk, if any.
    pub mark: Option<DurableMark>,
    /// Whether the last writer left the file `abort`.
    pub aborted: bool,
    /// How to treat damage.
    pub mode: RecoveryMode,
}

/// The log as it is after recovery.
#[derive(Debug)]
pub struct RecoveredLog {
    /// The segments as a sequence of writable files.
    pub segments: MappedFileQueue,
    /// The same segments as a list for reads.
    pub list: Arc<SegmentList>,
    /// End of the log, as a log offset.
    pub end: u64,
    /// The durable mark, if it fits the log.
    pub mark: Option<DurableMark>,
    /// Whether a mark exists that does not fit: another program cut the log and appended to it.
    pub rewritten: bool,
    /// Whether the last writer was stopped: it left `abort`, or a mark that is not clean.
    pub aborted: bool,
    /// Whether the page cache still holds all written bytes and the next sync covers them: the machine has not
    /// restarted since the mark, and no sync has failed. After a power loss a file may hold any subset of its pages.
    /// After a failed sync its pages may be lost at any time although the kernel counts them as clean. Known before a
    /// new live page replaces the one of the last writer.
    pub page_cache_intact: bool,
    /// Last record of the log: offset and size.
    pub last: Option<(u64, u32)>,
    /// Newest store timestamp that recovery saw.
    pub store_timestamp_ms: i64,
    /// Notes for the user, one sentence each.
    pub notes: Vec<String>,
}

impl RecoveredLog {
    /// Log offset up to which [`recover_derived`] keeps the units of all queues, except of damaged ones. Readers that
    /// use queue files only up to here see no change while it works.
    pub fn kept_units_end(&self) -> u64 {
        let min = self.list.min_offset();
        let is_foreign = self.rewritten && !self.aborted;
        self.mark.filter(|_| !is_foreign).map_or(min, |mark| mark.dispatched.clamp(min, self.end))
    }
}

/// The log before the first change, and the facts that the inspection found.
struct LogInspection {
    list: Arc<SegmentList>,
    /// The durable mark, if it fits the log.
    mark: Option<DurableMark>,
    /// Whether a mark exists that does not fit the log.
    rewritten: bool,
    /// Last whole record before the mark, if the record that the mark names is damaged.
    last: Option<(u64, u32)>,
    short: Option<ShortSegment>,
    /// Byte length of a complete segment; 0 if it is not known.
    whole: u64,
    notes: Vec<String>,
}

/// Finds the end of the log, truncates the bytes after it and makes the rest durable.
///
/// Recovery calls `begin` before its first change, after all checks that can refuse the store.
///
/// Steps, in this order:
///
/// 1. Find the end. If an mqstore writer was stopped, rewrite every record after the mark on the way and sync it: after
///    a failed sync the page cache may hold bytes that the device does not have.
/// 2. Copy the truncated tail to `mqstore/lost+found` and sync the copy.
/// 3. Zero the rest of the segment and move later segments to `mqstore/lost+found`.
///
/// The caller then repairs queues and index (`recover_derived`).
///
/// A store without a valid mark was last written by another program. Then recovery walks the whole log once, and a torn
/// tail is possible in the last two segments (after a clean stop in the last one). Otherwise recovery reads only the
/// bytes after the mark, and of the last segment only the part that has data in the file system. No append happens
/// before recovery ends.
///
/// # Errors
/// - [`StoreError::Corrupt`] for damage that is no torn tail. In that case nothing was changed.
/// - The error with which `watch` ends the recovery.
/// - Errors of the system.
pub fn recover_log(
    files: &StoreFiles,
    segment_bytes: u64,
    input: &RecoveryInput,
    begin: impl FnOnce() -> Result<(), StoreError>,
    watch: &mut ProgressReporter<'_>,
) -> Result<RecoveredLog, StoreError> {
    let mut known = inspect_log(files, input)?;
    let mark = known.mark;
    // An mqstore writer was stopped: no damage after its mark refuses the store, so the walk can rewrite the tail.
    let stopped = mark.is_some_and(|mark| !mark.clean);
    let aborted = input.aborted || stopped;
    let rules = tail_rules(&known, input, aborted)?;
    refuse_gaps(files, &known.list, rules)?;
    let mut begin = Some(begin);
    if stopped {
        begin.take().map_or(Ok(()), |begin| begin())?;
        repair_strays(files, &mut known)?;
    }
    let start = mark.map_or(known.list.min_offset(), |mark| mark.position);
    let mut found = find_end::find_end(files, &known.list, start, rules, stopped, watch)?;
    if let Some(begin) = begin {
        begin()?;
        let longer = known.short.is_some();
        repair_strays(files, &mut known)?;
        if longer {
            found = find_end::find_end(files, &known.list, start, rules, stopped, watch)?;
        }
    }
    let mut notes = std::mem::take(&mut known.notes);
    notes.extend(found.skipped.iter().cloned());
    // After a clean close all bytes after the end are zero, and no later file exists.
    let untouched = mark.is_some_and(|mark| mark.is_clean_end(found.end))
        && !aborted
        && known.list.segments().iter().all(|segment| segment.base_offset() <= found.end);
    if !untouched {
        let reason = match &found.damage {
            None => "data after the end of the log".to_owned(),
            // The rest of a write that had not returned, or was not durable: no other damage is possible there.
            Some(damage) if stopped && mark.is_some_and(|mark| mark.position <= found.end) => {
                format!("a crash interrupted the last write, which is harmless: {}", damage.reason)
            }
            Some(damage) => damage.reason.clone(),
        };
        notes.extend(truncate::truncate_after(files, &known.list, found.end, &reason, watch)?);
        if !stopped && (aborted || mark.is_some()) {
            let from = mark.map_or(rules.tail_start.min(found.end), |mark| mark.position);
            find_end::rewrite(files, &known.list, from, found.end, watch)?;
        }
    }
    reload(files, segment_bytes, &known, &found, aborted, notes)
}

/// Inspects the files and the mark. Changes nothing.
fn inspect_log(files: &StoreFiles, input: &RecoveryInput) -> Result<LogInspection, StoreError> {
    let length = length_of_segments(input);
    let (_, list) = SegmentList::load_sized(files, length, MapAccess::Read)?;
    let list = Arc::new(list);
    let whole = match length {
        FileLength::Expected(bytes) => bytes,
        FileLength::Discover { .. } => list.segment_bytes().unwrap_or(0),
    };
    let short = truncate::classify_strays(files, &list, whole)?;
    let mut known =
        LogInspection { list, mark: None, rewritten: false, last: None, short, whole, notes: Vec::new() };
    if let Some(mark) = &input.mark {
        let list = &segments_for_mark(files, &known, mark)?;
        match mark_check::examine(files, list, mark)? {
            MarkFit::Fits => known.mark = Some(*mark),
            MarkFit::Foreign => {
                known.rewritten = true;
                known.notes.push(
                    "another program has cut or deleted records that mqstore had synced; queues and index are rebuilt"
                        .to_owned(),
                );
            }
            MarkFit::Damaged(error) if input.mode == RecoveryMode::Salvage => {
                known.notes.push(format!("{error}; skipped"));
                known.last = mark_check::last_whole_record(list, mark.position)?;
                known.mark = Some(*mark);
            }
            MarkFit::Damaged(error) => return Err(with_advice(error)),
        }
    }
    if let Some(short) = &known.short {
        match known.mark {
            Some(mark) if mark.position > short.base + short.len => {
                return Err(truncate::refuse_short(short, "records that were synced are missing"));
            }
            None if !input.aborted => {
                return Err(truncate::refuse_short(short, "a closed store has no short segment"));
            }
            _ => {}
        }
    }
    Ok(known)
}

/// Returns the segment length in the mark if the mark covers a segment, else the length that the segments share.
fn length_of_segments(input: &RecoveryInput) -> FileLength {
    match input.mark.filter(|mark| mark.position > 0) {
        Some(mark) => FileLength::Expected(mark.segment_bytes),
        None => FileLength::Discover { default: 1 },
    }
}

/// Returns the files that can hold the record named by the mark: the segments, or the short file after them.
fn segments_for_mark(
    files: &StoreFiles,
    known: &LogInspection,
    mark: &DurableMark,
) -> Result<Arc<SegmentList>, StoreError> {
    match &known.short {
        Some(short) if (short.base..short.base + short.len).contains(&mark.last_offset) => {
            let length = FileLength::Expected(short.len);
            Ok(Arc::new(SegmentList::load_sized(files, length, MapAccess::Read)?.1))
        }
        _ => Ok(Arc::clone(&known.list)),
    }
}

fn with_advice(error: StoreError) -> StoreError {
    let advice = "this record was synced, so this is damage and not a torn tail; nothing was changed; read the \
                  other records with mode \"r\", or continue after the damage with recovery \"salvage\"";
    match error {
        StoreError::Corrupt { path, offset, reason } => {
            StoreError::corrupt(&path, offset, format!("{reason}: {advice}"))
        }
        other => other,
    }
}

/// Returns the offset from which a torn tail is possible. This is the mark. For the log of another program it is the
/// start of the second-to-last segment with content after a crash, and of the last one after a clean stop.
fn tail_rules(known: &LogInspection, input: &RecoveryInput, aborted: bool) -> Result<TailRules, StoreError> {
    // Only another program can have written records after a clean mark.
    let closed = !aborted;
    if let Some(mark) = known.mark {
        return Ok(TailRules { tail_start: mark.position, closed, marked: true, mode: input.mode });
    }
    let mut wanted = if input.aborted { 2 } else { 1 };
    let mut tail_start = known.list.min_offset();
    for segment in known.list.segments().iter().rev() {
        if truncate::has_content(segment)? {
            tail_start = segment.base_offset();
            wanted -= 1;
            if wanted == 0 {
                break;
            }
        }
    }
    Ok(TailRules { tail_start, closed, marked: false, mode: input.mode })
}

fn refuse_gaps(files: &StoreFiles, list: &SegmentList, rules: TailRules) -> Result<(), StoreError> {
    if rules.mode == RecoveryMode::Salvage {
        return Ok(());
    }
    match list.gaps.iter().find(|(from, _)| *from < rules.tail_start) {
        None => Ok(()),
        Some((from, to)) => Err(StoreError::corrupt(
            &files.commit_log(),
            *from,
            format!(
                "the segments from offset {from} to {to} are missing; nothing was changed; put them back, read the \
                 other segments with mode \"r\", or continue after the gap with recovery \"salvage\""
            ),
        )),
    }
}

/// Removes empty files that a stopped creation left, and extends a short last segment to its full length.
fn repair_strays(files: &StoreFiles, known: &mut LogInspection) -> Result<(), StoreError> {
    known.notes.extend(truncate::sort_strays(files, &known.list, known.short.as_ref())?);
    if let Some(short) = known.short.take() {
        let whole = known.whole;
        known.notes.push(truncate::lengthen(files, &short, whole)?);
        let (_, list) = SegmentList::load_sized(files, FileLength::Expected(whole), MapAccess::Read)?;
        known.list = Arc::new(list);
    }
    Ok(())
}

fn reload(
    files: &StoreFiles,
    segment_bytes: u64,
    known: &LogInspection,
    found: &FoundEnd,
    aborted: bool,
    notes: Vec<String>,
) -> Result<RecoveredLog, StoreError> {
    let length = match known.list.segment_bytes() {
        Some(bytes) => FileLength::Expected(bytes),
        None => FileLength::Discover { default: segment_bytes },
    };
    let (segments, list) = SegmentList::load_sized(files, length, MapAccess::ReadWrite)?;
    if let Some(segment) = segments.find(found.end) {
        segment.set_positions(found.end - segment.base_offset());
    }
    let mark = known.mark;
    let named = mark.filter(|mark| mark.last_size > 0 && mark.last_offset >= list.min_offset());
    let below = named.map(|mark| (mark.last_offset, mark.last_size));
    Ok(RecoveredLog {
        segments,
        list: Arc::new(list),
        end: found.end,
        mark,
        rewritten: known.rewritten,
        aborted,
        page_cache_intact: mark.is_some_and(|mark| mark.boot_id == files.vfs.environment().boot_id)
            && no_sync_failed(files),
        last: found.last.or(known.last).or(below),
        store_timestamp_ms: found.store_timestamp_ms.max(mark.map_or(0, |mark| mark.store_timestamp_ms)),
        notes,
    })
}
