//! Repair of the log, then of all files that derive from it, then of the durable mark.
//!
//! Owns the order of the steps, and the durable mark and `abort` of a directory without a writer. [`repair`] lists
//! the steps; `log` repairs the log itself.
//!
//! After a crash, run the repair again: it completes from every state between two steps.

pub(crate) mod backup;
pub(crate) mod checksum_names;
pub(crate) mod config_files;
pub(crate) mod damage_scan;
pub(crate) mod group_offsets;
pub(crate) mod log;
pub(crate) mod missing_ends;
pub(crate) mod placeholders;
pub(crate) mod queue_records;
pub(crate) mod renumber;
pub(crate) mod segment_files;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_format::{Checkpoint, IndexGeometry, crc31};
use mqstore_io::{Access, switch};

use super::copy::{StagedCopy, copy_all};
use crate::loss_report::{LostOffsets, LostRange};
use crate::rebuild::rebuild_locked;
use crate::repair::config_files::repair_config;
use crate::repair::group_offsets::{describe_set_back, repair_offsets};
use crate::repair::log::{RepairedLog, repair_log};
use crate::repair::segment_files::load;
use crate::verify::{Problem, verify, verify_locked};
use mqstore_base::durable_mark::{DurableMark, DurableMarkFile, IndexExtent};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::live_page::writer_pid;
use mqstore_base::options::StoreOptions;
use mqstore_base::progress::Progress;
use mqstore_base::progress::ProgressWatcher;
use mqstore_base::store_files::StoreFiles;
use mqstore_base::topic_floors::TopicFloors;
use mqstore_engine::{batch_topics, load_listed};
use mqstore_engine::{refuse_rocksdb, take_lock};
use mqstore_log::checkpoint::CheckpointFile;
use mqstore_log::commit_log::{SegmentList, read_record};
use mqstore_log::consume_queue::QueueSet;
use mqstore_log::dispatch::DispatchRules;
use mqstore_log::index::IndexSet;
use mqstore_log::recovery::{ProgressReporter, RebuildReport, mark_fits, rewrite};

/// The directory that a repair changes.
#[derive(Clone, Copy, Debug)]
pub enum RepairTarget<'a> {
    /// Change nothing.
    DryRun,
    /// Change the store itself.
    InPlace,
    /// Change a copy in this folder, which must not exist.
    Output(&'a Path),
}

/// The findings and steps of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// Whether the repair changed something; in a dry run, whether it would.
    pub changed: bool,
    /// Whether verification finds no problem: in the result, or in a dry run in the unchanged store.
    pub ok: bool,
    /// Number of intact messages in the log.
    pub messages: u64,
    /// Ranges of the log that are lost.
    pub lost: Vec<LostRange>,
    /// Queue offsets without a record that no earlier repair reported.
    pub queue_offsets: Vec<LostOffsets>,
    /// The steps in words.
    pub actions: Vec<String>,
    /// The problems that verification finds.
    pub problems: Vec<Problem>,
    /// Number of problems that are not in the list.
    pub more: u64,
    /// Number of messages that verification found.
    verified_messages: u64,
}

