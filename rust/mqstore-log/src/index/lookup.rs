//! Lookups along a hash chain, which may be damaged or growing.
//!
//! In a sound file the numbers along a chain descend, and all entries of a chain belong to its slot. So the number of
//! entries bounds a walk. The first step that breaks a rule ends the walk of that file and is reported.
//!
//! Times in the index are whole seconds since the begin time of the file, clamped at both ends, and the first entry of
//! a later file counts from another time. So a time range leaves an entry out only if its time is known exactly.
//!
//! Source: `IndexFile#selectPhyOffset`, `IndexService#queryOffset`. RocketMQ skips whole files by their end times,
//! which fails if the clock was set back; mqstore reads every file.

use std::io;

use mqstore_format::{IndexEntry, IndexGeometry, IndexHeader};

use super::file::{IndexBytes, IndexFile};
use super::set::IndexSet;
use mqstore_base::error::{IoContext, StoreError};

/// Maximum reads of a header while another process writes the file.
const HEADER_TRIES: u32 = 5;

/// Log offsets that may hold records with a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Candidates {
    /// Log offsets in descending order (newest first), each once. Check each one against the log: hashes collide,
    /// entries outlive records, and an offset may be past the end of the log.
    pub offsets: Vec<i64>,
    /// Description of damage; if set, the offsets may be incomplete.
    pub damaged: Option<String>,
}

impl IndexSet {
    /// Returns all log offsets that the index has for `hash` (see [`mqstore_format::index_key_hash`]), in all files.
    ///
    /// Entries whose store time is certainly outside `begin_ms` to `end_ms` (both included, epoch milliseconds) are
    /// left out. The time grows with the length of the chains; each hit takes 8 bytes.
    pub fn candidates(&self, hash: i32, begin_ms: i64, end_ms: i64) -> Result<Candidates, StoreError> {
        let mut found = Candidates { offsets: Vec::new(), damaged: self.damaged().map(str::to_owned) };
        for file in self.files().iter().rev() {
            let query = ChainQuery { hash, begin_ms, end_ms };
            if let Some(damage) = query.walk(file, &mut found.offsets)?
                && self.still_has(file)
            {
                found.damaged.get_or_insert_with(|| format!("{}: {damage}", file.path.display()));
            }
        }
        // Sorts into log order and removes duplicates: a record may be in a chain twice, with one key or after a crash.
        found.offsets.sort_unstable_by(|left, right| right.cmp(left));
        found.offsets.dedup();
        Ok(found)
    }
}

struct ChainQuery {
    hash: i32,
    begin_ms: i64,
    end_ms: i64,
}

impl ChainQuery {
    /// Collects the hits of one file. Returns a description if the chain is damaged.
    fn walk(&self, file: &IndexFile, offsets: &mut Vec<i64>) -> Result<Option<String>, StoreError> {
        let source = match file.source() {
            Ok(source) => source,
            Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(Some("the file is gone".to_owned()));
            }
            Err(error) => return Err(error),
        };
        let slot = file.geometry.slot_of(self.hash);
        let (newest, header) = match newest(file, &source, slot)? {
            Ok(found) => found,
            Err(damage) => return Ok(Some(damage)),
        };
        self.follow(&source, file.geometry, slot, newest, &header, offsets)
            .at(&file.path, "reading an index file")
    }

    fn follow(
        &self,
        source: &IndexBytes,
        geometry: IndexGeometry,
        slot: u32,
        newest: u32,
        header: &IndexHeader,
        offsets: &mut Vec<i64>,
    ) -> io::Result<Option<String>> {
        let mut number = newest;
        while number != 0 {
            let entry = source.entry(geometry, number)?;
            if geometry.slot_of(entry.hash) != slot || entry.hash < 0 || entry.physical_offset < 0 {
                return Ok(Some(format!("entry {number} does not belong to the chain of slot {slot}")));
            }
            if entry.hash == self.hash && self.may_contain(header, number, &entry) {
                offsets.push(entry.physical_offset);
            }
            match u32::try_from(entry.previous) {
                Ok(previous) if previous < number => number = previous,
                _ => return Ok(Some(format!("entry {number} is followed by entry {}", entry.previous))),
            }
        }
        Ok(None)
    }

    /// Whether the record of `entry` may have a store time in the range.
    fn may_contain(&self, header: &IndexHeader, number: u32, entry: &IndexEntry) -> bool {
        let begin = header.begin_timestamp;
        let (earliest, latest) = match entry.time_diff_s {
            // The begin time is that of the first entry, whatever its own seconds are.
            _ if number == 1 => (begin, begin),
            // At both ends the difference may be clamped.
            i32::MIN..=0 | i32::MAX => return true,
            _ if begin <= 0 => return true,
            _ => {
                let time = entry.store_timestamp(header);
                (time, time.saturating_add(999))
            }
        };
        latest >= self.begin_ms && earliest <= self.end_ms
    }
}

/// Returns the newest entry of the chain, and a header that counts it.
fn newest(
    file: &IndexFile,
    source: &IndexBytes,
    slot: u32,
) -> Result<Result<(u32, IndexHeader), String>, StoreError> {
    let mut problem = String::new();
    for _ in 0..HEADER_TRIES {
        let newest = source.slot(file.geometry, slot).at(&file.path, "reading an index slot")?;
        // A writer counts an entry before (RocketMQ: soon after) it becomes the newest of its slot.
        let header = file.header()?;
        let next = header.next_entry();
        if next > file.geometry.entries {
            problem = format!(
                "its header counts {} entries, but the file holds at most {}",
                header.index_count, file.geometry.entries
            );
        } else if newest == 0 || newest < next {
            return Ok(Ok((newest, header)));
        } else {
            problem = format!("slot {slot} names entry {}, the next one is {next}", newest.cast_signed());
        }
    }
    Ok(Err(problem))
}
