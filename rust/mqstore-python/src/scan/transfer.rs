//! Exports and imports: JSON lines, and copies from store to store.

use std::collections::{BTreeSet, HashMap};
use std::io::Write;
use std::ops::Range;
use std::slice;
use std::sync::{Arc, Mutex, PoisonError};

use mqstore::Store;
use mqstore::append::{MessageOrigin, check_copy};
use mqstore::body_compression::{BodyCompression, CompressedBody};
use mqstore::delivery::{BrokerError, Due, ExportDecision, LATEST_DUE_MS, Omission, OmissionCounts};
use mqstore::error::StoreError;
use mqstore::format::delays::pending::{DELIVER_AT, is_system_topic};
use mqstore::format::delays::timer::TIMER_TOPIC;
use mqstore::format::properties::{
    INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET, PROPERTY_CRC, REAL_QID, REAL_TOPIC, TIMER_ORIGIN_OFFSET,
};
use mqstore::format::{
    Host, PropertiesBuilder, RecordView, SysFlag, offset_message_id, validate_topic, without_property,
};
use mqstore::message::{Appended, NewMessage, StoredRecord};
use mqstore::options::StoreOptions;
use mqstore::read::{LogCursor, MakeSink, Passed, ScanRequest, ScanRow, ScanSink};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::archived_records::ArchivedRecords;
use super::export_rules::{ExportRules, ExportSink, LeftOut, counts_by_name};
use super::json_lines::{JsonLinesBuilder, push_text};
use super::request::{export_request, layout};
use super::running_scan::ScanHandle;
use crate::arrow::schema::Layout;
use crate::convert::arguments::body as body_of;
use crate::error::{bad_record, invalid, of_message, to_py};
use crate::runtime::{SharedStore, delivered, detached};
use crate::store::NativeStore;

/// Maximum records of one copied batch, and its bytes.
const COPY_ROWS: usize = 1000;
const COPY_BYTES: usize = 4 << 20;

/// Properties that are not copied: the append computes a new checksum and new positions in light queues, and the record
/// from which a delayed message was delivered is not in the target.
const NOT_COPIED: [&str; 4] =
    [PROPERTY_CRC, INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET, TIMER_ORIGIN_OFFSET];

/// One pass over the messages as JSON lines; created by `scan_lines`.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct LineStream {
    pass: ScanHandle<ExportSink<JsonLinesBuilder>>,
}

#[pymethods]
impl LineStream {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Returns some lines, their number, the numbers of records left out by reason, and the log offset from which a
    /// scan returns the following lines.
    #[expect(clippy::type_complexity, reason = "a tuple for Python")]
    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyBytes>, u64, LeftOut, u64)>> {
        let Some(batch) = self.pass.next(py)? else { return Ok(None) };
        let (lines, left_out) = batch.rows;
        let (text, rows) = lines.unwrap_or_default();
        Ok(Some((PyBytes::new(py, &text), rows, counts_by_name(&left_out), batch.end)))
    }

    /// The log offset at which the scan began.
    #[getter]
    fn start(&self) -> u64 {
        self.pass.start
    }

    /// The log offset at which the scan ends.
    #[getter]
    fn limit(&self) -> u64 {
        self.pass.limit
    }

    /// Ends the scan. Its threads have stopped when this returns.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.pass.take()));
    }
}

/// Starts a pass that produces JSON lines, over the directory with this path.
#[pyfunction]
pub(crate) fn scan_lines(
    source: &Bound<'_, PyAny>,
    request: &Bound<'_, PyDict>,
    rules: &Bound<'_, ExportRules>,
) -> PyResult<LineStream> {
    let layout: Arc<Layout> = Arc::new(layout(request)?);
    let rules = Arc::clone(&rules.get().core);
    let make: MakeSink<ExportSink<JsonLinesBuilder>> =
        Arc::new(move || ExportSink::new(&rules, JsonLinesBuilder::new(Arc::clone(&layout))));
    Ok(LineStream { pass: ScanHandle::begin(source, &export_request(request)?, make)? })
}

/// Records as stored, one after the other.
#[derive(Default)]
struct RawRecords {
    bytes: Vec<u8>,
    /// The end of each record, and its log offset.
    ends: Vec<(usize, u64)>,
}

impl ScanSink for RawRecords {
    type Batch = Self;

