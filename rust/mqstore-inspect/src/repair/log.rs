//! Repairs a damaged log so that both engines open it and every readable message is kept.
//!
//! A range between two intact records is filled:
//!
//! ```text
//! | record | ??????????????????? | record |       ->   | record | placeholder | placeholder | record |
//! | record | ?????????????? end of the segment   ->   | record | filler       end of the segment
//!   a segment that is missing                    ->   | filler                end of the segment
//! | record | ?????? and no record after it       ->   | record | zeros
//! ```
//!
//! RocketMQ accepts a filler only as the rest of a segment. It takes a placeholder (see
//! [`mqstore_format::encode_placeholder`]) for the mark of a rolled back transaction.
//!
//! Order of the steps, so that a crash at any moment leaves a state that another repair completes:
//!
//! 1. The bytes to change are durable in `lost+found`, and their description in `mqstore/repairs.jsonl`.
//! 2. Files get their lengths and names.
//! 3. The ranges are filled, names of checksums are restored, queue offsets are corrected, and all is synced.
//! 4. The torn tail is truncated.
//!
//! The caller holds the store's lock. Queues, index, checkpoint and mark follow: see [`super::repair`].

use mqstore_io::Access;

use mqstore_base::durable_mark::{DurableMark, DurableMarkFile};
use mqstore_base::error::StoreError;
use mqstore_base::options::StoreOptions;
use mqstore_base::store_files::StoreFiles;
use mqstore_base::topic_floors::TopicFloors;
use mqstore_log::consume_queue::QueueSet;
use mqstore_log::dispatch::DispatchRules;
use mqstore_log::recovery::{ProgressReporter, truncate_after};

use super::damage_scan::{DamagedPiece, WalkedLog};
use super::queue_records::{Corrections, LogQueues};
use super::renumber::MisplacedRecord;
use super::segment_files::{FoundSegments, load};
use crate::loss_report::{LossReport, LostOffsets, LostRange};

/// The log after its repair, or before it in a dry run.
#[derive(Debug, Default)]
pub(crate) struct RepairedLog {
    /// Whether the repair changed something, or would change it.
    pub changed: bool,
    /// End of the log.
    pub end: u64,
    /// Log offset and size of the last record.
    pub last: Option<(u64, u32)>,
    /// Newest store time.
    pub store_timestamp_ms: i64,
    /// Bytes of a segment; 0 without segments.
    pub segment_bytes: u64,
    /// Number of intact messages.
    pub messages: u64,
    /// Lost ranges of the log.
    pub lost: Vec<LostRange>,
    /// Queue offsets without a record.
    pub queue_offsets: Vec<LostOffsets>,
    /// The steps in words.
    pub actions: Vec<String>,
}

