//! What a copy takes of the tables of a master: topics, groups, offsets of groups, progress of delay levels, request modes.
//!
//! ```text
//! request    length (4), header bytes (4), header: JSON
//! response   length (4), header bytes (4), header: JSON, body: the text of a file of `config/`
//! ```
//!
//! The tables change while the log is copied. The delivery of a delayed message, for example, is in the log before the
//! progress of its level: a copy with the progress, but without the delivery, would lose the message. So tables are
//! applied only when the copy has the log up to where it ended after they were read.
//!
//! A copy that gets the id of a broker also gets its identity, with which the broker is known to a controller:
//!
//! ```text
//! <root>/brokerIdentity    <cluster>#<name of the broker>#<id>, without a line end
//! ```
//!
//! Source: `SlaveSynchronize`, `BrokerOuterAPI`, `RemotingCommand`, `BrokerMetadata`.

use std::collections::BTreeMap;

use mqstore_base::error::StoreError;
use mqstore_base::options::StoreOptions;
use mqstore_base::store_files::StoreFiles;
use mqstore_engine::Store;
use mqstore_format::json::{
    ConsumerOffsets, DelayOffsets, SubscriptionGroup, SubscriptionGroups, TopicConfig, TopicTable, Value,
    parse,
};
use mqstore_format::{CQ_UNIT_BYTES, DelayLevels};
use mqstore_meta::OffsetChange;

/// Maximum bytes of a response.
const MOST_BYTES: usize = 256 << 20;
/// The bytes before the header.
const LENGTHS_BYTES: usize = 8;

/// A request to a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Topics from a number on.
    Topics(Page),
    /// The settings of the broker.
    Settings,
    /// Its runtime figures.
    Figures,
    /// The offsets of groups.
    Offsets,
    /// The progress of delay levels.
    DelayOffsets,
    /// Which groups consume by pop.
    RequestModes,
    /// Groups from a number on.
    Groups(Page),
}

/// A part of a table that a broker divides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Number of its first entry.
    from: usize,
    /// The version of the table that the earlier pages had, as JSON. For another one, the broker begins again.
    version: String,
}

impl Request {
    const fn code(&self) -> i32 {
        match self {
            Self::Topics(_) => 21,
            Self::Settings => 26,
            Self::Figures => 28,
            Self::Offsets => 43,
            Self::DelayOffsets => 45,
            Self::RequestModes => 402,
            Self::Groups(_) => 201,
        }
    }

    /// Returns the bytes of the request. `number` returns with the response.
    pub fn encode(&self, number: i32) -> Vec<u8> {
        let most = i32::MAX.to_string();
        let fields = match self {
            Self::Topics(Page { from, version }) => serde_json::json!({
                "topicSeq": from.to_string(), "maxTopicNum": most, "dataVersion": version,
            }),
            Self::Groups(Page { from, version }) => serde_json::json!({
                "groupSeq": from.to_string(), "maxGroupNum": most, "dataVersion": version,
            }),
            _ => serde_json::json!({}),
        };
        let header = serde_json::json!({
            "code": self.code(), "extFields": fields, "flag": 0, "language": "OTHER", "opaque": number,
            "serializeTypeCurrentRPC": "JSON", "version": 0,
        })
        .to_string();
        let mut bytes = Vec::with_capacity(LENGTHS_BYTES + header.len());
        bytes.extend_from_slice(&(header.len() as u32 + 4).to_be_bytes());
        bytes.extend_from_slice(&(header.len() as u32).to_be_bytes());
        bytes.extend_from_slice(header.as_bytes());
        bytes
    }
}

/// The answer to a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Its body.
    pub body: Vec<u8>,
    /// Number of entries of the whole table; `None` if the broker does not divide its tables.
    pub total: Option<usize>,
}

/// Returns the answer to request `number` at the begin of `bytes`; `None` if bytes are missing.
///
/// # Errors
/// A reason if it is no such answer, or if the broker refuses the request.
pub fn answer(bytes: &[u8], number: i32) -> Result<Option<Answer>, String> {
    let Some((lengths, rest)) = bytes.split_first_chunk::<LENGTHS_BYTES>() else { return Ok(None) };
    let lengths = u64::from_be_bytes(*lengths);
    let (length, kind, header_bytes) =
        ((lengths >> 32) as usize, (lengths >> 24) as u8, (lengths & 0xFF_FFFF) as usize);
    if length > MOST_BYTES || header_bytes + 4 > length {
        return Err("its answer is none of a broker".to_owned());
    }
    let Some(rest) = rest.get(..length - 4) else { return Ok(None) };
    let (header, body) = rest.split_at(header_bytes);
    if kind != 0 {
        return Err(
            "its answer has a header that is no JSON: set serializeTypeCurrentRPC=JSON there".to_owned()
        );
    }
    let header = parse(header).map_err(|error| format!("its answer has no header: {error}"))?;
    if header.get("opaque").and_then(Value::as_i64) != Some(i64::from(number)) {
        return Err("it answered another request".to_owned());
    }
    match header.get("code").and_then(Value::as_i64) {
        Some(0) => {
            let field = |name: &str| header.get("extFields")?.get(name)?.as_str()?.parse().ok();
            let total = field("totalTopicNum").or_else(|| field("totalGroupNum"));
            Ok(Some(Answer { body: body.to_vec(), total }))
        }
        code => {
            let remark = header.get("remark").and_then(Value::as_str).unwrap_or_default();
            Err(format!("it refused the request with code {}: {remark}", code.unwrap_or(-1)))
        }
    }
}