    fn has_room(&self, row: &ScanRow<'_>) -> bool {
        let bytes = self.bytes.len() + row.record.size as usize;
        self.ends.is_empty() || (self.ends.len() < COPY_ROWS && bytes <= COPY_BYTES)
    }

    fn add(&mut self, row: &ScanRow<'_>) {
        self.bytes.extend_from_slice(row.record.bytes);
        self.ends.push((self.bytes.len(), row.offset));
    }

    fn take(&mut self) -> Option<(Self, u64)> {
        let bytes = self.bytes.len() as u64;
        (!self.ends.is_empty()).then(|| (std::mem::take(self), bytes))
    }
}

/// One pass over the messages that appends them to another store; created by `scan_copy`.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct CopyStream {
    pass: ScanHandle<RawRecords>,
    rules: Arc<mqstore::delivery::ExportRules>,
    target: Arc<SharedStore>,
    host: Host,
    state: Mutex<CopyState>,
    stops_at_deletion: bool,
}

/// The messages that one pass copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum CopyPart {
    /// All of them. Each queue of the target continues at its end.
    #[default]
    All,
    /// Those that do not wait, with the offsets that they have in the source.
    Delivered,
    /// The delayed messages that wait. The pass before has counted the records that are left out.
    Waiting,
}

impl CopyPart {
    fn of(name: &str) -> PyResult<Self> {
        match name {
            "all" => Ok(Self::All),
            "delivered" => Ok(Self::Delivered),
            "waiting" => Ok(Self::Waiting),
            _ => Err(invalid(format!("part must be \"all\", \"delivered\" or \"waiting\", not {name:?}"))),
        }
    }

    fn contains(self, due: Due) -> bool {
        match self {
            Self::All => true,
            Self::Delivered => due == Due::Now,
            Self::Waiting => due != Due::Now,
        }
    }
}

#[derive(Default)]
struct CopyState {
    part: CopyPart,
    /// Number of queues of each topic of the target.
    queues: HashMap<String, u32>,
    /// The next offset of each queue to which this pass has copied with the offsets of the source.
    next_offsets: HashMap<String, HashMap<i32, i64>>,
    /// The messages that an interrupted pass has already appended.
    done: Option<LogCursor>,
    /// Topics whose messages are left out, because the target cannot have a topic of this name.
    refused: BTreeSet<String>,
}

#[pymethods]
impl CopyStream {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Returns JSON lines with old and new positions, the number of messages, how many of them have another queue
    /// offset than in the source, the numbers of records left out by reason, and the log offset from which a scan
    /// returns the following messages.
    #[expect(clippy::type_complexity, reason = "a tuple for Python")]
    fn __next__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<Option<(Bound<'py, PyBytes>, u64, u64, LeftOut, u64)>> {
        let Some(batch) = self.pass.next(py)? else { return Ok(None) };
        if self.stops_at_deletion && self.has_deleted(py) {
            return Ok(None);
        }
        let (mapping, messages, renumbered, left_out) = self.copy(py, &batch.rows)?;
        Ok(Some((mapping, messages, renumbered, left_out, batch.end)))
    }

    /// Copies records of an archive, which are before those of the scan.
    ///
    /// Returns the values of a step, without the log offset.
    fn copy_archived<'py>(
        &self,
        py: Python<'py>,
        archived: &Bound<'py, ArchivedRecords>,
    ) -> PyResult<CopiedTuple<'py>> {
        let mut records = RawRecords::default();
        for (offset, bytes) in &archived.get().records {
            let record = RecordView::decode(bytes).map_err(|error| bad_record(*offset, &error))?;
            records.add(&ScanRow::new(&record, *offset));
        }
        self.copy(py, &records)
    }

    /// Whether records were deleted from the log before the scan read them.
    #[getter]
    fn has_deleted(&self, py: Python<'_>) -> bool {
        self.pass.passed(py).iter().any(|(what, _)| *what == Passed::Deleted)
    }

    /// The log offset at which the scan began.
    #[getter]
    fn start(&self) -> u64 {
        self.pass.start
    }

    /// The log offset at which the scan ends.
    #[getter]
    fn limit(&self) -> u64 {
        self.pass.limit
    }

    /// The topics whose messages were left out, because the target cannot have a topic of this name.
    #[getter]
    fn refused_topics(&self) -> Vec<String> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).refused.iter().cloned().collect()
    }

    /// Ends the scan. Its threads have stopped when this returns.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.pass.take()));
    }
}

