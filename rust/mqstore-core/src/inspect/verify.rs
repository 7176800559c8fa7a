//! The checks, one after the other.

use std::path::PathBuf;
use std::sync::Arc;

use mqstore_format::IndexGeometry;
use mqstore_io::sync::Mutex;
use mqstore_io::{Access, FileKind};

use super::extension::Extensions;
use super::keys::Keys;
use super::part::{Part, View};
use super::positions::Positions;
use super::problems::{Kind, Progress, VerifyReport};
use super::queues::Tallies;
use super::walk::{Assembler, Go, add_records, walk};
use super::{sparse, timer};
use crate::checkpoint::CheckpointFile;
use crate::commit_log::{Damage, LogScanner, ScanChecks, ScanItem, SegmentList};
use crate::compaction::{CompactedQueue, changed_files};
use crate::consume_queue::QueueSet;
use crate::dispatch::{BatchTopics, DispatchRules};
use crate::error::StoreError;
use crate::files::{CONFIG_LIMIT_BYTES, StoreFiles};
use crate::index::IndexSet;
use crate::live::{LiveState, read_live};
use crate::mark::MarkFile;
use crate::mend::{Ledger, check_config, config_files};
use crate::meta::find_damage;
use crate::options::StoreOptions;

/// Bytes that a part made by hand has at most, so that its memory stays bounded.
const BY_HAND_BYTES: u64 = 4 << 20;

type Watch<'a> = &'a mut dyn FnMut(Progress) -> Result<(), StoreError>;

/// Checks the store at `files` and returns what is not as it should be.
///
/// `progress` is called about once every four mebibytes of log; an error that it returns ends the check.
/// `options` tell the number of threads, and geometries where no file tells them.
///
/// # Errors
/// [`StoreError::NotAStore`], and errors of the system while reading. Damage is no error: it is what
/// the report is for.
pub fn verify(
    files: &StoreFiles,
    options: &StoreOptions,
    progress: Watch<'_>,
) -> Result<VerifyReport, StoreError> {
    let files = &files.clone().for_reading()?;
    let live = read_live(files);
    let beside = live.is_some() || files.vfs.lock_holder(&files.lock()).ok().flatten().is_some();
    check(files, options, live, beside, progress)
}

/// As [`verify`], by the holder of the store's lock: what the page of an earlier writer says counts no more.
pub(crate) fn verify_locked(
    files: &StoreFiles,
    options: &StoreOptions,
    progress: Watch<'_>,
) -> Result<VerifyReport, StoreError> {
    files.must_be_a_store()?;
    check(files, options, None, false, progress)
}

/// `beside` says that somebody writes the store meanwhile.
fn check(
    files: &StoreFiles,
    options: &StoreOptions,
    live: Option<LiveState>,
    beside: bool,
    progress: Watch<'_>,
) -> Result<VerifyReport, StoreError> {
    let mut report = VerifyReport::default();
    let positions = Positions::load(files);
    let view = view(files, options, live)?;
    segments(&view, &mut report);
    let helpers = options.dispatch_workers(&files.vfs.environment()).saturating_sub(1);
    let index = Arc::new(load_index(files, options)?);
    let wrong_files = Mutex::new(Ok(Vec::new()));
    let aside = || {
        let found = index.wrong_files(beside);
        *wrong_files.lock() = found;
    };
    let mut log = Log::new(&view, Keys::new(Arc::clone(&index), beside)?, &mut report, progress);
    walk(&view, helpers, &aside, &mut log)?;
    let Log { tallies, keys, position: end, .. } = log;
    for stray in view.queues.strays() {
        report.add(Kind::QueueStray, &stray.path, None, stray.reason.clone());
    }
    let ends = tallies.ends(&view);
    let end_of = |topic: &str, queue_id| ends.get(topic).and_then(|queues| queues.get(&queue_id)).copied();
    tallies.report(&view, end, &mut report)?;
    keys.finish(&view, wrong_files.into_inner()?, &mut report);
    let mut check = Check { files, report, end, dispatched: view.dispatched, beside };
    check.checkpoint();
    check.compaction()?;
    check.config();
    check.meta()?;
    positions.report(end_of, &mut check.report);
    if !files.is_log_alone() {
        timer::check(files, end, end_of(timer::TOPIC, 0), &mut check.report)?;
    }
    check.report.ok = check.report.problems.is_empty();
    Ok(check.report)
}

/// Loads everything that the log is compared with.
fn view<'a>(
    files: &'a StoreFiles,
    options: &StoreOptions,
    live: Option<LiveState>,
) -> Result<View<'a>, StoreError> {
    let list = Arc::new(SegmentList::load(files)?);
    let queues = QueueSet::load(files, options.queue_file_bytes(), Access::Read)?;
    queues.recover_bounds()?;
    queues.for_each(|queue| queue.correct_min_offset(list.min_offset()))?;
    for queue in queues.batches() {
        queue.correct_min_offset(0)?;
    }
    let batch_topics = BatchTopics::with_folders(files);
    Ok(View {
        files,
        list,
        queues,
        // Who indexes tags is seen from what is there.
        rules: DispatchRules { batch_topics, index_tags: true, ..DispatchRules::default() },
        repairs: Ledger::load(files)?,
        extensions: Extensions::load(files),
        limit: live.map_or(u64::MAX, |live| live.visible),
        dispatched: match live {
            // Where nothing else is, nothing is missing.
            _ if files.is_log_alone() => 0,
            Some(live) => live.dispatched,
            None => u64::MAX,
        },
    })
}

