//! Look-ups by key, in the log and before it.
//!
//! The records come in the order of the log, or against it. If retention deletes records of the log that were not returned
//! yet, they come from before the log, at their place.

use std::collections::VecDeque;
use std::ops::Range;

use mqstore_format::RecordView;
use mqstore_format::properties::{KEYS, UNIQ_KEY};

use super::cursor::{MOST_UNITS, NextRecord, next_record, skip_damage};
use super::older::{OlderLookup, OlderReads};
use super::view::StoreView;
use mqstore_base::error::StoreError;
use mqstore_base::message::{RecordBytes, StoredRecord};
use mqstore_log::commit_log::{LogScanner, RecordReader};

/// The records that have a key, oldest first by default.
pub struct LookupCursor {
    log: LogLookup,
    /// Records of the log that were read and not returned.
    ready: VecDeque<StoredRecord>,
    /// Number of records that it may still return.
    remaining: usize,
    newest_first: bool,
    /// The records before the log that come next.
    older: Option<OlderPart>,
    /// All records before this log offset were looked up, or come at the end if the newest ones are first.
    log_start: u64,
    /// Whether the log has no more records.
    is_log_over: bool,
    /// The log offset of the last record that was returned.
    last: Option<u64>,
}

/// Records before the log.
enum OlderPart {
    Due(Range<u64>),
    Begun(Box<dyn OlderReads>, VecDeque<StoredRecord>),
}

impl LookupCursor {
    pub(super) fn new(log: LogLookup, limit: usize) -> Self {
        let log_start = log.view.list().min_offset();
        let older = log.view.continues().then_some(OlderPart::Due(0..log_start));
        let (ready, is_log_over) = (VecDeque::new(), false);
        Self { log, ready, remaining: limit, newest_first: false, older, log_start, is_log_over, last: None }
    }

    /// Returns the newest record first; call this before the first batch. The part of the log that the index does not
    /// cover is then searched first, with 8 bytes of memory for each hit.
    #[must_use]
    pub fn newest_first(mut self) -> Self {
        self.log.to_turn = true;
        Self { newest_first: true, older: None, ..self }
    }

    /// Returns up to `max` records; an empty result is the end.
    pub fn next_batch(&mut self, max: usize) -> Result<Vec<StoredRecord>, StoreError> {
        self.log.view.check()?;
        let max = max.min(self.remaining);
        let mut found = Vec::new();
        while max > 0 && found.is_empty() {
            if self.older.is_some() {
                found = self.next_older(max)?;
            } else if !self.ready.is_empty() {
                found = self.ready.drain(..max.min(self.ready.len())).collect();
            } else if self.is_log_over {
                break;
            } else {
                self.read_log(max)?;
            }
        }
        self.remaining -= found.len();
        self.last = found.last().map_or(self.last, |record| Some(record.commit_log_offset));
        Ok(found)
    }

    /// Reads the next records of the log.
    fn read_log(&mut self, max: usize) -> Result<(), StoreError> {
        self.ready = self.log.next_batch(max)?.into();
        self.is_log_over = self.ready.is_empty();
        if !self.log.view.continues() {
            return Ok(());
        }
        self.log.view.catch_up()?;
        // Later records are appended after the begin of the look-up.
        let log_start = self.log.view.list().min_offset().min(self.log.limit);
        if self.newest_first {
            // A deleted record can still be in memory, unlike a newer one that was deleted with it.
            self.ready.retain(|record| record.commit_log_offset >= log_start);
            if self.ready.is_empty() {
                self.is_log_over = true;
                self.older = Some(OlderPart::Due(0..self.last.unwrap_or(u64::MAX).min(log_start)));
            }
            return Ok(());
        }
        if log_start > self.log_start {
            // The log leaves out some of the records that were deleted meanwhile.
            let from = self.last.map_or(self.log_start, |last| self.log_start.max(last.saturating_add(1)));
            self.older = Some(OlderPart::Due(from..log_start));
            self.log_start = log_start;
        }
        self.ready.retain(|record| record.commit_log_offset >= self.log_start);
        Ok(())
    }

    /// Returns the next records before the log; none at their end.
    fn next_older(&mut self, max: usize) -> Result<Vec<StoredRecord>, StoreError> {
        loop {
            match &mut self.older {
                None => return Ok(Vec::new()),
                Some(OlderPart::Due(range)) => {
                    let range = range.clone();
                    let begun = self.begin_older(range)?;
                    self.older = begun.map(|reads| OlderPart::Begun(reads, VecDeque::new()));
                }
                Some(OlderPart::Begun(_, ready)) if !ready.is_empty() => {
                    return Ok(ready.drain(..max.min(ready.len())).collect());
                }
                Some(OlderPart::Begun(reads, ready)) => match reads.next_messages()? {
                    Some(batch) => ready.extend(batch.records),
                    None => self.older = None,
                },
            }
        }
    }

