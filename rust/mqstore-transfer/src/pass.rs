//! One pass over the messages of the source, which appends them to the target.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use mqstore_base::error::StoreError;
use mqstore_base::message::{Appended, NewMessage, StoredRecord};
use mqstore_delivery::{Broker, BrokerError, Due, ExportRules, Omission, OmissionCounts};
use mqstore_engine::{LogCursor, MessageOrigin, Store};
use mqstore_format::{Host, RecordView, validate_topic};

use crate::append::{append_in_order, make_queues};
use crate::record_copy::{RawRecords, RecordCopy, is_delivery};

/// The messages that one pass copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CopyPart {
    /// All of them. Each queue of the target continues at its end.
    #[default]
    All,
    /// Those that do not wait, with the offsets that they have in the source.
    Delivered,
    /// The delayed messages that wait. The pass before has counted the records that are left out.
    Waiting,
}

impl CopyPart {
    fn contains(self, due: Due) -> bool {
        match self {
            Self::All => true,
            Self::Delivered => due == Due::Now,
            Self::Waiting => due != Due::Now,
        }
    }
}

/// The state of a pass.
#[derive(Default)]
pub(crate) struct CopyPass {
    part: CopyPart,
    /// Number of queues of each topic of the target.
    queues: BTreeMap<String, u32>,
    /// The next offset of each queue to which this pass has copied with the offsets of the source.
    next_offsets: HashMap<String, HashMap<i32, i64>>,
    /// The messages that an interrupted pass has already appended.
    done: Option<LogCursor>,
    /// Topics whose messages are left out, because the target cannot have a topic of this name.
    refused: BTreeSet<String>,
}

/// The result of one step of a copy.
#[derive(Debug, Default)]
pub(crate) struct CopiedRecords {
    /// JSON lines with old and new positions.
    pub(crate) mapping: Vec<u8>,
    /// Number of messages.
    pub(crate) messages: u64,
    /// Number of messages with another queue offset than in the source.
    pub(crate) renumbered: u64,
    /// Numbers of records that are left out.
    pub(crate) left_out: OmissionCounts,
}

impl CopiedRecords {
    fn add(&mut self, copy: &RecordCopy<'_>, host: Host, queue_offset: i64, offset: u64) {
        self.renumbered += u64::from(queue_offset != copy.record.queue_offset);
        copy.push_mapping(&mut self.mapping, host, queue_offset, offset);
    }
}

impl CopyPass {
    /// Begins a pass. If an interrupted pass has appended messages, they are in the log of the target from the offset
    /// `done` on.
    ///
    /// # Errors
    /// Errors of reading the log.
    pub(crate) fn new(part: CopyPart, target: &Store, done: Option<u64>) -> Result<Self, StoreError> {
        // The target may have deleted a topic since.
        let whole = |from| target.log().scan(Some(from)).map(LogCursor::with_deleted);
        Ok(Self { part, done: done.map(whole).transpose()?, ..Self::default() })
    }

    /// Returns the topics whose messages were left out, because the target cannot have a topic of this name.
    pub(crate) fn refused(&self) -> &BTreeSet<String> {
        &self.refused
    }

    /// Appends the copies of records to the target, except those that an interrupted pass has appended. `host` is that
    /// of the target.
    ///
    /// # Errors
    /// Those of an append; [`StoreError::InvalidMessage`] if another program has appended to the target of an
    /// interrupted pass.
    pub(crate) fn copy(
        &mut self,
        source: &Store,
        target: &Broker,
        (host, rules): (Host, &ExportRules),
        records: &RawRecords,
    ) -> Result<CopiedRecords, BrokerError> {
        let mut copies = Vec::with_capacity(records.iter().len());
        let mut done = CopiedRecords::default();
        for (offset, bytes) in records.iter() {
            let bad = |reason: String| StoreError::InvalidMessage {
                reason: format!("the record at log offset {offset}: {reason}"),
            };
            let record = RecordView::decode(bytes).map_err(|error| bad(error.to_string()))?;
            let Some(copy) = RecordCopy::of(record, offset, rules, &mut done.left_out) else { continue };
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
        target: &Broker,
        copies: &[RecordCopy<'_>],
    ) -> Result<Vec<Appended>, BrokerError> {
        if copies.is_empty() {
            return Ok(Vec::new());
        }
        let store = target.store();
        let wanted = copies.iter().map(|copy| {
            let RecordView { topic, queue_id, sys_flag, .. } = copy.record;
            (topic, queue_id, sys_flag.inner_batch() || source.has_batch_queues(topic))
        });
        make_queues(&mut self.queues, store, wanted)?;
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
                next = Some(store.system_appends().advance_queue(topic, queue_id, queue_offset)?);
            }
            // A record with a batch of messages takes several offsets.
            let is_single = !sys_flag.inner_batch() && !store.has_batch_queues(topic);
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
    target: &Broker,
    messages: &[(NewMessage<'_>, Due)],
    origins: &[MessageOrigin],
    range: Range<usize>,
    appended: &mut Vec<Appended>,
) -> Result<(), BrokerError> {
    let messages = messages.get(range.clone()).unwrap_or_default();
    append_in_order(target, messages, origins.get(range).unwrap_or_default(), appended)
}
