//! Cursors: over a queue, over the log, and over the results of a look-up by key.
//!
//! A cursor keeps the store's view alive and reads in batches, so that a binding can return many records for one call.
//! Each record is checked against the unit that points to it. If they disagree, the queue is derived from the log
//! again. If the record itself is damaged, the cursor alone decides: it ends with the error, or it skips the record,
//! counts it and leaves a note (`DamagePolicy`).

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

use mqstore_format::topic::LIGHT_QUEUE_PREFIX;
use mqstore_format::{CqUnit, RecordView};
use mqstore_io::MappedFileGuard;

use super::floor_watch::{FloorChange, FloorWatch};
use super::older::{OlderRead, OlderReads};
use super::view::{StoreView, View};
use mqstore_base::error::StoreError;
use mqstore_base::message::{MessageFilter, RecordBytes, StoredRecord};
use mqstore_base::options::DamagePolicy;
use mqstore_base::topic_floors::FloorTable;
use mqstore_compaction::{CompactedQueue, CompactedRecords};
use mqstore_log::commit_log::{Damage, LogScanner, RecordReader, ScanChecks, ScanItem, Segment};

/// Number of units that one step reads, at first and at most: a read of one message does not pay for hundreds.
const FIRST_UNITS: usize = 32;
pub(super) const MOST_UNITS: usize = 512;

/// Reads of older messages that do not match in one step of a cursor, if its caller has other work.
const OLDER_READS: usize = 4;

/// Some of the records that a cursor found.
pub struct RecordBatch {
    /// The records. An empty list can also mean that no record of this step matched.
    pub records: Vec<StoredRecord>,
    /// Whether the cursor is at its end.
    pub ended: bool,
}

/// The records of one queue in ascending order of their offsets.
pub struct QueueCursor {
    view: StoreView,
    topic: String,
    queue_id: i32,
    next: i64,
    end: i64,
    filter: Option<MessageFilter>,
    reader: RecordReader,
    units: Vec<(i64, CqUnit)>,
    used: usize,
    /// Number of units that the next step reads, and at most.
    at_once: usize,
    most_units: usize,
    /// Compacted records and the offset after them; they come before the records of the queue itself.
    compacted: Option<(CompactedRecords, i64)>,
    /// An error of the compacted records that the next call returns.
    failed: Option<StoreError>,
    /// Whether the caller gave no end.
    to_newest: bool,
    on_damage: DamagePolicy,
    /// Whether the caller can choose another behaviour, so that an error recommends it.
    has_choice: bool,
    /// Receives each skipped record in addition to the view.
    report: Option<DamageReport>,
    /// Whether offsets can be missing because a compaction dropped their messages.
    sparse: bool,
    /// The floors that the units respect.
    floors: FloorWatch,
    older: OlderPart,
}

/// The part of a queue that a cursor reads from before the log.
enum OlderPart {
    /// No message before the log is wanted, as far as is known.
    None,
    /// The next messages are before the log, which has the queue from this offset on.
    Due(i64),
    Begun(OlderCursor),
}

struct OlderCursor {
    reads: Box<dyn OlderReads>,
    /// Messages that were read and not returned.
    ready: VecDeque<StoredRecord>,
    /// The queue offset after the messages that were read.
    after: i64,
    /// The offset at which the part ends.
    end: i64,
}

impl QueueCursor {
    pub(crate) fn new(
        view: StoreView,
        topic: &str,
        queue_id: i32,
        range: (i64, i64),
        filter: Option<MessageFilter>,
        limit: u64,
    ) -> Self {
        let reader = RecordReader::new(view.log(), view.list(), limit);
        let (next, end) = range;
        let on_damage = view.damage_policy();
        let floors = FloorWatch::new(&*view);
        Self {
            view,
            topic: topic.to_owned(),
            queue_id,
            next,
            end,
            filter,
            reader,
            units: Vec::new(),
            used: 0,
            at_once: FIRST_UNITS,
            most_units: MOST_UNITS,
            compacted: None,
            failed: None,
            to_newest: false,
            on_damage,
            has_choice: false,
            report: None,
            sparse: false,
            floors,
            older: OlderPart::None,
        }
    }

