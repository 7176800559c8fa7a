//! Making a damaged log one that both engines open, without giving up anything that can be read.
//!
//! What lies between two records that hold together:
//!
//! ```text
//! | record | ??????????????????? | record |       ->   | record | placeholder | placeholder | record |
//! | record | ?????????????? end of the segment   ->   | record | filler       end of the segment
//!   a segment that is missing                    ->   | filler                end of the segment
//! | record | ?????? and nothing behind it         ->   | record | zeros
//! ```
//!
//! RocketMQ takes a filler only as the rest of a segment, and a placeholder (see
//! [`mqstore_format::encode_placeholder`]) for the mark of a rolled back transaction.
//!
//! Order, so that a stop at any moment leaves the damage or what a further repair ends: the bytes and what is
//! known of them are durable in `lost+found` and in the ledger before the first of them changes; files get their
//! lengths and names; then the stretches are filled and queue offsets set right, and synced; then the torn end is cut. The caller holds the
//! store's lock. Queues, index, checkpoint and mark come after it: see [`super::repair`].

use mqstore_io::Access;

use mqstore_base::durable_mark::{DurableMark, DurableMarkFile};
use mqstore_base::error::StoreError;
use mqstore_base::options::StoreOptions;
use mqstore_base::store_files::StoreFiles;
use mqstore_log::consume_queue::QueueSet;
use mqstore_log::dispatch::BatchTopics;
use mqstore_log::recovery::{ProgressReporter, truncate_after};

pub(crate) use crate::repair::backup::copy_bytes;
pub(crate) use crate::repair::config_files::repair_config;
pub(crate) use crate::repair::config_files::{check_config, config_files};
use crate::repair::damage_scan::{Piece, WalkedLog};
pub(crate) use crate::repair::group_offsets::{repair_offsets, set_back_words};
pub(crate) use crate::repair::loss_report::LossReport;
use crate::repair::loss_report::LostRange;
pub(crate) use crate::repair::misordered::{QueueOrder, Stretch};
use crate::repair::queue_records::{Corrections, LogQueues};
use crate::repair::renumber::MisplacedRecord;
use crate::repair::segment_files::{Row, load};
use crate::repair::used_offsets::LostOffsets;
pub(crate) use crate::repair::used_offsets::UsedOffsets;

/// A log after its repair, or before it where nothing was to be changed.
#[derive(Debug, Default)]
pub(crate) struct RepairedLog {
    /// Whether something was changed, or would have to be.
    pub changed: bool,
    /// Where it ends.
    pub end: u64,
    /// The last record: offset and size.
    pub last: Option<(u64, u32)>,
    /// The newest store time.
    pub store_timestamp_ms: i64,
    /// Bytes of a segment; 0 without any.
    pub segment_bytes: u64,
    /// Messages that hold together.
    pub messages: u64,
    /// What was lost.
    pub lost: Vec<LostRange>,
    /// Queue offsets without a record.
    pub queue_offsets: Vec<LostOffsets>,
    /// What was done, in words.
    pub actions: Vec<String>,
}

/// Repairs the log of the store at `files`; with `dry_run` only tells what that would do. The queues of `batch_topics`
/// hold batches.
///
/// `watch` hears of the bytes of the log that were looked at; an error as its answer ends the call, and another
/// repair goes on from there.
///
/// # Errors
/// [`StoreError::Corrupt`] for a symbolic link in the place of a segment, [`StoreError::Unsupported`] for a log
/// with too many holes; errors of the system.
pub(crate) fn repair_log(
    files: &StoreFiles,
    batch_topics: &BatchTopics,
    dry_run: bool,
    watch: &mut dyn FnMut(u64, u64) -> Result<(), StoreError>,
) -> Result<RepairedLog, StoreError> {
    let mark = DurableMarkFile::new(files).load();
    // Nothing is known of the length of the log before its files were looked at.
    let row = crate::repair::segment_files::inspect_files(files, mark.as_ref(), &mut |_| watch(0, 0))?;
    let total: u64 = row.list.segments().iter().map(|segment| segment.len()).sum();
    let (walked, misplaced) = scan_log(files, &row, batch_topics, &mut |done| watch(done.min(total), total))?;
    let mut ledger = LossReport::load(files)?;
    let mut repaired = RepairedLog {
        end: walked.end,
        last: walked.last,
        store_timestamp_ms: walked.store_timestamp_ms,
        segment_bytes: row.segment_bytes,
        messages: walked.messages,
        actions: row
            .mends
            .iter()
            .map(|(path, mend)| crate::repair::segment_files::describe_action(path, mend, row.segment_bytes))
            .collect(),
        ..RepairedLog::default()
    };
    let unknown = |lost: &&LostOffsets| !ledger.knows(&lost.topic, lost.queue_id, lost.from, lost.to);
    let at_edges = missing_at_ends(files, mark.as_ref(), &row, &walked)?;
    let mut unknown: Vec<LostOffsets> =
        walked.said.missing.iter().chain(&at_edges).filter(unknown).cloned().collect();
    unknown.sort();
    let (pieces, odd): (Vec<&Piece>, Vec<&Piece>) =
        walked.pieces.iter().partition(|piece| crate::repair::placeholders::fits(piece));
    repaired.changed = !row.mends.is_empty()
        || !pieces.is_empty()
        || !unknown.is_empty()
        || !misplaced.is_empty()
        || walked.torn.is_some();
    repaired.actions.extend(odd.iter().map(|piece| crate::repair::placeholders::too_small(piece)));
    repaired
        .actions
        .extend(pieces.iter().map(|piece| crate::repair::placeholders::describe_fill(files, piece)));
    repaired.actions.extend(
        misplaced.iter().filter_map(|one| crate::repair::renumber::describe_change(files, &row.list, one)),
    );
    repaired.queue_offsets = unknown;
    let emptied = row.emptied();
    if dry_run {
        let lost = emptied.iter().chain(pieces.iter().copied());
        repaired.lost = lost.map(|piece| LostRange::of(files, piece, None)).collect();
        repaired.actions.extend(walked.torn.iter().map(|torn| {
            format!("{}: to be cut at byte {} ({})", torn.path.display(), torn.file_offset, torn.reason)
        }));
        return Ok(repaired);
    }
    if repaired.changed {
        for one in &misplaced {
            ledger.add_moved_record(files, one);
        }
        for piece in &emptied {
            ledger.give_up(files, piece, None);
        }
        let lost =
            backup_and_report(files, &row, &pieces, &repaired.queue_offsets, &mut ledger, &mut |_| {
                watch(total, total)
            })?;
        repaired.lost = emptied.iter().map(|piece| LostRange::of(files, piece, None)).chain(lost).collect();
        crate::repair::segment_files::mend(files, &row, &mut |_| watch(total, total))?;
        crate::repair::placeholders::write_placeholders(files, row.segment_bytes, &pieces, &mut |_| {
            watch(total, total)
        })?;
        crate::repair::renumber::renumber(files, row.segment_bytes, &misplaced, &mut |_| {
            watch(total, total)
        })?;
        if let Some(torn) = &walked.torn {
            repaired.actions.extend(truncate_tail(
                files,
                row.segment_bytes,
                walked.end,
                &torn.reason,
                watch,
            )?);
        }
    }
    Ok(repaired)
}

