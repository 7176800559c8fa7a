//! `config/consumerOffset.json`, `config/delayOffset.json` and `compaction/position-checkpoint`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::losses::{ConfigTable, Losses, PartialTable};
use super::members::{Members, add_members, counted, numbered, parse_entries, parse_object};
use super::topic_tables::DataVersion;
use super::write::{Dialect, Node};
use crate::error::FormatError;

/// Offsets of one topic and group by queue id: the next offset to consume.
pub type QueueOffsets = BTreeMap<i32, i64>;

/// `config/consumerOffset.json`. Source: `ConsumerOffsetManager`.
///
/// Keys are `topic@group`. The member `groupTopicMap` is redundant: it is not read, and is written from the keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConsumerOffsets {
    /// `dataVersion`.
    pub data_version: DataVersion,
    /// `offsetTable`.
    pub table: BTreeMap<String, QueueOffsets>,
    /// `pullOffsetTable`, since 5.5: the offsets of the consumers' last requests. `None` if the file has none. The 5.5
    /// dialect always writes it.
    pub pull_table: Option<BTreeMap<String, QueueOffsets>>,
    /// Unknown members.
    pub unknown: Map<String, Value>,
}

impl ConsumerOffsets {
    /// Returns the key of a topic and group.
    pub fn key(topic: &str, group: &str) -> String {
        format!("{topic}@{group}")
    }

    /// Returns topic and group of a key; `None` unless there is exactly one `@`. RocketMQ ignores other entries.
    pub fn split_key(key: &str) -> Option<(&str, &str)> {
        key.split_once('@').filter(|(_, group)| !group.contains('@'))
    }

    /// Returns the next offset that a group consumes from a queue.
    pub fn get(&self, topic: &str, group: &str, queue_id: i32) -> Option<i64> {
        self.table.get(&Self::key(topic, group))?.get(&queue_id).copied()
    }

    /// Sets the next offset that a group consumes from a queue.
    pub fn set(&mut self, topic: &str, group: &str, queue_id: i32, offset: i64) {
        self.table.entry(Self::key(topic, group)).or_default().insert(queue_id, offset);
    }

    /// Reads the file.
    pub fn parse(text: &[u8]) -> Result<Self, FormatError> {
        Self::read(parse_object(text)?, &mut Losses::strict())
    }

    fn read(mut members: Members, losses: &mut Losses) -> Result<Self, FormatError> {
        members.take("groupTopicMap");
        Ok(Self {
            data_version: DataVersion::take(&mut members, losses)?,
            table: members.take_nested("offsetTable", losses, numbered)?.unwrap_or_default(),
            pull_table: members.take_nested("pullOffsetTable", losses, numbered)?,
            unknown: members.rest(),
        })
    }

    /// Returns the file's text.
    pub fn to_json(&self, dialect: Dialect) -> String {
        let mut topics_of_group: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (topic, group) in self.table.keys().filter_map(|key| Self::split_key(key)) {
            topics_of_group.entry(group).or_default().insert(topic);
        }
        let groups = topics_of_group
            .into_iter()
            .map(|(group, topics)| (group, Node::Set(topics.into_iter().map(str::to_owned).collect())));
        let mut known = vec![
            ("dataVersion", self.data_version.node()),
            ("groupTopicMap", Node::object(groups)),
            ("offsetTable", table_node(&self.table)),
        ];
        let none_asked = (dialect == Dialect::Rocketmq55).then(BTreeMap::new);
        if let Some(table) = self.pull_table.as_ref().or(none_asked.as_ref()) {
            known.push(("pullOffsetTable", table_node(table)));
        }
        dialect.write(&Node::bean(known, &self.unknown))
    }
}

impl ConfigTable for ConsumerOffsets {
    fn parse(text: &[u8]) -> Result<Self, FormatError> {
        Self::parse(text)
    }

    fn parse_entries(text: &[u8]) -> PartialTable<Self> {
        parse_entries(text, Self::read)
    }

    fn has_entries(&self) -> bool {
        let pulled = self.pull_table.as_ref().is_some_and(|table| !table.is_empty());
        !self.table.is_empty() || pulled || !self.unknown.is_empty()
    }

    fn complete_from(&mut self, older: Self) {
        self.data_version = self.data_version.max(older.data_version);
        add_offsets(&mut self.table, older.table);
        match (&mut self.pull_table, older.pull_table) {
            (Some(table), Some(older)) => add_offsets(table, older),
            (table, older) => *table = table.take().or(older),
        }
        add_members(&mut self.unknown, older.unknown);
    }
}

fn add_offsets(table: &mut BTreeMap<String, QueueOffsets>, older: BTreeMap<String, QueueOffsets>) {
    for (key, queues) in older {
        let known = table.entry(key).or_default();
        for (queue_id, offset) in queues {
            known.entry(queue_id).or_insert(offset);
        }
    }
}