/// Repairs the store at `files`. It truncates a torn tail, fills damaged ranges after a copy of them, rebuilds wrong
/// queues, index and checkpoint, and removes a stale `abort`.
///
/// ```text
/// log (see `log`) -> synced -> mark "queues not built" -> queues, index, checkpoint -> mark "clean" -> no `abort`
/// ```
///
/// Across a crash: before the first mark is written, the old mark is valid or no longer matches the log. After it,
/// an open rebuilds the queues. A store without a mark, because another program wrote it, gets none.
///
/// # Errors
/// [`StoreError::NotAStore`]; [`StoreError::Locked`] if another process has the store open for writing;
/// [`StoreError::Unsupported`] for queues in `RocksDB`, and for files that [`crate::copy_store`] does not copy;
/// [`StoreError::Corrupt`] if two segments have the same name and different records, or if the repair loses a message
/// that could be read before; errors that `watcher` returns; I/O errors. Run the repair again to complete it.
pub fn repair(
    files: &StoreFiles,
    options: &StoreOptions,
    target: RepairTarget<'_>,
    watcher: ProgressWatcher<'_>,
) -> Result<RepairReport, StoreError> {
    options.validate()?;
    files.check_is_store()?;
    refuse_rocksdb(files)?;
    let files = &files.clone().with_logs(options)?;
    match target {
        RepairTarget::DryRun => plan(files, options, watcher),
        RepairTarget::InPlace => {
            let _lock = take_lock(files)?;
            repair_locked(files, options, &mut StageProgress::new(3, watcher))
        }
        RepairTarget::Output(output) => {
            let copy = StagedCopy::begin(files, output)?;
            let mut stages = StageProgress::new(4, watcher);
            let filled = copy.fill_with(|copy| {
                copy_all(files, copy, &mut |step| stages.tell(step))?;
                stages.next();
                let mut report = repair_locked(&copy.files, options, &mut stages)?;
                report.rename_prefix(&copy.files.root, output);
                Ok(report)
            })?;
            filled.publish()
        }
    }
}

/// Reports the progress of several walks over the store as one.
struct StageProgress<'a> {
    watcher: ProgressWatcher<'a>,
    all: u64,
    done: u64,
    /// Share of each stage: the length of the first one.
    share: u64,
    /// The last reported progress.
    last: Progress,
}

impl<'a> StageProgress<'a> {
    fn new(all: u64, watcher: ProgressWatcher<'a>) -> Self {
        Self { watcher, all, done: 0, share: 0, last: Progress::default() }
    }

    /// Reports progress within this stage. All stages count the same, whatever they read.
    fn tell(&mut self, step: Progress) -> Result<(), StoreError> {
        let total = step.total_bytes;
        // Call the watcher even if the length is not known yet, so that it can end the repair.
        if total > 0 {
            self.share = if self.share == 0 { total } else { self.share };
            let within = u128::from(self.share) * u128::from(step.done_bytes.min(total)) / u128::from(total);
            let before = self.share.saturating_mul(self.done.min(self.all - 1));
            let done_bytes = before.saturating_add(within as u64).max(self.last.done_bytes);
            self.last = Progress { done_bytes, total_bytes: self.share.saturating_mul(self.all) };
        }
        (self.watcher)(self.last)
    }

    fn next(&mut self) {
        self.done += 1;
    }
}

fn plan(
    files: &StoreFiles,
    options: &StoreOptions,
    watcher: ProgressWatcher<'_>,
) -> Result<RepairReport, StoreError> {
    if files.vfs.lock_holder(&files.lock()).at(&files.lock(), "asking who has the lock")?.is_some() {
        return Err(StoreError::Locked { path: files.lock(), pid: writer_pid(files) });
    }
    let mut stages = StageProgress::new(2, watcher);
    let log = repair_log(files, &queue_rules(files), true, &mut |done_bytes, total_bytes| {
        stages.tell(Progress { done_bytes, total_bytes })
    })?;
    stages.next();
    let (config, config_changed) = repair_config(files, true)?;
    let found = verify(files, options, &mut |step| stages.tell(step))?;
    let derived = found.problems.iter().any(is_of_derived_files);
    let open = !log.changed && is_closed_at_end(files, &log)?;
    let mut report = RepairReport::of(log);
    report.changed |= config_changed || derived || !open;
    report.actions.extend(config);
    if report.changed {
        report.actions.push(MADE_ANEW.to_owned());
        report.actions.extend(describe_queues(files, options)?);
        report.actions.extend(describe_index(files, options)?);
    }
    let mut ahead: BTreeMap<&Path, u32> = BTreeMap::new();
    for problem in found.problems.iter().filter(|problem| is_beyond_its_queue(problem)) {
        *ahead.entry(&problem.path).or_default() += 1;
    }
    let damaged = found.problems.iter().filter(|problem| problem.kind == "meta_damaged");
    let describe = |problem: &Problem| {
        let is_lost = problem.path == files.meta();
        let step = if is_lost {
            "made again from the JSON files in config/"
        } else {
            "truncated at the damage, after a copy"
        };
        format!("{}: {step}", problem.path.display())
    };
    report.actions.extend(damaged.map(describe));
    report.changed |= found.problems.iter().any(is_of_positions);
    report.actions.extend(ahead.into_iter().map(|(path, count)| describe_set_back(path, count)));
    report.judged(found);
    Ok(report)
}

