//! The history of commits, stored as messages, so that the offset of a group can be looked up for any time.
//!
//! Each commit of a consumer with this option appends one message for each queue to [`HISTORY_TOPIC`]. The topic has
//! one queue. Its compaction keeps the newest message of each key. The key is `topic@group@queue`, the body is JSON:
//!
//! ```text
//! {"group":"billing","topic":"orders","queueId":0,"offset":17}
//! ```
//!
//! The time of a commit is the store time of its message. The topic is mqstore's own; RocketMQ has no such topic.

use mqstore_base::error::StoreError;
use mqstore_base::message::{NewMessage, encode_properties};
use mqstore_engine::{QueueCursor, Store};
use mqstore_format::json::{ConsumerOffsets, Map, TopicConfig, Value, parse};

use super::assignment::Queue;
use crate::error::BrokerError;

/// The topic of the history.
pub(super) const HISTORY_TOPIC: &str = "rmq_sys_OFFSET_HISTORY";

/// Messages in one read.
const AT_ONCE: usize = 256;

/// One commit of one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetCommit {
    /// The topic.
    pub topic: String,
    /// The queue.
    pub queue_id: i32,
    /// The next offset of the group.
    pub offset: i64,
    /// Time of the commit, in epoch milliseconds.
    pub timestamp_ms: i64,
}

pub(super) fn write(store: &Store, group: &str, offsets: &[(Queue, i64)]) -> Result<(), BrokerError> {
    let policy = (TopicConfig::CLEANUP_POLICY.to_owned(), "COMPACTION".to_owned());
    if store.queue_ids(HISTORY_TOPIC)?.is_empty() {
        store.create_topic(HISTORY_TOPIC, 1, &[policy])?;
    }
    let mut texts = Vec::with_capacity(offsets.len());
    for (queue, offset) in offsets {
        let key = format!("{}@{}", ConsumerOffsets::key(&queue.topic, group), queue.queue_id);
        let properties = encode_properties([key.as_str()], None, None, [])?;
        let members = [
            ("group", Value::from(group)),
            ("topic", Value::from(&*queue.topic)),
            ("queueId", Value::from(queue.queue_id)),
            ("offset", Value::from(*offset)),
        ];
        let body = Value::Object(members.map(|(name, value)| (name.to_owned(), value)).into_iter().collect());
        texts.push((properties, body.to_string()));
    }
    let messages: Vec<_> = texts
        .iter()
        .map(|(properties, body)| NewMessage {
            topic: HISTORY_TOPIC,
            body: body.as_bytes(),
            properties,
            unique_key: None,
            queue_id: Some(0),
            flag: 0,
            born_timestamp_ms: None,
            durable: false,
            ..NewMessage::default()
        })
        .collect();
    store.system_appends().append_many_first(&messages)?;
    Ok(())
}

/// The commits of a group, oldest first.
pub struct OffsetHistory {
    group: String,
    cursor: Option<QueueCursor>,
}

impl OffsetHistory {
    /// Opens the commits of consumers of `group` that were opened with [`super::ConsumerOptions::history`]. Also
    /// works for a store that is open for reading.
    pub fn open(store: &Store, group: &str) -> Result<Self, BrokerError> {
        let cursor = match store.read(HISTORY_TOPIC, 0, None, None, None) {
            Ok(cursor) => Some(cursor),
            // No consumer used a history yet.
            Err(StoreError::TopicNotFound { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(Self { group: group.to_owned(), cursor })
    }

    /// Returns some more commits; none at the end.
    pub fn next_batch(&mut self) -> Result<Vec<OffsetCommit>, BrokerError> {
        let Some(cursor) = &mut self.cursor else { return Ok(Vec::new()) };
        loop {
            let records = cursor.next_batch(AT_ONCE)?;
            let end = records.is_empty();
            let own = records.iter().filter_map(|record| {
                let view = record.view().ok()?;
                decode(view.body, &self.group, view.store_timestamp)
            });
            let own: Vec<_> = own.collect();
            if end || !own.is_empty() {
                return Ok(own);
            }
        }
    }
}

/// Decodes a commit of `group`; `None` for another group, and for a message that is no commit.
fn decode(body: &[u8], group: &str, timestamp_ms: i64) -> Option<OffsetCommit> {
    let Ok(Value::Object(members)) = parse(body) else { return None };
    let text = |members: &Map<String, Value>, name: &str| Some(members.get(name)?.as_str()?.to_owned());
    (text(&members, "group")? == group).then_some(())?;
    Some(OffsetCommit {
        topic: text(&members, "topic")?,
        queue_id: members.get("queueId")?.as_i64()?.try_into().ok()?,
        offset: members.get("offset")?.as_i64()?,
        timestamp_ms,
    })
}
