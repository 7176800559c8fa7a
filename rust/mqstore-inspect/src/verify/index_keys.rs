//! Checks that the index answers each key of the log.
//!
//! Owns nothing on disk. [`super::index_walk`] lists the keys without an entry at the expected place; another check
//! verifies the chains that lead to the entries. Such a key is looked up as a reader would do it, because an index
//! that was written again after a crash has its entries in another order. After 10,000 look-ups, the order of the
//! entries alone decides.
//!
//! A missing entry for tags counts only between records with such entries: writers before RocketMQ 5.5.0 add none.

use std::sync::Arc;

use super::index_walk::{KeyEvent, KeyPart, MOST_LOOK_UPS, TimeMismatches};
use super::log_part::View;
use crate::problem::{ProblemKind, VerifyReport};
use mqstore_base::error::StoreError;
use mqstore_log::index::{BadIndexFile, IndexSet};

/// If more than this number of records in a row lack entries for their tags, their writer does not index tags.
const MOST_WITHOUT_TAGS: u64 = 64;

/// Findings about all keys so far.
#[derive(Debug)]
pub(super) struct KeyFindings {
    index: Arc<IndexSet>,
    look_ups: u32,
    run: Option<UnindexedRun>,
    tags: TagFindings,
    times: TimeMismatches,
    /// Whether the log has dispatched keys.
    any: bool,
}

/// Neighbouring records that a look-up by key does not find.
#[derive(Debug)]
struct UnindexedRun {
    first: i64,
    last: i64,
    keys: u64,
    hash: i32,
    why: String,
}

/// Records with tags that have no entry in the index.
#[derive(Debug, Default)]
struct TagFindings {
    /// Whether the last record with tags before them has its entry.
    known: bool,
    first: i64,
    missing: u64,
}

impl TagFindings {
    /// Counts a record at `place` without an entry.
    fn miss(&mut self, place: i64) {
        if self.missing == 0 {
            self.first = place;
        }
        self.missing += 1;
    }

    /// Notes a record with an entry. Returns the records before it that lack one: the first place and the count.
    fn find(&mut self) -> Option<(i64, u64)> {
        let missed = self.known && (1..=MOST_WITHOUT_TAGS).contains(&self.missing);
        let answer = missed.then_some((self.first, self.missing));
        *self = Self { known: true, ..Self::default() };
        answer
    }
}

impl TimeMismatches {
    fn join(&mut self, next: &Self) {
        if self.wrong == 0 {
            self.first.clone_from(&next.first);
        }
        self.wrong = self.wrong.saturating_add(next.wrong);
    }

    fn describe(self) -> String {
        match self.wrong {
            1 => self.first,
            more => format!("{}; {} more", self.first, more - 1),
        }
    }
}

impl KeyFindings {
    pub(super) fn new(index: Arc<IndexSet>) -> Self {
        Self {
            index,
            look_ups: 0,
            run: None,
            tags: TagFindings::default(),
            times: TimeMismatches::default(),
            any: false,
        }
    }

    /// Adds the findings of a walk about a part of the log. Parts arrive in log order.
    pub(super) fn add(
        &mut self,
        view: &View<'_>,
        part: &KeyPart,
        report: &mut VerifyReport,
    ) -> Result<(), StoreError> {
        self.any |= part.any;
        self.times.join(&part.times);
        for event in &part.events {
            match *event {
                KeyEvent::Found => self.end_run(view, report),
                KeyEvent::Missing { place, hash } => self.look_up(view, place, hash, report)?,
                KeyEvent::ManyMissing { first, last, keys, hash } => {
                    self.unanswered((first, last), keys, hash, None);
                }
                KeyEvent::TagsFound => self.tags_found(view, report),
                KeyEvent::TagsMissing { place, hash } => self.look_up_tags(view, place, hash, report)?,
                KeyEvent::ManyTagsMissing { records } => {
                    self.tags.missing = self.tags.missing.saturating_add(records);
                }
            }
        }
        Ok(())
    }

