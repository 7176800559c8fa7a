//! Decodes the records of the system topics: delayed messages, transactions and discarded half messages.
//!
//! Source: `HookUtils#transformTimerMessage`, `#transformDelayLevelMessage`, `TransactionalMessageBridge`,
//! `DefaultTransactionalMessageCheckListener#resolveDiscardMsg`.

use crate::delay_levels::DelayLevels;
use crate::delays::timer::{TIMER_PRECISION_MS, TIMER_TOPIC, roll};
use crate::properties::{
    REAL_QID, REAL_TOPIC, TIMER_DEL_UNIQKEY, TIMER_DELIVER_MS, TIMER_ORIGIN_OFFSET, TIMER_OUT_MS,
};
use crate::record::RecordView;
use crate::topic::{CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, SYSTEM_TOPIC_PREFIX};
use crate::transaction::{HalfRecord, OpRecord};

/// Ours: the property of an exported message that waits, with its due time in epoch milliseconds. No store has it: an
/// import delivers the message at that time.
pub const DELIVER_AT: &str = "mqstore.deliver_at";

/// Whether a store or a broker writes the topic for itself. Its records are no messages for a consumer. Source:
/// `TopicValidator#isSystemTopic`, without the topics that only tests of brokers use.
pub fn is_system_topic(topic: &str) -> bool {
    topic.starts_with(SYSTEM_TOPIC_PREFIX)
        || topic.starts_with("RMQ_SYS_")
        || matches!(topic, SCHEDULE_TOPIC | CHECK_MAX_TIME_TOPIC | "OFFSET_MOVED_EVENT")
}

/// A record of a system topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitingRecord<'a> {
    /// A message with a delivery time, or the cancellation of one.
    Timer(TimerRecord<'a>),
    /// A message with a delay level.
    Level(LevelRecord<'a>),
    /// A half message.
    Half(HalfRecord<'a>),
    /// A decision about half messages.
    Op(OpRecord),
    /// A half message without a decision.
    Discarded(HalfRecord<'a>),
}

/// A record of the timer topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerRecord<'a> {
    /// The topic of the message. A record without one is never delivered.
    pub topic: Option<&'a str>,
    /// The queue of the message.
    pub queue_id: Option<i32>,
    /// The time at which the message is due, in epoch milliseconds; for a cancellation, the time of the cancelled
    /// message.
    pub due_ms: i64,
    /// The time of its slot in the wheel, in epoch milliseconds.
    pub slot_ms: i64,
    /// Whether the message is not due yet when its slot is read.
    pub rolls: bool,
    /// The action when its slot is read.
    pub turn: TimerTurn<'a>,
}

/// The action for a record of the timer topic when its slot is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerTurn<'a> {
    /// The message is delivered.
    Deliver,
    /// The message is not due yet, and is appended again as a new record.
    PutBack,
    /// Another record is cancelled.
    Cancel {
        /// The broker's name of the cancelled record: its unique key, up to RocketMQ 5.3 with the topic before it.
        key: &'a str,
        /// Log offset of the cancelled record; a broker does not store it.
        record: Option<u64>,
    },
}

/// A record of a delay level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelRecord<'a> {
    /// The topic of the message.
    pub topic: &'a str,
    /// The queue of the message.
    pub queue_id: i32,
    /// The level, counted from 1.
    pub level: i32,
    /// The time at which it is due, in epoch milliseconds.
    pub due_ms: i64,
}

impl<'a> WaitingRecord<'a> {
    /// Decodes `record`; `None` for a record of another topic, and for one without a required field. `levels` determine
    /// when a message with a level is due.
    pub fn of(record: &RecordView<'a>, levels: &DelayLevels) -> Option<Self> {
        match record.topic {
            TIMER_TOPIC => TimerRecord::of(record).map(Self::Timer),
            SCHEDULE_TOPIC => LevelRecord::of(record, levels).map(Self::Level),
            HALF_TOPIC => HalfRecord::of(record).map(Self::Half),
            OP_TOPIC => Some(Self::Op(OpRecord::of(record))),
            CHECK_MAX_TIME_TOPIC => HalfRecord::of(record).map(Self::Discarded),
            _ => None,
        }
    }
}