/// JSON lines with old and new positions, the number of messages, how many of them have another queue offset than in the
/// source, and the numbers of records left out by reason.
type CopiedTuple<'py> = (Bound<'py, PyBytes>, u64, u64, LeftOut);

impl CopyStream {
    fn copy<'py>(&self, py: Python<'py>, rows: &RawRecords) -> PyResult<CopiedTuple<'py>> {
        let (source, target) = (self.pass.store()?, self.target.store()?);
        let copied = delivered(py, || {
            // A store that is open for reading ends here.
            target.broker()?;
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.copy(source, target, (self.host, &self.rules), rows)
        })?;
        let CopiedRecords { mapping, messages, renumbered, left_out } = copied;
        Ok((PyBytes::new(py, &mapping), messages, renumbered, counts_by_name(&left_out)))
    }
}

/// The messages that were appended before a pass.
#[derive(FromPyObject)]
pub(crate) enum DoneBefore<'py> {
    /// By an interrupted call: the records of the target's log from this offset on.
    Interrupted(u64),
    /// By this pass, which the new one continues.
    Pass(Bound<'py, CopyStream>),
}

/// Starts a pass that appends to `target`. `part` is the name of a [`CopyPart`]. With `stops_at_deletion`, the pass ends
/// where records were deleted from the log before it read them.
#[pyfunction]
pub(crate) fn scan_copy(
    source: &Bound<'_, PyAny>,
    request: &Bound<'_, PyDict>,
    target: &Bound<'_, NativeStore>,
    rules: &Bound<'_, ExportRules>,
    done: Option<DoneBefore<'_>>,
    part: &str,
    stops_at_deletion: bool,
) -> PyResult<CopyStream> {
    let part = CopyPart::of(part)?;
    let request = ScanRequest { expects_deletion: stops_at_deletion, ..export_request(request)? };
    let pass = ScanHandle::begin(source, &request, Arc::new(RawRecords::default))?;
    let (target, host) = (target.get().shared(), target.get().host());
    let store = target.store()?;
    // The target may have deleted a topic since.
    let whole = |from| store.log().scan(Some(from)).map(LogCursor::with_deleted);
    let state = match done {
        None => CopyState { part, ..CopyState::default() },
        Some(DoneBefore::Interrupted(from)) => {
            let done = Some(detached(source.py(), || whole(from))?);
            CopyState { part, done, ..CopyState::default() }
        }
        Some(DoneBefore::Pass(pass)) => {
            std::mem::take(&mut *pass.get().state.lock().unwrap_or_else(PoisonError::into_inner))
        }
    };
    let (rules, state) = (Arc::clone(&rules.get().core), Mutex::new(state));
    Ok(CopyStream { pass, rules, target, host, state, stops_at_deletion })
}

/// A record to append. A delayed message has its own topic, queue and properties, not those of its waiting record.
struct RecordCopy<'a> {
    record: RecordView<'a>,
    offset: u64,
    properties: Vec<u8>,
    due: Due,
}

impl<'a> RecordCopy<'a> {
    /// Makes the copy that the rules of the export want.
    fn of(
        record: RecordView<'a>,
        offset: u64,
        rules: &mqstore::delivery::ExportRules,
        left_out: &mut OmissionCounts,
    ) -> Option<Self> {
        let (record, mut properties, due) = match rules.decide(&record, offset) {
            ExportDecision::Plain => (record, record.properties.raw().to_vec(), Due::Now),
            ExportDecision::Waiting(message) => {
                let record = RecordView { topic: message.topic, queue_id: message.queue_id, ..record };
                (record, message.properties, Due::At(message.due_ms))
            }
            ExportDecision::LeftOut(reason) => {
                left_out.add(reason);
                return None;
            }
            ExportDecision::NotSelected => return None,
        };
        for name in NOT_COPIED {
            properties = without_property(&properties, name).into_owned();
        }
        Some(Self { record, offset, properties, due })
    }

