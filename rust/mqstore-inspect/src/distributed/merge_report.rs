//! Joins the findings of a distributed check to the report.

use std::sync::Arc;

use super::super::problem::VerifyReport;
use super::attempt::file_of;
use super::documents::{LogRange, StepAnswer, VerifyPlan};
use super::findings::{End, FindingsReader, Item};
use super::log_range::walk_range;
use crate::verify::checks::{check_other_files, load_index, view};
use crate::verify::group_offsets::StoredOffsets;
use crate::verify::index_walk::KeyWalk;
use crate::verify::log_part::View;
use crate::verify::log_walk::{Findings, LogWalk};
use crate::verify::merged::MergedReport;
use crate::verify::raft;
use mqstore_base::error::StoreError;
use mqstore_base::options::StoreOptions;
use mqstore_base::progress::ProgressWatcher;
use mqstore_base::store_files::StoreFiles;
use mqstore_log::index::{BadIndexFile, EntryLocation, IndexSet};

/// Joins the findings of the steps of `plan` in `answers`, and checks the other files of the store.
///
/// `progress` is called from time to time; an error that it returns ends the check.
///
/// # Errors
/// [`StoreError::Corrupt`] if a file is not the one that its step wrote, [`StoreError::InvalidOption`] if the answers
/// do not belong to the steps, and the errors of [`crate::verify::verify`].
pub fn assemble(
    files: &StoreFiles,
    options: &StoreOptions,
    plan: &VerifyPlan,
    answers: &[StepAnswer],
    progress: ProgressWatcher<'_>,
) -> Result<VerifyReport, StoreError> {
    if answers.len() != plan.ranges.len() + plan.index.len() {
        let reason = format!("{} answers for {} steps", answers.len(), plan.steps().len());
        return Err(StoreError::InvalidOption { option: "answers", reason });
    }
    let open = |answer: &StepAnswer| FindingsReader::open(files, &file_of(&plan.settled, answer)?, answer);
    let (ranges, index_answers) = answers.split_at(plan.ranges.len());
    let positions: StoredOffsets = open(&plan.positions)?.whole()?;
    let mut wrong_files: Vec<BadIndexFile> = Vec::new();
    for answer in index_answers {
        wrong_files.extend(open(answer)?.whole::<Vec<_>>()?);
    }
    let reading = &files.clone().for_reading()?;
    let beside = plan.settled.bounds.beside;
    let view = view(reading, options, plan.settled.bounds)?;
    let index = Arc::new(load_index(reading, options)?);
    let mut join = ReportMerger {
        view: &view,
        index: &index,
        book: MergedReport::new(&view, &index, progress),
        beside,
        position: view.list.min_offset(),
        over: false,
    };
    let mut entries = None;
    for (range, answer) in plan.ranges.iter().zip(ranges) {
        // Start one range earlier, in case the range before ends late: this walk finds the same entries and more.
        let from = entries.replace(range.entries.as_ref()).unwrap_or(range.entries.as_ref());
        join.add_range(range, from, open(answer)?)?;
    }
    let ReportMerger { mut book, position, .. } = join;
    raft::check(&view, &mut book)?;
    check_other_files(&view, book, position, wrong_files, beside, &positions)
}

/// The log, joined from its ranges.
struct ReportMerger<'a> {
    view: &'a View<'a>,
    index: &'a Arc<IndexSet>,
    book: MergedReport<'a>,
    beside: bool,
    /// Log offset of the next record.
    position: u64,
    over: bool,
}

impl ReportMerger<'_> {
    /// Adds the findings of a range if it begins where the last one ended; otherwise walks the range. That walk starts
    /// in the index at `entries`.
    fn add_range(
        &mut self,
        range: &LogRange,
        entries: Option<&EntryLocation>,
        mut found: FindingsReader,
    ) -> Result<(), StoreError> {
        // Nothing to do if one record or one damage covers the complete range.
        if self.over || self.position >= range.end {
            return Ok(());
        }
        let first = found.item()?;
        if matches!(&first, Item::Part(part) if part.first == Some(self.position)) {
            return self.take_over(first, found);
        }
        let keys = KeyWalk::new(self.index, self.index.entries_from(entries)?, self.beside)?;
        let mut log = LogWalk::new(self.view, keys, Some(self.position), &mut self.book);
        walk_range(&mut log, self.view, range, 0)?;
        let (position, over) = log.end();
        (self.position, self.over) = (position.unwrap_or(self.position), over);
        Ok(())
    }

    fn take_over(&mut self, first: Item, mut found: FindingsReader) -> Result<(), StoreError> {
        let log_end = self.view.list.end_offset();
        let mut item = first;
        loop {
            match item {
                Item::Part(mut part) => {
                    if !part.is_sound(self.position) || part.end > log_end {
                        return Err(found.wrong("its numbers cannot be those of records"));
                    }
                    self.position = part.end;
                    self.book.part(&mut part)?;
                    self.book.reached(part.end)?;
                }
                Item::Problem(finding) => self.book.problem(finding)?,
                Item::End(End { position, over, more }) => {
                    let position = position.filter(|position| *position >= self.position);
                    let Some(position) = position else {
                        return Err(found.wrong("it ends before its last part"));
                    };
                    (self.position, self.over) = (position, over);
                    self.book.report.more = self.book.report.more.saturating_add(more);
                    return Ok(());
                }
            }
            item = found.item()?;
        }
    }
}
