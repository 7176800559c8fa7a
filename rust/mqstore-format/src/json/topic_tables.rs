//! `config/topics.json` and `config/subscriptionGroup.json`.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::losses::{ConfigTable, Losses, PartialTable};
use super::members::{Members, add_members, counted, parse_entries, parse_object, text};
use super::parse::parse;
use super::write::{Dialect, Node};
use crate::error::FormatError;

/// Orders two states of a table by state, counter and time (`DataVersion#compare`).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct DataVersion {
    /// Number of changes.
    pub counter: i64,
    /// Term of a controller; 0 without a controller.
    pub state_version: i64,
    /// Time of the last change, epoch milliseconds.
    pub timestamp: i64,
}

impl DataVersion {
    /// Returns the state after one more change at `now_ms`.
    #[must_use]
    pub fn next(self, now_ms: i64) -> Self {
        Self { counter: self.counter.saturating_add(1), timestamp: now_ms, ..self }
    }

    /// Takes the version; an incomplete version counts as absent.
    pub(super) fn take(members: &mut Members, losses: &mut Losses) -> Result<Self, FormatError> {
        let value = members.take("dataVersion").filter(|_| !losses.is_damaged(&["dataVersion"]));
        let Some(value) = value else { return Ok(Self::default()) };
        Ok(losses.keep(&["dataVersion"], Self::read(value))?.unwrap_or_default())
    }

    fn read(value: Value) -> Result<Self, FormatError> {
        let mut members = Members::of("dataVersion", value)?;
        Ok(Self {
            counter: members.take_i64("counter")?.unwrap_or(0),
            state_version: members.take_i64("stateVersion")?.unwrap_or(0),
            timestamp: members.take_i64("timestamp")?.unwrap_or(0),
        })
    }

    pub(super) fn node(self) -> Node {
        let known = vec![
            ("counter", self.counter.into()),
            ("stateVersion", self.state_version.into()),
            ("timestamp", self.timestamp.into()),
        ];
        Node::bean(known, &Map::new())
    }
}

impl PartialOrd for DataVersion {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for DataVersion {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let key = |v: &Self| (v.state_version, v.counter, v.timestamp);
        key(self).cmp(&key(other))
    }
}

/// One topic. Source: `TopicConfig`.
#[derive(Clone, Debug, PartialEq)]
pub struct TopicConfig {
    /// `topicName`.
    pub name: String,
    /// `readQueueNums`, default 16.
    pub read_queues: i32,
    /// `writeQueueNums`, default 16.
    pub write_queues: i32,
    /// `perm`: 1 inherit, 2 write, 4 read, 8 priority; default 6.
    pub perm: i32,
    /// `order`: whether messages of the topic are ordered.
    pub order: bool,
    /// `topicFilterType`, default `SINGLE_TAG`.
    pub filter_type: String,
    /// `topicSysFlag`.
    pub sys_flag: i32,
    /// `attributes`: `queue.type`, `cleanup.policy`, `message.type`, `reserve.time` and others.
    pub attributes: BTreeMap<String, String>,
    /// Unknown members.
    pub unknown: Map<String, Value>,
}

impl TopicConfig {
    /// Attribute for the type of the queues.
    pub const QUEUE_TYPE: &'static str = "queue.type";
    /// Attribute for the cleanup of old messages.
    pub const CLEANUP_POLICY: &'static str = "cleanup.policy";

    /// Attribute of mqstore for the maximum number of messages. Brokers keep unknown attributes.
    pub const MAX_MESSAGES: &'static str = "mqstore.max.messages";
    /// Attribute of mqstore for the milliseconds after which a value of a table expires.
    pub const EXPIRE_AFTER: &'static str = "mqstore.expire.after.ms";

    /// Creates a topic with this many read and write queues.
    pub fn new(name: impl Into<String>, queues: i32) -> Self {
        Self {
            name: name.into(),
            read_queues: queues,
            write_queues: queues,
            perm: 6,
            order: false,
            filter_type: "SINGLE_TAG".to_owned(),
            sys_flag: 0,
            attributes: BTreeMap::new(),
            unknown: Map::new(),
        }
    }

    /// Returns whether the topic keeps the last message of each key (`cleanup.policy` is `COMPACTION`).
    pub fn is_compaction(&self) -> bool {
        self.attributes.get(Self::CLEANUP_POLICY).is_some_and(|policy| policy == "COMPACTION")
    }