    /// Begins before the log, which has the queue from offset `min` on.
    pub(super) fn before_log(self, min: i64) -> Self {
        Self { older: OlderPart::Due(min), ..self }
    }

    /// Whether the next messages are from before the log. After an error, the next call tries again.
    pub fn is_before_log(&self) -> bool {
        !matches!(self.older, OlderPart::None)
    }

    /// Returns the cursor with the behaviour at damaged records that its user chose.
    #[must_use]
    pub fn on_damage(self, policy: DamagePolicy) -> Self {
        Self { on_damage: policy, has_choice: true, ..self }
    }

    /// Returns the cursor so that damaged records end it, for verbs without a choice.
    pub(crate) fn raising(self) -> Self {
        Self { on_damage: DamagePolicy::Raise, ..self }
    }

    /// Adds the advice how to skip the object, if the caller has a choice.
    fn advised(&self, error: StoreError, object: &str) -> StoreError {
        if self.has_choice { error.with_skip_advice(object) } else { error }
    }

    /// Also passes a text for each skipped record to `report`.
    pub(crate) fn reporting(self, report: DamageReport) -> Self {
        Self { report: Some(report), ..self }
    }

    /// Returns the minimum offset of the next record.
    pub fn position(&self) -> i64 {
        self.next
    }

    /// Returns the topic that the cursor reads.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Returns the queue that the cursor reads.
    pub(super) fn queue_id(&self) -> i32 {
        self.queue_id
    }

    /// Whether the cursor began with compacted records. Their log offsets are positions in other files than the log.
    pub(crate) fn has_compacted(&self) -> bool {
        self.sparse
    }

    /// Keeps at most about `most` units in memory.
    pub(super) fn with_units(self, most: usize) -> Self {
        Self { most_units: most.clamp(FIRST_UNITS, MOST_UNITS), ..self }
    }

    /// Exchanges the reader of the log, so that cursors that take turns share one.
    pub(super) fn exchange_reader(&mut self, reader: &mut RecordReader) {
        std::mem::swap(&mut self.reader, reader);
    }

    /// Releases the segment at the cursor's position, so that it can be deleted. Call this if the cursor may be unused
    /// for a long time.
    pub fn rest(&mut self) {
        self.reader.release();
    }

    /// Whether all remaining records are in the last `bytes` of the log. They are new then, and quick to read.
    pub fn is_near_end(&mut self, bytes: u64) -> Result<bool, StoreError> {
        if self.compacted.is_some() || self.is_before_log() || self.view.log().is_none() {
            return Ok(false);
        }
        let end = self.view.list().end_offset().min(self.reader.limit());
        let first = self.next_unit()?.and_then(|(_, unit)| place(&unit));
        if self.is_before_log() {
            return Ok(false);
        }
        Ok(first.is_none_or(|(offset, _)| end.saturating_sub(offset) <= bytes))
    }

    /// Uses the compacted records below their end instead of the queue's own units. With `to_newest`, a compaction that
    /// is published meanwhile is read to its end: it may have dropped a message for a newer one after the end of this
    /// read.
    pub(crate) fn with_compacted(mut self, compacted: &CompactedQueue, to_newest: bool) -> Self {
        if self.next < compacted.max_offset() {
            self.compacted = Some((compacted.read(self.next), compacted.max_offset()));
            self.to_newest = to_newest;
            self.sparse = true;
        }
        self
    }

