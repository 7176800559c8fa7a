//! Whether each key of the log is answered by the index.
//!
//! Owns nothing on disk. Entries were put in the order of the log, so that one walk over both tells which are missing;
//! the chains, which lead to them, are looked at for themselves. An entry that is not where it is expected is looked up
//! as a reader would: an index that was written again after a crash has its entries in another order. After ten thousand such look-ups
//! the order alone decides.
//!
//! Entries of tags are missed only between records that have theirs: writers before RocketMQ 5.5.0 add none.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::part::View;
use super::problems::{Kind, VerifyReport};
use crate::error::StoreError;
use crate::index::{IndexEntries, IndexPut, IndexSet, PutEntry, WrongFile};

const MOST_LOOK_UPS: u32 = 10_000;

/// Entries that are kept until the walk of the log comes to their records.
const MOST_EARLY: usize = 10_000;

/// So many records in a row without entries of their tags were written by somebody who adds none.
const MOST_WITHOUT_TAGS: u32 = 64;

/// The walk over log and index.
#[derive(Debug)]
pub(super) struct Keys {
    index: Arc<IndexSet>,
    beside: bool,
    entries: IndexEntries,
    /// The entry that comes next, and the one behind it.
    next: Option<PutEntry>,
    after: Option<PutEntry>,
    /// Entries that stand before some of older records, by their places in the log.
    early: BTreeMap<i64, Vec<PutEntry>>,
    /// The entries for the record at hand.
    same: Vec<PutEntry>,
    look_ups: u32,
    run: Option<Unanswered>,
    tags: Tags,
    times: Times,
    /// Whether the log has keys that were dispatched.
    any: bool,
}

/// Neighbouring records that are not found by a key.
#[derive(Debug)]
struct Unanswered {
    first: i64,
    last: i64,
    keys: u64,
    hash: i32,
    why: String,
}

/// Records with tags of which no entry speaks.
#[derive(Debug, Default)]
struct Tags {
    /// Whether the last record with tags before them has its entry.
    known: bool,
    first: i64,
    missing: u32,
}

impl Tags {
    /// Takes in whether the record at `place` has its entry; how many before it have none that should.
    fn add(&mut self, place: i64, found: bool) -> Option<(i64, u32)> {
        if !found {
            if self.missing == 0 {
                self.first = place;
            }
            self.missing += 1;
            return None;
        }
        let missed = self.known && (1..=MOST_WITHOUT_TAGS).contains(&self.missing);
        let answer = missed.then_some((self.first, self.missing));
        *self = Self { known: true, ..Self::default() };
        answer
    }
}

/// Times in the index that are not those of the records.
#[derive(Debug, Default)]
struct Times {
    wrong: u64,
    first: String,
}

impl Times {
    fn add(&mut self, wrong: Option<String>) {
        let Some(what) = wrong else { return };
        if self.wrong == 0 {
            self.first = what;
        }
        self.wrong += 1;
    }

    fn words(self) -> String {
        match self.wrong {
            1 => self.first,
            more => format!("{}; {} more", self.first, more - 1),
        }
    }
}

impl Keys {
    /// `beside` says that somebody adds entries meanwhile.
    pub(super) fn new(index: Arc<IndexSet>, beside: bool) -> Result<Self, StoreError> {
        let mut entries = index.entries();
        let (next, after) = (entries.next_entry()?, entries.next_entry()?);
        Ok(Self {
            index,
            beside,
            entries,
            next,
            after,
            early: BTreeMap::new(),
            same: Vec::new(),
            look_ups: 0,
            run: None,
            tags: Tags::default(),
            times: Times::default(),
            any: false,
        })
    }

    /// Compares the keys of a part, which follows those before it.
    pub(super) fn add(
        &mut self,
        view: &View<'_>,
        puts: &[IndexPut],
        report: &mut VerifyReport,
    ) -> Result<(), StoreError> {
        for record in puts.chunk_by(|left, right| left.physical_offset == right.physical_offset) {
            let Some(place) = record.first().map(|put| put.physical_offset) else { continue };
            if place as u64 >= view.dispatched {
                return Ok(());
            }
            self.any |= record.iter().any(|put| !put.of_tags);
            if self.index.file_count() == 0 {
                return Ok(());
            }
            self.go_to(place)?;
            let same = std::mem::take(&mut self.same);
            let (mut keys, mut missing) = (0, 0);
            for put in record {
                let found = same.iter().find(|one| one.entry.hash == put.hash);
                if let Some(found) = found {
                    self.times.add(found.wrong_time(put.store_timestamp, self.beside));
                }
                if put.of_tags {
                    self.tags_of(view, put, found.is_some(), report)?;
                    continue;
                }
                keys += 1;
                if found.is_none() {
                    missing += 1;
                    self.look_up(view, put, report)?;
                }
            }
            if keys > 0 && missing == 0 {
                self.end_run(view, report);
            }
            self.same = same;
        }
        Ok(())
    }