    /// Returns whether the topic has batch queues (`queue.type` is `BatchCQ`).
    pub fn is_batch_queue(&self) -> bool {
        self.attributes.get(Self::QUEUE_TYPE).is_some_and(|kind| kind == "BatchCQ")
    }

    /// Returns the maximum number of messages; `None` if it is not set, or not a number from 1 to 2^53.
    pub fn max_messages(&self) -> Option<u64> {
        let most = self.attributes.get(Self::MAX_MESSAGES)?.parse().ok()?;
        (1..=1 << 53).contains(&most).then_some(most)
    }

    /// Returns the milliseconds after which a value of the table expires; `None` if it is not set, or not a number from
    /// 1 to 2^53.
    pub fn expire_after_ms(&self) -> Option<i64> {
        let after_ms = self.attributes.get(Self::EXPIRE_AFTER)?.parse().ok()?;
        (1..=1 << 53).contains(&after_ms).then_some(after_ms)
    }

    /// Returns the store time in milliseconds up to which values of the table have expired at `now_ms`; `None` if they
    /// do not expire.
    pub fn expired_to_ms(&self, now_ms: i64) -> Option<i64> {
        self.expire_after_ms().map(|after_ms| now_ms.saturating_sub(after_ms))
    }

    /// Returns the members of topic `name` that differ from the defaults, as JSON on one line.
    pub fn to_text(&self, name: &str) -> String {
        self.node().differing(&Self::new(name, 16).node())
    }

    /// Parses the result of [`Self::to_text`] for `name`.
    pub fn parse(name: &str, text: &[u8]) -> Result<Self, FormatError> {
        Ok(Self::read(name.to_owned(), parse(text)?)?.1)
    }

    fn read(key: String, value: Value) -> Result<(String, Self), FormatError> {
        let mut members = Members::of(&key, value)?;
        let plain = Self::new(key.as_str(), 16);
        let config = Self {
            name: members.take_text("topicName")?.unwrap_or(plain.name),
            read_queues: members.take_i32("readQueueNums")?.unwrap_or(plain.read_queues),
            write_queues: members.take_i32("writeQueueNums")?.unwrap_or(plain.write_queues),
            perm: members.take_i32("perm")?.unwrap_or(plain.perm),
            order: members.take_bool("order")?.unwrap_or(plain.order),
            filter_type: members.take_text("topicFilterType")?.unwrap_or(plain.filter_type),
            sys_flag: members.take_i32("topicSysFlag")?.unwrap_or(plain.sys_flag),
            attributes: members.take_table("attributes", text)?.unwrap_or_default(),
            unknown: members.rest(),
        };
        Ok((key, config))
    }

    fn node(&self) -> Node {
        let attributes = self.attributes.iter().map(|(name, value)| (name.clone(), Node::from(value)));
        let known = vec![
            ("attributes", Node::object(attributes)),
            ("order", self.order.into()),
            ("perm", self.perm.into()),
            ("readQueueNums", self.read_queues.into()),
            ("topicFilterType", (&self.filter_type).into()),
            ("topicName", (&self.name).into()),
            ("topicSysFlag", self.sys_flag.into()),
            ("writeQueueNums", self.write_queues.into()),
        ];
        Node::bean(known, &self.unknown)
    }
}

/// `config/topics.json`. Source: `TopicConfigManager`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TopicTable {
    /// `dataVersion`.
    pub data_version: DataVersion,
    /// `topicConfigTable`: the topics by name.
    pub topics: BTreeMap<String, TopicConfig>,
    /// Unknown members.
    pub unknown: Map<String, Value>,
}

impl TopicTable {
    /// Reads the file.
    pub fn parse(text: &[u8]) -> Result<Self, FormatError> {
        Self::read(parse_object(text)?, &mut Losses::strict())
    }

    fn read(mut members: Members, losses: &mut Losses) -> Result<Self, FormatError> {
        Ok(Self {
            data_version: DataVersion::take(&mut members, losses)?,
            topics: members.take_entries("topicConfigTable", losses, TopicConfig::read)?.unwrap_or_default(),
            unknown: members.rest(),
        })
    }

    /// Returns the file's text.
    pub fn to_json(&self, dialect: Dialect) -> String {
        let topics = self.topics.iter().map(|(name, topic)| (name.clone(), topic.node()));
        let known =
            vec![("dataVersion", self.data_version.node()), ("topicConfigTable", Node::object(topics))];
        dialect.write(&Node::bean(known, &self.unknown))
    }
}

