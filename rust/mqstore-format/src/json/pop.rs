//! The pop state of a broker: bodies of records in the revive topic.
//!
//! A client that pops a message leases it for a time and acknowledges it. The broker stores two kinds of messages in
//! `rmq_sys_REVIVE_LOG_<cluster>`: which messages of one queue it leased together (tag `ck`), and which of them were
//! acknowledged (`ack`, or `bAck` for several). They are in the timer topic first, and in the revive topic once they
//! are due.
//!
//! ```text
//! ck    {"bm":0,"bn":"broker-a","c":"g1","d":[0,1,4],"it":60000,"n":3,"pt":1700000000000,"q":2,"ro":0,"so":100,"t":"t1"}
//! ack   {"ao":101,"bn":"broker-a","c":"g1","pt":1700000000000,"q":2,"so":100,"t":"t1"}
//! bAck  {"ao":-1,"aol":[100,104],"bn":"broker-a","c":"g1","pt":1700000000000,"q":2,"so":100,"t":"t1"}
//! ```
//!
//! Names are short, or long like the fields of the classes. Old checkpoints lack `d`: their offsets are consecutive. A
//! record with an impossible queue or offset is an error, whatever else it contains. Source: `PopCheckPoint`, `AckMsg`,
//! `BatchAckMsg`, `PopAckConstants`.

use serde_json::Value;

use super::members::{Members, parse_object, whole};
use crate::delays::timer::TIMER_TOPIC;
use crate::error::FormatError;
use crate::properties::REAL_TOPIC;
use crate::record::RecordView;

/// Prefix of the topics with a cluster's checkpoints and acknowledgements.
pub const REVIVE_TOPIC_PREFIX: &str = "rmq_sys_REVIVE_LOG_";
/// The group whose offsets in the revive topic are those of the last processed records.
pub const REVIVE_GROUP: &str = "CID_RMQ_SYS_REVIVE_GROUP";
/// The tag of a checkpoint.
pub const CHECKPOINT_TAG: &str = "ck";
/// The tag of an acknowledgement.
pub const ACK_TAG: &str = "ack";
/// The tag of several acknowledgements in one record.
pub const BATCH_ACK_TAG: &str = "bAck";

/// Maximum number of messages in a checkpoint: its bit map has 32 bits. Source: `PopCheckPoint#bitMap`.
const MOST_MESSAGES: i64 = 32;

/// One record of the revive topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PopRecord {
    /// Messages were leased.
    Checkpoint(PopCheckpoint),
    /// Messages were acknowledged.
    Ack(PopAck),
}

/// Messages of one queue that were leased together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PopCheckpoint {
    /// The group, queue and time of the lease.
    pub handle: PopHandle,
    /// The length of the lease, in milliseconds.
    pub invisible_time_ms: i64,
    /// Their queue offsets.
    pub offsets: Vec<i64>,
    /// One bit for each of them, the lowest for the first. A set bit means: acknowledged before this was written.
    pub acked_bits: u32,
    /// The offset in the revive queue, in the broker's memory; 0 in the file.
    pub revive_offset: i64,
    /// Number of failed revivals, in the broker's text form.
    pub re_put_times: Option<String>,
}

/// The acknowledged messages of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PopAck {
    /// The handle of the checkpoint.
    pub handle: PopHandle,
    /// The queue offsets of the messages.
    pub offsets: Vec<i64>,
}

/// The fields that a checkpoint and its acknowledgements share. The broker's name may be missing, and is not used to
/// match them: a directory belongs to one broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PopHandle {
    /// The popped topic; it can be a retry topic.
    pub topic: String,
    /// The group.
    pub group: String,
    /// The queue.
    pub queue_id: i32,
    /// The first offset of the pop.
    pub start_offset: i64,
    /// The time of the pop, in epoch milliseconds.
    pub pop_time_ms: i64,
    /// The broker's name.
    pub broker_name: Option<String>,
}

impl PopCheckpoint {
    /// Returns when unacknowledged messages are redelivered, in epoch milliseconds.
    pub fn revive_time_ms(&self) -> i64 {
        self.handle.pop_time_ms.saturating_add(self.invisible_time_ms)
    }

