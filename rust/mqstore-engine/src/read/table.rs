//! A topic as a table: the newest message of each key.
//!
//! Owns [`TableRows`], the content of a table, and [`TableLoad`], which reads one queue from its beginning. Nothing on
//! disk. The key is the whole KEYS text; messages with a blank key are skipped, and a message without a body deletes
//! its key. If several queues have a key, the message that was stored last counts. Memory grows with the number of
//! keys, not of messages: one row for each key, with only the position of its message, unless messages are kept. Values
//! that expire leave the table in the order of their store times, for which a table with an expiry also keeps its keys
//! in a heap. Each value is used by one thread at a time; several queues can load in parallel.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, HashSet};
use std::path::PathBuf;

use mqstore_format::RecordView;
use mqstore_format::properties::KEYS;

use super::cursor::QueueCursor;
use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_base::options::DamagePolicy;
use mqstore_base::text_map::TextMap;

/// Entries of the heap of store times below which it is not built again.
const LEAST_HEAP: usize = 1024;

/// The newest message of a key.
#[derive(Clone, Debug)]
pub struct TableRow {
    /// Its offset in its queue.
    pub queue_offset: i64,
    /// Its store time, in epoch milliseconds.
    pub store_timestamp: i64,
    /// The message itself, if the table keeps messages.
    pub record: Option<StoredRecord>,
}

/// The load of one queue; see the header of this module.
pub struct TableLoad {
    cursor: QueueCursor,
    /// The path that an error names.
    log: PathBuf,
    keeps_messages: bool,
    queue_id: i32,
    /// The rows so far; the number of a row is its queue offset.
    newest: TextMap<TableEntry>,
    reached: i64,
}

impl TableLoad {
    /// Starts to load the queue of `cursor` as a table, with its messages or only with their positions. Errors name the
    /// folder `log`.
    pub(crate) fn of(cursor: QueueCursor, log: PathBuf, keeps_messages: bool) -> Self {
        let queue_id = cursor.queue_id();
        Self { cursor, log, keeps_messages, queue_id, newest: TextMap::default(), reached: 0 }
    }

    /// Returns the load with this behaviour at damaged messages.
    #[must_use]
    pub fn on_damage(self, policy: DamagePolicy) -> Self {
        Self { cursor: self.cursor.on_damage(policy), ..self }
    }

    /// Reads up to `most` messages; returns `false` if there are no more.
    pub fn step(&mut self, most: usize) -> Result<bool, StoreError> {
        let records = self.cursor.next_batch(most)?;
        let goes_on = !records.is_empty();
        for record in records {
            self.reached = record.queue_offset.saturating_add(1);
            let view = record
                .view()
                .map_err(|error| StoreError::format(&self.log, record.commit_log_offset, &error))?;
            let Some(key) = table_key(&view) else { continue };
            if view.body.is_empty() {
                self.newest.remove(key, |_| true);
                continue;
            }
            let (queue_offset, store_timestamp) = (record.queue_offset, view.store_timestamp);
            let row = TableRow {
                queue_offset,
                store_timestamp,
                record: self.keeps_messages.then(|| record.clone()),
            };
            let entry = TableEntry { number: queue_offset as u64, queue_id: self.queue_id, row };
            self.newest.put(key, entry, |_| false);
        }
        Ok(goes_on)
    }

    /// Returns one more than the last offset that was read; 0 before the first.
    pub fn reached(&self) -> i64 {
        self.reached
    }
}

/// Store times in milliseconds with their keys, the oldest first.
type AgeHeap = BinaryHeap<Reverse<(i64, Box<str>)>>;

/// The rows of a table.
#[derive(Debug, Default)]
pub struct TableRows {
    rows: TextMap<TableEntry>,
    /// Number of puts so far. It orders the keys by their newest messages.
    puts: u64,
    /// The loaded queues.
    loaded: HashSet<i32>,
    /// Store times and keys of all rows, and of some that are replaced or gone; `None` until [`Self::expire`] needs it.
    by_age: Option<AgeHeap>,
    /// The latest store time in milliseconds of a row that [`Self::expire`] removed.
    expired_to_ms: Option<i64>,
}