    /// Returns the next compacted record, which may not match the filter.
    fn next_compacted(&mut self) -> Result<Option<StoredRecord>, StoreError> {
        while let Some((records, end)) = &mut self.compacted {
            let end = *end;
            match records.next().transpose() {
                Ok(Some(record)) if record.queue_offset < end.min(self.end) => {
                    self.next = record.queue_offset + 1;
                    return Ok(Some(record));
                }
                Ok(_) => {}
                Err(error) => {
                    let resumes = self.on_damage == DamagePolicy::Skip && records.skip_damaged();
                    let offset = records.next_offset();
                    let queue = format!("{}/{}", self.topic, self.queue_id);
                    let object =
                        format!("the compacted message at or after offset {offset} of queue {queue}");
                    if !resumes {
                        return Err(self.advised(error, &object));
                    }
                    self.tell_skipped(format!("{error}; skipped {object}"));
                    continue;
                }
            }
            self.next = self.next.max(end);
            let read = self.compacted.take().map(|(records, _)| records);
            self.compacted = self.newer_generation(read.as_ref(), end)?;
        }
        Ok(None)
    }

    /// Returns the compacted records after `end` that were published since this read began.
    fn newer_generation(
        &mut self,
        read: Option<&CompactedRecords>,
        end: i64,
    ) -> Result<Option<(CompactedRecords, i64)>, StoreError> {
        if !self.to_newest {
            return Ok(None);
        }
        let Some(compacted) = CompactedQueue::open(self.view.files(), &self.topic, self.queue_id)? else {
            return Ok(None);
        };
        // Messages that were only appended to the files are in the live log, too.
        if read.is_some_and(|read| compacted.continues(read)) {
            return Ok(None);
        }
        let newer = compacted.max_offset();
        self.end = self.end.max(newer);
        Ok((newer > end).then(|| (compacted.read(self.next), newer)))
    }

    /// Returns up to `max` records; an empty result is the end.
    pub fn next_batch(&mut self, max: usize) -> Result<Vec<StoredRecord>, StoreError> {
        Ok(self.next_of(max, usize::MAX)?.records)
    }

    /// Like [`next_batch`](Self::next_batch), but reads at most `looks` records. A filter can skip any number of
    /// records, and the caller may have other work meanwhile.
    pub fn next_of(&mut self, max: usize, looks: usize) -> Result<RecordBatch, StoreError> {
        self.view.check()?;
        if let Some(change) = self.floors.follow(&*self.view)? {
            self.follow_floors(&change)?;
        }
        let mut records = Vec::new();
        let (mut ended, mut looks) = (false, looks);
        while records.len() < max && looks > 0 {
            let record = match self.failed.take().map_or_else(|| self.next_compacted(), Err) {
                Ok(Some(record)) => record,
                Ok(None) => break,
                Err(error) if records.is_empty() => return Err(error),
                Err(error) => {
                    // Return the records read so far; the next call returns the error.
                    self.failed = Some(error);
                    return Ok(RecordBatch { records, ended });
                }
            };
            looks -= 1;
            let matches = |filter: &MessageFilter| record.view().is_ok_and(|view| filter.matches(&view));
            if self.filter.as_ref().is_none_or(matches) {
                records.push(record);
            }
        }
        let reads = if looks == usize::MAX { usize::MAX } else { OLDER_READS };
        while records.len() < max && looks > 0 {
            if self.is_before_log() {
                match self.read_older(max - records.len(), reads) {
                    Ok(found) => records.extend(found),
                    Err(error) if records.is_empty() => return Err(error),
                    // The next call meets the error again.
                    Err(_) => break,
                }
                if self.is_before_log() {
                    // A caller that wants one message should not wait for more requests.
                    break;
                }
                continue;
            }
            let (queue_offset, unit) = match self.next_unit() {
                Ok(Some(unit)) => unit,
                Ok(None) if self.is_before_log() => continue,
                Ok(None) => {
                    ended = true;
                    break;
                }
                // Return the records read so far; the next call meets the error again.
                Err(_) if !records.is_empty() => break,
                Err(error) => return Err(error),
            };
            let wanted = self.filter.as_ref().is_none_or(|filter| filter.may_match_code(unit.tags_code));
            if !wanted {
                self.advance(queue_offset);
                continue;
            }
            looks -= 1;
            match self.load(queue_offset, unit) {
                Ok((record, messages)) => {
                    self.advance(queue_offset + messages - 1);
                    records.extend(record);
                }
                Err(_) if !records.is_empty() => break,
                Err(error) => {
                    self.check_not_expired()?;
                    self.check_not_deleted()?;
                    if self.is_before_log() {
                        continue;
                    }
                    if let Err(error) = self.distrust(error) {
                        self.skip_damaged(queue_offset, error)?;
                    }
                }
            }
        }
        if ended && records.is_empty() {
            // A cursor that waits for more records must not block the removal of a segment.
            self.reader.release();
        }
        Ok(RecordBatch { records, ended })
    }