impl ConfigTable for TopicTable {
    fn parse(text: &[u8]) -> Result<Self, FormatError> {
        Self::parse(text)
    }

    fn parse_entries(text: &[u8]) -> PartialTable<Self> {
        parse_entries(text, Self::read)
    }

    fn has_entries(&self) -> bool {
        !self.topics.is_empty() || !self.unknown.is_empty()
    }

    fn complete_from(&mut self, older: Self) {
        self.data_version = self.data_version.max(older.data_version);
        for (name, topic) in older.topics {
            self.topics.entry(name).or_insert(topic);
        }
        add_members(&mut self.unknown, older.unknown);
    }
}

/// One consumer group. Source: `SubscriptionGroupConfig`.
#[expect(clippy::struct_excessive_bools, reason = "the members of the file, one for one")]
#[derive(Clone, Debug, PartialEq)]
pub struct SubscriptionGroup {
    /// `groupName`.
    pub name: String,
    /// `consumeEnable`, default true.
    pub consume_enable: bool,
    /// `consumeFromMinEnable`, default true.
    pub consume_from_min_enable: bool,
    /// `consumeBroadcastEnable`, default true.
    pub consume_broadcast_enable: bool,
    /// `consumeMessageOrderly`.
    pub consume_message_orderly: bool,
    /// `retryQueueNums`, default 1.
    pub retry_queues: i32,
    /// `retryMaxTimes`, default 16.
    pub retry_max_times: i32,
    /// `consumeTimeoutMinute`, default 15.
    pub consume_timeout_minutes: i32,
    /// `notifyConsumerIdsChangedEnable`, default true.
    pub notify_consumer_ids_changed_enable: bool,
    /// `brokerId`.
    pub broker_id: i64,
    /// `whichBrokerWhenConsumeSlowly`, default 1.
    pub which_broker_when_consume_slowly: i64,
    /// `groupSysFlag`.
    pub sys_flag: i32,
    /// `attributes`.
    pub attributes: BTreeMap<String, String>,
    /// Unknown members, including `groupRetryPolicy`.
    pub unknown: Map<String, Value>,
}

impl SubscriptionGroup {
    /// Creates a group with RocketMQ's defaults.
    pub fn new(name: impl Into<String>) -> Self {
        let policy = Map::from_iter([("type".to_owned(), Value::from("CUSTOMIZED"))]);
        Self { unknown: Map::from_iter([("groupRetryPolicy".to_owned(), policy.into())]), ..Self::bare(name) }
    }

    fn bare(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            consume_enable: true,
            consume_from_min_enable: true,
            consume_broadcast_enable: true,
            consume_message_orderly: false,
            retry_queues: 1,
            retry_max_times: 16,
            consume_timeout_minutes: 15,
            notify_consumer_ids_changed_enable: true,
            broker_id: 0,
            which_broker_when_consume_slowly: 1,
            sys_flag: 0,
            attributes: BTreeMap::new(),
            unknown: Map::new(),
        }
    }

    /// Like [`TopicConfig::to_text`].
    pub fn to_text(&self, name: &str) -> String {
        self.node().differing(&Self::bare(name).node())
    }

    /// Parses the result of [`Self::to_text`] for `name`.
    pub fn parse(name: &str, text: &[u8]) -> Result<Self, FormatError> {
        Ok(Self::read(name.to_owned(), parse(text)?)?.1)
    }

    fn read(key: String, value: Value) -> Result<(String, Self), FormatError> {
        let mut members = Members::of(&key, value)?;
        let mut group = Self::bare(key.as_str());
        let m = &mut members;
        group.name = m.take_text("groupName")?.unwrap_or(group.name);
        for (name, field) in [
            ("consumeEnable", &mut group.consume_enable),
            ("consumeFromMinEnable", &mut group.consume_from_min_enable),
            ("consumeBroadcastEnable", &mut group.consume_broadcast_enable),
            ("consumeMessageOrderly", &mut group.consume_message_orderly),
            ("notifyConsumerIdsChangedEnable", &mut group.notify_consumer_ids_changed_enable),
        ] {
            *field = m.take_bool(name)?.unwrap_or(*field);
        }
        for (name, field) in [
            ("retryQueueNums", &mut group.retry_queues),
            ("retryMaxTimes", &mut group.retry_max_times),
            ("consumeTimeoutMinute", &mut group.consume_timeout_minutes),
            ("groupSysFlag", &mut group.sys_flag),
        ] {
            *field = m.take_i32(name)?.unwrap_or(*field);
        }
        group.broker_id = m.take_i64("brokerId")?.unwrap_or(group.broker_id);
        let slow = m.take_i64("whichBrokerWhenConsumeSlowly")?;
        group.which_broker_when_consume_slowly = slow.unwrap_or(group.which_broker_when_consume_slowly);
        group.attributes = m.take_table("attributes", text)?.unwrap_or_default();
        group.unknown = members.rest();
        Ok((key, group))
    }

    fn node(&self) -> Node {
        let attributes = self.attributes.iter().map(|(name, value)| (name.clone(), Node::from(value)));
        let known = vec![
            ("attributes", Node::object(attributes)),
            ("brokerId", self.broker_id.into()),
            ("consumeBroadcastEnable", self.consume_broadcast_enable.into()),
            ("consumeEnable", self.consume_enable.into()),
            ("consumeFromMinEnable", self.consume_from_min_enable.into()),
            ("consumeMessageOrderly", self.consume_message_orderly.into()),
            ("consumeTimeoutMinute", self.consume_timeout_minutes.into()),
            ("groupName", (&self.name).into()),
            ("groupSysFlag", self.sys_flag.into()),
            ("notifyConsumerIdsChangedEnable", self.notify_consumer_ids_changed_enable.into()),
            ("retryMaxTimes", self.retry_max_times.into()),
            ("retryQueueNums", self.retry_queues.into()),
            ("whichBrokerWhenConsumeSlowly", self.which_broker_when_consume_slowly.into()),
        ];
        Node::bean(known, &self.unknown)
    }
}