#[derive(Debug)]
struct TableEntry {
    number: u64,
    queue_id: i32,
    row: TableRow,
}

impl TableEntry {
    /// Whether a message replaces this one: it is in the same queue, or was not stored earlier.
    fn is_superseded(&self, queue_id: i32, store_timestamp: i64) -> bool {
        self.queue_id == queue_id || store_timestamp >= self.row.store_timestamp
    }
}

impl TableRows {
    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether the table has no key.
    pub fn is_empty(&self) -> bool {
        self.rows.len() == 0
    }

    /// Whether the table has `key`.
    pub fn contains(&self, key: &str) -> bool {
        self.rows.get(key).is_some()
    }

    /// Returns the queue and the row of a key.
    pub fn get(&self, key: &str) -> Option<(i32, TableRow)> {
        self.rows.get(key).map(|entry| (entry.queue_id, entry.row.clone()))
    }

    /// Returns the keys in the order of their newest messages.
    pub fn keys(&self) -> Vec<String> {
        let mut keys: Vec<_> = self.rows.iter().map(|(key, entry)| (entry.number, key)).collect();
        keys.sort_unstable();
        keys.into_iter().map(|(_, key)| key.to_owned()).collect()
    }

    /// Applies a message with a body, unless a message of another queue was stored later.
    pub fn put(&mut self, key: &str, queue_id: i32, row: TableRow) {
        self.puts += 1;
        let time = row.store_timestamp;
        if let Some(by_age) = &mut self.by_age {
            by_age.push(Reverse((time, key.into())));
        }
        let entry = TableEntry { number: self.puts, queue_id, row };
        self.rows.put(key, entry, |known| !known.is_superseded(queue_id, time));
    }

    /// Applies a message without a body, which deletes its key.
    pub fn delete(&mut self, key: &str, queue_id: i32, store_timestamp: i64) {
        self.rows.remove(key, |entry| entry.is_superseded(queue_id, store_timestamp));
    }

    /// Removes the values stored up to `to_ms`, which have expired; `None` removes nothing. Returns `false` if rows that
    /// an earlier call removed have not expired: the caller must load the table again.
    pub fn expire(&mut self, to_ms: Option<i64>) -> bool {
        if self.expired_to_ms.is_some_and(|removed_ms| to_ms.is_none_or(|to_ms| to_ms < removed_ms)) {
            return false;
        }
        let Some(to_ms) = to_ms else {
            self.by_age = None;
            return true;
        };
        // Rows that were replaced or deleted stay in the heap until they expire, or are half of it.
        let most = 2 * self.rows.len() + LEAST_HEAP;
        let by_age = self.by_age.take().filter(|by_age| by_age.len() <= most);
        let mut by_age = by_age.unwrap_or_else(|| {
            let rows = self.rows.iter();
            rows.map(|(key, entry)| Reverse((entry.row.store_timestamp, key.into()))).collect()
        });
        while let Some(oldest) = by_age.peek_mut()
            && oldest.0.0 <= to_ms
        {
            let Reverse((_, key)) = PeekMut::pop(oldest);
            let removed_ms = &mut self.expired_to_ms;
            self.rows.remove(&key, |entry| {
                let stored_ms = entry.row.store_timestamp;
                let is_due = stored_ms <= to_ms;
                if is_due {
                    *removed_ms = Some(removed_ms.map_or(stored_ms, |latest_ms| latest_ms.max(stored_ms)));
                }
                is_due
            });
        }
        self.by_age = Some(by_age);
        true
    }

    /// Applies a whole queue and replaces the earlier rows of that queue.
    pub fn absorb(&mut self, load: TableLoad) {
        let (queue_id, mut newest) = (load.queue_id, load.newest);
        self.by_age = None;
        let before = self.puts;
        // Their order is that of their offsets, and all of them come after the earlier rows.
        self.puts += u64::try_from(load.reached).unwrap_or(0);
        if !self.loaded.insert(queue_id) {
            self.rows.retain(|key, entry| entry.queue_id != queue_id || newest.get(key).is_some());
        }
        newest.for_each_value(|entry| entry.number += before + 1);
        self.rows.absorb(newest, |known, new| !known.is_superseded(new.queue_id, new.row.store_timestamp));
    }
}

