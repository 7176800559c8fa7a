//! The checks in their order.

use std::sync::Arc;

use mqstore_format::IndexGeometry;
use mqstore_format::delays::timer::TIMER_TOPIC;
use mqstore_format::topic::HALF_TOPIC;
use mqstore_io::Access;
use mqstore_io::sync::Mutex;
use serde::{Deserialize, Serialize};

use super::extension::Extensions;
use super::group_offsets::StoredOffsets;
use super::index_walk::KeyWalk;
use super::log_part::View;
use super::log_walk::LogWalk;
use super::merged::{MergedReport, report_checksums};
use super::op_messages;
use super::other_files::OtherFilesCheck;
use super::parallel_walk::{LogPieces, walk};
use super::raft;
use super::timer_files;
use crate::loss_report::LossReport;
use crate::problem::{ProblemKind, VerifyReport};
use crate::tiered::finish_check;
use mqstore_base::durable_mark::DurableMarkFile;
use mqstore_base::error::StoreError;
use mqstore_base::live_page::read_live;
use mqstore_base::options::StoreOptions;
use mqstore_base::progress::ProgressWatcher;
use mqstore_base::store_files::{DelayTables, StoreFiles};
use mqstore_engine::load_floors;
use mqstore_log::commit_log::SegmentList;
use mqstore_log::consume_queue::QueueSet;
use mqstore_log::dispatch::{BatchTopics, DispatchRules, ExpiredRecords};
use mqstore_log::index::{BadIndexFile, IndexSet};
use mqstore_log::recovery::{known_committed_end, mark_fits};

/// Number of further checks that must find a problem too, if a writer has the store open: while it makes, removes and
/// cuts files, a check can compare a new file with an old one.
pub const CONFIRMATIONS: u32 = 2;

/// Maximum number of starts of one check in a log whose oldest segments expire.
const MOST_STARTS: u32 = 100;

/// Checks the store at `files` and returns the problems found. While a writer has the store open, a problem counts only
/// if a second and a third check find it too.
///
/// `progress` is called about once for every 4 MiB of log; an error that it returns ends the check.
/// `options` give the number of threads, and the geometries that no file records.
///
/// # Errors
/// [`StoreError::NotAStore`], and I/O errors while reading. Damage is not an error: the report describes it.
pub fn verify(
    files: &StoreFiles,
    options: &StoreOptions,
    progress: ProgressWatcher<'_>,
) -> Result<VerifyReport, StoreError> {
    let files = &files.clone().for_reading()?;
    let (bounds, mut report) = check_now(files, options, progress)?;
    for _ in 0..CONFIRMATIONS {
        if !bounds.beside || report.ok || report.more > 0 {
            break;
        }
        let (_, again) = check_now(files, options, progress)?;
        report = again.confirming(&report);
    }
    Ok(report)
}

/// Checks the store as it is now. Begins again at the new start of the log if a writer removes the segment that the
/// check reads: what it found before is then about removed records.
fn check_now(
    files: &StoreFiles,
    options: &StoreOptions,
    progress: ProgressWatcher<'_>,
) -> Result<(VerifyBounds, VerifyReport), StoreError> {
    let mut starts = 0;
    loop {
        let bounds = VerifyBounds::now(files);
        match check(files, options, bounds, progress) {
            Err(error) if error.is_gone() && bounds.beside && starts < MOST_STARTS => starts += 1,
            report => return Ok((bounds, report?)),
        }
    }
}

/// Same as [`verify`], for the holder of the store's lock: the live page of an earlier writer is ignored.
pub(crate) fn verify_locked(
    files: &StoreFiles,
    options: &StoreOptions,
    progress: ProgressWatcher<'_>,
) -> Result<VerifyReport, StoreError> {
    files.check_is_store()?;
    check(files, options, VerifyBounds::NONE, progress)
}

/// The log offsets up to which a check looks at a store that a writer may have open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VerifyBounds {
    /// Log offset at which the check ends: records from here on are not published.
    pub limit: u64,
    /// Records from this log offset on may be missing in queues and index: a writer has not dispatched them yet, or it
    /// was stopped, and the next open for writing derives them again.
    pub dispatched: u64,
    /// Whether a writer has the store open.
    pub beside: bool,
}

impl VerifyBounds {
    const NONE: Self = Self { limit: u64::MAX, dispatched: u64::MAX, beside: false };

    /// The bounds at this moment.
    pub(crate) fn now(files: &StoreFiles) -> Self {
        let live = read_live(files);
        let beside = live.is_some() || files.vfs.lock_holder(&files.lock()).ok().flatten().is_some();
        match live {
            Some(live) => Self { limit: live.visible, dispatched: live.dispatched, beside },
            None if beside => Self { beside, ..Self::NONE },
            None => Self { dispatched: complete_to(files), ..Self::NONE },
        }
    }
}

/// Returns the log offset up to which the last writer completed queues and index, if it was stopped before a close.
/// `u64::MAX` after a close, and if another program wrote last.
fn complete_to(files: &StoreFiles) -> u64 {
    let find = || {
        files.vfs.stat(&files.abort()).ok()?;
        // A writer of ours removes its page when it closes the store. A broker that was stopped later has none.
        files.vfs.stat(&files.live()).ok()?;
        let mark = DurableMarkFile::new(files).try_load().ok().flatten()?;
        let list = SegmentList::load_damaged(files).ok()?;
        mark_fits(files, &list, &mark).then_some(mark.dispatched)
    };
    find().unwrap_or(u64::MAX)
}