    /// Returns the offsets of the messages that were not acknowledged before it was written.
    pub fn unacked(&self) -> impl Iterator<Item = i64> + '_ {
        let bits = self.acked_bits;
        self.offsets.iter().enumerate().filter(move |(at, _)| bits >> at & 1 == 0).map(|(_, offset)| *offset)
    }
}

impl PopRecord {
    /// Decodes a record of a broker's store: one of a revive topic, or one that waits for it in the timer topic.
    /// Returns `None` for other records, and for one that does not decode.
    pub fn of(record: &RecordView<'_>) -> Option<Self> {
        let topic = match record.topic {
            TIMER_TOPIC => record.properties.get(REAL_TOPIC)?,
            topic => topic,
        };
        let tag = topic.starts_with(REVIVE_TOPIC_PREFIX).then(|| record.tags()).flatten()?;
        Self::parse(tag, record.body).ok().flatten()
    }

    /// Decodes the body of a record with the tag `tag`; `None` for a tag that no such record has.
    ///
    /// # Errors
    /// [`FormatError`] for a body that does not match its tag.
    pub fn parse(tag: &str, body: &[u8]) -> Result<Option<Self>, FormatError> {
        Ok(match tag {
            CHECKPOINT_TAG => Some(Self::Checkpoint(checkpoint(body)?)),
            ACK_TAG => Some(Self::Ack(ack(body, false)?)),
            BATCH_ACK_TAG => Some(Self::Ack(ack(body, true)?)),
            _ => None,
        })
    }

    /// Returns the handle, by which records are matched.
    pub fn handle(&self) -> &PopHandle {
        match self {
            Self::Checkpoint(checkpoint) => &checkpoint.handle,
            Self::Ack(ack) => &ack.handle,
        }
    }
}

fn checkpoint(body: &[u8]) -> Result<PopCheckpoint, FormatError> {
    let mut members = parse_object(body)?;
    let handle = handle(&mut members, "cid")?;
    let invisible_time_ms = required(&mut members, "it", "invisibleTime")?;
    let count = required(&mut members, "n", "num")?;
    let bits = integer(&mut members, "bm", "bitMap")?.unwrap_or(0);
    let differences = list(&mut members, "d", "queueOffsetDiff")?;
    if !(0..=MOST_MESSAGES).contains(&count) {
        return Err(FormatError::json(
            0,
            format!("n is {count}; a checkpoint has 0 to {MOST_MESSAGES} messages"),
        ));
    }
    if invisible_time_ms < 0 {
        return Err(FormatError::json(0, "it is below 0"));
    }
    let acked_bits = i32::try_from(bits).map_err(|_| FormatError::json(0, "bm is not a 32-bit integer"))?;
    let differences = match differences {
        // An old checkpoint, or the form for one message at the start offset.
        None => (0..count).collect(),
        Some(differences) if differences.is_empty() => (0..count).collect(),
        Some(differences) if differences.len() as i64 == count => differences,
        Some(_) => return Err(FormatError::json(0, "d does not have n members")),
    };
    let offset = |difference: i64| {
        let offset =
            handle.start_offset.checked_add(difference).filter(|offset| (0..i64::MAX).contains(offset));
        offset.ok_or_else(|| FormatError::json(0, "d gives an offset that is not valid"))
    };
    Ok(PopCheckpoint {
        offsets: differences.into_iter().map(offset).collect::<Result<_, _>>()?,
        invisible_time_ms,
        acked_bits: acked_bits.cast_unsigned(),
        revive_offset: integer(&mut members, "ro", "reviveOffset")?.unwrap_or(0),
        re_put_times: text(&mut members, "rp", "rePutTimes")?,
        handle,
    })
}

fn ack(body: &[u8], batch: bool) -> Result<PopAck, FormatError> {
    let mut members = parse_object(body)?;
    let handle = handle(&mut members, "consumerGroup")?;
    let offsets = if batch {
        list(&mut members, "aol", "ackOffsetList")?.ok_or_else(|| FormatError::json(0, "aol is missing"))?
    } else {
        vec![required(&mut members, "ao", "ackOffset")?]
    };
    Ok(PopAck { handle, offsets })
}