    /// Returns up to `max` messages from before the log, after at most `most_reads` reads without one.
    fn read_older(&mut self, max: usize, most_reads: usize) -> Result<Vec<StoredRecord>, StoreError> {
        if let OlderPart::Due(min) = self.older {
            self.begin_older(min)?;
        }
        let mut left = most_reads;
        while let OlderPart::Begun(part) = &mut self.older {
            if !part.ready.is_empty() || left == 0 {
                let found: Vec<StoredRecord> = part.ready.drain(..max.min(part.ready.len())).collect();
                self.next = part.ready.front().map_or(part.after.min(part.end), |next| next.queue_offset);
                if part.ready.is_empty() && part.after >= part.end {
                    self.older = OlderPart::None;
                }
                return Ok(found);
            }
            left -= 1;
            let read = part.reads.next_messages();
            let warnings = part.reads.take_warnings();
            match read? {
                Some(batch) => {
                    part.after = part.after.max(batch.next);
                    part.ready = batch.records.into();
                }
                // The rest of the part has no messages.
                None => part.after = part.end,
            }
            if part.ready.is_empty() && part.after >= part.end {
                self.next = self.next.max(part.end);
                self.older = OlderPart::None;
            }
            for text in warnings {
                self.view.note(text);
            }
        }
        Ok(Vec::new())
    }

    /// Begins to read what is before the log, which has the queue from offset `min` on.
    fn begin_older(&mut self, min: i64) -> Result<(), StoreError> {
        let Some(older) = self.view.older_of(&self.topic)? else { return Err(self.out_of_range(min)) };
        let oldest = older.first_offset(&self.topic, self.queue_id, min)?;
        if self.next < oldest {
            return Err(self.out_of_range(oldest));
        }
        let end = min.min(self.end);
        if self.next >= end {
            self.older = OlderPart::None;
            return Ok(());
        }
        let wanted = OlderRead {
            topic: &self.topic,
            queue_id: self.queue_id,
            range: (self.next, end),
            log_start: older.log_start,
            filter: self.filter.as_ref(),
            on_damage: self.on_damage,
        };
        let reads = older.messages.read(&older.floors, &wanted)?;
        self.older = OlderPart::Begun(OlderCursor { reads, ready: VecDeque::new(), after: self.next, end });
        Ok(())
    }

    /// Returns the error for the position of this cursor, if the queue begins at offset `min_offset`.
    fn out_of_range(&self, min_offset: i64) -> StoreError {
        let bounds = self.view.bounds(&self.topic, self.queue_id);
        StoreError::OffsetOutOfRange {
            topic: self.topic.clone(),
            queue_id: self.queue_id,
            offset: self.next,
            min_offset,
            max_offset: bounds.ok().flatten().map_or(self.end, |(_, max)| max),
        }
    }

    /// Forgets what was read ahead, and returns an error if the position of this cursor is hidden now.
    fn follow_floors(&mut self, change: &FloorChange) -> Result<(), StoreError> {
        self.units.clear();
        self.used = 0;
        self.older = OlderPart::None;
        if self.next >= self.end {
            return Ok(());
        }
        self.check_not_deleted()?;
        // Compacted records of the old topic are not in the files of the new one.
        self.sparse &= !change.deletes(&self.topic);
        self.check_not_expired()
    }