impl<'a> TimerRecord<'a> {
    /// Decodes a record of the timer topic; `None` if a required field is missing.
    pub fn of(record: &RecordView<'a>) -> Option<Self> {
        let [out, deliver, topic, queue_id, key, origin] = record.properties.get_many([
            TIMER_OUT_MS,
            TIMER_DELIVER_MS,
            REAL_TOPIC,
            REAL_QID,
            TIMER_DEL_UNIQKEY,
            TIMER_ORIGIN_OFFSET,
        ]);
        let out_ms: i64 = out?.parse().ok()?;
        let latest = out_ms.saturating_add(TIMER_PRECISION_MS);
        let deliver = deliver.and_then(|due| due.parse().ok()).filter(|due| (out_ms..=latest).contains(due));
        let floor = |ms: i64| ms.div_euclid(TIMER_PRECISION_MS).saturating_mul(TIMER_PRECISION_MS);
        let (slot_ms, rolls) = roll(floor(out_ms), floor(record.store_timestamp));
        let turn = match key {
            Some(key) => TimerTurn::Cancel { key, record: origin.and_then(|origin| origin.parse().ok()) },
            None if rolls => TimerTurn::PutBack,
            None => TimerTurn::Deliver,
        };
        Some(Self {
            topic,
            queue_id: queue_id.and_then(|id| id.parse().ok()),
            due_ms: deliver.unwrap_or(latest),
            slot_ms,
            rolls,
            turn,
        })
    }
}