fn handle(members: &mut Members, long_group: &str) -> Result<PopHandle, FormatError> {
    let missing = |name: &str| FormatError::json(0, format!("{name} is missing"));
    let queue_id = required(members, "q", "queueId")?;
    let start_offset = required(members, "so", "startOffset")?;
    if start_offset < 0 {
        return Err(FormatError::json(0, "so is below 0"));
    }
    Ok(PopHandle {
        topic: text(members, "t", "topic")?.ok_or_else(|| missing("t"))?,
        group: text(members, "c", long_group)?.ok_or_else(|| missing("c"))?,
        queue_id: queue_id.try_into().map_err(|_| FormatError::json(0, "q is not a 32-bit integer"))?,
        start_offset,
        pop_time_ms: required(members, "pt", "popTime")?,
        broker_name: text(members, "bn", "brokerName")?,
    })
}

fn integer(members: &mut Members, short: &str, long: &str) -> Result<Option<i64>, FormatError> {
    Ok(members.take_i64(short)?.or(members.take_i64(long)?))
}

fn required(members: &mut Members, short: &str, long: &str) -> Result<i64, FormatError> {
    integer(members, short, long)?.ok_or_else(|| FormatError::json(0, format!("{short} is missing")))
}

fn text(members: &mut Members, short: &str, long: &str) -> Result<Option<String>, FormatError> {
    Ok(members.take_text(short)?.or(members.take_text(long)?))
}

