//! The manifest of an archive: its files, and the ranges of the log that they contain.
//!
//! ```text
//! <archive>/v1/_manifest/<20 digits>.json    {"kind", "version", members of `Manifest`, "checksum"}
//! ```
//!
//! The checksum is the SHA-256 of the other members as JSON: names sorted, `, ` and `: ` between them, ASCII only.

use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;

use mqstore_io::target::{hex, is_hex};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::layout::is_file_path;
use crate::records::{QueueRows, RowsSummary};

const KIND: &str = "mqstore archive";
const VERSION: u64 = 1;
const REBUILD: &str = "verify the archive with rebuild_manifest";

/// A file of the archive.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ArchivedFile {
    /// Path below `v1`.
    pub path: Arc<str>,
    /// `None` for bytes of the log that are no records of a topic.
    #[serde(deserialize_with = "Option::deserialize")]
    pub topic: Option<String>,
    /// First log offset of the range of the log.
    pub start: u64,
    /// End of this range.
    pub end: u64,
    /// Number of rows.
    pub rows: u64,
    /// Length of the file.
    pub bytes: u64,
    /// Digest of the file.
    pub sha256: String,
    /// Sum of the lengths of the records.
    pub record_bytes: u64,
    /// Sum of the CRC-32 of each record.
    pub crc_sum: u64,
    /// Smallest store time in epoch milliseconds.
    #[serde(rename = "first_timestamp", deserialize_with = "Option::deserialize")]
    pub first_ms: Option<i64>,
    /// Largest store time in epoch milliseconds.
    #[serde(rename = "last_timestamp", deserialize_with = "Option::deserialize")]
    pub last_ms: Option<i64>,
    /// The queues.
    pub queues: Vec<QueueRows>,
}

/// A segment of the log that the archive contains completely.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ArchivedSegment {
    /// Log offset of the first byte.
    pub base: u64,
    /// Its length.
    pub bytes: u64,
    /// Store time of the first record in epoch milliseconds, if it is known.
    #[serde(rename = "first_timestamp", deserialize_with = "Option::deserialize")]
    pub first_ms: Option<i64>,
    /// Store time of the last record in epoch milliseconds.
    #[serde(rename = "last_timestamp")]
    pub last_ms: i64,
}

impl ArchivedFile {
    /// Returns the entry of a file. `range` is its range of the log, and `sha256` the digest of its `bytes` bytes.
    pub(crate) fn new(
        path: &str,
        topic: Option<&str>,
        range: &Range<u64>,
        summary: RowsSummary,
        (bytes, sha256): (u64, String),
    ) -> Self {
        Self {
            path: path.into(),
            topic: topic.map(str::to_owned),
            start: range.start,
            end: range.end,
            rows: summary.rows,
            bytes,
            sha256,
            record_bytes: summary.record_bytes,
            crc_sum: summary.crc_sum,
            first_ms: summary.first_ms,
            last_ms: summary.last_ms,
            queues: summary.queues,
        }
    }
}

impl ArchivedSegment {
    /// Returns the log offset after the segment.
    pub fn end(&self) -> u64 {
        self.base.saturating_add(self.bytes)
    }
}

/// The last record of the archive, which shows whether an archive and a log belong together.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LastRecord {
    /// Its log offset.
    pub log_offset: u64,
    /// Its length.
    pub bytes: u64,
    /// Its digest.
    pub sha256: String,
}

/// One state of an archive.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Manifest {
    /// Its number.
    pub number: u64,
    /// Random id of the archive.
    pub archive: String,
    /// Random id of the run that created this manifest.
    pub run: String,
    /// When it was created, in epoch milliseconds.
    #[serde(rename = "created_timestamp")]
    pub created_ms: i64,
    /// The topics whose records the archive contains; `None` is everything in the log.
    #[serde(deserialize_with = "Option::deserialize")]
    pub topics: Option<Vec<String>>,
    /// In the order of the log.
    pub segments: Vec<ArchivedSegment>,
    /// The files.
    pub files: Vec<Arc<ArchivedFile>>,
    /// The last record.
    #[serde(deserialize_with = "Option::deserialize")]
    pub last: Option<LastRecord>,
}

