//! Walks the entries of the index and the keys of the log together, both in log order.
//!
//! Owns nothing on disk. Dispatch adds entries in log order, so that one walk over both finds missing entries.
//! An index that was written again after a crash has some entries out of order. An entry that comes before its
//! record's turn is kept until the walk of the log reaches the record.
//!
//! The result does not depend on the start of the walk, if no entry before the first entry of the walk belongs to a
//! record after its first record. The exception is [`MOST_EARLY`], which bounds memory for an index without any order.
//! The result lists the missing entries, and one event for each run of correct ones: see [`KeyEvent`].

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use mqstore_base::error::StoreError;
use mqstore_log::index::{BadIndexFile, IndexEntries, IndexSet, IndexedEntry, NewEntry};

/// Maximum number of keys that are looked up one by one, as a reader would, because their entry is not at its place.
/// After them, the order of the entries alone decides.
pub(super) const MOST_LOOK_UPS: u32 = if cfg!(test) { 60 } else { 10_000 };

/// Maximum number of entries kept until the walk of the log reaches their records.
pub(crate) const MOST_EARLY: usize = if cfg!(test) { 20 } else { 10_000 };

/// The index's answers for the keys of some records.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct KeyPart {
    /// Events in log order.
    pub events: Vec<KeyEvent>,
    pub times: TimeMismatches,
    /// Whether the records have keys.
    pub any: bool,
}

/// An event for the keys of one or more records in a row. An event that repeats the last one of its kind is left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum KeyEvent {
    /// A record has an entry for each key.
    Found,
    /// The record at this place has no entry for a key with this hash at the expected place.
    Missing { place: i64, hash: i32 },
    /// Missing entries of neighbouring records, after so many others that none of these keys is looked up.
    ManyMissing { first: i64, last: i64, keys: u64, hash: i32 },
    /// A record has an entry for its tags.
    TagsFound,
    /// The record at this place has no entry for its tags at the expected place.
    TagsMissing { place: i64, hash: i32 },
    /// Further records of this kind, after so many others that none of them is looked up.
    ManyTagsMissing { records: u64 },
}

/// Times in the index that differ from those of the records.
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
    /// The next entry, and the one after it.
    next: Option<IndexedEntry>,
    after: Option<IndexedEntry>,
    /// Entries before entries of older records, by their log offsets.
    early: BTreeMap<i64, Vec<IndexedEntry>>,
    /// The entries of the current record.
    same: Vec<IndexedEntry>,
    last_reported: LastReported,
}

/// The last reported events, so that repetitions can be left out.
#[derive(Debug, Default)]
struct LastReported {
    found: bool,
    tags_found: bool,
    /// Number of missing keys reported one by one.
    missing: u32,
    /// Number of records in a row without an entry for their tags, reported one by one.
    tags_missing: u32,
    /// Further missing keys that are not reported yet.
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
        // In a longer run at least one record was not looked up, so the rest is not looked up either.
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
    /// Creates a walk over `entries` of `index`; `beside` says that a writer adds entries.
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
            last_reported: LastReported::default(),
        })
    }

    /// Reads the entries after those of the walk. Returns the damaged files of [`IndexSet::checked_entries`].
    pub(super) fn finish_check(self) -> Result<Vec<BadIndexFile>, StoreError> {
        self.entries.finish_check()
    }

    /// Compares the keys of the next records and adds the events. Records from `dispatched` on may lack their entries.
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
                    part.times.add(self.entries.wrong_time(found, put.store_timestamp, self.beside));
                }
                if put.of_tags {
                    self.last_reported.tags(put, found.is_some(), &mut part.events);
                    continue;
                }
                keys += 1;
                if found.is_none() {
                    missing += 1;
                    self.last_reported.missing(put, &mut part.events);
                }
            }
            if keys > 0 && missing == 0 {
                self.last_reported.found(&mut part.events);
            }
        }
        self.last_reported.flush_keys(&mut part.events);
        self.last_reported.flush_tags(&mut part.events);
        Ok(())
    }

    /// Collects the entries for the record at `place`, and skips those before them.
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
                // An early entry must not hide the entries of older records after it.
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
