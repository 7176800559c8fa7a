//! Loading a queue as a table: of every key the newest message, read from the queue's beginning.
//!
//! Owns nothing on disk. The rules are those of a table's own reader (`python/mqstore/_table.py`): the key is
//! the whole KEYS text, blank ones are passed over, and a message without a body deletes its key. What is in
//! memory grows with the keys and not with the messages: of a key one row, and of its message the places
//! alone, unless messages are kept. One thread at a time; several queues are loaded side by side.

use std::collections::HashMap;
use std::path::PathBuf;

use mqstore_format::RecordView;
use mqstore_format::properties::KEYS;

use super::Store;
use super::cursor::QueueCursor;
use crate::error::StoreError;
use crate::message::StoredRecord;

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
    newest: HashMap<String, TableRow>,
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
        Ok(TableLoad { cursor, log, keeps_messages, newest: HashMap::new(), reached: 0 })
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
                self.newest.remove(key);
                continue;
            }
            let (queue_offset, store_timestamp) = (record.queue_offset, view.store_timestamp);
            let known = self.newest.get_mut(key);
            let row = |record| TableRow { queue_offset, store_timestamp, record };
            match known {
                Some(known) => *known = row(self.keeps_messages.then_some(record)),
                None => {
                    let key = key.to_owned();
                    self.newest.insert(key, row(self.keeps_messages.then_some(record)));
                }
            }
        }
        Ok(goes_on)
    }

    /// One past the last offset that was read; 0 before the first.
    pub fn reached(&self) -> i64 {
        self.reached
    }

    /// What was loaded, in the order of the messages.
    pub fn into_rows(self) -> Vec<(String, TableRow)> {
        let mut rows: Vec<_> = self.newest.into_iter().collect();
        rows.sort_unstable_by_key(|(_, row)| row.queue_offset);
        rows
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
