//! Timer records: the record made from an accepted message, and the message made from a due record.
//!
//! A delivered message keeps the properties that RocketMQ leaves on it (`REAL_TOPIC`, `REAL_QID`, all `TIMER_*`). So
//! its bytes are those that a broker would have written, with one additional property: `TIMER_ORIGIN_OFFSET`, the log
//! offset of the record that it was made from. Source: `HookUtils#transformTimerMessage`,
//! `#transformDelayLevelMessage`, `TimerMessageStore#convert`, `ScheduleMessageService#messageTimeUp`.

use mqstore_base::error::StoreError;
use mqstore_base::message::{NewMessage, StoredRecord};
use mqstore_engine::{MessageOrigin, Store};
use mqstore_format::delays::pending::{TimerRecord, TimerTurn};
use mqstore_format::delays::timer::{TIMER_PRECISION_MS, TIMER_TOPIC, slot_time_ms};
use mqstore_format::properties::{
    DELAY, PROPERTY_CRC, REAL_QID, REAL_TOPIC, TIMER_DEL_UNIQKEY, TIMER_DELIVER_MS, TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS, TIMER_ORIGIN_OFFSET, TIMER_OUT_MS, TIMER_ROLL_TIMES, UNIQ_KEY,
};
use mqstore_format::{RecordView, SCHEDULE_TOPIC, java_hash, push_property};

use crate::error::view;

/// Delay until the next attempt for a message that its topic refuses, in milliseconds. Its slot must not be in memory.
const HOLD_MS: i64 = 5_000;
/// The tag of cancellations, as in RocketMQ (`RecallMessageProcessor#RECALL_MESSAGE_TAG`).
const RECALL_TAG: &str = "_RECALL_TAG_";

/// A record of the timer topic.
#[derive(Clone, Debug)]
pub(super) struct Timed {
    /// Its log offset.
    pub(super) offset: u64,
    /// Its size in bytes.
    pub(super) size: u32,
    pub(super) queue_offset: i64,
    /// Its slot of the wheel: a time in units of the precision.
    pub(super) slot: i64,
    /// The time at which it is delivered or put back.
    pub(super) due_ms: i64,
    pub(super) write_ms: i64,
    /// Whether it is put back at that time.
    pub(super) rolls: bool,
    pub(super) topic_hash: i32,
    /// What it cancels, if it is a cancellation.
    pub(super) cancels: Option<CancelTarget>,
}

/// The target of a cancellation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CancelTarget {
    /// The record at this log offset, in a cancellation of ours.
    Record(u64),
    /// All records in the same slot with this key, in a broker's cancellation; see [`has_delete_key`].
    Key(Box<str>),
}

pub(super) fn slot_of(ms: i64) -> i64 {
    ms.div_euclid(TIMER_PRECISION_MS)
}

/// Decodes a record of the timer topic; `None` for other records.
pub(super) fn timed(record: &StoredRecord) -> Option<Timed> {
    let view = record.view().ok()?;
    if view.topic != TIMER_TOPIC {
        return None;
    }
    let found = TimerRecord::of(&view)?;
    let due_ms = if found.rolls { found.slot_ms + TIMER_PRECISION_MS } else { found.due_ms };
    let cancels = match found.turn {
        TimerTurn::Cancel { record: Some(offset), .. } => Some(CancelTarget::Record(offset)),
        TimerTurn::Cancel { key, .. } => Some(CancelTarget::Key(key.into())),
        TimerTurn::Deliver | TimerTurn::PutBack => None,
    };
    Some(Timed {
        offset: record.commit_log_offset,
        size: view.size,
        queue_offset: view.queue_offset,
        slot: slot_of(found.slot_ms),
        due_ms,
        write_ms: round_down(view.store_timestamp),
        rolls: found.rolls,
        topic_hash: found.topic.map_or(0, java_hash),
        cancels,
    })
}