/// Why a manifest cannot be used, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}; {remedy}")]
pub struct WrongManifest {
    /// The reason.
    pub reason: String,
    /// The remedy.
    pub remedy: &'static str,
}

/// New segments of an archive, and their files.
#[derive(Debug, Default)]
pub(crate) struct Extension {
    pub(crate) segments: Vec<ArchivedSegment>,
    pub(crate) files: Vec<ArchivedFile>,
    /// The last record in them.
    pub(crate) last: Option<LastRecord>,
}

impl Manifest {
    /// Returns the manifest of a new archive, before its first run.
    pub(crate) fn first(archive: String, topics: Option<Vec<String>>) -> Self {
        Self {
            number: 0,
            archive,
            run: String::new(),
            created_ms: 0,
            topics,
            segments: Vec::new(),
            files: Vec::new(),
            last: None,
        }
    }

    /// Returns the next manifest, of the run with this id. The new files come in the order of the log.
    pub(crate) fn extended(&self, run: &str, created_ms: i64, mut new: Extension) -> Self {
        new.files.sort_by(|one, other| (one.start, &one.path).cmp(&(other.start, &other.path)));
        let mut next = self.clone();
        next.number += 1;
        run.clone_into(&mut next.run);
        next.created_ms = created_ms;
        next.segments.extend(new.segments);
        next.files.extend(new.files.into_iter().map(Arc::new));
        next.last = new.last.or(next.last);
        next
    }

    /// Returns the content of the object.
    ///
    /// # Errors
    /// A value cannot be JSON, which is a bug.
    pub fn encode(&self) -> serde_json::Result<Vec<u8>> {
        let mut values = serde_json::Map::new();
        values.insert("kind".to_owned(), KIND.into());
        values.insert("version".to_owned(), VERSION.into());
        if let Value::Object(members) = serde_json::to_value(self)? {
            values.extend(members);
        }
        let mut values = Value::Object(values);
        let checksum = checksum_of(&values);
        if let Value::Object(members) = &mut values {
            members.insert("checksum".to_owned(), checksum.into());
        }
        let mut text = String::new();
        append_json(&values, JsonStyle::Compact, &mut text);
        text.push('\n');
        Ok(text.into_bytes())
    }

    /// Decodes a manifest.
    ///
    /// # Errors
    /// The content is damaged, or of another version.
    pub fn decode(content: &[u8]) -> Result<Self, WrongManifest> {
        let refuse = |reason: &str| WrongManifest { reason: reason.to_owned(), remedy: REBUILD };
        let not_one = "it is incomplete, or no manifest of an archive";
        let mut values: Value = serde_json::from_slice(content).map_err(|_| refuse(not_one))?;
        let members =
            values.as_object_mut().filter(|members| members.get("kind").is_some_and(|kind| kind == KIND));
        let members = members.ok_or_else(|| refuse(not_one))?;
        if members.get("version").and_then(Value::as_u64) != Some(VERSION) {
            let version = members.get("version").map_or_else(|| "None".to_owned(), Value::to_string);
            let reason = format!("it has the version {version}, and this mqstore reads {VERSION}");
            return Err(WrongManifest { reason, remedy: "use a newer one" });
        }
        let checksum = members.shift_remove("checksum");
        if checksum.as_ref().and_then(Value::as_str) != Some(checksum_of(&values).as_str()) {
            return Err(refuse("its content does not match its checksum"));
        }
        let unknown = "a member is missing or unknown";
        if !has_names(&values) {
            return Err(refuse(unknown));
        }
        let found: Self = serde_json::from_value(values).map_err(|_| refuse(unknown))?;
        found.check().map_err(|reason| WrongManifest { reason, remedy: REBUILD })?;
        Ok(found)
    }

    /// Returns the log offset of the first segment; 0 without segments.
    pub fn begin(&self) -> u64 {
        self.segments.first().map_or(0, |segment| segment.base)
    }