fn table_node(table: &BTreeMap<String, QueueOffsets>) -> Node {
    Node::object(table.iter().map(|(key, offsets)| (key.clone(), Node::numbered(offsets))))
}

/// `config/delayOffset.json`: the next offset of each delay level. Source: `ScheduleMessageService`,
/// `DelayOffsetSerializeWrapper`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DelayOffsets {
    /// `dataVersion`.
    pub data_version: DataVersion,
    /// `offsetTable`: level, next queue offset.
    pub table: BTreeMap<i32, i64>,
    /// Unknown members.
    pub unknown: Map<String, Value>,
}

impl DelayOffsets {
    /// Reads the file.
    pub fn parse(text: &[u8]) -> Result<Self, FormatError> {
        Self::read(parse_object(text)?, &mut Losses::strict())
    }

    fn read(mut members: Members, losses: &mut Losses) -> Result<Self, FormatError> {
        Ok(Self {
            data_version: DataVersion::take(&mut members, losses)?,
            table: members.take_entries("offsetTable", losses, numbered)?.unwrap_or_default(),
            unknown: members.rest(),
        })
    }

    /// Returns the file's text.
    pub fn to_json(&self, dialect: Dialect) -> String {
        let known =
            vec![("dataVersion", self.data_version.node()), ("offsetTable", Node::numbered(&self.table))];
        dialect.write(&Node::bean(known, &self.unknown))
    }
}

impl ConfigTable for DelayOffsets {
    fn parse(text: &[u8]) -> Result<Self, FormatError> {
        Self::parse(text)
    }

    fn parse_entries(text: &[u8]) -> PartialTable<Self> {
        parse_entries(text, Self::read)
    }

    fn has_entries(&self) -> bool {
        !self.table.is_empty() || !self.unknown.is_empty()
    }

    fn complete_from(&mut self, older: Self) {
        self.data_version = self.data_version.max(older.data_version);
        for (level, offset) in older.table {
            self.table.entry(level).or_insert(offset);
        }
        add_members(&mut self.unknown, older.unknown);
    }
}

/// `compaction/position-checkpoint`: the queue offset up to which each queue is compacted. Source:
/// `CompactionPositionMgr`.
///
/// Keys are `topic_queueId`; the queue id comes after the last underscore. The member `empty` is not read, and is
/// written from the table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CompactionPositions {
    /// `queueOffsetMap`.
    pub table: BTreeMap<String, i64>,
    /// Unknown members.
    pub unknown: Map<String, Value>,
}

impl CompactionPositions {
    /// Returns the key of a queue.
    pub fn key(topic: &str, queue_id: i32) -> String {
        format!("{topic}_{queue_id}")
    }

    /// Returns topic and queue id of a key.
    pub fn split_key(key: &str) -> Option<(&str, i32)> {
        let (topic, queue_id) = key.rsplit_once('_')?;
        Some((topic, queue_id.parse().ok()?))
    }

    /// Returns the last queue offset that a compaction of this queue has read.
    pub fn get(&self, topic: &str, queue_id: i32) -> Option<i64> {
        self.table.get(&Self::key(topic, queue_id)).copied()
    }

    /// Reads the file.
    pub fn parse(text: &[u8]) -> Result<Self, FormatError> {
        Self::read(parse_object(text)?, &mut Losses::strict())
    }

    fn read(mut members: Members, losses: &mut Losses) -> Result<Self, FormatError> {
        members.take("empty");
        Ok(Self {
            table: members.take_entries("queueOffsetMap", losses, counted)?.unwrap_or_default(),
            unknown: members.rest(),
        })
    }

    /// Returns the file's text.
    pub fn to_json(&self, dialect: Dialect) -> String {
        let table = self.table.iter().map(|(key, offset)| (key.clone(), Node::from(*offset)));
        let known = vec![("empty", self.table.is_empty().into()), ("queueOffsetMap", Node::object(table))];
        dialect.write(&Node::bean(known, &self.unknown))
    }
}

impl ConfigTable for CompactionPositions {
    fn parse(text: &[u8]) -> Result<Self, FormatError> {
        Self::parse(text)
    }

    fn parse_entries(text: &[u8]) -> PartialTable<Self> {
        parse_entries(text, Self::read)
    }

    fn has_entries(&self) -> bool {
        !self.table.is_empty() || !self.unknown.is_empty()
    }

    fn complete_from(&mut self, older: Self) {
        for (queue, offset) in older.table {
            self.table.entry(queue).or_insert(offset);
        }
        add_members(&mut self.unknown, older.unknown);
    }
}