/// Repairs the log of the store at `files`; with `dry_run` it only describes the steps. `rules` says which
/// records are in which queues.
///
/// `watch` gets the number of checked bytes of the log. An error that it returns ends the call; another repair
/// completes it.
///
/// # Errors
/// [`StoreError::Corrupt`] if a segment is a symbolic link, if two segments have the same name and different records, or
/// if messages that can be read now could not be read after the repair; [`StoreError::Unsupported`] for a log with too
/// many holes; I/O errors.
pub(crate) fn repair_log(
    files: &StoreFiles,
    rules: &DispatchRules,
    dry_run: bool,
    watch: &mut dyn FnMut(u64, u64) -> Result<(), StoreError>,
) -> Result<RepairedLog, StoreError> {
    let mark = DurableMarkFile::new(files).try_load()?;
    // The length of the log is unknown until its files are inspected.
    let segments = super::segment_files::inspect_files(files, mark.as_ref(), &mut |_| watch(0, 0))?;
    super::segment_files::check_keeps_messages(files, &segments, &mut |_| watch(0, 0))?;
    let total: u64 = segments.list.segments().iter().map(|segment| segment.len()).sum();
    let (walked, misplaced) = scan_log(files, &segments, rules, &mut |done| watch(done.min(total), total))?;
    let mut ledger = LossReport::load(files)?;
    let mut repaired = RepairedLog {
        end: walked.end,
        last: walked.last,
        store_timestamp_ms: walked.store_timestamp_ms,
        segment_bytes: segments.segment_bytes,
        messages: walked.messages,
        actions: segments
            .actions
            .iter()
            .map(|(path, action)| super::segment_files::describe_action(path, action, segments.segment_bytes))
            .collect(),
        ..RepairedLog::default()
    };
    let unknown = |lost: &&LostOffsets| !ledger.knows(&lost.topic, lost.queue_id, lost.from, lost.to);
    let at_edges = missing_at_ends(files, mark.as_ref(), &segments, (&walked, &rules.floors))?;
    let mut unknown: Vec<LostOffsets> =
        walked.said.missing.iter().chain(&at_edges).filter(unknown).cloned().collect();
    unknown.sort();
    let (pieces, odd): (Vec<&DamagedPiece>, Vec<&DamagedPiece>) =
        walked.pieces.iter().partition(|piece| super::placeholders::fits(piece));
    repaired.changed = !segments.actions.is_empty()
        || !pieces.is_empty()
        || !unknown.is_empty()
        || !misplaced.is_empty()
        || !walked.unnamed.is_empty()
        || walked.torn.is_some();
    repaired.actions.extend(odd.iter().map(|piece| super::placeholders::too_small(piece)));
    repaired.actions.extend(pieces.iter().map(|piece| super::placeholders::describe_fill(files, piece)));
    let unnamed = walked.unnamed.iter();
    repaired
        .actions
        .extend(unnamed.map(|(offset, _)| super::checksum_names::describe(files, &segments.list, *offset)));
    repaired.actions.extend(
        misplaced.iter().filter_map(|one| super::renumber::describe_change(files, &segments.list, one)),
    );
    repaired.queue_offsets = unknown;
    if ledger.unreadable > 0 {
        repaired.changed = true;
        repaired.actions.push(format!(
            "{}: {} lines cannot be read; the others are written again, after a copy",
            files.repairs().display(),
            ledger.unreadable
        ));
    }
    let emptied = segments.emptied();
    if dry_run {
        let lost = emptied.iter().chain(pieces.iter().copied());
        repaired.lost = lost.map(|piece| piece.lost_range(files, None)).collect();
        repaired.actions.extend(walked.torn.iter().map(|torn| {
            format!("{}: to be cut at byte {} ({})", torn.path.display(), torn.file_offset, torn.reason)
        }));
        return Ok(repaired);
    }
    if repaired.changed {
        for one in &misplaced {
            // A record that is given up has a line for its range.
            if let Some(to) = one.destination() {
                let from = (one.queue_id, one.queue_offset);
                ledger.add_moved_record(files, (&one.topic, one.log_offset), from, to);
            }
        }
        for piece in &emptied {
            ledger.give_up(files, &piece.lost_range(files, None));
        }
        let lost =
            backup_and_report(files, &segments, &pieces, &repaired.queue_offsets, &mut ledger, &mut |_| {
                watch(total, total)
            })?;
        repaired.lost = emptied.iter().map(|piece| piece.lost_range(files, None)).chain(lost).collect();
        super::segment_files::repair_files(files, &segments, &mut |_| watch(total, total))?;
        super::placeholders::write_placeholders(files, segments.segment_bytes, &pieces, &mut |_| {
            watch(total, total)
        })?;
        super::checksum_names::restore(files, segments.segment_bytes, &walked.unnamed, &mut |_| {
            watch(total, total)
        })?;
        super::renumber::renumber(files, segments.segment_bytes, &misplaced, &mut |_| watch(total, total))?;
        if let Some(torn) = &walked.torn {
            repaired.actions.extend(truncate_tail(
                files,
                segments.segment_bytes,
                walked.end,
                &torn.reason,
                watch,
            )?);
        }
        ledger.store(files)?;
    }
    Ok(repaired)
}

