//! The search for the end of the log.
//!
//! This module walks over all records that no sync covers, and decides what stopped the walk: a torn tail, which
//! recovery may cut, or damage, which it must not cut. Threads check the records in parallel (see `parallel_check`). If
//! an mqstore writer was stopped, the walk rewrites the good records from the bytes that it has just read, so that the
//! bytes after the mark are read only once.

use std::sync::Arc;

use mqstore_io::{Access, Jobs, Pool, VfsFile, switch};

use super::parallel_check::{CheckResult, CheckedRange};
use super::progress::{ProgressReporter, RecoveryStage};
use crate::commit_log::{Damage, LogScanner, ScanChecks, ScanItem, Segment, SegmentList};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::options::RecoveryMode;
use mqstore_base::store_files::StoreFiles;

/// Windows that the calling thread checks alone before the walk starts a pool: a short walk needs no threads.
const SEQUENTIAL_WINDOWS: usize = 4;

/// Name of the threads that check windows.
const CHECK_THREAD: &str = "mq-recover";

/// Rewritten bytes per sync. An interrupted open waits for at most one of these syncs.
const SYNC_BYTES: u64 = 32 << 20;

/// The end of the log and the facts about the records before it.
#[derive(Debug, Default)]
pub(super) struct FoundEnd {
    /// One past the last byte that belongs to the log.
    pub(super) end: u64,
    /// The damage that ended the log; `None` if zeros ended it.
    pub(super) damage: Option<Damage>,
    /// Last record of the log: offset and size.
    pub(super) last: Option<(u64, u32)>,
    /// Newest store time that the walk saw.
    pub(super) store_timestamp_ms: i64,
    /// Notes on damage that the walk skipped.
    pub(super) skipped: Vec<String>,
}

/// The rules that decide whether a bad record is a torn tail.
#[derive(Clone, Copy, Debug)]
pub(super) struct TailRules {
    /// Log offset from which a stop may have left anything.
    pub(super) tail_start: u64,
    /// Whether the last writer closed its store, so that no torn tail is possible.
    pub(super) closed: bool,
    /// Whether `tail_start` is a durable mark.
    pub(super) marked: bool,
    /// How to treat damage.
    pub(super) mode: RecoveryMode,
}

/// Finds the end of the log from `start` on. With `rewrite`, all good records are written again and synced.
pub(super) fn find_end(
    files: &StoreFiles,
    list: &Arc<SegmentList>,
    start: u64,
    rules: TailRules,
    rewrite: bool,
    watch: &mut ProgressReporter<'_>,
) -> Result<FoundEnd, StoreError> {
    let mut walk = Walk {
        list,
        start,
        helpers: files.vfs.environment().helpers(),
        rewriter: rewrite.then(|| Rewriter::new(files, list)),
        found: FoundEnd { end: start, ..FoundEnd::default() },
    };
    let mut from = start;
    loop {
        walk.from(from, watch)?;
        let found = &mut walk.found;
        let Some(inspect_after_damage) = inspect_after_damage(list, found, rules)? else { break };
        if rules.mode != RecoveryMode::Salvage {
            return Err(refusal(files, found));
        }
        // Recovery copies a rest without records to lost+found together with the tail.
        let AfterDamage::Records(next) = inspect_after_damage else { break };
        let text = skipped(files, list, found, next);
        found.skipped.push(text);
        found.damage = None;
        from = next;
    }
    if let Some(rewriter) = walk.rewriter {
        rewriter.finish(walk.found.end)?;
    }
    Ok(walk.found)
}

/// The content after damage that is no torn tail.
enum AfterDamage {
    /// A record, at this offset.
    Records(u64),
    Nothing,
}

/// Returns what follows the end that was found if this cannot be the end of the log; else `None`.
fn inspect_after_damage(
    list: &Arc<SegmentList>,
    found: &FoundEnd,
    rules: TailRules,
) -> Result<Option<AfterDamage>, StoreError> {
    let below = found.end < rules.tail_start;
    let as_marked = rules.marked && found.end == rules.tail_start && found.damage.is_none();
    if !below && (!rules.closed || as_marked) {
        return Ok(None);
    }
    let mut scanner = LogScanner::new(Arc::clone(list), found.end, u64::MAX, ScanChecks { crc: true });
    let next = scanner.resync(found.end + u64::from(found.damage.is_some()))?;
    Ok(match next {
        Some(next) => Some(AfterDamage::Records(next)),
        None => below.then_some(AfterDamage::Nothing),
    })
}

