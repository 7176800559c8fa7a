//! One record of the source, and its copy for the target.

use std::io::Write;
use std::path::Path;

use mqstore_base::error::StoreError;
use mqstore_base::message::{NewMessage, StoredRecord};
use mqstore_delivery::{Due, ExportDecision, ExportRules, OmissionCounts};
use mqstore_engine::{MessageOrigin, ScanRow, ScanSink};
use mqstore_format::delays::timer::TIMER_TOPIC;
use mqstore_format::properties::{
    INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET, PROPERTY_CRC, REAL_QID, REAL_TOPIC, TIMER_ORIGIN_OFFSET,
};
use mqstore_format::{Host, RecordView, offset_message_id, without_property};

/// Maximum records of one copied batch, and its bytes.
const COPY_ROWS: usize = 1000;
const COPY_BYTES: usize = 4 << 20;

/// Properties that are not copied: the append computes a new checksum and new positions in light queues, and the record
/// from which a delayed message was delivered is not in the target.
pub const NOT_COPIED: [&str; 4] =
    [PROPERTY_CRC, INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET, TIMER_ORIGIN_OFFSET];

/// A record: its log offset and its bytes.
pub type LogRecord = (u64, Vec<u8>);

/// Records as stored, one after the other.
#[derive(Debug, Default)]
pub struct RawRecords {
    bytes: Vec<u8>,
    /// The end of each record, and its log offset.
    ends: Vec<(usize, u64)>,
}

impl RawRecords {
    /// Returns the records of an archive.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] for a record that does not decode.
    pub fn of(records: &[LogRecord]) -> Result<Self, StoreError> {
        let mut raw = Self::default();
        for (offset, bytes) in records {
            let record = RecordView::decode(bytes)
                .map_err(|error| StoreError::format(Path::new("commitlog"), *offset, &error))?;
            raw.add(&ScanRow::new(&record, *offset));
        }
        Ok(raw)
    }

    /// Yields the log offset and the bytes of each record.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (u64, &[u8])> {
        let mut start = 0;
        self.ends.iter().map(move |(end, offset)| {
            let bytes = self.bytes.get(start..*end).unwrap_or_default();
            start = *end;
            (*offset, bytes)
        })
    }
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

/// A record to append. A delayed message has its own topic, queue and properties, not those of its waiting record.
pub(crate) struct RecordCopy<'a> {
    pub(crate) record: RecordView<'a>,
    offset: u64,
    properties: Vec<u8>,
    pub(crate) due: Due,
}

impl<'a> RecordCopy<'a> {
    /// Makes the copy that the rules of the export want.
    pub(crate) fn of(
        record: RecordView<'a>,
        offset: u64,
        rules: &ExportRules,
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

    pub(crate) fn message(&self) -> NewMessage<'_> {
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

    pub(crate) fn origin(&self) -> MessageOrigin {
        MessageOrigin {
            sys_flag: self.record.sys_flag,
            born_host: self.record.born_host,
            reconsume_times: self.record.reconsume_times,
        }
    }

    /// Whether `stored` is this copy, in its topic or waiting.
    pub(crate) fn is_stored_as(&self, stored: &RecordView<'_>) -> bool {
        let [topic, queue_id] = stored.properties.get_many([REAL_TOPIC, REAL_QID]);
        let queue_id = queue_id.and_then(|id| id.parse().ok());
        let waits = self.due != Due::Now && stored.topic == TIMER_TOPIC;
        let place = if waits { (topic, queue_id) } else { (Some(stored.topic), Some(stored.queue_id)) };
        place == (Some(self.record.topic), Some(self.record.queue_id))
            && stored.body == self.record.body
            && stored.unique_key() == self.record.unique_key()
    }

    /// Adds a line of JSON with the old and the new position of the message. `host` is in the new message id.
    pub(crate) fn push_mapping(&self, out: &mut Vec<u8>, host: Host, queue_offset: i64, offset: u64) {
        // A write to memory cannot fail. The name of a topic in a store needs no escapes.
        let _ = write!(
            out,
            "{{\"topic\": \"{}\", \"queue_id\": {}, \"queue_offset\": {}, \"commit_log_offset\": {}, \
             \"message_id\": \"{}\", \"new_queue_offset\": {queue_offset}, \"new_commit_log_offset\": {offset}, \
             \"new_message_id\": \"{}\"",
            self.record.topic,
            self.record.queue_id,
            self.record.queue_offset,
            self.offset,
            self.record.offset_message_id(),
            offset_message_id(&host, offset as i64),
        );
        // A batch has the offsets of its messages.
        if let Some((_, messages)) = self.record.inner_batch().filter(|_| self.record.sys_flag.inner_batch())
        {
            let _ = write!(out, ", \"messages\": {messages}");
        }
        out.extend_from_slice(b"}\n");
    }
}

/// Whether a store made the record by itself from a waiting record. A copy does not have the property.
pub(crate) fn is_delivery(record: &StoredRecord) -> bool {
    record.view().is_ok_and(|view| view.properties.get(TIMER_ORIGIN_OFFSET).is_some())
}