fn load_index(files: &StoreFiles, options: &StoreOptions) -> Result<IndexSet, StoreError> {
    let known = MarkFile::new(files).load().map(|mark| mark.index_geometry());
    let configured = IndexGeometry { slots: options.index_slots, entries: options.index_entries };
    IndexSet::load(files, known, configured, Access::Read)
}

fn segments(view: &View<'_>, report: &mut VerifyReport) {
    if let Some((reason, (path, _))) = view.files.misnamed_segment().zip(view.files.only_segment()) {
        report.add(Kind::SegmentMisnamed, path, None, reason);
    }
    for stray in &view.list.strays {
        report.add(Kind::SegmentStray, &stray.path, None, stray.reason.clone());
    }
    for (from, to) in &view.list.gaps {
        let detail = format!("the segments from log offset {from} to {to} are missing");
        report.add(Kind::SegmentGap, &view.files.commit_log(), None, detail);
    }
}

/// The log, put together from its parts.
struct Log<'a> {
    view: &'a View<'a>,
    report: &'a mut VerifyReport,
    progress: Watch<'a>,
    tallies: Tallies,
    keys: Keys,
    /// For what cannot be walked in pieces.
    scanner: LogScanner,
    part: Part,
    position: u64,
    /// Store time of the last record.
    last_time: Option<i64>,
    total_bytes: u64,
    over: bool,
}

impl<'a> Log<'a> {
    fn new(view: &'a View<'a>, keys: Keys, report: &'a mut VerifyReport, progress: Watch<'a>) -> Self {
        let start = view.list.min_offset();
        let checks = ScanChecks { crc: true };
        Self {
            view,
            report,
            progress,
            tallies: Tallies::default(),
            keys,
            scanner: LogScanner::new(Arc::clone(&view.list), start, view.limit, checks),
            part: Part::default(),
            position: start,
            last_time: None,
            total_bytes: view.list.segments().iter().map(|segment| segment.len()).sum(),
            over: false,
        }
    }

    fn merge(&mut self, part: &mut Part) -> Result<(), StoreError> {
        self.report.messages += part.messages;
        self.report.bytes += part.bytes;
        self.times(part);
        self.tallies.add(&mut part.queues);
        self.keys.add(self.view, &part.output.index, self.report)?;
        self.position = part.end;
        let done_bytes = self.position - self.view.list.min_offset();
        (self.progress)(Progress { done_bytes, total_bytes: self.total_bytes })
    }

    /// Store times are those of one clock, read while the log was locked.
    fn times(&mut self, part: &Part) {
        let Some(first) = part.times.first else { return };
        let mut times = super::part::Times::default();
        for time in self.last_time.into_iter().chain([first]) {
            times.add(part.first.unwrap_or(part.end), time);
        }
        for (offset, time, before) in times.back.iter().chain(&part.times.back) {
            let Some(segment) = self.view.list.find(*offset) else { continue };
            let back = before.saturating_sub(*time);
            let detail = format!("stored at {time}, {back} ms before the record before it");
            let place = offset - segment.base_offset();
            self.report.add(Kind::TimeBack, &segment.path(), Some(place), detail);
        }
        self.last_time = Some(part.times.last);
    }

    /// Looks at what is no record, here; answers where to go on.
    fn trouble(&mut self) -> Result<Option<u64>, StoreError> {
        match self.scanner.next_item()? {
            ScanItem::Record(_) | ScanItem::Filler { .. } => Ok(Some(self.position)),
            ScanItem::End { offset } => self.behind_end(offset),
            ScanItem::Damaged(damage) => self.damage(&damage),
        }
    }

    /// Zeroes end the log; a record behind them means that a stretch of it was lost.
    fn behind_end(&mut self, offset: u64) -> Result<Option<u64>, StoreError> {
        if self.view.limit != u64::MAX {
            return Ok(None);
        }
        let next = self.resync(offset)?;
        if let (Some(next), Some(segment)) = (next, self.view.list.find(offset)) {
            let detail = format!("{} bytes of zeros with records behind them", next - offset);
            let place = offset - segment.base_offset();
            self.report.add(Kind::RecordDamaged, &segment.path(), Some(place), detail);
        }
        Ok(next)
    }

    /// The next record at or behind `from`.
    fn resync(&mut self, from: u64) -> Result<Option<u64>, StoreError> {
        let (start, total_bytes) = (self.view.list.min_offset(), self.total_bytes);
        let progress = &mut self.progress;
        self.scanner.resync_watched(from, &mut |reached| {
            progress(Progress { done_bytes: (reached - start).min(total_bytes), total_bytes })
        })
    }