/// `config/subscriptionGroup.json`. Source: `SubscriptionGroupManager`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SubscriptionGroups {
    /// `dataVersion`.
    pub data_version: DataVersion,
    /// `subscriptionGroupTable`: the groups by name.
    pub groups: BTreeMap<String, SubscriptionGroup>,
    /// `forbiddenTable`: group, topic, bits of the forbidden operations.
    pub forbidden: BTreeMap<String, BTreeMap<String, i64>>,
    /// Unknown members.
    pub unknown: Map<String, Value>,
}

impl SubscriptionGroups {
    /// Reads the file.
    pub fn parse(text: &[u8]) -> Result<Self, FormatError> {
        Self::read(parse_object(text)?, &mut Losses::strict())
    }

    fn read(mut members: Members, losses: &mut Losses) -> Result<Self, FormatError> {
        Ok(Self {
            data_version: DataVersion::take(&mut members, losses)?,
            groups: members
                .take_entries("subscriptionGroupTable", losses, SubscriptionGroup::read)?
                .unwrap_or_default(),
            forbidden: members.take_nested("forbiddenTable", losses, counted)?.unwrap_or_default(),
            unknown: members.rest(),
        })
    }

    /// Returns the file's text.
    pub fn to_json(&self, dialect: Dialect) -> String {
        let groups = self.groups.iter().map(|(name, group)| (name.clone(), group.node()));
        let forbidden = self.forbidden.iter().map(|(group, topics)| {
            let topics = topics.iter().map(|(topic, bits)| (topic.clone(), Node::from(*bits)));
            (group.clone(), Node::object(topics))
        });
        let known = vec![
            ("dataVersion", self.data_version.node()),
            ("forbiddenTable", Node::object(forbidden)),
            ("subscriptionGroupTable", Node::object(groups)),
        ];
        dialect.write(&Node::bean(known, &self.unknown))
    }
}

impl ConfigTable for SubscriptionGroups {
    fn parse(text: &[u8]) -> Result<Self, FormatError> {
        Self::parse(text)
    }

    fn parse_entries(text: &[u8]) -> PartialTable<Self> {
        parse_entries(text, Self::read)
    }

    fn has_entries(&self) -> bool {
        !self.groups.is_empty() || !self.forbidden.is_empty() || !self.unknown.is_empty()
    }

    fn complete_from(&mut self, older: Self) {
        self.data_version = self.data_version.max(older.data_version);
        for (name, group) in older.groups {
            self.groups.entry(name).or_insert(group);
        }
        for (group, topics) in older.forbidden {
            self.forbidden.entry(group).or_insert(topics);
        }
        add_members(&mut self.unknown, older.unknown);
    }
}