/// Returns the rules that decide which records are in which queues.
fn queue_rules(files: &StoreFiles) -> DispatchRules {
    let listed = load_listed(files, &mut Vec::new());
    DispatchRules {
        batch_topics: batch_topics(files, &listed.table),
        floors: TopicFloors::new(listed.floors),
        ..DispatchRules::default()
    }
}

/// Returns a note for people about the index that is rebuilt.
fn describe_index(files: &StoreFiles, options: &StoreOptions) -> Result<Option<String>, StoreError> {
    let known = DurableMarkFile::new(files).try_load()?.map(|mark| mark.index_geometry());
    let configured = IndexGeometry { slots: options.index_slots, entries: options.index_entries };
    let index = IndexSet::load(files, known, configured, Access::Read)?;
    let IndexGeometry { slots, entries } = index.geometry();
    Ok(index.has_guessed_geometry().then(|| {
        format!(
            "{}: its files do not show their numbers of slots and entries; the new ones have {slots} slots and \
             {entries} entries, and a broker with other settings finds no message by key",
            files.index().display()
        )
    }))
}

/// Returns notes for people about the queue files that are rebuilt.
fn describe_queues(files: &StoreFiles, options: &StoreOptions) -> Result<Vec<String>, StoreError> {
    if DurableMarkFile::new(files).try_load()?.is_some() {
        return Ok(Vec::new());
    }
    let rules = queue_rules(files);
    let queues = QueueSet::load(files, options.queue_file_bytes(), Access::Read, &rules.floors)?;
    let (plain, batch) = queues.guessed_lens();
    let batch = batch.filter(|_| !rules.batch_topics.is_empty());
    let describe = |folder: PathBuf, len: Option<u64>, setting: &str| {
        let len = len?;
        Some(format!(
            "{}: the length of these files is unknown; the new ones have {len} bytes, and a broker with another \
             {setting} refuses to start",
            folder.display()
        ))
    };
    let plain = describe(files.consume_queue(), plain, "mappedFileSizeConsumeQueue");
    let batch = describe(files.batch_consume_queue(), batch, "mapperFileSizeBatchConsumeQueue");
    Ok(plain.into_iter().chain(batch).collect())
}

const MADE_ANEW: &str = "queues, index and checkpoint rebuilt from the log";

fn repair_locked(
    files: &StoreFiles,
    options: &StoreOptions,
    stages: &mut StageProgress<'_>,
) -> Result<RepairReport, StoreError> {
    let log = repair_log(files, &queue_rules(files), false, &mut |done_bytes, total_bytes| {
        stages.tell(Progress { done_bytes, total_bytes })
    })?;
    stages.next();
    let (config, config_changed) = repair_config(files, false)?;
    let settled = !log.changed && is_closed_at_end(files, &log)?;
    let seal = FinishedLog {
        end: log.end,
        last: log.last,
        segment_bytes: log.segment_bytes,
        time: log.store_timestamp_ms,
    };
    let mut report = RepairReport::of(log);
    report.actions.extend(config);
    report.changed |= config_changed;
    if settled {
        let mut found = verify_locked(files, options, &mut |step| stages.tell(step))?;
        if !found.problems.iter().any(is_of_derived_files) {
            if found.problems.iter().any(is_of_positions) {
                report.changed = true;
                report.actions.extend(repair_offsets(files, options)?);
                found.problems.retain(|problem| !is_of_positions(problem));
                found.ok = found.problems.is_empty() && found.more == 0;
            }
            report.judged(found);
            return report.checked(files);
        }
    }
    report.changed = true;
    report.actions.push(MADE_ANEW.to_owned());
    report.actions.extend(describe_queues(files, options)?);
    report.actions.extend(describe_index(files, options)?);
    seal.derive(files, options, &mut |step| stages.tell(step))?;
    report.actions.extend(repair_offsets(files, options)?);
    stages.next();
    report.judged(verify_locked(files, options, &mut |step| stages.tell(step))?);
    report.checked(files)
}