    /// Takes the entries for the record at `place`, and passes over those before them.
    fn go_to(&mut self, place: i64) -> Result<(), StoreError> {
        self.same.clear();
        while let Some((at, entries)) = self.early.first_key_value().filter(|(at, _)| **at <= place) {
            if *at == place {
                self.same.extend(entries);
            }
            self.early.pop_first();
        }
        while let Some(next) = self.next {
            let at = next.entry.physical_offset;
            if at == place {
                self.same.push(next);
            } else if at > place {
                // One that stands before entries of older records must not hide those.
                let ahead = self.after.is_some_and(|after| after.entry.physical_offset < at);
                if !ahead || self.early.len() >= MOST_EARLY {
                    return Ok(());
                }
                self.early.entry(at).or_default().push(next);
            }
            self.next = std::mem::replace(&mut self.after, self.entries.next_entry()?);
        }
        Ok(())
    }

    /// Whether a record is found by its tags; told when one behind it is.
    fn tags_of(
        &mut self,
        view: &View<'_>,
        put: &IndexPut,
        mut found: bool,
        report: &mut VerifyReport,
    ) -> Result<(), StoreError> {
        if !found && self.tags.known && self.tags.missing < MOST_WITHOUT_TAGS && self.look_ups < MOST_LOOK_UPS
        {
            self.look_ups += 1;
            let candidates = self.index.candidates(put.hash, i64::MIN, i64::MAX)?;
            found = candidates.offsets.contains(&put.physical_offset);
        }
        if let Some((first, count)) = self.tags.add(put.physical_offset, found) {
            let more = if count > 1 { format!(", nor {} behind it", count - 1) } else { String::new() };
            let detail = format!("the record at log offset {first} is not found by its tags{more}");
            report.add(Kind::IndexAnswer, &view.files.index(), None, detail);
        }
        Ok(())
    }

    /// A key that has no entry where one is expected.
    fn look_up(
        &mut self,
        view: &View<'_>,
        put: &IndexPut,
        report: &mut VerifyReport,
    ) -> Result<(), StoreError> {
        let mut why = None;
        if self.look_ups < MOST_LOOK_UPS {
            self.look_ups += 1;
            let found = self.index.candidates(put.hash, i64::MIN, i64::MAX)?;
            if found.offsets.contains(&put.physical_offset) {
                self.end_run(view, report);
                return Ok(());
            }
            why = found.damaged;
        }
        match &mut self.run {
            Some(run) => {
                run.last = put.physical_offset;
                run.keys += 1;
            }
            None => {
                self.run = Some(Unanswered {
                    first: put.physical_offset,
                    last: put.physical_offset,
                    keys: 1,
                    hash: put.hash,
                    why: why.unwrap_or_else(|| "its entry is missing".to_owned()),
                });
            }
        }
        Ok(())
    }

    fn end_run(&mut self, view: &View<'_>, report: &mut VerifyReport) {
        let Some(Unanswered { first, last, keys, hash, why }) = self.run.take() else { return };
        let detail = match keys {
            1 => format!("the record at log offset {first} is not found by a key's hash {hash}: {why}"),
            _ => format!(
                "records from log offset {first} to {last} are not found by {keys} of their keys: {why}"
            ),
        };
        report.add(Kind::IndexAnswer, &view.files.index(), None, detail);
    }

    /// Tells the rest, when all of the log was compared.
    pub(super) fn finish(mut self, view: &View<'_>, wrong_files: Vec<WrongFile>, report: &mut VerifyReport) {
        self.end_run(view, report);
        if self.times.wrong > 0 {
            report.add(Kind::IndexTime, &view.files.index(), None, self.times.words());
        }
        for stray in self.index.strays() {
            report.add(Kind::IndexStray, &stray.path, None, stray.reason.clone());
        }
        if self.any && self.index.file_count() == 0 && self.index.strays().is_empty() {
            let detail = "there is no index file, but messages have keys";
            report.add(Kind::IndexMissing, &view.files.index(), None, detail);
        }
        for WrongFile { path, chains, header } in wrong_files {
            for (kind, what) in [(Kind::IndexChain, chains), (Kind::IndexHeader, header)] {
                if let Some(what) = what {
                    report.add(kind, &path, None, what);
                }
            }
        }
    }
}