    /// Reports earlier records that a look-up by tags does not find.
    fn tags_found(&mut self, view: &View<'_>, report: &mut VerifyReport) {
        if let Some((first, count)) = self.tags.find() {
            let more = if count > 1 { format!(", nor are {} after it", count - 1) } else { String::new() };
            let detail = format!("the record at log offset {first} is not found by its tags{more}");
            report.add(ProblemKind::IndexAnswer, &view.files.index(), None, detail);
        }
    }

    /// Looks up tags that have no entry at the expected place.
    fn look_up_tags(
        &mut self,
        view: &View<'_>,
        place: i64,
        hash: i32,
        report: &mut VerifyReport,
    ) -> Result<(), StoreError> {
        if self.tags.known && self.tags.missing < MOST_WITHOUT_TAGS && self.look_ups < MOST_LOOK_UPS {
            self.look_ups += 1;
            if self.index.candidates(hash, i64::MIN, i64::MAX)?.offsets.contains(&place) {
                self.tags_found(view, report);
                return Ok(());
            }
        }
        self.tags.miss(place);
        Ok(())
    }

    /// Looks up a key that has no entry at the expected place.
    fn look_up(
        &mut self,
        view: &View<'_>,
        place: i64,
        hash: i32,
        report: &mut VerifyReport,
    ) -> Result<(), StoreError> {
        let mut why = None;
        if self.look_ups < MOST_LOOK_UPS {
            self.look_ups += 1;
            let found = self.index.candidates(hash, i64::MIN, i64::MAX)?;
            if found.offsets.contains(&place) {
                self.end_run(view, report);
                return Ok(());
            }
            why = found.damaged;
        }
        self.unanswered((place, place), 1, hash, why);
        Ok(())
    }

    /// Adds `keys` keys of neighbouring records that a look-up does not find.
    fn unanswered(&mut self, (first, last): (i64, i64), keys: u64, hash: i32, why: Option<String>) {
        if let Some(run) = &mut self.run {
            run.last = last;
            run.keys = run.keys.saturating_add(keys);
            return;
        }
        let why = why.unwrap_or_else(|| "its entry is missing".to_owned());
        self.run = Some(UnindexedRun { first, last, keys, hash, why });
    }

    fn end_run(&mut self, view: &View<'_>, report: &mut VerifyReport) {
        let Some(UnindexedRun { first, last, keys, hash, why }) = self.run.take() else { return };
        let detail = match keys {
            1 => format!("the record at log offset {first} is not found by a key's hash {hash}: {why}"),
            _ => format!(
                "records from log offset {first} to {last} are not found by {keys} of their keys: {why}"
            ),
        };
        report.add(ProblemKind::IndexAnswer, &view.files.index(), None, detail);
    }

    /// Reports the remaining findings after the last part of the log.
    pub(super) fn finish(
        mut self,
        view: &View<'_>,
        wrong_files: Vec<BadIndexFile>,
        report: &mut VerifyReport,
    ) {
        self.end_run(view, report);
        if self.times.wrong > 0 {
            report.add(ProblemKind::IndexTime, &view.files.index(), None, self.times.describe());
        }
        for stray in self.index.strays() {
            report.add_stray(ProblemKind::IndexStray, &stray.path, &stray.reason);
        }
        // The index of a tiered store is not used.
        let has_index = view.files.tiered().is_none();
        if has_index && self.any && self.index.file_count() == 0 && self.index.strays().is_empty() {
            let detail = "there is no index file, but messages have keys";
            report.add(ProblemKind::IndexMissing, &view.files.index(), None, detail);
        }
        for BadIndexFile { path, chains, header } in wrong_files {
            for (kind, what) in [(ProblemKind::IndexChain, chains), (ProblemKind::IndexHeader, header)] {
                if let Some(what) = what {
                    report.add(kind, &path, None, what);
                }
            }
        }
    }
}