    /// Returns the end of the last segment; 0 without segments.
    pub fn end(&self) -> u64 {
        self.segments.last().map_or(0, ArchivedSegment::end)
    }

    /// Returns the log offset up to which the archive contains every segment from log offset `start` on: its end, if
    /// that is before `start`.
    pub fn covered_from(&self, start: u64) -> u64 {
        let next = |at: u64, segment: &ArchivedSegment| {
            if (segment.base..segment.end()).contains(&at) { segment.end() } else { at }
        };
        self.segments.iter().fold(start, next).min(self.end())
    }

    /// Checks what a right checksum does not say.
    fn check(&self) -> Result<(), String> {
        let is_length = |value: u64| i64::try_from(value).is_ok();
        let mut end = 0;
        for segment in &self.segments {
            if segment.bytes == 0 || segment.base < end || !is_length(segment.end()) {
                return Err(format!("the segment at {} is wrong", segment.base));
            }
            end = segment.end();
        }
        let mut paths: Vec<&str> = self.files.iter().map(|file| &*file.path).collect();
        for file in &self.files {
            let numbers = [file.start, file.end, file.rows, file.bytes, file.record_bytes, file.crc_sum];
            let is_right = numbers.iter().all(|number| is_length(*number))
                && file.start <= file.end
                && is_file_path(&file.path)
                && is_hex(&file.sha256, 64);
            if !is_right {
                return Err(format!("the entry of the file {:?} is wrong", file.path));
            }
        }
        paths.sort_unstable();
        if paths.windows(2).any(|pair| matches!(pair, [one, other] if one == other)) {
            return Err("it names a file twice".to_owned());
        }
        if !is_length(self.number) || !is_hex(&self.archive, 32) {
            return Err("its number or its id is wrong".to_owned());
        }
        Ok(())
    }
}

/// Whether all parts have the names of their members. Lists of values would be decoded, too.
fn has_names(values: &Value) -> bool {
    let list = |value: &Value, name: &str| {
        value.get(name).and_then(Value::as_array).is_some_and(|items| items.iter().all(Value::is_object))
    };
    let files = || values.get("files").and_then(Value::as_array).into_iter().flatten();
    list(values, "segments")
        && list(values, "files")
        && files().all(|file| list(file, "queues"))
        && values.get("last").is_some_and(|last| last.is_object() || last.is_null())
}

/// Returns the checksum of the members of a manifest without `checksum`.
fn checksum_of(values: &Value) -> String {
    hex(&Sha256::digest(json_text(values).as_bytes()))
}

/// How JSON is written, in ASCII only.
#[derive(Clone, Copy, PartialEq, Eq)]
enum JsonStyle {
    /// Names sorted, `, ` and `: ` between the parts.
    Sorted,
    /// No spaces.
    Compact,
}

/// Returns values as JSON: names sorted, `, ` and `: ` between the parts, ASCII only.
pub(crate) fn json_text(value: &Value) -> String {
    let mut text = String::new();
    append_json(value, JsonStyle::Sorted, &mut text);
    text
}

fn append_json(value: &Value, style: JsonStyle, out: &mut String) {
    let space = if style == JsonStyle::Sorted { " " } else { "" };
    let separate = |number: usize, out: &mut String| {
        if number > 0 {
            out.push(',');
            out.push_str(space);
        }
    };
    match value {
        Value::String(text) => append_text(text, out),
        Value::Array(items) => {
            out.push('[');
            for (number, item) in items.iter().enumerate() {
                separate(number, out);
                append_json(item, style, out);
            }
            out.push(']');
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            if style == JsonStyle::Sorted {
                members.sort_unstable_by_key(|(name, _)| *name);
            }
            out.push('{');
            for (number, (name, value)) in members.into_iter().enumerate() {
                separate(number, out);
                append_text(name, out);
                out.push(':');
                out.push_str(space);
                append_json(value, style, out);
            }
            out.push('}');
        }
        other => {
            let _ = write!(out, "{other}");
        }
    }
}

fn append_text(text: &str, out: &mut String) {
    out.push('"');
    for one in text.chars() {
        match one {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(one),
            _ => {
                for unit in one.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push('"');
}