/// Walks the log; once more where records get other places in queues, with these.
fn scan_log(
    files: &StoreFiles,
    row: &Row,
    batch_topics: &BatchTopics,
    watch: crate::repair::backup::Step<'_>,
) -> Result<(WalkedLog, Vec<MisplacedRecord>), StoreError> {
    if row.segment_bytes == 0 {
        return Ok((WalkedLog::default(), Vec::new()));
    }
    let none = Corrections::new();
    let walked = crate::repair::damage_scan::walk(
        &row.list,
        row.segment_bytes,
        LogQueues::new(batch_topics, &none),
        watch,
    )?;
    let misplaced = crate::repair::renumber::plan(files, &row.list, &walked)?;
    if misplaced.is_empty() {
        return Ok((walked, misplaced));
    }
    let corrections = crate::repair::renumber::corrections(&misplaced);
    let walked = crate::repair::damage_scan::walk(
        &row.list,
        row.segment_bytes,
        LogQueues::new(batch_topics, &corrections),
        watch,
    )?;
    Ok((walked, misplaced))
}

/// What the queues tell of offsets before the first and behind the last record.
fn missing_at_ends(
    files: &StoreFiles,
    mark: Option<&DurableMark>,
    row: &Row,
    walked: &WalkedLog,
) -> Result<Vec<LostOffsets>, StoreError> {
    let file_bytes = mark.map_or(StoreOptions::default().queue_file_bytes(), |mark| mark.queue_file_bytes);
    let queues = QueueSet::load(files, file_bytes, Access::Read)?;
    queues.recover_bounds()?;
    crate::repair::missing_ends::lost_at_ends(walked, &queues, row.list.min_offset())
}

/// Keeps what is about to change, and writes down what is lost.
fn backup_and_report(
    files: &StoreFiles,
    row: &Row,
    pieces: &[&Piece],
    missing: &[LostOffsets],
    ledger: &mut LossReport,
    watch: crate::repair::backup::Step<'_>,
) -> Result<Vec<LostRange>, StoreError> {
    let mut lost = Vec::new();
    for piece in pieces {
        if ledger.given_up(piece.from, piece.to).is_none() {
            let kept = crate::repair::placeholders::backup_piece(files, &row.list, piece, watch)?;
            let name = kept.as_ref().and_then(|kept| kept.file_name()).map(|name| name.to_string_lossy());
            ledger.give_up(files, piece, name.as_deref());
        }
        let known = ledger.given_up(piece.from, piece.to);
        lost.push(LostRange::of(files, piece, known.and_then(|known| known.kept_as.as_deref())));
    }
    for (path, mend) in &row.mends {
        if matches!(mend, crate::repair::segment_files::FileAction::Cut(_)) {
            crate::repair::segment_files::backup_surplus(files, path, row.segment_bytes, watch)?;
        }
    }
    for missing in missing {
        ledger.miss(files, missing);
    }
    ledger.store(files)?;
    Ok(lost)
}

/// Cuts what lies behind the end of the log.
fn truncate_tail(
    files: &StoreFiles,
    segment_bytes: u64,
    end: u64,
    reason: &str,
    watch: &mut dyn FnMut(u64, u64) -> Result<(), StoreError>,
) -> Result<Vec<String>, StoreError> {
    let list = load(files, segment_bytes)?;
    if let Some(segment) = list.find(end) {
        crate::repair::backup::break_hard_link(files, &segment.path(), &mut |_| watch(end, end))?;
    }
    let mut tell = |step: mqstore_log::recovery::RecoveryProgress| watch(step.done_bytes, step.total_bytes);
    let mut watch = ProgressReporter::new(&files.clock, &mut tell);
    truncate_after(files, &*load(files, segment_bytes)?, end, reason, &mut watch)
}