/// Whether a broker's deletion with `key` means this record. `key` is the unique key; up to RocketMQ 5.3 the topic is
/// before it (`TimerMessageStore#buildDeleteKey`).
pub(super) fn has_delete_key(view: &RecordView<'_>, key: &str) -> bool {
    let [own, topic] = view.properties.get_many([UNIQ_KEY, REAL_TOPIC]);
    let (own, topic) = (own.unwrap_or_default(), topic.unwrap_or_default());
    key == own || key.strip_prefix(topic).and_then(|rest| rest.strip_prefix('+')) == Some(own)
}

pub(super) fn round_down(ms: i64) -> i64 {
    slot_of(ms).saturating_mul(TIMER_PRECISION_MS)
}

/// Returns the properties of a waiting message, with a due time (`Ok`) or a level (`Err`).
pub(super) fn timer_properties(message: &NewMessage<'_>, queue_id: i32, due_ms: Result<i64, i32>) -> Vec<u8> {
    let mut text = Vec::with_capacity(message.properties.len() + message.topic.len() + 120);
    text.extend_from_slice(message.properties);
    match due_ms {
        Ok(due_ms) => {
            push_property(&mut text, TIMER_DELIVER_MS, due_ms.to_string());
            push_property(&mut text, TIMER_OUT_MS, slot_time_ms(due_ms).to_string());
        }
        Err(level) => push_property(&mut text, DELAY, level.to_string()),
    }
    push_property(&mut text, REAL_TOPIC, message.topic);
    push_property(&mut text, REAL_QID, queue_id.to_string());
    text
}

/// Returns the properties of the two records that cancel `view`: for brokers from RocketMQ 5.4 on, and for older ones.
pub(super) fn cancel_properties(view: &RecordView<'_>, offset: u64) -> Option<[Vec<u8>; 2]> {
    let [key, out, deliver, topic, queue_id] =
        view.properties.get_many([UNIQ_KEY, TIMER_OUT_MS, TIMER_DELIVER_MS, REAL_TOPIC, REAL_QID]);
    let (key, out, topic) = (key?, out?, topic?);
    Some([key.to_owned(), format!("{topic}+{key}")].map(|key| {
        let mut text = Vec::with_capacity(320);
        push_property(&mut text, TIMER_DEL_UNIQKEY, &key);
        push_property(&mut text, TIMER_OUT_MS, out);
        push_property(&mut text, TIMER_DELIVER_MS, deliver.unwrap_or(out));
        push_property(&mut text, REAL_TOPIC, topic);
        push_property(&mut text, REAL_QID, queue_id.unwrap_or("0"));
        push_property(&mut text, mqstore_format::properties::TAGS, RECALL_TAG);
        push_property(&mut text, TIMER_ORIGIN_OFFSET, offset.to_string());
        text
    }))
}

/// Returns the properties of the records that cancel `record`.
pub(super) fn cancel_records(record: &StoredRecord) -> Result<[Vec<u8>; 2], StoreError> {
    let none = || StoreError::InvalidMessage {
        reason: "cannot cancel the message: it has no unique key to name it for a broker".to_owned(),
    };
    cancel_properties(&view(record)?, record.commit_log_offset).ok_or_else(none)
}

/// Reason for appending a record again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReappendReason {
    /// It is due.
    Due,
    /// It goes back into the wheel.
    Roll,
    /// It goes back into the wheel, because its topic refuses messages; it is due a moment later.
    Hold,
    /// The delay of its level is over.
    Level,
}

/// A message made from a record; [`NewMessage`] borrows its fields.
pub(super) struct OutgoingRecord<'a> {
    view: RecordView<'a>,
    topic: &'a str,
    queue_id: i32,
    properties: Vec<u8>,
    /// Log offset of the record from which it was made.
    accepted: u64,
}

