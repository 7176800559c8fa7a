//! Look-ups by key, by id and by log offset.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_base::topic_floors::FloorTable;
use mqstore_engine::{OlderBatch, OlderLookup, OlderReads, RecordRank, RecordTest, ScanRequest};
use mqstore_format::ids::parse_offset_message_id;
use mqstore_format::properties::UNIQ_KEY;

use super::{History, has_times, messages, overlaps};
use crate::manifest::ArchivedFile;
use crate::reader::ArchiveReader;

/// A look-up by key.
#[derive(Debug)]
pub(super) struct Lookup {
    reader: Arc<ArchiveReader>,
    key: String,
    log_range: Range<u64>,
    newest_first: bool,
    test: RecordTest,
    files: VecDeque<Arc<ArchivedFile>>,
}

impl OlderReads for Lookup {
    /// Returns the messages of the next file.
    fn next_messages(&mut self) -> Result<Option<OlderBatch>, StoreError> {
        let Some(file) = self.files.front() else { return Ok(None) };
        let mut found = Vec::new();
        for batch in self.reader.rows_with_key(file, &self.key)? {
            let some = messages(&self.reader, file, &batch, &self.test)?.records;
            found.extend(some.into_iter().filter(|one| self.log_range.contains(&one.commit_log_offset)));
        }
        found.sort_by_key(|one| one.commit_log_offset);
        if self.newest_first {
            found.reverse();
        }
        self.files.pop_front();
        Ok(Some(OlderBatch { records: found, next: 0 }))
    }

    fn take_warnings(&mut self) -> Vec<String> {
        Vec::new()
    }
}

impl History {
    /// Starts to look up a key.
    ///
    /// # Errors
    /// The manifest cannot be read.
    pub(super) fn look_up(
        &self,
        floors: &Arc<FloorTable>,
        wanted: &OlderLookup<'_>,
    ) -> Result<Lookup, StoreError> {
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
    /// Of several with the unique id, it is the best by [`RecordRank`]; a record in which a message waited is none.
    ///
    /// # Errors
    /// The archive is damaged or does not answer.
    pub(super) fn with_id(
        &self,
        floors: &Arc<FloorTable>,
        id: &str,
        end: u64,
    ) -> Result<Option<StoredRecord>, StoreError> {
        let place = parse_offset_message_id(id).ok().and_then(|(_, offset)| u64::try_from(offset).ok());
        if let Some(offset) = place.filter(|offset| *offset < end)
            && let Some(found) = self.record_at(floors, offset)?
            && found.view().is_ok_and(|view| view.offset_message_id() == id.to_uppercase())
        {
            return Ok(Some(found));
        }
        let request = ScanRequest { keys: vec![id.to_owned()], ..ScanRequest::default() };
        let test = RecordTest::new(&request, Arc::clone(floors));
        let (mut best, mut least) = (None, RecordRank::Waiting);
        for file in self.reader.all_files()? {
            if file.start >= end || file.topic.as_deref().is_none_or(|topic| RecordRank::of(topic) >= least) {
                continue;
            }
            for batch in self.reader.rows_with_key(&file, id)? {
                for found in messages(&self.reader, &file, &batch, &test)?.records {
                    let Ok(view) = found.view() else { continue };
                    let is_of_id = view.properties.get(UNIQ_KEY) == Some(id) && found.commit_log_offset < end;
                    let rank = RecordRank::of(view.topic);
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
    pub(super) fn record_at(
        &self,
        floors: &Arc<FloorTable>,
        log_offset: u64,
    ) -> Result<Option<StoredRecord>, StoreError> {
        let test = RecordTest::new(&ScanRequest::default(), Arc::clone(floors));
        for file in self.reader.all_files()? {
            if !(file.start..file.end).contains(&log_offset) {
                continue;
            }
            if let Some(row) = self.reader.row_at(&file, log_offset)? {
                return Ok(messages(&self.reader, &file, &row, &test)?.records.into_iter().next());
            }
        }
        Ok(None)
    }
}
