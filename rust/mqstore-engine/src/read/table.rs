//! A topic as a table: of every key the newest message.
//!
//! Owns [`TableRows`], what a table knows, and [`TableLoad`], which reads one queue from its beginning. Nothing
//! on disk. The key is the whole KEYS text, blank ones are passed over, and a message without a body deletes its
//! key. Of a key that is in several queues the message counts that was stored last. What is in memory grows with
//! the keys and not with the messages: of a key one row, and of its message the place alone, unless messages are
//! kept. One thread at a time each; several queues are loaded side by side.

use std::collections::HashSet;
use std::path::PathBuf;

use mqstore_format::RecordView;
use mqstore_format::properties::KEYS;

use super::cursor::QueueCursor;
use super::text_map::TextMap;
use crate::Store;
use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;

/// Where the newest message of a key is.
#[derive(Clone, Debug)]
pub struct TableRow {
    /// Its offset in the queue.
    pub queue_offset: i64,
    /// When it was stored, epoch milliseconds.
    pub store_timestamp: i64,
    /// Itself, where messages are kept.
    pub record: Option<StoredRecord>,
}

/// The load of one queue; see the module's text.
pub struct TableLoad {
    cursor: QueueCursor,
    /// What an error names.
    log: PathBuf,
    keeps_messages: bool,
    queue_id: i32,
    /// Their numbers are their queue offsets.
    newest: TextMap<TableEntry>,
    reached: i64,
}

impl Store {
    /// Begins to load a queue as a table, with its messages or with their places alone.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub fn load_table(
        &self,
        topic: &str,
        queue_id: i32,
        keeps_messages: bool,
    ) -> Result<TableLoad, StoreError> {
        let cursor = self.read(topic, queue_id, None, None, None)?;
        let log = self.inner.files.commit_log();
        Ok(TableLoad { cursor, log, keeps_messages, queue_id, newest: TextMap::default(), reached: 0 })
    }
}

impl TableLoad {
    /// Reads up to `most` messages; `false` when there are no more.
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

    /// One past the last offset that was read; 0 before the first.
    pub fn reached(&self) -> i64 {
        self.reached
    }
}

/// What a table knows of its keys.
#[derive(Debug, Default)]
pub struct TableRows {
    rows: TextMap<TableEntry>,
    /// Puts so far: the order of the keys is that of their newest messages.
    puts: u64,
    /// The queues that were loaded.
    loaded: HashSet<i32>,
}

#[derive(Debug)]
struct TableEntry {
    number: u64,
    queue_id: i32,
    row: TableRow,
}

impl TableEntry {
    /// Whether a message counts beside this one: it is of the same queue, or was not stored before.
    fn is_superseded(&self, queue_id: i32, store_timestamp: i64) -> bool {
        self.queue_id == queue_id || store_timestamp >= self.row.store_timestamp
    }
}

impl TableRows {
    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.rows.len() == 0
    }

    /// Whether there is this one.
    pub fn contains(&self, key: &str) -> bool {
        self.rows.get(key).is_some()
    }

    /// The queue and the row of a key.
    pub fn get(&self, key: &str) -> Option<(i32, TableRow)> {
        self.rows.get(key).map(|entry| (entry.queue_id, entry.row.clone()))
    }

    /// The keys in the order of their newest messages.
    pub fn keys(&self) -> Vec<String> {
        let mut keys: Vec<_> = self.rows.iter().map(|(key, entry)| (entry.number, key)).collect();
        keys.sort_unstable();
        keys.into_iter().map(|(_, key)| key.to_owned()).collect()
    }

    /// Takes up a message with a body, unless one of another queue was stored later.
    pub fn put(&mut self, key: &str, queue_id: i32, row: TableRow) {
        self.puts += 1;
        let time = row.store_timestamp;
        let entry = TableEntry { number: self.puts, queue_id, row };
        self.rows.put(key, entry, |known| !known.is_superseded(queue_id, time));
    }

    /// Takes up a message without a body.
    pub fn delete(&mut self, key: &str, queue_id: i32, store_timestamp: i64) {
        self.rows.remove(key, |entry| entry.is_superseded(queue_id, store_timestamp));
    }

    /// Takes up all of a queue, instead of what is known of it.
    pub fn absorb(&mut self, load: TableLoad) {
        let (queue_id, mut newest) = (load.queue_id, load.newest);
        let before = self.puts;
        // Their order is that of their offsets, and all of them come behind what was there.
        self.puts += u64::try_from(load.reached).unwrap_or(0);
        if !self.loaded.insert(queue_id) {
            self.rows.retain(|key, entry| entry.queue_id != queue_id || newest.get(key).is_some());
        }
        newest.for_each_value(|entry| entry.number += before + 1);
        self.rows.absorb(newest, |known, new| !known.is_superseded(new.queue_id, new.row.store_timestamp));
    }
}

/// The key of a message in a table: its whole KEYS text; `None` where that is blank.
fn table_key<'a>(record: &RecordView<'a>) -> Option<&'a str> {
    let of_text = || record.properties.iter().filter(|(name, _)| *name == KEYS).last().map(|(_, keys)| keys);
    let keys = record.keys().or_else(of_text)?;
    (!keys.chars().all(is_blank)).then_some(keys)
}

/// What Python's `str.isspace` says of one character.
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
        // A clock that was set back changes nothing within a queue.
        rows.put("a", 0, row(2, 50));
        assert_eq!(rows.keys(), ["b", "a"]);
        rows.put("a", 1, row(1, 50));
        assert_eq!(rows.get("a").map(|(queue_id, row)| (queue_id, row.queue_offset)), Some((1, 1)));
        rows.delete("b", 0, 0);
        assert_eq!((rows.len(), rows.is_empty(), rows.contains("b")), (1, false, false));
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
