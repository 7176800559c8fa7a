//! Whether each key of the log is answered by the index.
//!
//! Owns nothing on disk. [`super::index_walk`] says which keys have no entry where one is expected; the chains, which
//! lead to the entries, are looked at for themselves. An entry that is not where it is expected is looked up
//! as a reader would: an index that was written again after a crash has its entries in another order. After ten thousand such look-ups
//! the order alone decides.
//!
//! Entries of tags are missed only between records that have theirs: writers before RocketMQ 5.5.0 add none.

use std::sync::Arc;

use super::index_walk::{KeyEvent, KeyPart, MOST_LOOK_UPS, TimeMismatches};
use super::log_part::View;
use crate::problem::{ProblemKind, VerifyReport};
use mqstore_base::error::StoreError;
use mqstore_log::index::{BadIndexFile, IndexSet};

/// So many records in a row without entries of their tags were written by somebody who adds none.
const MOST_WITHOUT_TAGS: u64 = 64;

/// What is known of all keys so far.
#[derive(Debug)]
pub(super) struct KeyFindings {
    index: Arc<IndexSet>,
    look_ups: u32,
    run: Option<UnindexedRun>,
    tags: TagFindings,
    times: TimeMismatches,
    /// Whether the log has keys that were dispatched.
    any: bool,
}

/// Neighbouring records that are not found by a key.
#[derive(Debug)]
struct UnindexedRun {
    first: i64,
    last: i64,
    keys: u64,
    hash: i32,
    why: String,
}

/// Records with tags of which no entry speaks.
#[derive(Debug, Default)]
struct TagFindings {
    /// Whether the last record with tags before them has its entry.
    known: bool,
    first: i64,
    missing: u64,
}

impl TagFindings {
    /// The record at `place` has none.
    fn miss(&mut self, place: i64) {
        if self.missing == 0 {
            self.first = place;
        }
        self.missing += 1;
    }

    /// A record has one; how many before it have none that should.
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

    fn words(self) -> String {
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

    /// Takes over what a walk said of the keys of a part, which follows those before it.
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

    /// Tells of records before this one that are not found by their tags.
    fn tags_found(&mut self, view: &View<'_>, report: &mut VerifyReport) {
        if let Some((first, count)) = self.tags.find() {
            let more = if count > 1 { format!(", nor {} behind it", count - 1) } else { String::new() };
            let detail = format!("the record at log offset {first} is not found by its tags{more}");
            report.add(ProblemKind::IndexAnswer, &view.files.index(), None, detail);
        }
    }

    /// Tags that have no entry where one is expected.
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

    /// A key that has no entry where one is expected.
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

    /// So many keys of neighbouring records are not found.
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

    /// Tells the rest, when all of the log was compared.
    pub(super) fn finish(
        mut self,
        view: &View<'_>,
        wrong_files: Vec<BadIndexFile>,
        report: &mut VerifyReport,
    ) {
        self.end_run(view, report);
        if self.times.wrong > 0 {
            report.add(ProblemKind::IndexTime, &view.files.index(), None, self.times.words());
        }
        for stray in self.index.strays() {
            report.add(ProblemKind::IndexStray, &stray.path, None, stray.reason.clone());
        }
        if self.any && self.index.file_count() == 0 && self.index.strays().is_empty() {
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