    /// Returns the error for the message at `offset`, which was read from the queue itself and is hidden now.
    pub(super) fn check_hidden(&mut self, offset: i64) -> Result<(), StoreError> {
        self.next = offset;
        self.sparse = false;
        self.check_not_deleted()?;
        self.check_not_expired()
    }

    /// Skips a record that cannot be read, or returns the error with the advice how to skip it.
    fn skip_damaged(&mut self, queue_offset: i64, error: StoreError) -> Result<(), StoreError> {
        let message = format!("message {queue_offset} of queue {}/{}", self.topic, self.queue_id);
        if !error.is_damage() || self.on_damage == DamagePolicy::Raise {
            return Err(self.advised(error, &message));
        }
        self.tell_skipped(format!("{error}; skipped {message}"));
        self.advance(queue_offset);
        Ok(())
    }

    fn tell_skipped(&self, text: String) {
        if let Some(report) = &self.report {
            report(text.clone());
        }
        self.view.count_skipped(text);
    }

    /// If the log no longer has the position of this cursor, lets the next read continue before the log, or returns an
    /// error.
    fn check_not_expired(&mut self) -> Result<(), StoreError> {
        self.view.catch_up()?;
        let Some((min_offset, _)) = self.view.bounds(&self.topic, self.queue_id)? else {
            return Ok(());
        };
        if self.sparse || self.next >= min_offset {
            return Ok(());
        }
        if !self.view.continues() {
            return Err(self.out_of_range(min_offset));
        }
        self.units.clear();
        self.used = 0;
        self.older = OlderPart::Due(min_offset);
        Ok(())
    }

    /// Returns an error if the topic was deleted. A reclaim may have removed its records since.
    fn check_not_deleted(&self) -> Result<(), StoreError> {
        if self.view.queue_ids(&self.topic)?.is_empty() {
            return Err(StoreError::TopicNotFound { topic: self.topic.clone(), queue_id: None });
        }
        Ok(())
    }

    fn next_unit(&mut self) -> Result<Option<(i64, CqUnit)>, StoreError> {
        if self.used >= self.units.len() {
            self.units.clear();
            self.used = 0;
            if self.next >= self.end {
                return Ok(None);
            }
            let left = usize::try_from(self.end - self.next).unwrap_or(MOST_UNITS);
            let wanted = self.at_once.min(left);
            self.at_once = (2 * self.at_once).min(self.most_units);
            match self.view.units(&self.topic, self.queue_id, self.next, wanted, &mut self.units) {
                Err(error) if error.is_gone() => {
                    self.check_not_expired()?;
                    return if self.is_before_log() { Ok(None) } else { Err(error) };
                }
                fetched => fetched?,
            }
            self.prefetch_records();
            if self.units.first().is_none_or(|(offset, _)| *offset > self.next) {
                if let Err(error) = self.check_not_expired() {
                    // The next call meets the error again.
                    self.units.clear();
                    return Err(error);
                }
                if self.is_before_log() {
                    return Ok(None);
                }
            }
        }
        Ok(self.units.get(self.used).copied().filter(|(offset, _)| *offset < self.end))
    }

    /// Asks the system to fetch the records of the units.
    fn prefetch_records(&mut self) {
        let Some((_, first)) = self.units.first() else { return };
        if self.units.len() == 1 || !self.reader.may_be_cold(first.physical_offset.max(0) as u64) {
            return;
        }
        let filter = self.filter.as_ref();
        let wanted = |unit: &&CqUnit| filter.is_none_or(|filter| filter.may_match_code(unit.tags_code));
        let units = self.units.iter().map(|(_, unit)| unit);
        self.reader.prefetch(units.filter(wanted).filter_map(place));
    }

