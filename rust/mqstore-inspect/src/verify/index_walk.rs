//! The entries of the index beside the keys of the log, both in order.
//!
//! Owns nothing on disk. Entries were put in the order of the log, so that one walk over both tells which are missing.
//! Some stand out of order: an index that was written again after a crash has them so. Those that come before their
//! records are kept until the walk of the log comes there.
//!
//! What comes of it does not depend on where the walk began, as long as no entry before its first one is for a record
//! behind its first one; but for [`MOST_EARLY`], which bounds memory where an index is nothing but disorder. What is
//! told holds what is not as it should be, and bounds of the rest: see [`KeyEvent`].

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use mqstore_base::error::StoreError;
use mqstore_log::index::{IndexEntries, IndexSet, IndexedEntry, NewEntry};

/// Keys that are looked up one by one, as a reader would, when their entry is not where it is expected. Beyond it the
/// order alone decides.
pub(super) const MOST_LOOK_UPS: u32 = if cfg!(test) { 60 } else { 10_000 };

/// Entries that are kept until the walk of the log comes to their records.
pub(crate) const MOST_EARLY: usize = if cfg!(test) { 20 } else { 10_000 };

/// What the index answers to the keys of some records.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct KeyPart {
    /// In the order of the log.
    pub events: Vec<KeyEvent>,
    pub times: TimeMismatches,
    /// Whether there are keys.
    pub any: bool,
}

/// Something about the keys of one record, or of several in a row. What repeats the last event of its kind is left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum KeyEvent {
    /// A record has an entry for each of its keys.
    Found,
    /// The record at this place has none for a key with this hash, where one is expected.
    Missing { place: i64, hash: i32 },
    /// As many keys of neighbouring records, behind so many others that none of them is looked up.
    ManyMissing { first: i64, last: i64, keys: u64, hash: i32 },
    /// A record has an entry for its tags.
    TagsFound,
    /// The record at this place has none, where one is expected.
    TagsMissing { place: i64, hash: i32 },
    /// So many more of them, behind as many that none of them is looked up.
    ManyTagsMissing { records: u64 },
}

/// Times in the index that are not those of the records.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct TimeMismatches {
    pub wrong: u64,
    pub first: String,
}

impl TimeMismatches {
    fn add(&mut self, wrong: Option<String>) {
        let Some(what) = wrong else { return };
        if self.wrong == 0 {
            self.first = what;
        }
        self.wrong += 1;
    }
}

/// The walk over log and index.
#[derive(Debug)]
pub(crate) struct KeyWalk {
    beside: bool,
    is_empty: bool,
    entries: IndexEntries,
    /// The entry that comes next, and the one behind it.
    next: Option<IndexedEntry>,
    after: Option<IndexedEntry>,
    /// Entries that stand before some of older records, by their places in the log.
    early: BTreeMap<i64, Vec<IndexedEntry>>,
    /// The entries for the record at hand.
    same: Vec<IndexedEntry>,
    told: LastReported,
}

/// What was told last, so that it need not be told again.
#[derive(Debug, Default)]
struct LastReported {
    found: bool,
    tags_found: bool,
    /// Missing keys that were told one by one.
    missing: u32,
    /// Records without an entry for their tags that were told one by one, in a row.
    tags_missing: u32,
    /// Further ones, not told yet.
    many: Option<(i64, i64, u64, i32)>,
    many_tags: u64,
}

impl LastReported {
    fn found(&mut self, events: &mut Vec<KeyEvent>) {
        if !std::mem::replace(&mut self.found, true) {
            self.flush_keys(events);
            events.push(KeyEvent::Found);
        }
    }

    fn missing(&mut self, put: &NewEntry, events: &mut Vec<KeyEvent>) {
        self.found = false;
        let (place, hash) = (put.physical_offset, put.hash);
        if self.missing < MOST_LOOK_UPS {
            self.missing += 1;
            events.push(KeyEvent::Missing { place, hash });
            return;
        }
        let (_, last, keys, _) = self.many.get_or_insert((place, place, 0, hash));
        *last = place;
        *keys += 1;
    }

    fn tags(&mut self, put: &NewEntry, is_there: bool, events: &mut Vec<KeyEvent>) {
        if is_there {
            if !std::mem::replace(&mut self.tags_found, true) {
                self.flush_tags(events);
                self.tags_missing = 0;
                events.push(KeyEvent::TagsFound);
            }
            return;
        }
        self.tags_found = false;
        // Of more in a row at least one was not looked up, and then those behind it are not either.
        if self.tags_missing > MOST_LOOK_UPS {
            self.many_tags += 1;
            return;
        }
        self.tags_missing += 1;
        events.push(KeyEvent::TagsMissing { place: put.physical_offset, hash: put.hash });
    }

    fn flush_keys(&mut self, events: &mut Vec<KeyEvent>) {
        if let Some((first, last, keys, hash)) = self.many.take() {
            events.push(KeyEvent::ManyMissing { first, last, keys, hash });
        }
    }

    fn flush_tags(&mut self, events: &mut Vec<KeyEvent>) {
        let records = std::mem::take(&mut self.many_tags);
        if records > 0 {
            events.push(KeyEvent::ManyTagsMissing { records });
        }
    }
}

impl KeyWalk {
    /// A walk over `entries` of `index`; `beside` says that somebody adds entries meanwhile.
    pub(crate) fn new(
        index: &Arc<IndexSet>,
        mut entries: IndexEntries,
        beside: bool,
    ) -> Result<Self, StoreError> {
        let (next, after) = (entries.next_entry()?, entries.next_entry()?);
        Ok(Self {
            beside,
            is_empty: index.file_count() == 0,
            entries,
            next,
            after,
            early: BTreeMap::new(),
            same: Vec::new(),
            told: LastReported::default(),
        })
    }

    /// Compares keys, which follow those before them, and tells what came of it. Records from `dispatched` on need not
    /// have an entry yet.
    pub(super) fn add(
        &mut self,
        dispatched: u64,
        puts: &[NewEntry],
        part: &mut KeyPart,
    ) -> Result<(), StoreError> {
        for record in puts.chunk_by(|left, right| left.physical_offset == right.physical_offset) {
            let Some(place) = record.first().map(|put| put.physical_offset) else { continue };
            if place as u64 >= dispatched {
                break;
            }
            part.any |= record.iter().any(|put| !put.of_tags);
            if self.is_empty {
                break;
            }
            self.go_to(place)?;
            let (mut keys, mut missing) = (0, 0);
            for put in record {
                let found = self.same.iter().find(|one| one.entry.hash == put.hash);
                if let Some(found) = found {
                    part.times.add(found.wrong_time(put.store_timestamp, self.beside));
                }
                if put.of_tags {
                    self.told.tags(put, found.is_some(), &mut part.events);
                    continue;
                }
                keys += 1;
                if found.is_none() {
                    missing += 1;
                    self.told.missing(put, &mut part.events);
                }
            }
            if keys > 0 && missing == 0 {
                self.told.found(&mut part.events);
            }
        }
        self.told.flush_keys(&mut part.events);
        self.told.flush_tags(&mut part.events);
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
}