    /// Starts to look in a range of log offsets before the log; `None` if nothing can be there.
    fn begin_older(&self, log_range: Range<u64>) -> Result<Option<Box<dyn OlderReads>>, StoreError> {
        let wanted = &self.log.wanted;
        if log_range.is_empty() {
            return Ok(None);
        }
        let Some(older) = self.log.view.older_of(&wanted.topic)? else { return Ok(None) };
        let start = (wanted.start_ms > i64::MIN).then_some(wanted.start_ms);
        let end = wanted.end_ms.checked_add(1);
        let (topic, key, newest_first) = (wanted.topic.as_str(), wanted.key.as_str(), self.newest_first);
        let request = OlderLookup { topic, key, log_range, times_ms: (start, end), newest_first };
        older.messages.lookup(&older.floors, &request).map(Some)
    }
}

/// The records of the log that have a key, oldest first by default.
pub(super) struct LogLookup {
    pub(super) view: StoreView,
    pub(super) wanted: KeyQuery,
    pub(super) reader: RecordReader,
    pub(super) offsets: VecDeque<u64>,
    /// Number of `offsets` that the system was already asked to fetch.
    pub(super) expected: usize,
    pub(super) scanner: Option<LogScanner>,
    /// The end of the scan.
    pub(super) limit: u64,
    /// Whether the newest record must come first and `offsets` is still in ascending order.
    pub(super) to_turn: bool,
}

impl LogLookup {
    /// Returns up to `max` records; an empty result is the end.
    fn next_batch(&mut self, max: usize) -> Result<Vec<StoredRecord>, StoreError> {
        self.wanted.floor = self.view.floors().log_offset(&self.wanted.topic);
        let mut records = Vec::new();
        while records.len() < max {
            let Some((offset, bytes)) = self.next_candidate()? else { break };
            let view = RecordView::decode(bytes.as_slice())
                .map_err(|error| StoreError::format(&self.view.files().commit_log(), offset, &error))?;
            if self.wanted.matches(&view, offset) {
                let queue_offset = view.queue_offset;
                records.push(StoredRecord::decoded(bytes, offset, queue_offset));
            }
        }
        if records.is_empty() {
            self.reader.release();
        }
        Ok(records)
    }

    fn next_candidate(&mut self) -> Result<Option<(u64, RecordBytes)>, StoreError> {
        if self.to_turn {
            self.search_ahead()?;
            self.offsets.make_contiguous().reverse();
            self.to_turn = false;
        }
        while let Some(offset) = self.offsets.front().copied() {
            if self.expected == 0 {
                self.expected = self.offsets.len().min(MOST_UNITS);
                self.reader.prefetch(self.offsets.iter().take(self.expected).map(|offset| (*offset, 0)));
            }
            self.expected -= 1;
            self.offsets.pop_front();
            match self.reader.record_at(self.view.files(), offset) {
                Ok(bytes) => return Ok(Some((offset, bytes))),
                // The entry can be stale or damaged: the record may be truncated or expired.
                Err(StoreError::Corrupt { .. }) => {}
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        let Some(scanner) = &mut self.scanner else { return Ok(None) };
        loop {
            match next_record(&*self.view, scanner, self.limit, |record, at| self.wanted.matches(record, at))?
            {
                NextRecord::Record(offset, bytes) => return Ok(Some((offset, bytes))),
                NextRecord::Deleted(_) => {}
                NextRecord::Damaged(damage) => drop(skip_damage(scanner, &damage)?),
                NextRecord::End => return Ok(None),
            }
        }
    }

    /// Finds the records that the index does not cover.
    fn search_ahead(&mut self) -> Result<(), StoreError> {
        let Some(mut scanner) = self.scanner.take() else { return Ok(()) };
        loop {
            let wanted = |record: &RecordView<'_>, at: u64| self.wanted.matches(record, at);
            match next_record(&*self.view, &mut scanner, self.limit, wanted) {
                Ok(NextRecord::Record(offset, _)) => self.offsets.push_back(offset),
                Ok(NextRecord::Deleted(_)) => {}
                Ok(NextRecord::Damaged(damage)) => drop(skip_damage(&mut scanner, &damage)?),
                Ok(NextRecord::End) => return Ok(()),
                Err(error) => {
                    // No record was returned yet; the next call continues.
                    self.scanner = Some(scanner);
                    return Err(error);
                }
            }
        }
    }
}

/// The conditions of a look-up on a record.
#[derive(Clone, Debug)]
pub(super) struct KeyQuery {
    pub(super) topic: String,
    pub(super) key: String,
    /// Log offset before which the records of the topic were deleted.
    pub(super) floor: u64,
    pub(super) start_ms: i64,
    pub(super) end_ms: i64,
}

impl KeyQuery {
    fn matches(&self, record: &RecordView<'_>, offset: u64) -> bool {
        record.topic == self.topic
            && offset >= self.floor
            && record.indexed()
            && has_key(record, &self.key)
            && (self.start_ms..=self.end_ms).contains(&record.store_timestamp)
    }
}

/// Whether a record has `key` among its keys or as its unique key.
pub(crate) fn has_key(record: &RecordView<'_>, key: &str) -> bool {
    let [own, keys] = record.properties.get_many([UNIQ_KEY, KEYS]);
    own == Some(key) || keys.is_some_and(|keys| keys.split(' ').any(|own| own == key))
}