impl<'a> LevelRecord<'a> {
    fn of(record: &RecordView<'a>, levels: &DelayLevels) -> Option<Self> {
        let [topic, queue_id] = record.properties.get_many([REAL_TOPIC, REAL_QID]);
        // Like a broker, this uses the queue and not the property.
        let level = record.queue_id.saturating_add(1);
        Some(Self {
            topic: topic?,
            queue_id: queue_id?.parse().ok()?,
            level,
            due_ms: levels.delivery_time(level, record.store_timestamp),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Host;
    use crate::properties::{PGROUP, TAGS, TRANSACTION_CHECK_TIMES, TRANSACTION_ID, UNIQ_KEY, push_property};
    use crate::record::RecordSpec;
    use crate::transaction::{DECISION, Decision, TRANSACTION};

    const STORED: i64 = 1_700_000_000_123;

    fn look<T>(
        (topic, queue_id): (&str, i32),
        body: &[u8],
        properties: &[(&str, &str)],
        see: impl FnOnce(Option<WaitingRecord<'_>>) -> T,
    ) -> T {
        let mut text = Vec::new();
        for (name, value) in properties {
            push_property(&mut text, name, value);
        }
        let host = Host::new([127, 0, 0, 1], 10_911);
        let plain = RecordSpec::new(topic, body, host, host);
        let spec = RecordSpec { queue_id, store_timestamp: STORED, properties: &text, ..plain };
        let mut bytes = Vec::new();
        spec.encode_into(&mut bytes).unwrap();
        see(WaitingRecord::of(&RecordView::decode(&bytes).unwrap(), &DelayLevels::default()))
    }

    #[test]
    fn names_of_system_topics() {
        let own = [TIMER_TOPIC, SCHEDULE_TOPIC, HALF_TOPIC, OP_TOPIC, CHECK_MAX_TIME_TOPIC];
        for name in own.into_iter().chain(["rmq_sys_REVIVE_LOG_b", "RMQ_SYS_TRACE_TOPIC"]) {
            assert!(is_system_topic(name), "{name}");
        }
        for name in ["orders", "%RETRY%g", "%DLQ%g", "TBW102", "my_rmq_sys_", ""] {
            assert!(!is_system_topic(name), "{name}");
        }
    }

    #[test]
    fn records_of_the_timer_topic() {
        let due = [(TIMER_OUT_MS, "1700000005000"), (TIMER_DELIVER_MS, "1700000005500")];
        let meant = [(REAL_TOPIC, "t"), (REAL_QID, "3")];
        let mut properties = [due, meant].concat();
        let expected = TimerRecord {
            topic: Some("t"),
            queue_id: Some(3),
            due_ms: 1_700_000_005_500,
            slot_ms: 1_700_000_005_000,
            rolls: false,
            turn: TimerTurn::Deliver,
        };
        look((TIMER_TOPIC, 0), b"", &properties, |found| {
            assert_eq!(found, Some(WaitingRecord::Timer(expected)));
        });
        properties.push((TIMER_DEL_UNIQKEY, "t+KEY"));
        properties.push((TIMER_ORIGIN_OFFSET, "4711"));
        let turn = TimerTurn::Cancel { key: "t+KEY", record: Some(4711) };
        look((TIMER_TOPIC, 0), b"", &properties, |found| {
            assert_eq!(found, Some(WaitingRecord::Timer(TimerRecord { turn, ..expected })));
        });
        // Due in four days: appended again after two. A broker without the exact time delivers at the end of the
        // second.
        let far = (STORED / 1000 * 1000 + 4 * 86_400_000).to_string();
        look((TIMER_TOPIC, 0), b"", &[(TIMER_OUT_MS, &far)], |found| {
            let Some(WaitingRecord::Timer(found)) = found else { panic!("{found:?}") };
            assert_eq!((found.turn, found.rolls, found.topic), (TimerTurn::PutBack, true, None));
            assert_eq!(found.due_ms, far.parse::<i64>().unwrap() + 1000);
            assert_eq!(found.slot_ms, STORED / 1000 * 1000 + 2 * 86_400_000);
        });
        look((TIMER_TOPIC, 0), b"", &meant, |found| assert_eq!(found, None));
        look(("t", 0), b"", &due, |found| assert_eq!(found, None));
    }

    #[test]
    fn records_of_delay_levels() {
        look((SCHEDULE_TOPIC, 2), b"", &[(REAL_TOPIC, "t"), (REAL_QID, "1")], |found| {
            let due_ms = STORED + 10_000;
            let level = LevelRecord { topic: "t", queue_id: 1, level: 3, due_ms };
            assert_eq!(found, Some(WaitingRecord::Level(level)));
        });
        look((SCHEDULE_TOPIC, 2), b"", &[(REAL_TOPIC, "t")], |found| assert_eq!(found, None));
    }

    #[test]
    fn records_of_transactions() {
        let own = [(PGROUP, "shop"), (TRANSACTION_ID, "ID"), (UNIQ_KEY, "KEY")];
        let meant = [(REAL_TOPIC, "t"), (REAL_QID, "0"), (TRANSACTION_CHECK_TIMES, "4")];
        let half = HalfRecord {
            transaction: "ID",
            group: "shop",
            topic: "t",
            queue_id: 0,
            unique_key: "KEY",
            checks: 4,
        };
        let mut properties = [own, meant].concat();
        look((CHECK_MAX_TIME_TOPIC, 0), b"", &properties, |found| {
            assert_eq!(found, Some(WaitingRecord::Discarded(half)));
        });
        properties.push((TRANSACTION, "OTHER"));
        look((HALF_TOPIC, 0), b"", &properties, |found| {
            let half = HalfRecord { transaction: "OTHER", ..half };
            assert_eq!(found, Some(WaitingRecord::Half(half)));
        });
        look((HALF_TOPIC, 0), b"", &own, |found| assert_eq!(found, None));
        look((OP_TOPIC, 0), b"12, 13,x,", &[(TAGS, "d"), (DECISION, "discard")], |found| {
            let op = OpRecord { half_offsets: vec![12, 13], decision: Some(Decision::Discard) };
            assert_eq!(found, Some(WaitingRecord::Op(op)));
        });
        look((OP_TOPIC, 0), b"12", &[(TAGS, "e"), (DECISION, "?")], |found| {
            assert_eq!(found, Some(WaitingRecord::Op(OpRecord { half_offsets: vec![], decision: None })));
        });
    }
}