/// What a follower asks a broker before it copies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrokerFacts {
    /// Its settings, by RocketMQ's names.
    settings: BTreeMap<String, String>,
    /// First log offset.
    pub log_min: Option<u64>,
    /// End of the log.
    pub log_end: Option<u64>,
}

impl BrokerFacts {
    /// Reads the answer to [`Request::Settings`].
    pub fn read_settings(&mut self, body: &[u8]) {
        let text = String::from_utf8_lossy(body);
        let pair = |line: &str| {
            let (name, value) = line.split_once('=')?;
            Some((name.trim().to_owned(), value.trim().to_owned()))
        };
        self.settings = text.lines().filter_map(pair).collect();
    }

    /// Gives `options` the sizes of the broker's files, and its delay levels, so that a broker can take the copy over.
    pub fn apply(&self, options: &mut StoreOptions) {
        // RocketMQ's numbers have 32 bits.
        let number = |name: &str| {
            let value: i32 = self.settings.get(name)?.parse().ok()?;
            u32::try_from(value).ok().filter(|value| *value > 0)
        };
        if let Some(bytes) = number("mappedFileSizeCommitLog") {
            options.segment_bytes = u64::from(bytes);
        }
        if let Some(entries @ 1..) =
            number("mappedFileSizeConsumeQueue").map(|bytes| bytes / CQ_UNIT_BYTES as u32)
        {
            options.queue_file_entries = entries;
        }
        if let Some(slots) = number("maxHashSlotNum") {
            options.index_slots = slots;
        }
        if let Some(entries) = number("maxIndexNum") {
            options.index_entries = entries;
        }
        if let Some(levels) =
            self.settings.get("messageDelayLevel").and_then(|text| DelayLevels::parse(text).ok())
        {
            options.delay_levels = Some(levels);
        }
    }

    /// Makes the copy the broker `broker_id` of the cluster. A controller gives these numbers. Nothing without the names.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn save_identity(&self, files: &StoreFiles, broker_id: u64) -> Result<(), StoreError> {
        let name = |key: &str| self.settings.get(key).filter(|name| !name.is_empty() && !name.contains('#'));
        let (Some(cluster), Some(broker)) = (name("brokerClusterName"), name("brokerName")) else {
            return Ok(());
        };
        let text = format!("{cluster}#{broker}#{broker_id}");
        let path = files.root.join("brokerIdentity");
        files.replace_file(&path, text.as_bytes(), "writing the identity of a broker")
    }

    /// Reads the answer to [`Request::Figures`].
    pub fn read_figures(&mut self, body: &[u8]) {
        let Ok(figures) = parse(body) else { return };
        let figure = |name: &str| figures.get("table")?.get(name)?.as_str()?.parse().ok();
        self.log_min = figure("commitLogMinOffset");
        self.log_end = figure("commitLogMaxOffset");
    }
}

/// The tables of a broker at one moment.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    topics: BTreeMap<String, TopicConfig>,
    groups: BTreeMap<String, SubscriptionGroup>,
    offsets: ConsumerOffsets,
    delay_offsets: Option<Vec<u8>>,
    request_modes: Option<Vec<u8>>,
    /// The copy must have the log up to here first.
    pub log_end: u64,
}

/// Asks for the tables of a broker, one request after the other.
#[derive(Debug)]
pub struct TablesReader {
    tables: Tables,
    next: Option<Request>,
}

impl Default for TablesReader {
    fn default() -> Self {
        Self { tables: Tables::default(), next: Some(Request::Topics(Page::default())) }
    }
}

impl TablesReader {
    /// Returns the next request; `None` after the last one.
    pub fn next_request(&self) -> Option<&Request> {
        self.next.as_ref()
    }

    /// Returns the tables, after the last request.
    pub fn finish(self) -> Tables {
        self.tables
    }

