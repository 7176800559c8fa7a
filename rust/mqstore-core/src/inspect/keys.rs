//! Whether each key of the log is answered by the index.
//!
//! Owns nothing on disk. Entries were put in the order of the log, so that one walk over both tells which are missing;
//! the chains, which lead to them, are looked at for themselves. An entry that is not where it is expected is looked up
//! as a reader would: an index that was written again after a crash has its entries in another order. After ten thousand such look-ups
//! the order alone decides.

use std::path::PathBuf;
use std::sync::Arc;

use mqstore_format::IndexEntry;

use super::part::View;
use super::problems::{Kind, VerifyReport};
use crate::error::StoreError;
use crate::index::{IndexEntries, IndexPut, IndexSet};

const MOST_LOOK_UPS: u32 = 10_000;

/// The walk over log and index.
#[derive(Debug)]
pub(super) struct Keys {
    index: Arc<IndexSet>,
    entries: IndexEntries,
    /// The entry that comes next.
    next: Option<IndexEntry>,
    /// Hashes of the entries for the record at hand.
    same: Vec<i32>,
    look_ups: u32,
    run: Option<Unanswered>,
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

impl Keys {
    pub(super) fn new(index: Arc<IndexSet>) -> Result<Self, StoreError> {
        let mut entries = index.entries();
        let next = entries.next_entry()?;
        Ok(Self { index, entries, next, same: Vec::new(), look_ups: 0, run: None, any: false })
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
            self.any = true;
            if self.index.file_count() == 0 {
                return Ok(());
            }
            self.go_to(place)?;
            let missing = record.iter().filter(|put| !self.same.contains(&put.hash)).count();
            if missing == 0 {
                self.end_run(view, report);
                continue;
            }
            let same = std::mem::take(&mut self.same);
            for put in record.iter().filter(|put| !same.contains(&put.hash)) {
                self.look_up(view, put, report)?;
            }
            self.same = same;
        }
        Ok(())
    }

    /// Takes the entries for the record at `place`, and passes over those before them.
    fn go_to(&mut self, place: i64) -> Result<(), StoreError> {
        self.same.clear();
        while let Some(entry) = self.next.filter(|entry| entry.physical_offset <= place) {
            if entry.physical_offset == place {
                self.same.push(entry.hash);
            }
            self.next = self.entries.next_entry()?;
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

    /// Tells the rest, when all of the log was compared; `broken` are the chains of the index that are.
    pub(super) fn finish(
        mut self,
        view: &View<'_>,
        broken: Vec<(PathBuf, String)>,
        report: &mut VerifyReport,
    ) {
        self.end_run(view, report);
        for stray in self.index.strays() {
            report.add(Kind::IndexStray, &stray.path, None, stray.reason.clone());
        }
        if self.any && self.index.file_count() == 0 && self.index.strays().is_empty() {
            let detail = "there is no index file, but messages have keys";
            report.add(Kind::IndexMissing, &view.files.index(), None, detail);
        }
        for (path, what) in broken {
            report.add(Kind::IndexChain, &path, None, what);
        }
    }
}
