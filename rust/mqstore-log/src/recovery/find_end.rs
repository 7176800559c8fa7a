//! Where the log ends.
//!
//! Owns the walk over everything that no sync vouches for, and the judgement of what stops it: a torn
//! tail, which may be cut, or damage, which may not. Records are checked side by side (see `parallel_check`); a
//! store of ours that was stopped has its good ones written again on the way, from the bytes that were
//! just read, so that what lies above the mark is read once.

use std::sync::Arc;

use mqstore_io::{Access, Jobs, Pool, VfsFile, switch};

use super::parallel_check::{CheckResult, Stretch};
use super::progress::{ProgressReporter, RecoveryStage};
use crate::commit_log::{Damage, LogScanner, ScanChecks, ScanItem, Segment, SegmentList};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::options::RecoveryMode;
use mqstore_base::store_files::StoreFiles;

/// Windows that the calling thread checks before the walk starts a pool: a log with little to check has no use for one.
const SEQUENTIAL_WINDOWS: usize = 4;

/// The name of the threads that check windows.
const CHECK_THREAD: &str = "mq-recover";

/// Bytes written again before they are synced: a stop by hand waits for one of these syncs at most.
const SYNC_BYTES: u64 = 32 << 20;

/// The end of the log and what lies before it.
#[derive(Debug, Default)]
pub(super) struct FoundEnd {
    /// One past the last byte that belongs to the log.
    pub(super) end: u64,
    /// What ended it, unless zeros did.
    pub(super) damage: Option<Damage>,
    /// The last record: offset and size.
    pub(super) last: Option<(u64, u32)>,
    /// The newest store time that was seen.
    pub(super) store_timestamp_ms: i64,
    /// Damage that was passed over, in words.
    pub(super) skipped: Vec<String>,
}

/// What decides whether a bad record is a torn tail.
#[derive(Clone, Copy, Debug)]
pub(super) struct TailRules {
    /// From here on a stop may have left anything.
    pub(super) tail_start: u64,
    /// Whether the last writer closed its store, so that it left no torn tail at all.
    pub(super) closed: bool,
    /// Whether `tail_start` is a durable mark of ours.
    pub(super) marked: bool,
    /// What to do about damage.
    pub(super) mode: RecoveryMode,
}

/// Finds the end of the log from `start` on. With `rewrite` all good records are written again and
/// synced.
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
        // Bytes that no record can be made of are kept aside with the rest of the tail.
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

/// What follows damage that is no torn tail.
enum AfterDamage {
    /// A record, at this offset.
    Records(u64),
    Nothing,
}

/// Whether the end that was found cannot be the log's, and what lies behind it.
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
    let advice = "what lies behind it was written whole, so that this is damage and not a torn tail; nothing was \
                  changed; read around it with mode \"r\", or go on behind it with recovery \"salvage\"";
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
    let reason = found.damage.as_ref().map_or("zeros with records behind them", |damage| &damage.reason);
    format!("{} at offset {at}: {reason}; skipped {} bytes", path.display(), next - found.end)
}

enum Step {
    Record(u32),
    Filler,
    Stop(u64, Option<Damage>),
}

struct Walk<'a> {
    list: &'a Arc<SegmentList>,
    /// Where the first walk began, to tell how far the last one is.
    start: u64,
    /// Threads that check windows beside the walk.
    helpers: u32,
    rewriter: Option<Rewriter<'a>>,
    found: FoundEnd,
}

/// The checks of windows, in log order.
type Checks<'scope, 'env> = Jobs<'scope, 'env, Stretch, CheckResult>;

/// The part of the walk that reads.
struct Reading {
    scanner: LogScanner,
    /// The records of the window that is being read.
    stretch: Stretch,
    /// Windows that were given to the check.
    windows: usize,
}

impl Walk<'_> {
    /// Walks from `from` to where the log cannot go on.
    fn from(&mut self, from: u64, watch: &mut ProgressReporter<'_>) -> Result<(), StoreError> {
        let mut scanner = LogScanner::new(Arc::clone(self.list), from, u64::MAX, ScanChecks { crc: false });
        scanner.retain_windows();
        let mut reading = Reading { scanner, stretch: Stretch::default(), windows: 0 };
        let is_over = Pool::new(0, CHECK_THREAD).in_order(0, &Stretch::check, |checks| {
            self.check_windows(&mut reading, SEQUENTIAL_WINDOWS, checks, watch)
        })?;
        if is_over {
            return Ok(());
        }
        let pool = Pool::new(self.helpers, CHECK_THREAD);
        // Windows of 1 MiB, so that this bounds the memory.
        let ahead = 2 * pool.size();
        pool.in_order(ahead, &Stretch::check, |checks| {
            self.check_windows(&mut reading, usize::MAX, checks, watch).map(drop)
        })
    }

    /// Reads windows and takes what was checked, until there were `limit` windows (`false`) or the log ends (`true`).
    fn check_windows(
        &mut self,
        reading: &mut Reading,
        limit: usize,
        checks: &mut Checks<'_, '_>,
        watch: &mut ProgressReporter<'_>,
    ) -> Result<bool, StoreError> {
        let total = self.list.end_offset().saturating_sub(self.start);
        while reading.windows < limit {
            let Reading { scanner, stretch, windows } = reading;
            let offset = scanner.position();
            let step = match scanner.next_item()? {
                ScanItem::Record(record) => Step::Record(record.size),
                ScanItem::Filler { .. } => Step::Filler,
                ScanItem::End { offset } => Step::Stop(offset, None),
                ScanItem::Damaged(damage) => Step::Stop(damage.offset, Some(damage)),
            };
            if let Some((start, bytes)) = scanner.take_previous_window() {
                checks.give(Stretch { start, bytes, ..std::mem::take(stretch) });
                *windows += 1;
                watch.step(RecoveryStage::Log, offset - self.start, total)?;
            }
            match step {
                Step::Record(size) => stretch.records.push((offset, size)),
                Step::Filler => {
                    // The next record lies in another file, and so in another window.
                    let (start, bytes) = scanner.take_window();
                    let filler = Some(offset);
                    checks.give(Stretch { start, bytes, filler, ..std::mem::take(stretch) });
                    *windows += 1;
                }
                Step::Stop(end, damage) => {
                    let (start, bytes) = scanner.take_window();
                    checks.give(Stretch { start, bytes, ..std::mem::take(stretch) });
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

    /// Takes what was checked, in log order, and waits for `all` of it if told so; `false` when a record was bad,
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
            let CheckResult { bad, stretch, .. } = checked;
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
            scanner.reuse(stretch.bytes);
        }
        Ok(true)
    }
}

/// Writes good bytes over themselves and syncs them: after a failed sync the cache may call pages clean
/// that the device never got.
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

    /// `bytes` lie in one segment.
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
    /// Syncs what is not synced yet, but leaves the segment that goes on behind `end` to the cut, which
    /// syncs it in any case.
    fn finish(mut self, end: u64) -> Result<(), StoreError> {
        match &self.open {
            Some((segment, _)) if end < segment.end_offset() => Ok(()),
            _ => self.sync(),
        }
    }
}

/// Writes what lies in `from..end` again, for a log whose end was found without doing so.
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