/// Returns the key of a message in a table: its whole KEYS text; `None` if that is blank.
fn table_key<'a>(record: &RecordView<'a>) -> Option<&'a str> {
    let of_text = || record.properties.iter().filter(|(name, _)| *name == KEYS).last().map(|(_, keys)| keys);
    let keys = record.keys().or_else(of_text)?;
    (!keys.chars().all(is_blank)).then_some(keys)
}

/// Whether Python's `str.isspace` is true for this character.
fn is_blank(character: char) -> bool {
    character.is_whitespace() || matches!(character, '\u{1c}'..='\u{1f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(queue_offset: i64, store_timestamp: i64) -> TableRow {
        TableRow { queue_offset, store_timestamp, record: None }
    }

    #[test]
    fn what_was_stored_last_counts_and_queues_follow_their_order() {
        let mut rows = TableRows::default();
        rows.put("a", 0, row(0, 100));
        rows.put("b", 0, row(1, 101));
        rows.put("a", 1, row(0, 99));
        assert_eq!(rows.get("a").map(|(queue_id, _)| queue_id), Some(0));
        rows.delete("a", 1, 99);
        assert!(rows.contains("a"));
        // A clock that is set back changes nothing within a queue.
        rows.put("a", 0, row(2, 50));
        assert_eq!(rows.keys(), ["b", "a"]);
        rows.put("a", 1, row(1, 50));
        assert_eq!(rows.get("a").map(|(queue_id, row)| (queue_id, row.queue_offset)), Some((1, 1)));
        rows.delete("b", 0, 0);
        assert_eq!((rows.len(), rows.is_empty(), rows.contains("b")), (1, false, false));
    }

    #[test]
    fn values_leave_in_the_order_of_their_store_times() {
        let mut rows = TableRows::default();
        for (offset, (key, stored_ms)) in [("a", 10), ("b", 30), ("a", 20), ("c", 20)].into_iter().enumerate()
        {
            rows.put(key, 0, row(offset as i64, stored_ms));
        }
        assert!(rows.expire(Some(10)));
        // The first value of `a` was replaced in time.
        assert_eq!(rows.keys(), ["b", "a", "c"]);
        rows.put("d", 0, row(4, 15));
        assert!(rows.expire(Some(20)));
        assert_eq!((rows.keys(), rows.expire(Some(20))), (vec!["b".to_owned()], true));
        // A value of another queue that was stored earlier has expired as well.
        rows.put("a", 1, row(0, 5));
        assert!(rows.expire(Some(29)));
        assert_eq!(rows.keys(), ["b"]);
        // A longer duration, none, or a clock that was set back: removed values are valid again.
        assert!(rows.expire(Some(20)) && !rows.expire(Some(19)) && !rows.expire(None));
        assert_eq!(rows.keys(), ["b"]);
    }

    #[test]
    fn memory_for_store_times_grows_with_the_keys() {
        let mut rows = TableRows::default();
        for number in 0..100_000 {
            rows.put(if number % 2 == 0 { "a" } else { "b" }, 0, row(number, number));
            assert!(rows.expire(Some(-1)));
        }
        let kept = rows.by_age.as_ref().map_or(0, BinaryHeap::len);
        assert!(kept <= LEAST_HEAP + 5, "{kept}");
        rows.delete("a", 0, 100_000);
        assert!(rows.expire(Some(99_999)));
        assert!(rows.is_empty() && rows.by_age.as_ref().is_some_and(BinaryHeap::is_empty));
    }

    #[test]
    fn blank_is_what_python_calls_space() {
        for blank in [' ', '\t', '\u{b}', '\u{1c}', '\u{85}', '\u{a0}', '\u{2028}', '\u{3000}'] {
            assert!(is_blank(blank), "{blank:?}");
        }
        for other in ['a', '\u{200b}', '\0'] {
            assert!(!is_blank(other), "{other:?}");
        }
    }
}