    fn damage(&mut self, damage: &Damage) -> Result<Option<u64>, StoreError> {
        let next = self.resync(damage.offset + 1)?;
        let kind = if next.is_some() { Kind::RecordDamaged } else { Kind::TornTail };
        let length = next.map_or(String::new(), |next| format!("; {} bytes", next - damage.offset));
        let detail = format!("{}{length}", damage.reason);
        self.report.add(kind, &damage.path, Some(damage.file_offset), detail);
        Ok(next)
    }
}

impl Assembler for Log<'_> {
    fn position(&self) -> u64 {
        self.position
    }

    fn take_over(&mut self, part: &mut Part) -> Result<(), StoreError> {
        self.merge(part)
    }

    fn by_hand(&mut self, end: u64) -> Result<Go, StoreError> {
        while self.position < end && !self.over {
            let mut part = std::mem::take(&mut self.part);
            part.begin(self.position);
            part.first = Some(self.position);
            self.scanner.seek(self.position);
            let until = end.min(self.position.saturating_add(BY_HAND_BYTES));
            add_records(self.view, &mut self.scanner, until, &mut part)?;
            part.compare(self.view)?;
            self.merge(&mut part)?;
            self.part = part;
            if self.position < until {
                match self.trouble()? {
                    Some(next) => self.position = next,
                    None => self.over = true,
                }
            }
        }
        Ok(if self.over { Go::Home } else { Go::On })
    }
}

/// What is not found by walking the log.
struct Check<'a> {
    files: &'a StoreFiles,
    report: VerifyReport,
    end: u64,
    /// Beyond this a running writer has not dispatched yet.
    dispatched: u64,
    /// Whether somebody writes the store now.
    beside: bool,
}

impl Check<'_> {
    /// Each file of a broker must be one that it can read.
    fn config(&mut self) {
        for (path, name) in config_files(self.files).unwrap_or_default() {
            let Ok(text) = self.files.vfs.read_file(&path, CONFIG_LIMIT_BYTES) else { continue };
            if let Err(error) = check_config(&name, &text) {
                self.report.add(Kind::ConfigDamaged, &path, None, error.to_string());
            }
        }
    }

    fn meta(&mut self) -> Result<(), StoreError> {
        if let Some((path, offset, reason)) = find_damage(self.files)? {
            self.report.add(Kind::MetaDamaged, &path, Some(offset), reason);
        }
        Ok(())
    }

    fn checkpoint(&mut self) {
        let path = self.files.checkpoint();
        if self.files.vfs.stat(&path).is_err() {
            return;
        }
        let checkpoint = CheckpointFile::new(self.files).load();
        for (name, value) in [
            ("confirmPhyOffset", checkpoint.confirm_physical_offset),
            ("logicsPhysicalOffset", checkpoint.logics_physical_offset),
        ] {
            // RocketMQ has -1 where nothing was confirmed.
            let wrong = u64::try_from(value).map_or(value < -1, |value| value > self.end);
            if wrong && self.dispatched == u64::MAX {
                let detail = format!("{name} is {value}; the log ends at {}", self.end);
                self.report.add(Kind::CheckpointAhead, &path, None, detail);
            }
        }
    }

    /// Every compacted queue must be readable from its first entry to its last.
    fn compaction(&mut self) -> Result<(), StoreError> {
        for (topic, queue_id) in self.compacted_queues() {
            let folder =
                self.files.compaction().join("compactionLog").join(&topic).join(queue_id.to_string());
            if let Err(error) = read_through(self.files, &topic, queue_id) {
                if matches!(error, StoreError::Io { .. }) {
                    return Err(error);
                }
                self.report.add(Kind::CompactionDamaged, &folder, None, error.to_string());
            }
            // Other damage is what the look above told.
            let compared = sparse::check(self.files, (&topic, queue_id), self.beside, &mut self.report);
            if let Err(error @ StoreError::Io { .. }) = compared {
                return Err(error);
            }
            match changed_files(self.files, &topic, queue_id) {
                Ok(found) => found.iter().for_each(|changed| {
                    self.report.add(Kind::CompactionFile, &changed.path, None, changed.detail.as_str());
                }),
                Err(error @ StoreError::Io { .. }) => return Err(error),
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn compacted_queues(&self) -> Vec<(String, i32)> {
        let root = self.files.compaction().join("compactionLog");
        let folders = |path: &PathBuf| -> Vec<String> {
            let entries = self.files.vfs.list(path).unwrap_or_default();
            entries
                .into_iter()
                .filter(|entry| entry.stat.kind == FileKind::Directory)
                .filter_map(|entry| entry.name.into_string().ok())
                .collect()
        };
        let mut queues = Vec::new();
        for topic in folders(&root) {
            let ids = folders(&root.join(&topic)).into_iter().filter_map(|id| id.parse().ok());
            queues.extend(ids.map(|id| (topic.clone(), id)));
        }
        queues
    }
}

/// Reads a compacted queue from its first record to its last.
fn read_through(files: &StoreFiles, topic: &str, queue_id: i32) -> Result<(), StoreError> {
    if let Some(queue) = CompactedQueue::open(files, topic, queue_id)? {
        for record in queue.read(0) {
            record?;
        }
    }
    Ok(())
}