fn check(
    files: &StoreFiles,
    options: &StoreOptions,
    bounds: VerifyBounds,
    progress: ProgressWatcher<'_>,
) -> Result<VerifyReport, StoreError> {
    let positions = StoredOffsets::load(files);
    let view = view(files, options, bounds)?;
    let helpers = options.dispatch_workers(&files.vfs.environment()).saturating_sub(1);
    let index = Arc::new(load_index(files, options)?);
    let wrong_files = Mutex::new(Ok(Vec::new()));
    // If each read is a request, the walk of the keys checks the files too. It does so in one thread.
    let reads_once = files.vfs.best_read_bytes().is_some() && !bounds.beside;
    let aside = || {
        if !reads_once {
            *wrong_files.lock() = index.wrong_files(&index.finished_files(bounds.beside));
        }
    };
    let entries = if reads_once { index.checked_entries() } else { index.entries() };
    let keys = KeyWalk::new(&index, entries, bounds.beside)?;
    let mut book = MergedReport::new(&view, &index, progress);
    let start = view.list.min_offset();
    let mut log = LogWalk::new(&view, keys, Some(start), &mut book);
    walk(&view, LogPieces::default(), helpers, &aside, &mut log)?;
    log.finish()?;
    let end = log.end().0.unwrap_or(start);
    let checked = log.finish_keys()?;
    raft::check(&view, &mut book)?;
    let wrong_files = if reads_once { checked } else { wrong_files.into_inner()? };
    check_other_files(&view, book, end, wrong_files, bounds.beside, &positions)
}

/// Runs the checks after the one of the log, which ends at `end`.
pub(crate) fn check_other_files(
    view: &View<'_>,
    book: MergedReport<'_>,
    end: u64,
    wrong_files: Vec<BadIndexFile>,
    beside: bool,
    positions: &StoredOffsets,
) -> Result<VerifyReport, StoreError> {
    let files = view.files;
    let MergedReport { mut report, tallies, keys, checksums, .. } = book;
    report_checksums(view, &checksums, &mut report);
    let databases = files.rocksdb_queues();
    for stray in view.queues.strays() {
        if databases.contains(&stray.path) {
            report.notes.push(format!("{}: {}", stray.path.display(), stray.reason));
            continue;
        }
        report.add_stray(ProblemKind::QueueStray, &stray.path, &stray.reason);
    }
    let ends = tallies.ends(view);
    let end_of = |topic: &str, queue_id| ends.get(topic).and_then(|queues| queues.get(&queue_id)).copied();
    tallies.report(view, &mut report)?;
    keys.finish(view, wrong_files, &mut report);
    let mut check = OtherFilesCheck { files, report, end, dispatched: view.dispatched, beside };
    check.checkpoint();
    check.tell_stop();
    check.report.notes.extend(files.rocksdb_notes());
    check.compaction()?;
    check.config();
    check.meta()?;
    positions.report(end_of, &mut check.report);
    if !files.is_bare_log() {
        let queue_end = end_of(TIMER_TOPIC, 0);
        let against = timer_files::TimerContext { files, list: &view.list, log_end: end, queue_end, beside };
        timer_files::check(&against, &mut check.report)?;
        if let Some(half_end) = end_of(HALF_TOPIC, 0) {
            op_messages::check(view, half_end, &mut check.report)?;
        }
    }
    finish_check(files, &mut check.report)?;
    check.report.ok = check.report.problems.is_empty();
    Ok(check.report)
}

/// Loads all files that the log is compared with.
pub(crate) fn view<'a>(
    files: &'a StoreFiles,
    options: &StoreOptions,
    bounds: VerifyBounds,
) -> Result<View<'a>, StoreError> {
    let list = Arc::new(SegmentList::load_damaged(files)?);
    let floors = load_floors(files, &mut Vec::new());
    let queues = QueueSet::load(files, options.queue_file_bytes(), Access::Read, &floors)?;
    if files.vfs.best_read_bytes().is_some() {
        // The check of a queue follows its fetch, so that many queues need not be in memory together.
        queues.for_each(|queue| queue.prefetch_last_file().and_then(|()| queue.recover_bounds()))?;
        queues.batches().iter().try_for_each(|queue| queue.recover_bounds())?;
    } else {
        queues.recover_bounds()?;
    }
    queues.for_each(|queue| queue.correct_min_offset(list.min_offset()))?;
    for queue in queues.batches() {
        queue.correct_min_offset(0)?;
    }
    let (list, limit) = match files.raft_log() {
        Some(log) => {
            // A broker may have added a data file since, and its queues then name records in it.
            let list = Arc::new(SegmentList::load_damaged(files)?);
            let limit = known_committed_end(files, log, &list, &queues)?;
            (list, limit)
        }
        None => (list, bounds.limit),
    };
    let batch_topics = BatchTopics::with_folders(files);
    let delays = match files.delay_tables(options.delay_levels.as_ref()) {
        // The check of the configuration reports the damage.
        Err(StoreError::Corrupt { .. }) => DelayTables::default(),
        delays => delays?,
    };
    Ok(View {
        files,
        list,
        queues,
        // The index itself shows whether tags are indexed.
        rules: DispatchRules {
            batch_topics,
            index_tags: true,
            delays,
            floors,
            expired: ExpiredRecords::Skip,
            ..DispatchRules::default()
        },
        repairs: LossReport::load(files)?,
        extensions: Extensions::load(files),
        limit,
        // A log without any other files lacks no units and no entries.
        dispatched: if files.is_bare_log() { 0 } else { bounds.dispatched },
    })
}

pub(crate) fn load_index(files: &StoreFiles, options: &StoreOptions) -> Result<IndexSet, StoreError> {
    let known = DurableMarkFile::new(files).try_load()?.map(|mark| mark.index_geometry());
    let configured = IndexGeometry { slots: options.index_slots, entries: options.index_entries };
    IndexSet::load(files, known, configured, Access::Read)
}