impl<'a> OutgoingRecord<'a> {
    /// Makes the message from `record`; `None` if the record does not name its topic.
    pub(super) fn of(
        record: &'a StoredRecord,
        reason: ReappendReason,
        write_ms: i64,
        now_ms: i64,
    ) -> Option<Self> {
        let view = record.view().ok()?;
        let wanted = if reason == ReappendReason::Level { SCHEDULE_TOPIC } else { TIMER_TOPIC };
        if view.topic != wanted {
            return None;
        }
        let [topic, queue_id, rolls] = view.properties.get_many([REAL_TOPIC, REAL_QID, TIMER_ROLL_TIMES]);
        let (topic, queue_id) = match reason {
            ReappendReason::Roll | ReappendReason::Hold => (TIMER_TOPIC, 0),
            ReappendReason::Due | ReappendReason::Level => (topic?, queue_id?.parse().ok()?),
        };
        let goes_back = matches!(reason, ReappendReason::Roll | ReappendReason::Hold);
        let mut properties = Vec::with_capacity(view.properties.raw().len() + 120);
        for (name, value) in view.properties.iter_raw() {
            let is = |other: &str| name == other.as_bytes();
            let made_anew = is(PROPERTY_CRC)
                || is(TIMER_ORIGIN_OFFSET)
                || reason != ReappendReason::Level && (is(TIMER_ENQUEUE_MS) || is(TIMER_DEQUEUE_MS))
                || goes_back && is(TIMER_ROLL_TIMES)
                || reason == ReappendReason::Hold && (is(TIMER_OUT_MS) || is(TIMER_DELIVER_MS));
            if !made_anew {
                push_property(&mut properties, name, value);
            }
        }
        if reason != ReappendReason::Level {
            push_property(&mut properties, TIMER_ENQUEUE_MS, write_ms.to_string());
            push_property(&mut properties, TIMER_DEQUEUE_MS, now_ms.to_string());
        }
        if reason == ReappendReason::Hold {
            let due_ms = now_ms.saturating_add(HOLD_MS);
            push_property(&mut properties, TIMER_DELIVER_MS, due_ms.to_string());
            push_property(&mut properties, TIMER_OUT_MS, slot_time_ms(due_ms).to_string());
        }
        if goes_back {
            let times: i32 = rolls.and_then(|times| times.parse().ok()).unwrap_or(0);
            push_property(&mut properties, TIMER_ROLL_TIMES, times.saturating_add(1).to_string());
        }
        let accepted = record.commit_log_offset;
        push_property(&mut properties, TIMER_ORIGIN_OFFSET, accepted.to_string());
        Some(Self { view, topic, queue_id, properties, accepted })
    }

    /// Returns the topic of the message if it was deleted since. Also a message that goes back into the wheel is
    /// dropped: its new record would be after the deletion.
    pub(super) fn deleted_topic(&self, store: &Store) -> Result<Option<&'a str>, StoreError> {
        deleted_topic(store, &self.view, self.accepted)
    }

    pub(super) fn message(&self) -> NewMessage<'_> {
        NewMessage {
            topic: self.topic,
            body: self.view.body,
            properties: &self.properties,
            // The stored key, or none.
            unique_key: Some(self.view.unique_key().unwrap_or_default()),
            queue_id: Some(self.queue_id),
            flag: self.view.flag,
            born_timestamp_ms: Some(self.view.born_timestamp),
            durable: false,
            ..NewMessage::default()
        }
    }

    /// Returns the properties that cancel the record; `None` for a record of a level.
    pub(super) fn cancel_properties(&self) -> Option<[Vec<u8>; 2]> {
        let offset = u64::try_from(self.view.physical_offset).ok()?;
        (self.view.topic == TIMER_TOPIC).then(|| cancel_properties(&self.view, offset)).flatten()
    }

    pub(super) fn origin(&self) -> MessageOrigin {
        MessageOrigin {
            sys_flag: self.view.sys_flag,
            born_host: self.view.born_host,
            reconsume_times: self.view.reconsume_times,
        }
    }
}

/// The original form of a waiting message, for a new append.
pub(super) struct ReappendedMessage<'a> {
    view: RecordView<'a>,
    topic: &'a str,
    queue_id: i32,
    properties: Vec<u8>,
}