fn refusal(files: &StoreFiles, found: &FoundEnd) -> StoreError {
    let advice = "the bytes after it were written completely, so this is damage and not a torn tail; nothing was \
                  changed; read the other records with mode \"r\", or continue after it with recovery \"salvage\"";
    match &found.damage {
        Some(damage) => {
            StoreError::corrupt(&damage.path, damage.file_offset, format!("{}: {advice}", damage.reason))
        }
        None => StoreError::corrupt(&files.commit_log(), found.end, format!("the log ends here: {advice}")),
    }
}

fn skipped(files: &StoreFiles, list: &SegmentList, found: &FoundEnd, next: u64) -> String {
    let (path, at) = match list.find(found.end) {
        Some(segment) => (segment.path(), found.end - segment.base_offset()),
        None => (files.commit_log(), found.end),
    };
    let reason = found.damage.as_ref().map_or("zeros with records after them", |damage| &damage.reason);
    format!("{} at offset {at}: {reason}; skipped {} bytes", path.display(), next - found.end)
}

enum WalkStep {
    Record(u32),
    Filler,
    Stop(u64, Option<Damage>),
}

struct Walk<'a> {
    list: &'a Arc<SegmentList>,
    /// Start of the first walk, the base of the reported progress.
    start: u64,
    /// Threads that check windows in addition to the walking thread.
    helpers: u32,
    rewriter: Option<Rewriter<'a>>,
    found: FoundEnd,
}

/// The checks of windows, in log order.
type Checks<'scope, 'env> = Jobs<'scope, 'env, CheckedRange, CheckResult>;

/// The state of the reading part of the walk.
struct Reading {
    scanner: LogScanner,
    /// The records of the current window.
    range: CheckedRange,
    /// Windows passed to the check.
    windows: usize,
}

impl Walk<'_> {
    /// Walks from `from` to the first place where the log cannot continue.
    fn from(&mut self, from: u64, watch: &mut ProgressReporter<'_>) -> Result<(), StoreError> {
        let mut scanner = LogScanner::new(Arc::clone(self.list), from, u64::MAX, ScanChecks { crc: false });
        scanner.retain_windows();
        let mut reading = Reading { scanner, range: CheckedRange::default(), windows: 0 };
        let is_over = Pool::new(0, CHECK_THREAD).in_order(0, &CheckedRange::check, |checks| {
            self.check_windows(&mut reading, SEQUENTIAL_WINDOWS, checks, watch)
        })?;
        if is_over {
            return Ok(());
        }
        let pool = Pool::new(self.helpers, CHECK_THREAD);
        // A window has 1 MiB, so this bounds the memory.
        let ahead = 2 * pool.size();
        pool.in_order(ahead, &CheckedRange::check, |checks| {
            self.check_windows(&mut reading, usize::MAX, checks, watch).map(drop)
        })
    }

    /// Reads windows and takes results, until `limit` windows are read (`false`) or the log ends (`true`).
    fn check_windows(
        &mut self,
        reading: &mut Reading,
        limit: usize,
        checks: &mut Checks<'_, '_>,
        watch: &mut ProgressReporter<'_>,
    ) -> Result<bool, StoreError> {
        let total = self.list.end_offset().saturating_sub(self.start);
        while reading.windows < limit {
            let Reading { scanner, range, windows } = reading;
            let offset = scanner.position();
            let step = match scanner.next_item()? {
                ScanItem::Record(record) => WalkStep::Record(record.size),
                ScanItem::Filler { .. } => WalkStep::Filler,
                ScanItem::End { offset } => WalkStep::Stop(offset, None),
                ScanItem::Damaged(damage) => WalkStep::Stop(damage.offset, Some(damage)),
            };
            if let Some((start, bytes)) = scanner.take_previous_window() {
                checks.give(CheckedRange { start, bytes, ..std::mem::take(range) });
                *windows += 1;
                watch.step(RecoveryStage::Log, offset - self.start, total)?;
            }
            match step {
                WalkStep::Record(size) => range.records.push((offset, size)),
                WalkStep::Filler => {
                    // The next record is in another file, so it starts another window.
                    let (start, bytes) = scanner.take_window();
                    let filler = Some(offset);
                    checks.give(CheckedRange { start, bytes, filler, ..std::mem::take(range) });
                    *windows += 1;
                }
                WalkStep::Stop(end, damage) => {
                    let (start, bytes) = scanner.take_window();
                    checks.give(CheckedRange { start, bytes, ..std::mem::take(range) });
                    if self.drain(checks, scanner, true)? {
                        (self.found.end, self.found.damage) = (end, damage);
                    }
                    return Ok(true);
                }
            }
            if !self.drain(checks, scanner, false)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes finished results in log order; with `all` it waits for every result. Returns `false` after a bad record,
    /// which ends the log.
    fn drain(
        &mut self,
        checks: &mut Checks<'_, '_>,
        scanner: &mut LogScanner,
        all: bool,
    ) -> Result<bool, StoreError> {
        while let Some(checked) = if all { checks.take() } else { checks.take_ready() } {
            self.found.last = checked.last.or(self.found.last);
            self.found.store_timestamp_ms = self.found.store_timestamp_ms.max(checked.store_timestamp_ms);
            if let (Some(rewriter), Some((offset, bytes))) = (self.rewriter.as_mut(), checked.good()) {
                rewriter.write(offset, bytes)?;
            }
            let CheckResult { bad, range, .. } = checked;
            if let Some((offset, size, reason)) = bad {
                self.found.end = offset;
                self.found.damage = self.list.find(offset).map(|segment| Damage {
                    offset,
                    path: segment.path(),
                    file_offset: offset - segment.base_offset(),
                    claimed_size: Some(size),
                    reason,
                });
                return Ok(false);
            }
            scanner.reuse(range.bytes);
        }
        Ok(true)
    }
}

/// Writes good bytes over themselves and syncs them: after a failed sync, the cache may call pages clean that the
/// device never received.
struct Rewriter<'a> {
    files: &'a StoreFiles,
    list: &'a SegmentList,
    open: Option<(Arc<Segment>, Arc<dyn VfsFile>)>,
    unsynced_bytes: u64,
}

