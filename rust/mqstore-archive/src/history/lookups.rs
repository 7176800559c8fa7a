//! Look-ups by key, by id and by log offset.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_base::topic_floors::FloorTable;
use mqstore_engine::{RecordTest, ScanRequest};
use mqstore_format::delays::pending::is_system_topic;
use mqstore_format::ids::parse_offset_message_id;
use mqstore_format::properties::UNIQ_KEY;

use super::{History, has_times, messages, overlaps};
use crate::manifest::ArchivedFile;
use crate::reader::ArchiveReader;

/// Topics of records in which messages wait or waited. Such a record that only an archive has does not wait.
const WAITING: [&str; 3] = ["rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"];
const WAITED: u8 = 3;

/// Returns what a record of a topic is for a caller who knows only its unique id, the best first.
///
/// As in the look-up of the log: 0 the message that consumers get, 1 a dead letter or retry, 2 another record of the
/// system, 3 a record in which the message waits or waited.
pub fn standing(topic: &str) -> u8 {
    if WAITING.contains(&topic) {
        WAITED
    } else if is_system_topic(topic) {
        2
    } else {
        u8::from(topic.starts_with("%DLQ%") || topic.starts_with("%RETRY%"))
    }
}

/// What a look-up by key wants.
#[derive(Clone, Debug)]
pub struct LookupRequest<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The key or unique id.
    pub key: &'a str,
    /// First log offset, and end.
    pub log_range: Range<u64>,
    /// Smallest store time in epoch milliseconds, and its end.
    pub times_ms: (Option<i64>, Option<i64>),
    /// Whether the newest message comes first.
    pub newest_first: bool,
}

/// A look-up by key.
#[derive(Debug)]
pub struct Lookup {
    reader: Arc<ArchiveReader>,
    key: String,
    log_range: Range<u64>,
    newest_first: bool,
    test: RecordTest,
    files: VecDeque<Arc<ArchivedFile>>,
}

impl Lookup {
    /// Returns the messages of the next file, perhaps none; `None` at the end.
    ///
    /// # Errors
    /// The archive is damaged or does not answer.
    pub fn next_messages(&mut self) -> Result<Option<Vec<StoredRecord>>, StoreError> {
        let Some(file) = self.files.front() else { return Ok(None) };
        let mut found = Vec::new();
        for batch in self.reader.rows_with_key(file, &self.key)? {
            let (some, _) = messages(&self.reader, file, &batch, &self.test)?;
            found.extend(some.into_iter().filter(|one| self.log_range.contains(&one.commit_log_offset)));
        }
        found.sort_by_key(|one| one.commit_log_offset);
        if self.newest_first {
            found.reverse();
        }
        self.files.pop_front();
        Ok(Some(found))
    }
}

impl History {
    /// Starts to look up a key.
    ///
    /// # Errors
    /// The manifest cannot be read.
    pub fn lookup(&self, floors: &Arc<FloorTable>, wanted: &LookupRequest<'_>) -> Result<Lookup, StoreError> {
        let mut files = self.reader.files(wanted.topic)?;
        files.retain(|file| overlaps(file, &wanted.log_range) && has_times(file, wanted.times_ms));
        if wanted.newest_first {
            files.reverse();
        }
        let request = ScanRequest {
            topics: Some(vec![wanted.topic.to_owned()]),
            keys: vec![wanted.key.to_owned()],
            start_ms: wanted.times_ms.0,
            end_ms: wanted.times_ms.1,
            ..ScanRequest::default()
        };
        Ok(Lookup {
            reader: Arc::clone(&self.reader),
            key: wanted.key.to_owned(),
            log_range: wanted.log_range.clone(),
            newest_first: wanted.newest_first,
            test: RecordTest::new(&request, Arc::clone(floors)),
            files: files.into(),
        })
    }

    /// Returns the message with a message id or a unique id whose record is before log offset `end`.
    ///
    /// Of several with the unique id, it is the best by [`standing`]; a record in which a message waited is none.
    ///
    /// # Errors
    /// The archive is damaged or does not answer.
    pub fn by_id(
        &self,
        floors: &Arc<FloorTable>,
        id: &str,
        end: u64,
    ) -> Result<Option<StoredRecord>, StoreError> {
        let place = parse_offset_message_id(id).ok().and_then(|(_, offset)| u64::try_from(offset).ok());
        if let Some(offset) = place.filter(|offset| *offset < end)
            && let Some(found) = self.at(floors, offset)?
            && found.view().is_ok_and(|view| view.offset_message_id() == id.to_uppercase())
        {
            return Ok(Some(found));
        }
        let request = ScanRequest { keys: vec![id.to_owned()], ..ScanRequest::default() };
        let test = RecordTest::new(&request, Arc::clone(floors));
        let (mut best, mut least) = (None, WAITED);
        for file in self.reader.all_files()? {
            if file.start >= end || file.topic.as_deref().is_none_or(|topic| standing(topic) >= least) {
                continue;
            }
            for batch in self.reader.rows_with_key(&file, id)? {
                for found in messages(&self.reader, &file, &batch, &test)?.0 {
                    let Ok(view) = found.view() else { continue };
                    let is_of_id = view.properties.get(UNIQ_KEY) == Some(id) && found.commit_log_offset < end;
                    let rank = standing(view.topic);
                    if is_of_id && rank < least {
                        (best, least) = (Some(found.clone()), rank);
                    }
                }
            }
        }
        Ok(best)
    }

    /// Returns the message whose record starts at a log offset; `None` if there is none.
    ///
    /// # Errors
    /// The archive is damaged or does not answer.
    pub fn at(&self, floors: &Arc<FloorTable>, log_offset: u64) -> Result<Option<StoredRecord>, StoreError> {
        let test = RecordTest::new(&ScanRequest::default(), Arc::clone(floors));
        for file in self.reader.all_files()? {
            if !(file.start..file.end).contains(&log_offset) {
                continue;
            }
            if let Some(row) = self.reader.row_at(&file, log_offset)? {
                return Ok(messages(&self.reader, &file, &row, &test)?.0.into_iter().next());
            }
        }
        Ok(None)
    }
}