    fn advance(&mut self, queue_offset: i64) {
        self.used += 1;
        self.next = queue_offset.saturating_add(1);
    }

    /// Returns the record of a unit, or `None` if it does not match, and the number of offsets that it takes.
    fn load(&mut self, queue_offset: i64, unit: CqUnit) -> Result<(Option<StoredRecord>, i64), StoreError> {
        let bad = |reason: String| {
            let files = self.view.files();
            let folder = files.consume_queue().join(&self.topic).join(self.queue_id.to_string());
            let offset = (queue_offset.max(0) as u64).saturating_mul(20);
            let (path, offset) = files.vfs.real_place(&folder, offset);
            StoreError::corrupt(&path, offset, reason)
        };
        let offset = u64::try_from(unit.physical_offset).map_err(|_| bad("a negative log offset".into()))?;
        let size = u32::try_from(unit.size).map_err(|_| bad("a negative record size".into()))?;
        let files = self.view.files();
        let bytes = match size {
            // A unit for a record that is lost.
            0 => self.reader.record_at(files, offset)?,
            size => self.reader.record(files, offset, size)?,
        };
        let view = RecordView::decode(bytes.as_slice()).map_err(|error| bad(error.to_string()))?;
        if !belongs(&view, &self.topic, self.queue_id, queue_offset) {
            let kind = if view.is_placeholder() { "a placeholder" } else { "the record" };
            return Err(bad(format!(
                "the unit for offset {queue_offset} points to {kind} of queue {}/{} offset {}",
                view.topic, view.queue_id, view.queue_offset
            )));
        }
        let matches = !is_hidden(&*self.view, &view, &self.topic, offset)
            && self.filter.as_ref().is_none_or(|filter| filter.matches(&view));
        let batch = if view.sys_flag.inner_batch() { view.inner_batch() } else { None };
        let messages = batch.map_or(1, |(_, messages)| i64::from(messages.max(1)));
        Ok((matches.then(|| StoredRecord::decoded(bytes, offset, queue_offset)), messages))
    }

    fn distrust(&mut self, error: StoreError) -> Result<(), StoreError> {
        if !matches!(error, StoreError::Corrupt { .. }) {
            return Err(error);
        }
        if !self.view.distrust(&self.topic, self.queue_id, &error.to_string())? {
            return Err(error);
        }
        self.units.clear();
        self.used = 0;
        Ok(())
    }
}

/// Returns log offset and size of the record of a unit, if they are valid numbers.
pub(crate) fn place(unit: &CqUnit) -> Option<(u64, u32)> {
    u64::try_from(unit.physical_offset).ok().zip(u32::try_from(unit.size).ok())
}

/// Whether a unit of that queue may point to this record. Units of light queues point to records that name the queue in
/// a property; units of batch queues use the offset in another property. A placeholder has the place of the hidden
/// record that it replaced, but no unit of a current queue points to it: such a unit was read before the reclaim.
pub(crate) fn belongs(record: &RecordView<'_>, topic: &str, queue_id: i32, queue_offset: i64) -> bool {
    if record.is_placeholder() {
        return false;
    }
    if record.topic == topic {
        let is_first = || record.inner_batch().is_some_and(|(base, _)| base == queue_offset);
        return record.queue_id == queue_id
            && (record.queue_offset == queue_offset || record.sys_flag.inner_batch() && is_first());
    }
    let names = record.properties.get("INNER_MULTI_DISPATCH").unwrap_or_default();
    names.split(',').any(|name| name == topic)
}

/// Whether the record of a unit of `topic` is before the floor of its own topic. The minimum of a queue hides such
/// records of the queue itself; the units of a light queue can lead to them anywhere.
#[inline]
pub(crate) fn is_hidden(view: &dyn View, record: &RecordView<'_>, topic: &str, at: u64) -> bool {
    topic.starts_with(LIGHT_QUEUE_PREFIX) && view.floors().hides(record.topic, at)
}