impl<'a> ReappendedMessage<'a> {
    /// Restores the original message from `record`.
    pub(super) fn of(record: &'a StoredRecord) -> Result<Self, StoreError> {
        let view = view(record)?;
        let [topic, queue_id] = view.properties.get_many([REAL_TOPIC, REAL_QID]);
        let (Some(topic), Some(queue_id)) = (topic, queue_id.and_then(|id| id.parse().ok())) else {
            let reason = "the record does not name the topic of the message".to_owned();
            return Err(StoreError::InvalidMessage { reason });
        };
        let properties = original_properties(&view);
        Ok(Self { view, topic, queue_id, properties })
    }

    pub(super) fn message(&self) -> NewMessage<'_> {
        NewMessage {
            topic: self.topic,
            body: self.view.body,
            properties: &self.properties,
            unique_key: self.view.unique_key(),
            queue_id: Some(self.queue_id),
            flag: self.view.flag,
            born_timestamp_ms: Some(self.view.born_timestamp),
            durable: false,
            sys_flag: self.view.sys_flag,
        }
    }
}

/// Returns the topic of the waiting message in a record at log offset `at`, if it was deleted since.
pub(super) fn deleted_topic<'a>(
    store: &Store,
    view: &RecordView<'a>,
    at: u64,
) -> Result<Option<&'a str>, StoreError> {
    let Some(topic) = view.properties.get(REAL_TOPIC) else { return Ok(None) };
    Ok(store.system_appends().is_deleted_since(topic, at)?.then_some(topic))
}

/// Returns the properties that a waiting message had when it was accepted, without those that say when it is due.
pub(crate) fn original_properties(view: &RecordView<'_>) -> Vec<u8> {
    let mut properties = Vec::with_capacity(view.properties.raw().len());
    let of_level = view.topic == SCHEDULE_TOPIC;
    for (name, value) in view.properties.iter_raw() {
        let is = |other: &str| name == other.as_bytes();
        let made_anew = name.starts_with(b"TIMER_")
            || [PROPERTY_CRC, REAL_TOPIC, REAL_QID].into_iter().any(is)
            || of_level && is(DELAY);
        if !made_anew {
            push_property(&mut properties, name, value);
        }
    }
    properties
}

/// Returns the log offset of the record from which a delivery, or a record that was put back, was made. `None` for
/// other records; a cancellation names an offset too, but is not made from that record.
pub(super) fn origin_of(view: &RecordView<'_>) -> Option<u64> {
    let [origin, cancels] = view.properties.get_many([TIMER_ORIGIN_OFFSET, TIMER_DEL_UNIQKEY]);
    let origin = origin?.parse().ok()?;
    (cancels.is_none() && i64::try_from(origin).is_ok_and(|origin| origin < view.physical_offset))
        .then_some(origin)
}

pub(super) fn is_copy_of(copy: &RecordView<'_>, origin: &RecordView<'_>) -> bool {
    let [topic, queue_id] = origin.properties.get_many([REAL_TOPIC, REAL_QID]);
    let queue_id = queue_id.and_then(|queue_id| queue_id.parse().ok());
    let delivered = topic == Some(copy.topic) && queue_id == Some(copy.queue_id);
    let rolled = copy.topic == TIMER_TOPIC && origin.topic == TIMER_TOPIC;
    matches!(origin.topic, TIMER_TOPIC | SCHEDULE_TOPIC)
        && (delivered || rolled)
        && copy.unique_key() == origin.unique_key()
}

/// Whether an append failed because of the message, and not because of the store.
pub(super) fn is_message_error(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::InvalidMessage { .. }
            | StoreError::TooLarge { .. }
            | StoreError::TopicNotFound { .. }
            | StoreError::Refused { .. }
    )
}

/// Returns the unique key and the slot time, which identify a broker's delivery and its timer record as the same
/// message. A record that was put back has the same values; each copy stands for one earlier record.
pub(super) fn delivery_key(record: &StoredRecord) -> Option<(String, i64)> {
    let view = record.view().ok()?;
    let [key, out, cancels] = view.properties.get_many([UNIQ_KEY, TIMER_OUT_MS, TIMER_DEL_UNIQKEY]);
    let (key, out) = (key?, out?.parse().ok()?);
    cancels.is_none().then(|| (key.to_owned(), out))
}