    /// Takes the answer to the next request.
    ///
    /// # Errors
    /// A reason if it is no such table.
    pub fn take(&mut self, answer: &Answer) -> Result<(), String> {
        let no_table = |what: &'static str| move |error| format!("its {what} cannot be read: {error}");
        let body = answer.body.as_slice();
        let tables = &mut self.tables;
        self.next = match self.next.take() {
            Some(Request::Topics(page)) => {
                let before = tables.topics.len();
                tables.topics.extend(TopicTable::parse(body).map_err(no_table("topics"))?.topics);
                let next = next_page(&page, answer, tables.topics.len() - before).map(Request::Topics);
                Some(next.unwrap_or_else(|| Request::Groups(Page::default())))
            }
            Some(Request::Groups(page)) => {
                let before = tables.groups.len();
                tables.groups.extend(SubscriptionGroups::parse(body).map_err(no_table("groups"))?.groups);
                let next = next_page(&page, answer, tables.groups.len() - before).map(Request::Groups);
                Some(next.unwrap_or(Request::Offsets))
            }
            Some(Request::Offsets) => {
                tables.offsets = ConsumerOffsets::parse(body).map_err(no_table("offsets of groups"))?;
                Some(Request::DelayOffsets)
            }
            Some(Request::DelayOffsets) => {
                // A broker without delayed messages has none.
                tables.delay_offsets = DelayOffsets::parse(body).is_ok().then(|| body.to_vec());
                Some(Request::RequestModes)
            }
            Some(Request::RequestModes) => {
                tables.request_modes = parse(body).is_ok().then(|| body.to_vec());
                Some(Request::Figures)
            }
            // The last one: everything that the tables name is in the log before this end.
            Some(Request::Figures) => {
                let mut facts = BrokerFacts::default();
                facts.read_figures(body);
                tables.log_end = facts.log_end.ok_or("it does not say where its log ends")?;
                None
            }
            Some(Request::Settings) | None => None,
        };
        Ok(())
    }
}

/// Returns the page after `page`, which had `added` new entries; `None` after the last one.
fn next_page(page: &Page, answer: &Answer, added: usize) -> Option<Page> {
    let from = page.from + added;
    if added == 0 || answer.total.is_none_or(|total| from >= total) {
        return None;
    }
    let version = parse(&answer.body).ok()?.get("dataVersion").map(Value::to_string).unwrap_or_default();
    Some(Page { from, version })
}

impl Tables {
    /// Returns tables with the topics of a `topics.json`; none if it cannot be read.
    pub(crate) fn of_topics(text: &[u8]) -> Self {
        let topics = TopicTable::parse(text).map(|table| table.topics).unwrap_or_default();
        Self { topics, ..Self::default() }
    }

    /// Makes the topics, as soon as they are known: they say which files the queues have.
    ///
    /// # Errors
    /// Those of the metadata log.
    pub fn apply_topics(&self, store: &Store) -> Result<(), StoreError> {
        let meta = store.meta()?;
        let mut plain = Vec::new();
        for config in self.topics.values() {
            let known = meta.topic(&config.name);
            if known.as_deref() == Some(config) {
                continue;
            }
            if config.is_batch_queue() && store.settings().make_topic_of(config).is_ok() {
                store.settings().adopt_topic(config)?;
            } else {
                plain.push(config.clone());
            }
        }
        if plain.is_empty() { Ok(()) } else { meta.put_topics(&plain).map(drop) }
    }

    /// Applies the groups, their offsets and the progress of delay levels to a copy that has the log up to
    /// [`Self::log_end`].
    ///
    /// # Errors
    /// Those of the metadata log; errors of the system.
    pub fn apply(&self, store: &Store) -> Result<(), StoreError> {
        let groups: Vec<_> = self.groups.values().cloned().collect();
        store.settings().adopt_groups(&groups)?;
        let meta = store.meta()?;
        let mut changes = Vec::new();
        for (key, offsets) in &self.offsets.table {
            let Some((topic, group)) = ConsumerOffsets::split_key(key) else { continue };
            for (queue_id, offset) in offsets {
                // A queue can lack its last messages: the log has them up to another moment.
                let Ok((_, end)) = store.bounds(topic, *queue_id) else { continue };
                let change = OffsetChange {
                    queue: meta.queue_key(group, topic, *queue_id)?,
                    offset: (*offset).clamp(0, end),
                };
                if meta.offset(change.queue) != Some(change.offset) {
                    changes.push(change);
                }
            }
        }
        meta.commit(&changes)?;
        // A broker that takes the copy over reads nothing else.
        meta.export_json()?;
        save(store, "delayOffset.json", self.delay_offsets.as_ref())?;
        save(store, "messageRequestMode.json", self.request_modes.as_ref())
    }
}

/// Writes a file of `config/` that a broker reads when it starts, if it has changed.
fn save(store: &Store, name: &str, text: Option<&Vec<u8>>) -> Result<(), StoreError> {
    let Some(text) = text else { return Ok(()) };
    let files = store.files();
    let path = files.config().join(name);
    if files.read_config(&path)?.as_ref() == Some(text) {
        return Ok(());
    }
    files.replace_file(&path, text, "writing a table of the broker")
}
