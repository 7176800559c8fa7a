//! Recovery: opens a store for writing after any kind of stop.
//!
//! Owns the decision where the log ends. Everything below the durable mark was synced, so a bad record there is
//! corruption and the store is not touched. Above it a crash may have left any subset of pages, so the first bad record
//! ends the log. [`recover_log`] has the steps. A second run, or one after a crash during recovery, gives the same
//! store; only `lost+found` may then hold a tail twice. The caller holds the store's lock and has made `abort` durable.
//!
//! Source of the rules for logs of other programs: `CommitLog#recoverNormally`, `#recoverAbnormally`.

mod derived_files;
mod find_end;
mod index_gap;
mod index_tags;
mod manifest;
mod mark_check;
mod parallel_check;
mod progress;
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
pub use mark_check::mark_fits;
pub use progress::{ProgressReporter, RecoveryProgress, RecoveryStage, RecoveryWatcher};
pub use read_only_end::{LogEnd, log_end};
pub use rebuild::{RebuildInput, RebuildReport, RebuildRun};
pub use truncate::truncate_after;

use crate::commit_log::SegmentList;
use find_end::{FoundEnd, TailRules};
use mark_check::MarkFit;
use mqstore_base::durable_mark::DurableMark;
use mqstore_base::error::StoreError;
use mqstore_base::options::RecoveryMode;
use mqstore_base::store_files::StoreFiles;
use truncate::ShortSegment;

/// What recovery knows before it starts.
#[derive(Clone, Debug)]
pub struct RecoveryInput {
    /// The newest mark on disk, if any.
    pub mark: Option<DurableMark>,
    /// Whether the last writer left `abort` behind.
    pub aborted: bool,
    /// What to do about damage.
    pub mode: RecoveryMode,
}

/// The log as it is after recovery.
#[derive(Debug)]
pub struct RecoveredLog {
    /// Its segments, to be written.
    pub row: MappedFileQueue,
    /// The same as they are now, to be read.
    pub list: Arc<SegmentList>,
    /// Where it ends.
    pub end: u64,
    /// The mark, when it still fits the log.
    pub mark: Option<DurableMark>,
    /// Whether there is a mark that does not: another program cut the log and went on.
    pub rewritten: bool,
    /// Whether the last writer was stopped: it left `abort`, or a mark that is not clean.
    pub aborted: bool,
    /// The last record of the log: offset and size.
    pub last: Option<(u64, u32)>,
    /// The newest store timestamp that was seen.
    pub store_timestamp_ms: i64,
    /// What a person should know, in plain words.
    pub notes: Vec<String>,
}

/// The log before anything was changed, and what is known of it.
struct LogInspection {
    list: Arc<SegmentList>,
    /// The mark, when it fits.
    mark: Option<DurableMark>,
    /// Whether there is one that does not fit.
    rewritten: bool,
    /// The last record below the mark, where it is not the one that the mark names.
    last: Option<(u64, u32)>,
    short: Option<ShortSegment>,
    /// The length of a segment, where it is known.
    whole: u64,
    notes: Vec<String>,
}