fn list(members: &mut Members, short: &str, long: &str) -> Result<Option<Vec<i64>>, FormatError> {
    match members.take(short).or_else(|| members.take(long)) {
        None => Ok(None),
        Some(Value::Array(values)) => {
            values.iter().map(|value| whole(short, value)).collect::<Result<_, _>>().map(Some)
        }
        Some(_) => Err(FormatError::json(0, format!("{short} is not a list"))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn checkpoint_of(body: &str) -> PopCheckpoint {
        match PopRecord::parse(CHECKPOINT_TAG, body.as_bytes()) {
            Ok(Some(PopRecord::Checkpoint(checkpoint))) => checkpoint,
            other => panic!("{other:?}"),
        }
    }

    fn ack_of(tag: &str, body: &str) -> PopAck {
        match PopRecord::parse(tag, body.as_bytes()) {
            Ok(Some(PopRecord::Ack(ack))) => ack,
            other => panic!("{other:?}"),
        }
    }

    fn handle() -> PopHandle {
        PopHandle {
            topic: "t1".into(),
            group: "g1".into(),
            queue_id: 2,
            start_offset: 100,
            pop_time_ms: 1_700_000_000_000,
            broker_name: Some("broker-a".into()),
        }
    }

    #[test]
    fn as_the_classes_write_them() {
        let checkpoint = checkpoint_of(
            r#"{"bm":0,"bn":"broker-a","c":"g1","d":[0,1,4],"it":60000,"n":3,"pt":1700000000000,"q":2,"reviveTime":1700000060000,"ro":0,"so":100,"t":"t1"}"#,
        );
        assert_eq!(checkpoint.handle, handle());
        assert_eq!((checkpoint.offsets.as_slice(), checkpoint.acked_bits), (&[100, 101, 104][..], 0));
        assert_eq!(checkpoint.revive_time_ms(), 1_700_000_060_000);
        let ack = r#"{"ao":101,"bn":"broker-a","c":"g1","pt":1700000000000,"q":2,"so":100,"t":"t1"}"#;
        assert_eq!(ack_of(ACK_TAG, ack), PopAck { handle: handle(), offsets: vec![101] });
        let both = r#"{"ao":-1,"aol":[100,104],"bn":"broker-a","c":"g1","pt":1700000000000,"q":2,"so":100,"t":"t1"}"#;
        assert_eq!(ack_of(BATCH_ACK_TAG, both), PopAck { handle: handle(), offsets: vec![100, 104] });
        let buffered = r#"{"ao":0,"aol":[100],"c":"g1","pt":1700000000000,"q":2,"so":100,"t":"t1"}"#;
        assert_eq!(ack_of(BATCH_ACK_TAG, buffered).handle, PopHandle { broker_name: None, ..handle() });
    }

    #[test]
    fn long_names_and_old_forms() {
        let long = r#"{"ackOffset":101,"brokerName":"broker-a","consumerGroup":"g1","popTime":1700000000000,"queueId":2,"startOffset":100,"topic":"t1"}"#;
        assert_eq!(ack_of(ACK_TAG, long), PopAck { handle: handle(), offsets: vec![101] });
        let list = long.replace(r#""ackOffset":101"#, r#""ackOffsetList":[101,104]"#);
        assert_eq!(ack_of(BATCH_ACK_TAG, &list).offsets, [101, 104]);
        let old = r#"{"bm":5,"c":"g1","it":60000,"n":3,"pt":1700000000000,"q":2,"so":100,"t":"t1","rp":"2","sp":false}"#;
        let old = checkpoint_of(old);
        assert_eq!(
            (old.offsets.as_slice(), old.unacked().collect::<Vec<_>>()),
            (&[100, 101, 102][..], vec![101])
        );
        assert_eq!(old.re_put_times.as_deref(), Some("2"));
        let long = r#"{"bitMap":-1,"cid":"g1","invisibleTime":1,"num":2,"popTime":1,"queueId":0,"startOffset":0,"topic":"t","queueOffsetDiff":[0,7]}"#;
        let long = checkpoint_of(long);
        assert_eq!((long.offsets.as_slice(), long.unacked().count()), (&[0, 7][..], 0));
    }

    #[test]
    fn what_is_none() {
        assert_eq!(PopRecord::parse("paid", b"x"), Ok(None));
        for body in [
            "",
            "[]",
            "{}",
            r#"{"c":"g","it":1,"n":33,"pt":1,"q":0,"so":0,"t":"t"}"#,
            r#"{"c":"g","it":1,"n":-1,"pt":1,"q":0,"so":0,"t":"t"}"#,
            r#"{"c":"g","it":-1,"n":1,"pt":1,"q":0,"so":0,"t":"t"}"#,
            r#"{"c":"g","it":1,"n":1,"pt":1,"q":0,"so":-1,"t":"t"}"#,
            r#"{"c":"g","it":1,"n":1,"pt":1,"q":9999999999,"so":0,"t":"t"}"#,
            r#"{"c":"g","it":1,"n":2,"pt":1,"q":0,"so":0,"t":"t","d":[0]}"#,
            r#"{"c":"g","it":1,"n":1,"pt":1,"q":0,"so":5,"t":"t","d":[-6]}"#,
            r#"{"c":"g","it":1,"n":1,"pt":1,"q":0,"so":9223372036854775807,"t":"t"}"#,
            r#"{"c":"g","it":1,"n":1,"pt":1,"q":0,"so":5,"t":"t","d":{}}"#,
        ] {
            assert!(PopRecord::parse(CHECKPOINT_TAG, body.as_bytes()).is_err(), "{body}");
            assert!(PopRecord::parse(BATCH_ACK_TAG, body.as_bytes()).is_err(), "{body}");
        }
    }

    proptest! {
        #[test]
        fn any_numbers_are_a_record_or_an_error(numbers: [i64; 6], differences in proptest::collection::vec(any::<i64>(), 0..40)) {
            let [start, time, invisible, count, bits, queue] = numbers;
            let body = format!(
                r#"{{"c":"g","t":"t","so":{start},"pt":{time},"it":{invisible},"n":{},"bm":{bits},"q":{},"d":{differences:?}}}"#,
                count % 40, queue % 8,
            );
            if let Ok(Some(PopRecord::Checkpoint(checkpoint))) = PopRecord::parse(CHECKPOINT_TAG, body.as_bytes()) {
                prop_assert!(checkpoint.offsets.iter().all(|offset| (0..i64::MAX).contains(offset)));
                prop_assert!(checkpoint.unacked().count() <= 32);
                checkpoint.revive_time_ms();
            }
        }

        #[test]
        fn any_bytes_are_a_record_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            for tag in [CHECKPOINT_TAG, ACK_TAG, BATCH_ACK_TAG] {
                prop_assert!(!matches!(PopRecord::parse(tag, &bytes), Ok(None)));
            }
        }
    }
}