impl<'a> Rewriter<'a> {
    fn new(files: &'a StoreFiles, list: &'a SegmentList) -> Self {
        Self { files, list, open: None, unsynced_bytes: 0 }
    }

    /// Rewrites `bytes`, which are in one segment.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let Some(segment) = self.list.find(offset).cloned() else { return Ok(()) };
        if self.open.as_ref().is_none_or(|(open, _)| open.base_offset() != segment.base_offset()) {
            self.sync()?;
            let file = self.files.vfs.open(&segment.path(), Access::ReadWrite);
            let file = file.at_file(|| segment.path(), "opening a segment")?;
            self.open = Some((Arc::clone(&segment), file));
        }
        let Some((_, file)) = &self.open else { return Ok(()) };
        switch::step("recovery.rewrite_tail", || file.write_all_at(bytes, offset - segment.base_offset()))
            .at_file(|| segment.path(), "writing the recovered tail again")?;
        self.unsynced_bytes += bytes.len() as u64;
        if self.unsynced_bytes >= SYNC_BYTES {
            self.sync()?;
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        let Some((segment, file)) = &self.open else { return Ok(()) };
        self.unsynced_bytes = 0;
        switch::step("recovery.sync_tail", || file.sync_data())
            .at_file(|| segment.path(), "syncing the recovered tail")
    }
}

impl Rewriter<'_> {
    /// Syncs the rest. The segment that continues after `end` is left to the truncation, which always syncs it.
    fn finish(mut self, end: u64) -> Result<(), StoreError> {
        match &self.open {
            Some((segment, _)) if end < segment.end_offset() => Ok(()),
            _ => self.sync(),
        }
    }
}

/// Rewrites the bytes of `from..end`, for a log whose end was found without rewriting.
pub fn rewrite(
    files: &StoreFiles,
    list: &SegmentList,
    from: u64,
    end: u64,
    watch: &mut ProgressReporter<'_>,
) -> Result<(), StoreError> {
    const CHUNK_BYTES: u64 = 1 << 20;
    let mut rewriter = Rewriter::new(files, list);
    let mut buffer = vec![0; CHUNK_BYTES.min(end.saturating_sub(from)) as usize];
    let mut at = from;
    while at < end {
        let Some(segment) = list.find(at).or_else(|| list.next_from(at)).cloned() else { break };
        at = at.max(segment.base_offset());
        let len = (segment.end_offset().min(end).saturating_sub(at)).min(CHUNK_BYTES) as usize;
        let Some(chunk) = buffer.get_mut(..len).filter(|chunk| !chunk.is_empty()) else { break };
        let file = segment.file().at_file(|| segment.path(), "opening a log segment")?;
        file.read_exact_at(chunk, at - segment.base_offset())
            .at_file(|| segment.path(), "reading the recovered tail")?;
        rewriter.write(at, chunk)?;
        at += len as u64;
        watch.step(RecoveryStage::Tail, at - from, end - from)?;
    }
    rewriter.sync()
}