/// Finds the end of the log, cuts what lies behind it and makes the rest durable.
///
/// `begin` is called before the first change, after everything that could refuse the store.
///
/// Steps, in this order:
///
/// 1. Find the end. Write everything above the mark again on the way, and sync it: after a failed sync the page cache
///    may hold what the device does not.
/// 2. Copy the tail that is truncated to `mqstore/lost+found` and sync it.
/// 3. Zero the rest of the segment and move later segments away.
/// 4. Repair queues and index.
///
/// A store without a valid mark was last written by another program. Then the rules above the mark count for the last
/// two segments, and the whole log is walked once. Otherwise recovery reads only the bytes above the mark, and of one
/// segment the part that has data in the file system. Nothing is appended before recovery ends.
///
/// # Errors
/// [`StoreError::Corrupt`] for damage that is no torn tail; nothing was changed then. What `watch`
/// answers. Errors of the system.
pub fn recover_log(
    files: &StoreFiles,
    segment_bytes: u64,
    input: &RecoveryInput,
    begin: impl FnOnce() -> Result<(), StoreError>,
    watch: &mut ProgressReporter<'_>,
) -> Result<RecoveredLog, StoreError> {
    let mut known = inspect_log(files, input)?;
    let mark = known.mark;
    // Ours, and stopped: above the mark nothing can be refused, so that it is written again on the way.
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
    // After a clean close everything behind the end is zero by construction, and no file lies there.
    let untouched = mark.is_some_and(|mark| mark.is_clean_end(found.end))
        && !aborted
        && known.list.segments().iter().all(|segment| segment.base_offset() <= found.end);
    if !untouched {
        let reason = found.damage.as_ref().map_or("left behind the end of the log", |damage| &damage.reason);
        notes.extend(truncate::truncate_after(files, &known.list, found.end, reason, watch)?);
        if !stopped && (aborted || mark.is_some()) {
            let from = mark.map_or(rules.tail_start.min(found.end), |mark| mark.position);
            find_end::rewrite(files, &known.list, from, found.end, watch)?;
        }
    }
    reload(files, segment_bytes, &known, &found, aborted, notes)
}

/// Looks at the files and at the mark. Changes nothing.
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
                    "another program has cut or deleted what was synced here last; queues and index are made anew"
                        .to_owned(),
                );
            }
            MarkFit::Damaged(error) if input.mode == RecoveryMode::Salvage => {
                known.notes.push(format!("{error}; passed over"));
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
                return Err(truncate::refuse_short(short, "a store that was closed has no such file"));
            }
            _ => {}
        }
    }
    Ok(known)
}

/// The length that segments have by the mark, once there is a segment; else the one that they share.
fn length_of_segments(input: &RecoveryInput) -> FileLength {
    match input.mark.filter(|mark| mark.position > 0) {
        Some(mark) => FileLength::Expected(mark.segment_bytes),
        None => FileLength::Discover { default: 1 },
    }
}

/// The files in which the record that the mark names is to be looked for: the segments, or the short one
/// behind them.
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
    let advice = "this record was synced, so that this is damage and not a torn tail; nothing was changed; read \
                  around it with mode \"r\", or go on behind it with recovery \"salvage\"";
    match error {
        StoreError::Corrupt { path, offset, reason } => {
            StoreError::corrupt(&path, offset, format!("{reason}: {advice}"))
        }
        other => other,
    }
}

/// From where on a torn tail is possible: the mark, or for a log of somebody else the last two segments
/// that hold anything after a crash, and the last one after a clean stop.
fn tail_rules(known: &LogInspection, input: &RecoveryInput, aborted: bool) -> Result<TailRules, StoreError> {
    // Whoever writes behind a clean mark of ours is somebody else, too.
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
                "the segments from offset {from} to {to} are missing; nothing was changed; read around the gap with \
                 mode \"r\", or go on behind it with recovery \"salvage\""
            ),
        )),
    }
}

/// Takes away what a stopped creation left, and makes a short last segment whole.
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
    let (row, list) = SegmentList::load_sized(files, length, MapAccess::ReadWrite)?;
    if let Some(segment) = row.find(found.end) {
        segment.set_positions(found.end - segment.base_offset());
    }
    let mark = known.mark;
    let below = mark.filter(|mark| mark.last_size > 0).map(|mark| (mark.last_offset, mark.last_size));
    Ok(RecoveredLog {
        row,
        list: Arc::new(list),
        end: found.end,
        mark,
        rewritten: known.rewritten,
        aborted,
        last: found.last.or(known.last).or(below),
        store_timestamp_ms: found.store_timestamp_ms.max(mark.map_or(0, |mark| mark.store_timestamp_ms)),
        notes,
    })
}
