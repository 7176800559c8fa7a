//! Walks a range of the log and writes the findings to a file.

use std::sync::Arc;

use super::super::problem::{Finding, VerifyReport};
use super::documents::{JobSettings, LogRange};
use super::findings::{End, FindingsWriter};
use crate::verify::checks::{load_index, view};
use crate::verify::index_walk::KeyWalk;
use crate::verify::log_part::{PartFindings, View};
use crate::verify::log_walk::{Findings, LogWalk};
use crate::verify::parallel_walk::{LogPieces, walk};
use mqstore_base::error::StoreError;
use mqstore_base::options::StoreOptions;
use mqstore_base::progress::Progress;
use mqstore_base::progress::ProgressWatcher;
use mqstore_base::store_files::StoreFiles;

pub(super) fn run(
    files: &StoreFiles,
    options: &StoreOptions,
    settled: &JobSettings,
    range: &LogRange,
    found: &mut FindingsWriter,
    progress: ProgressWatcher<'_>,
) -> Result<(), StoreError> {
    let files = &files.clone().for_reading()?;
    let view = view(files, options, settled.bounds)?;
    let index = Arc::new(load_index(files, options)?);
    let helpers = options.dispatch_workers(&files.vfs.environment()).saturating_sub(1);
    let mut record = FindingsRecorder {
        found,
        progress,
        start: range.start(),
        bytes: range.bytes(),
        findings_left: VerifyReport::LIMIT,
        problems: 0,
        more: 0,
    };
    let keys = KeyWalk::new(&index, index.entries_from(range.entries.as_ref())?, settled.bounds.beside)?;
    let mut log = LogWalk::new(&view, keys, None, &mut record);
    walk_range(&mut log, &view, range, helpers)?;
    let (position, over) = log.end();
    let more = record.more;
    found.end(End { position, over, more })
}

/// Walks the pieces of a range with `log`; in the last range also the rest of the log.
pub(super) fn walk_range(
    log: &mut LogWalk<'_>,
    view: &View<'_>,
    range: &LogRange,
    helpers: u32,
) -> Result<(), StoreError> {
    let lies = |(from, to): &(u64, u64)| {
        let segment = view.list.find(*from);
        segment.is_some_and(|segment| from < to && *to <= segment.end_offset())
    };
    if let Some((from, to)) = range.runs.iter().find(|run| !lies(run)) {
        let log = view.files.commit_log();
        let reason = format!("{}: the log from offset {from} to {to} was deleted meanwhile", log.display());
        return Err(StoreError::Busy { reason });
    }
    walk(view, LogPieces::of(&range.runs), helpers, &|| (), log)?;
    if range.is_last() { log.finish() } else { Ok(()) }
}

/// Writes findings to the file.
struct FindingsRecorder<'a> {
    found: &'a mut FindingsWriter,
    progress: ProgressWatcher<'a>,
    start: u64,
    bytes: u64,
    /// Number of queue findings that can still be listed.
    findings_left: usize,
    /// Number of listed problems.
    problems: usize,
    /// Number of problems that are not listed.
    more: u64,
}

impl Findings for FindingsRecorder<'_> {
    fn part(&mut self, part: &mut PartFindings) -> Result<(), StoreError> {
        for queue in &mut part.queues {
            queue.trim(&mut self.findings_left);
        }
        self.found.part(part)
    }

    fn problem(&mut self, finding: Finding) -> Result<(), StoreError> {
        if self.problems >= VerifyReport::LIMIT {
            self.more += 1;
            return Ok(());
        }
        self.problems += 1;
        self.found.problem(&finding)
    }

    fn reached(&mut self, position: u64) -> Result<(), StoreError> {
        let done_bytes = position.saturating_sub(self.start).min(self.bytes);
        (self.progress)(Progress { done_bytes, total_bytes: self.bytes })
    }
}