    fn message(&self) -> NewMessage<'_> {
        NewMessage {
            topic: self.record.topic,
            body: self.record.body,
            properties: &self.properties,
            unique_key: Some(self.record.unique_key().unwrap_or_default()),
            queue_id: Some(self.record.queue_id),
            flag: self.record.flag,
            born_timestamp_ms: Some(self.record.born_timestamp),
            durable: false,
            ..NewMessage::default()
        }
    }

    fn origin(&self) -> MessageOrigin {
        MessageOrigin {
            sys_flag: self.record.sys_flag,
            born_host: self.record.born_host,
            reconsume_times: self.record.reconsume_times,
        }
    }

    /// Whether `stored` is this copy, in its topic or waiting.
    fn is_stored_as(&self, stored: &RecordView<'_>) -> bool {
        let [topic, queue_id] = stored.properties.get_many([REAL_TOPIC, REAL_QID]);
        let queue_id = queue_id.and_then(|id| id.parse().ok());
        let waits = self.due != Due::Now && stored.topic == TIMER_TOPIC;
        let place = if waits { (topic, queue_id) } else { (Some(stored.topic), Some(stored.queue_id)) };
        place == (Some(self.record.topic), Some(self.record.queue_id))
            && stored.body == self.record.body
            && stored.unique_key() == self.record.unique_key()
    }
}

/// The result of one step of a copy.
#[derive(Default)]
struct CopiedRecords {
    /// JSON lines with old and new positions.
    mapping: Vec<u8>,
    messages: u64,
    /// Number of messages with another queue offset than in the source.
    renumbered: u64,
    left_out: OmissionCounts,
}

impl CopiedRecords {
    fn add(&mut self, copy: &RecordCopy<'_>, host: Host, queue_offset: i64, offset: u64) {
        self.renumbered += u64::from(queue_offset != copy.record.queue_offset);
        push_mapping(&mut self.mapping, copy, host, queue_offset, offset);
    }
}

impl CopyState {
    fn copy(
        &mut self,
        source: &Store,
        target: &Store,
        (host, rules): (Host, &mqstore::delivery::ExportRules),
        rows: &RawRecords,
    ) -> Result<CopiedRecords, BrokerError> {
        let mut copies = Vec::with_capacity(rows.ends.len());
        let mut done = CopiedRecords::default();
        let mut start = 0;
        for (end, offset) in &rows.ends {
            let bytes = rows.bytes.get(start..*end).unwrap_or_default();
            start = *end;
            let bad = |reason: String| StoreError::InvalidMessage {
                reason: format!("the record at log offset {offset}: {reason}"),
            };
            let record = RecordView::decode(bytes).map_err(|error| bad(error.to_string()))?;
            let Some(copy) = RecordCopy::of(record, *offset, rules, &mut done.left_out) else { continue };
            if validate_topic(copy.record.topic).is_err() {
                done.left_out.add(Omission::TopicName);
                if !self.refused.contains(copy.record.topic) {
                    self.refused.insert(copy.record.topic.to_owned());
                }
            } else if self.part.contains(copy.due) {
                copies.push(copy);
            }
        }
        if self.part == CopyPart::Waiting {
            done.left_out = OmissionCounts::default();
        }
        done.messages = copies.len() as u64;
        let known = self.appended_before(&copies)?;
        copies.drain(..known.len()).zip(known).for_each(|(copy, one)| {
            done.add(&copy, host, one.queue_offset, one.commit_log_offset);
        });
        for (copy, one) in copies.iter().zip(self.append(source, target, &copies)?) {
            done.add(copy, host, one.queue_offset, one.commit_log_offset);
        }
        Ok(done)
    }