/// Receives the text about a skipped record.
pub(crate) type DamageReport = Arc<dyn Fn(String) + Send + Sync>;

/// Every record of the log in log order, whatever the state of queues and index.
pub struct LogCursor {
    scanner: LogScanner,
    view: StoreView,
    on_damage: DamagePolicy,
    /// Delays the deletion of the segment at the cursor's position.
    held: Option<MappedFileGuard>,
    limit: u64,
    filter: Option<MessageFilter>,
    /// The floors, which hide records; `None` if it also returns hidden records.
    floors: Option<Arc<FloorTable>>,
}

impl LogCursor {
    pub(crate) fn new(view: StoreView, start: u64, limit: u64) -> Self {
        let scanner = LogScanner::new(view.list(), start, limit, ScanChecks { crc: true });
        let floors = Some(view.floors());
        Self { scanner, view, on_damage: DamagePolicy::Skip, held: None, limit, filter: None, floors }
    }

    /// Returns the cursor with this behaviour at damaged ranges; the default skips them.
    #[must_use]
    pub fn on_damage(self, policy: DamagePolicy) -> Self {
        Self { on_damage: policy, ..self }
    }

    /// Returns only matching records from now on.
    #[must_use]
    pub fn filtered(self, filter: Option<MessageFilter>) -> Self {
        Self { filter, ..self }
    }

    /// Also returns records of deleted topics from now on.
    #[must_use]
    pub fn with_deleted(self) -> Self {
        Self { floors: None, ..self }
    }

    /// Returns up to `max` records; an empty result is the end.
    pub fn next_batch(&mut self, max: usize) -> Result<Vec<StoredRecord>, StoreError> {
        Ok(self.next_of(max, usize::MAX)?.records)
    }

    /// Like [`next_batch`](Self::next_batch), but reads at most about `looks` records.
    pub fn next_of(&mut self, max: usize, looks: usize) -> Result<RecordBatch, StoreError> {
        self.view.check()?;
        if let Some(floors) = &mut self.floors {
            *floors = self.view.floors();
        }
        let (mut records, mut ended) = (Vec::new(), false);
        self.held = self.view.list().find(self.scanner.position()).and_then(Segment::hold);
        let (looks, matches) = (Cell::new(looks), Cell::new(true));
        // The last record that is read is returned even if it does not match, and is dropped here.
        let wanted = |record: &RecordView<'_>, offset: u64| {
            looks.set(looks.get().saturating_sub(1));
            let is_live = self.floors.as_ref().is_none_or(|floors| !floors.hides(record.topic, offset));
            matches.set(is_live && self.filter.as_ref().is_none_or(|filter| filter.matches(record)));
            matches.get() || looks.get() == 0
        };
        while records.len() < max && looks.get() > 0 {
            match next_record(&*self.view, &mut self.scanner, self.limit, wanted)? {
                NextRecord::Record(..) if !matches.get() => {}
                NextRecord::Record(offset, bytes) => {
                    let record = StoredRecord::new(bytes, offset, None);
                    records.push(record.map_err(|error| {
                        StoreError::format(&self.view.files().commit_log(), offset, &error)
                    })?);
                }
                NextRecord::Deleted(text) => self.view.note(text),
                NextRecord::Damaged(damage) => match skip_damage(&mut self.scanner, &damage) {
                    // A torn tail ends the log.
                    Ok(SkippedDamage::Tail(text)) => self.view.note(text),
                    Ok(SkippedDamage::Range(text)) if self.on_damage == DamagePolicy::Skip => {
                        self.view.count_skipped(text);
                    }
                    // The look at what follows met a segment that was deleted.
                    Err(error) => {
                        self.view.note(pass_deleted(&*self.view, &mut self.scanner, self.limit, error)?);
                    }
                    Ok(SkippedDamage::Range(_)) => {
                        // The next call meets the damage again.
                        self.scanner.seek(damage.offset);
                        if records.is_empty() {
                            return Err(damage_error(&damage));
                        }
                        break;
                    }
                },
                NextRecord::End => {
                    ended = true;
                    break;
                }
            }
        }
        if ended && records.is_empty() {
            self.held = None;
        }
        Ok(RecordBatch { records, ended })
    }
}