/// Walks the log. If records get other queue offsets or queues, walks it again with these.
fn scan_log(
    files: &StoreFiles,
    segments: &FoundSegments,
    rules: &DispatchRules,
    watch: super::backup::ByteProgress<'_>,
) -> Result<(WalkedLog, Vec<MisplacedRecord>), StoreError> {
    if segments.segment_bytes == 0 {
        return Ok((WalkedLog::default(), Vec::new()));
    }
    let none = Corrections::new();
    let walked = super::damage_scan::walk(
        &segments.list,
        segments.segment_bytes,
        LogQueues::new(rules, &none),
        watch,
    )?;
    let misplaced = super::renumber::plan(files, &segments.list, &walked)?;
    if misplaced.is_empty() {
        return Ok((walked, misplaced));
    }
    let corrections = super::renumber::corrections(&misplaced);
    let walked = super::damage_scan::walk(
        &segments.list,
        segments.segment_bytes,
        LogQueues::new(rules, &corrections),
        watch,
    )?;
    Ok((walked, misplaced))
}

/// Adds the queue offsets that are lost before the first and after the last record.
fn missing_at_ends(
    files: &StoreFiles,
    mark: Option<&DurableMark>,
    segments: &FoundSegments,
    (walked, floors): (&WalkedLog, &TopicFloors),
) -> Result<Vec<LostOffsets>, StoreError> {
    let file_bytes = mark.map_or(StoreOptions::default().queue_file_bytes(), |mark| mark.queue_file_bytes);
    let queues = QueueSet::load(files, file_bytes, Access::Read, floors)?;
    queues.recover_bounds()?;
    super::missing_ends::lost_at_ends(walked, &queues, segments.list.min_offset())
}

/// Copies the bytes that will change, and writes the loss report.
fn backup_and_report(
    files: &StoreFiles,
    segments: &FoundSegments,
    pieces: &[&DamagedPiece],
    missing: &[LostOffsets],
    ledger: &mut LossReport,
    watch: super::backup::ByteProgress<'_>,
) -> Result<Vec<LostRange>, StoreError> {
    let mut lost = Vec::new();
    for piece in pieces {
        if ledger.given_up(piece.from, piece.to).is_none() {
            let kept = super::placeholders::backup_piece(files, &segments.list, piece, watch)?;
            let name = kept.as_ref().and_then(|kept| kept.file_name()).map(|name| name.to_string_lossy());
            ledger.give_up(files, &piece.lost_range(files, name.as_deref()));
        }
        let known = ledger.given_up(piece.from, piece.to);
        lost.push(piece.lost_range(files, known.and_then(|known| known.kept_as.as_deref())));
    }
    for (path, action) in &segments.actions {
        if matches!(action, super::segment_files::FileAction::Cut(_)) {
            super::segment_files::backup_surplus(files, path, segments.segment_bytes, watch)?;
        }
    }
    for missing in missing {
        ledger.miss(files, missing);
    }
    ledger.store(files)?;
    Ok(lost)
}

/// Truncates the tail after the end of the log.
fn truncate_tail(
    files: &StoreFiles,
    segment_bytes: u64,
    end: u64,
    reason: &str,
    watch: &mut dyn FnMut(u64, u64) -> Result<(), StoreError>,
) -> Result<Vec<String>, StoreError> {
    let list = load(files, segment_bytes)?;
    if let Some(segment) = list.find(end) {
        super::backup::break_hard_link(files, &segment.path(), &mut |_| watch(end, end))?;
    }
    let mut tell = |step: mqstore_log::recovery::RecoveryProgress| watch(step.done_bytes, step.total_bytes);
    let mut watch = ProgressReporter::new(&files.clock, &mut tell);
    truncate_after(files, &*load(files, segment_bytes)?, end, reason, &mut watch)
}