/// Whether the store was closed at the current end of its log.
fn is_closed_at_end(files: &StoreFiles, log: &RepairedLog) -> Result<bool, StoreError> {
    if files.vfs.stat(&files.abort()).is_ok() {
        return Ok(false);
    }
    let Some(mark) = DurableMarkFile::new(files).try_load()? else { return Ok(true) };
    Ok(mark.is_clean_end(log.end) && mark_fits(files, &*load(files, log.segment_bytes)?, &mark))
}

/// Whether a rebuild of queues, index and checkpoint repairs the problem.
fn is_of_derived_files(problem: &Problem) -> bool {
    let made = ["queue_", "index_", "checkpoint_"].iter().any(|kind| problem.kind.starts_with(kind));
    made && !["queue_gap", "queue_offset_refused", "queue_offset_wrong"].contains(&problem.kind)
}

/// Whether the problem is an offset after the end of a queue.
fn is_beyond_its_queue(problem: &Problem) -> bool {
    ["consumer_offset_ahead", "delay_offset_ahead"].contains(&problem.kind)
}

/// Whether the problem is such an offset, or damage in the metadata log that stores them.
fn is_of_positions(problem: &Problem) -> bool {
    is_beyond_its_queue(problem) || problem.kind == "meta_damaged"
}

/// A log with a known end, from which all other files are derived.
pub(crate) struct FinishedLog {
    pub(crate) end: u64,
    pub(crate) last: Option<(u64, u32)>,
    pub(crate) segment_bytes: u64,
    pub(crate) time: i64,
}