/// The result of [`next_record`].
pub(crate) enum NextRecord {
    /// A record and its offset.
    Record(u64, RecordBytes),
    /// The scan skipped a part of the log that was deleted meanwhile; a text for the user.
    Deleted(String),
    /// Damage at the position of the scan.
    Damaged(Damage),
    /// The end of the log.
    End,
}

/// Returns the next wanted record or damage of a scan; other records are skipped without a copy.
fn next_in(
    scanner: &mut LogScanner,
    wanted: impl Fn(&RecordView<'_>, u64) -> bool,
) -> Result<NextRecord, StoreError> {
    loop {
        let offset = scanner.position();
        match scanner.next_item()? {
            ScanItem::Record(record) if record.is_placeholder() || !wanted(&record, offset) => {}
            ScanItem::Record(record) => {
                let bytes = Arc::new(record.bytes.to_vec());
                let range = 0..bytes.len();
                return Ok(NextRecord::Record(offset, RecordBytes::Read(bytes, range)));
            }
            ScanItem::Filler { .. } => {}
            ScanItem::End { .. } => return Ok(NextRecord::End),
            ScanItem::Damaged(damage) => return Ok(NextRecord::Damaged(damage)),
        }
    }
}

/// Like [`next_in`], for a scan up to `limit`. Continues at the new start of the log if the position of the scan was
/// removed meanwhile, by this process or by a writer in another one.
pub(crate) fn next_record(
    view: &dyn View,
    scanner: &mut LogScanner,
    limit: u64,
    wanted: impl Fn(&RecordView<'_>, u64) -> bool,
) -> Result<NextRecord, StoreError> {
    next_in(scanner, wanted)
        .or_else(|error| pass_deleted(view, scanner, limit, error).map(NextRecord::Deleted))
}

/// Moves a scan that met a deleted segment to the new start of the log. Returns a text for the user; any other error is
/// returned.
fn pass_deleted(
    view: &dyn View,
    scanner: &mut LogScanner,
    limit: u64,
    error: StoreError,
) -> Result<String, StoreError> {
    if !error.is_gone() {
        return Err(error);
    }
    view.catch_up()?;
    let list = view.list();
    let (position, min) = (scanner.position(), list.min_offset());
    if position >= min {
        return Err(error);
    }
    scanner.extend(list, limit.max(min));
    scanner.seek(min);
    Ok(format!("the log from offset {position} to {min} was deleted while it was read"))
}

/// Damage that a scan skipped, with a text for the user.
pub(crate) enum SkippedDamage {
    /// A range before another record.
    Range(String),
    /// The end of the log.
    Tail(String),
}

/// Moves a scan past the damage at its position.
pub(crate) fn skip_damage(scanner: &mut LogScanner, damage: &Damage) -> Result<SkippedDamage, StoreError> {
    if let Some(next) = scanner.skip(damage)? {
        return Ok(SkippedDamage::Range(damage.skipped(next - damage.offset)));
    }
    // No valid record follows: the log ends here with a torn tail.
    scanner.end_at(damage.offset);
    let place = format!("{} at offset {}: {}", damage.path.display(), damage.file_offset, damage.reason);
    Ok(SkippedDamage::Tail(format!("{place}; no record follows, so the log ends there")))
}

/// Returns the error for damage of the log, with the advice how to skip it.
pub(crate) fn damage_error(damage: &Damage) -> StoreError {
    let error = StoreError::corrupt(&damage.path, damage.file_offset, damage.reason.clone());
    error.with_skip_advice(&format!("the log at offset {}", damage.offset))
}