    /// Returns those of `copies` that an interrupted pass has already appended.
    fn appended_before(&mut self, copies: &[RecordCopy<'_>]) -> Result<Vec<StoredRecord>, StoreError> {
        let Some(cursor) = &mut self.done else { return Ok(Vec::new()) };
        let mut found: Vec<StoredRecord> = Vec::new();
        while found.len() < copies.len() {
            let more = cursor.next_batch(copies.len() - found.len())?;
            if more.is_empty() {
                self.done = None;
                break;
            }
            // The target itself delivers copied messages that became due meanwhile.
            found.extend(more.into_iter().filter(|stored| !is_delivery(stored)));
        }
        for (copy, stored) in copies.iter().zip(&found) {
            if !stored.view().is_ok_and(|view| copy.is_stored_as(&view)) {
                return Err(StoreError::InvalidMessage {
                    reason: format!(
                        "the target's record at log offset {} is not what the interrupted export would have \
                         written; somebody else has written there: export into another directory",
                        stored.commit_log_offset
                    ),
                });
            }
        }
        Ok(found)
    }

    fn append(
        &mut self,
        source: &Store,
        target: &Store,
        copies: &[RecordCopy<'_>],
    ) -> Result<Vec<Appended>, BrokerError> {
        if copies.is_empty() {
            return Ok(Vec::new());
        }
        let wanted = copies.iter().map(|copy| {
            let RecordView { topic, queue_id, sys_flag, .. } = copy.record;
            (topic, queue_id, sys_flag.inner_batch() || source.has_batch_queues(topic))
        });
        make_queues(&mut self.queues, target, wanted)?;
        let messages: Vec<_> = copies.iter().map(|copy| (copy.message(), copy.due)).collect();
        let origins: Vec<MessageOrigin> = copies.iter().map(RecordCopy::origin).collect();
        let mut appended = Vec::with_capacity(copies.len());
        if self.part != CopyPart::Delivered {
            append_in_order(target, &messages, &origins, &mut appended)?;
            return Ok(appended);
        }
        let mut start = 0;
        for (index, copy) in copies.iter().enumerate() {
            let RecordView { topic, queue_id, queue_offset, sys_flag, .. } = copy.record;
            let queues = match self.next_offsets.get_mut(topic) {
                Some(queues) => queues,
                None => self.next_offsets.entry(topic.to_owned()).or_default(),
            };
            let mut next = queues.get(&queue_id).copied();
            if next.is_none_or(|next| next < queue_offset) {
                // The copies before this one come first, because the queue then passes over offsets.
                append_range(target, &messages, &origins, start..index, &mut appended)?;
                start = index;
                next = Some(target.system_appends().advance_queue(topic, queue_id, queue_offset)?);
            }
            // A record with a batch of messages takes several offsets.
            let is_single = !sys_flag.inner_batch() && !target.has_batch_queues(topic);
            match next.filter(|_| is_single) {
                Some(next) => queues.insert(queue_id, next + 1),
                None => queues.remove(&queue_id),
            };
        }
        append_range(target, &messages, &origins, start..copies.len(), &mut appended)?;
        Ok(appended)
    }
}

/// Appends a range of messages with [`append_in_order`].
fn append_range(
    target: &Store,
    messages: &[(NewMessage<'_>, Due)],
    origins: &[MessageOrigin],
    range: Range<usize>,
    appended: &mut Vec<Appended>,
) -> Result<(), BrokerError> {
    let messages = messages.get(range.clone()).unwrap_or_default();
    append_in_order(target, messages, origins.get(range).unwrap_or_default(), appended)
}

/// Appends messages from elsewhere in order: those for plain queues together, those for batch queues one by one. After
/// an error, `appended` has the results of the messages before it.
fn append_in_order(
    target: &Store,
    mut messages: &[(NewMessage<'_>, Due)],
    mut origins: &[MessageOrigin],
    appended: &mut Vec<Appended>,
) -> Result<(), BrokerError> {
    let broker = target.broker()?;
    let is_batched = |((message, _), origin): (&(NewMessage<'_>, Due), &MessageOrigin)| {
        origin.sys_flag.inner_batch() || target.has_batch_queues(message.topic)
    };
    let batched: Vec<bool> = messages.iter().zip(origins).map(is_batched).collect();
    for row in batched.chunk_by(|left, right| left == right) {
        let (some, more) = messages.split_at(row.len());
        let (of_some, of_more) = origins.split_at(row.len());
        (messages, origins) = (more, of_more);
        if row.first() == Some(&true) {
            for (one, origin) in some.iter().zip(of_some) {
                match one {
                    (message, Due::Now) => {
                        appended.push(target.system_appends().append_batch_copy(message, origin)?);
                    }
                    // Batch queues accept no waiting messages: this returns the error.
                    _ => {
                        appended.extend(broker.append_copies(slice::from_ref(one), slice::from_ref(origin))?);
                    }
                }
            }
        } else {
            appended.extend(broker.append_copies(some, of_some)?);
        }
    }
    Ok(())
}

/// Whether a store made the record by itself from a waiting record. A copy does not have the property.
fn is_delivery(record: &StoredRecord) -> bool {
    record.view().is_ok_and(|view| view.properties.get(TIMER_ORIGIN_OFFSET).is_some())
}

/// Creates missing topics and queues; batch queues if the topic has batches.
fn make_queues<'a>(
    known: &mut HashMap<String, u32>,
    target: &Store,
    wanted: impl Iterator<Item = (&'a str, i32, bool)>,
) -> Result<(), StoreError> {
    let mut most: HashMap<&str, (u32, bool)> = HashMap::new();
    for (topic, queue_id, batch) in wanted {
        // The append refuses a queue that is not valid.
        let queues = queue_id.clamp(0, 65_535).unsigned_abs() + 1;
        let entry = most.entry(topic).or_default();
        *entry = (queues.max(entry.0), batch || entry.1);
    }
    for (topic, (queues, batch)) in most {
        if !known.contains_key(topic) {
            let there = match target.queues(topic) {
                Ok(queues) => queues.len() as u32,
                Err(StoreError::TopicNotFound { .. }) => 0,
                Err(error) => return Err(error),
            };
            known.insert(topic.to_owned(), there);
        }
        if let Some(there) = known.get_mut(topic)
            && *there < queues
        {
            let kind = ("queue.type".to_owned(), "BatchCQ".to_owned());
            target.create_topic(
                topic,
                queues,
                if batch && *there == 0 { slice::from_ref(&kind) } else { &[] },
            )?;
            *there = queues;
        }
    }
    Ok(())
}

/// Adds a line with the old and the new position of a message.
fn push_mapping(out: &mut Vec<u8>, copy: &RecordCopy<'_>, host: Host, queue_offset: i64, offset: u64) {
    out.extend_from_slice(b"{\"topic\": ");
    push_text(out, copy.record.topic);
    // A write to memory cannot fail.
    let _ = write!(
        out,
        ", \"queue_id\": {}, \"queue_offset\": {}, \"commit_log_offset\": {}, \"message_id\": \"{}\", \
         \"new_queue_offset\": {queue_offset}, \"new_commit_log_offset\": {offset}, \"new_message_id\": \"{}\"",
        copy.record.queue_id,
        copy.record.queue_offset,
        copy.offset,
        copy.record.offset_message_id(),
        offset_message_id(&host, offset as i64),
    );
    // A batch has the offsets of its messages.
    if let Some((_, messages)) = copy.record.inner_batch().filter(|_| copy.record.sys_flag.inner_batch()) {
        let _ = write!(out, ", \"messages\": {messages}");
    }
    out.extend_from_slice(b"}\n");
}

/// A message for `append_rows`: topic, queue, body, properties, flag, born time and host, reconsume times, and the
/// flags of a compressed body and of a batch.
type TransferRow<'py> = (
    String,
    Option<i32>,
    Bound<'py, PyAny>,
    Vec<(String, String)>,
    i32,
    Option<i64>,
    Option<String>,
    i32,
    i32,
);

/// Appends messages of a file and returns their number. If one of them cannot be appended, returns the number before it;
/// the next call, which begins with this message, raises the error and appends none.
///
/// The options of the store say how bodies are compressed. Batches, and bodies that are compressed already, stay as they
/// are.
#[pyfunction]
pub(crate) fn append_rows(target: &Bound<'_, NativeStore>, rows: Vec<TransferRow<'_>>) -> PyResult<u64> {
    let py = target.py();
    let (shared, host) = (target.get().shared(), target.get().host());
    let store = shared.store()?;
    let rule = target.get().compression(None, None)?;
    let mut parts = parts_of(py, rows, host)?;
    compress_rows(py, &mut parts, &rule)?;
    let messages: Vec<_> = parts.iter().map(|part| (part.message(), part.due)).collect();
    let origins: Vec<MessageOrigin> = parts.iter().map(|part| part.origin).collect();
    let appended = delivered(py, || {
        let wanted = messages.iter().zip(&origins).map(|((message, _), origin)| {
            (message.topic, message.queue_id.unwrap_or(0), origin.sys_flag.inner_batch())
        });
        make_queues(&mut HashMap::new(), store, wanted)?;
        let mut appended = Vec::with_capacity(messages.len());
        match append_in_order(store, &messages, &origins, &mut appended) {
            Err(error) if appended.is_empty() => Err(error),
            _ => Ok(appended.len()),
        }
    })?;
    Ok(appended as u64)
}

/// Checks that each message can be appended to a store that does not exist yet.
#[pyfunction]
pub(crate) fn check_rows(py: Python<'_>, rows: Vec<TransferRow<'_>>) -> PyResult<()> {
    let host = StoreOptions::default().store_host;
    for (index, part) in parts_of(py, rows, host)?.iter().enumerate() {
        let checked = check_copy(&part.message(), &part.origin).map_err(to_py);
        checked.map_err(|error| of_message(py, index, error))?;
    }
    Ok(())
}

/// The parts of a row.
struct RowParts<'py> {
    topic: String,
    queue_id: Option<i32>,
    body: Bound<'py, PyBytes>,
    compressed: Option<Vec<u8>>,
    properties: Vec<u8>,
    flag: i32,
    born: Option<i64>,
    unique: Option<String>,
    due: Due,
    origin: MessageOrigin,
}

impl RowParts<'_> {
    fn message(&self) -> NewMessage<'_> {
        NewMessage {
            topic: &self.topic,
            body: self.compressed.as_deref().unwrap_or_else(|| self.body.as_bytes()),
            properties: &self.properties,
            unique_key: Some(self.unique.as_deref().unwrap_or_default()),
            queue_id: self.queue_id,
            flag: self.flag,
            born_timestamp_ms: self.born,
            durable: false,
            ..NewMessage::default()
        }
    }
}

/// Compresses the bodies that `rule` covers.
fn compress_rows(py: Python<'_>, parts: &mut [RowParts<'_>], rule: &BodyCompression) -> PyResult<()> {
    let bodies: Vec<_> = parts
        .iter_mut()
        .filter(|part| part.origin.sys_flag == SysFlag(0) && rule.covers(part.body.as_bytes().len()))
        .map(|part| (part.body.as_bytes(), &mut part.compressed, &mut part.origin))
        .collect();
    if bodies.is_empty() {
        return Ok(());
    }
    detached(py, || {
        for (body, compressed, origin) in bodies {
            if let Some(CompressedBody { bytes, sys_flag }) = rule.compress(body) {
                (*compressed, origin.sys_flag) = (Some(bytes), sys_flag);
            }
        }
        Ok(())
    })
}

fn parts_of<'py>(py: Python<'py>, rows: Vec<TransferRow<'py>>, host: Host) -> PyResult<Vec<RowParts<'py>>> {
    let part =
        |(topic, queue_id, body, pairs, flag, born, born_host, reconsume_times, sys_flag): TransferRow<
            'py,
        >| {
            if is_system_topic(&topic) {
                return Err(invalid(format!(
                    "topic {topic} belongs to the store itself and is not imported; export again with this version \
                     of mqstore, leave out the row, or give topic= to import the rows as plain messages"
                )));
            }
            let due = due_of(&pairs)?;
            let mut properties = PropertiesBuilder::new();
            let not_copied = |name: &str| NOT_COPIED.contains(&name) || name == DELIVER_AT;
            for (name, value) in pairs.iter().filter(|(name, _)| !not_copied(name)) {
                properties.push_reserved(name, value).map_err(|error| invalid(error.to_string()))?;
            }
            let born_host = born_host.map(|text| text.parse::<Host>()).transpose();
            let born_host = born_host.map_err(|error| invalid(error.to_string()))?.unwrap_or(host);
            let unique =
                pairs.iter().rev().find(|(name, _)| name == "UNIQ_KEY").map(|(_, value)| value.clone());
            let origin = MessageOrigin { sys_flag: SysFlag(sys_flag), born_host, reconsume_times };
            let (body, properties) = (body_of(&body)?, properties.finish());
            let compressed = None;
            Ok(RowParts { topic, queue_id, body, compressed, properties, flag, born, unique, due, origin })
        };
    let numbered = rows.into_iter().enumerate();
    numbered.map(|(index, row)| part(row).map_err(|error| of_message(py, index, error))).collect()
}

/// Returns when a message with these properties is due.
fn due_of(pairs: &[(String, String)]) -> PyResult<Due> {
    let Some((_, text)) = pairs.iter().rev().find(|(name, _)| name == DELIVER_AT) else {
        return Ok(Due::Now);
    };
    let due_ms = text.parse().ok().filter(|due_ms| *due_ms <= LATEST_DUE_MS);
    let bad = || invalid(format!("property {DELIVER_AT} must be a time in epoch milliseconds, not {text:?}"));
    due_ms.map(Due::At).ok_or_else(bad)
}

/// Adds the classes and functions of exports and imports to the native module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<LineStream>()?;
    module.add_class::<CopyStream>()?;
    module.add_function(wrap_pyfunction!(scan_lines, module)?)?;
    module.add_function(wrap_pyfunction!(scan_copy, module)?)?;
    module.add_function(wrap_pyfunction!(append_rows, module)?)?;
    module.add_function(wrap_pyfunction!(check_rows, module)?)?;
    Ok(())
}