impl FinishedLog {
    /// Syncs the log, then writes queues, index, checkpoint and mark, and removes `abort`.
    pub(crate) fn derive(
        &self,
        files: &StoreFiles,
        options: &StoreOptions,
        watcher: ProgressWatcher<'_>,
    ) -> Result<RebuildReport, StoreError> {
        let marks = DurableMarkFile::new(files);
        let old = marks.try_load()?;
        let list = load(files, self.segment_bytes)?;
        self.sync_log(files, &list, old.as_ref(), watcher)?;
        if let Some(old) = old {
            marks.store(&self.mark(files, &list, &old)?, true)?;
        }
        let built = rebuild_locked(files, options, false, watcher)?;
        if self.last.is_none() && files.vfs.stat(&files.checkpoint()).is_ok() {
            // Without a record there is nothing for a checkpoint, except the offset of a replica's master.
            let checkpoint = CheckpointFile::new(files);
            let master_flushed_offset = checkpoint.load().master_flushed_offset;
            checkpoint.store(&Checkpoint { master_flushed_offset, ..Checkpoint::default() })?;
        }
        if let Some(mark) = marks.try_load()?.filter(|_| old.is_some()) {
            let clean =
                DurableMark { sequence: mark.sequence + 1, clean: true, dispatched: self.end, ..mark };
            marks.store(&clean, true)?;
        }
        match files.vfs.remove_file(&files.abort()) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            removed => {
                removed.at(&files.abort(), "removing abort")?;
                switch::step("repair.sync_abort_removal", || files.vfs.sync_dir(&files.root))
                    .at(&files.root, "syncing a folder")?;
            }
        }
        Ok(built)
    }

    /// Syncs everything after the old mark. If the last writer was stopped, the bytes are written again first, because
    /// an earlier sync of them may have failed.
    fn sync_log(
        &self,
        files: &StoreFiles,
        list: &Arc<SegmentList>,
        old: Option<&DurableMark>,
        watcher: ProgressWatcher<'_>,
    ) -> Result<(), StoreError> {
        let known = old.filter(|mark| mark_fits(files, list, mark));
        if let Some(mark) = known.filter(|mark| !mark.clean && mark.position < self.end) {
            let mut tell = |step: mqstore_log::recovery::RecoveryProgress| {
                watcher(Progress { done_bytes: 0, total_bytes: step.total_bytes })
            };
            rewrite(
                files,
                list,
                mark.position,
                self.end,
                &mut ProgressReporter::new(&files.clock, &mut tell),
            )?;
        }
        let synced = known.map_or(0, |mark| mark.position);
        for segment in list.segments().iter().filter(|segment| segment.end_offset() > synced) {
            let file = segment.file().at_file(|| segment.path(), "opening a log segment")?;
            switch::step("repair.sync_log", || file.sync_data()).at(&segment.path(), "syncing the log")?;
        }
        files.sync_logs()
    }

    /// Writes a mark for this log that says that the queues are not built.
    pub(crate) fn mark(
        &self,
        files: &StoreFiles,
        list: &SegmentList,
        old: &DurableMark,
    ) -> Result<DurableMark, StoreError> {
        let (last_offset, last_size) = self.last.unwrap_or_default();
        let last_crc = match self.last {
            Some((offset, size)) => crc31(read_record(files, list, offset, size as usize)?.as_slice()),
            None => 0,
        };
        Ok(DurableMark {
            sequence: old.sequence + 1,
            clean: false,
            position: self.end,
            last_offset,
            last_size,
            last_crc,
            dispatched: list.min_offset(),
            segment_bytes: if self.segment_bytes == 0 { old.segment_bytes } else { self.segment_bytes },
            boot_id: files.vfs.environment().boot_id,
            store_timestamp_ms: self.time.max(old.store_timestamp_ms),
            index: IndexExtent::default(),
            ..*old
        })
    }
}

impl RepairReport {
    fn of(log: RepairedLog) -> Self {
        Self {
            changed: log.changed,
            messages: log.messages,
            lost: log.lost,
            queue_offsets: log.queue_offsets,
            actions: log.actions,
            ..Self::default()
        }
    }

    fn judged(&mut self, found: crate::verify::VerifyReport) {
        self.ok = found.ok;
        self.problems = found.problems;
        self.more = found.more;
        self.verified_messages = found.messages;
    }

    /// Returns the report, unless verification found fewer messages than could be read before the repair.
    fn checked(self, files: &StoreFiles) -> Result<Self, StoreError> {
        if self.verified_messages >= self.messages {
            return Ok(self);
        }
        let reason = format!(
            "the repair ended with {} messages, although {} could be read before; this is a mistake of the repair: \
             report it, and take the missing messages from {}",
            self.verified_messages,
            self.messages,
            files.lost_and_found().display()
        );
        Err(StoreError::corrupt(&files.root, 0, reason))
    }

    /// Renames the reported paths below `from` to paths below `to`.
    fn rename_prefix(&mut self, from: &Path, to: &Path) {
        let moved = |path: &mut PathBuf| {
            if let Ok(relative) = path.strip_prefix(from) {
                *path = to.join(relative);
            }
        };
        for lost in &mut self.lost {
            moved(&mut lost.path);
            lost.kept_as.iter_mut().for_each(moved);
        }
        self.problems.iter_mut().for_each(|problem| moved(&mut problem.path));
        let (from, to) = (from.display().to_string(), to.display().to_string());
        self.actions.iter_mut().for_each(|text| *text = text.replace(&from, &to));
    }
}
