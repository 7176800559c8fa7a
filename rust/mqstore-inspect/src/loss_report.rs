//! The loss report: messages and offsets that repairs found lost.
//!
//! Owns `mqstore/repairs.jsonl` with one JSON object on each line. Adding lines replaces the file in one step:
//!
//! ```text
//! {"kind":"log","time_ms":…,"segment":"…","offset":…,"log_offset":…,"bytes":…,"reason":"…","kept_as":"…"|null}
//! {"kind":"queue","time_ms":…,"topic":"…","queue_id":…,"from":…,"to":…}
//! {"kind":"place","time_ms":…,"topic":"…","log_offset":…,"from":[queue id, offset],"to":[queue id, offset]}
//! ```
//!
//! A line of kind `log` is durable, with the copy that it names, before the first byte of its range changes. If a
//! later repair finds a range of it damaged, it completes a stopped repair, and makes no second copy.
//!
//! A line of kind `queue` says that no record has the offsets from `from` to before `to`. Verification then does not
//! report this gap.
//!
//! A line of kind `place` is durable before the record's queue or queue offset changes from `from` to `to`. Unreadable
//! lines are ignored. A repair removes them, after a copy of the file.

use std::collections::HashMap;
use std::path::PathBuf;

use mqstore_format::offset_file_name;
use serde_json::{Value, json};

use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;

/// Maximum bytes of the file; a line has about 200 bytes.
const LIMIT_BYTES: u64 = 1 << 30;

/// A range of the log that a repair gave up.
#[derive(Debug)]
pub(crate) struct LostRangeEntry {
    from: u64,
    to: u64,
    /// Name of the copy.
    pub(crate) kept_as: Option<String>,
}

/// The lines of one store.
#[derive(Debug, Default)]
pub(crate) struct LossReport {
    text: Vec<u8>,
    ranges: Vec<LostRangeEntry>,
    gaps: HashMap<String, HashMap<i32, Vec<(i64, i64)>>>,
    /// Whether the text differs from the file.
    changed: bool,
    /// The content of the file, if it has unreadable lines.
    damaged: Option<Vec<u8>>,
    /// Number of unreadable lines.
    pub(crate) unreadable: usize,
}

impl LossReport {
    /// Reads the file; a missing file has no lines.
    pub(crate) fn load(files: &StoreFiles) -> Result<Self, StoreError> {
        let path = files.repairs();
        let text = match files.vfs.read_file(&path, LIMIT_BYTES) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            text => text.at(&path, "reading what repairs found lost")?,
        };
        let mut ledger = Self::default();
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()) {
            let read = serde_json::from_slice::<Value>(line).ok().and_then(|line| ledger.learn(&line));
            if read.is_some() {
                ledger.text.extend_from_slice(line);
                ledger.text.push(b'\n');
            } else {
                ledger.unreadable += 1;
            }
        }
        if ledger.unreadable > 0 {
            (ledger.damaged, ledger.changed) = (Some(text), true);
        }
        Ok(ledger)
    }

    fn learn(&mut self, line: &Value) -> Option<()> {
        match line.get("kind")?.as_str()? {
            "log" => {
                let from = line.get("log_offset")?.as_u64()?;
                let to = from.checked_add(line.get("bytes")?.as_u64()?)?;
                let kept_as = line.get("kept_as").and_then(Value::as_str).map(str::to_owned);
                self.ranges.push(LostRangeEntry { from, to, kept_as });
            }
            "queue" => {
                let queue_id = i32::try_from(line.get("queue_id")?.as_i64()?).ok()?;
                let gap = (line.get("from")?.as_i64()?, line.get("to")?.as_i64()?);
                let topic = line.get("topic")?.as_str()?;
                self.gaps.entry(topic.to_owned()).or_default().entry(queue_id).or_default().push(gap);
            }
            _ => {}
        }
        Some(())
    }

    /// Whether the lines say that no record has any of the offsets from `from` to before `to`.
    pub(crate) fn knows(&self, topic: &str, queue_id: i32, from: i64, to: i64) -> bool {
        let Some(gaps) = self.gaps.get(topic).and_then(|queues| queues.get(&queue_id)) else { return false };
        let mut at = from;
        while let Some((_, end)) = gaps.iter().find(|(start, end)| *start <= at && at < *end) {
            at = *end;
            if at >= to {
                return true;
            }
        }
        false
    }

    /// Returns the range already given up that contains this one.
    pub(crate) fn given_up(&self, from: u64, to: u64) -> Option<&LostRangeEntry> {
        self.ranges.iter().find(|known| known.from <= from && to <= known.to)
    }

    /// Adds a range of the log.
    pub(crate) fn give_up(&mut self, files: &StoreFiles, lost: &LostRange) {
        let copy = lost.kept_as.as_ref().and_then(|copy| copy.file_name());
        let line = json!({
            "kind": "log",
            "time_ms": files.clock.now_ms(),
            "segment": offset_file_name(lost.log_offset - lost.offset),
            "offset": lost.offset,
            "log_offset": lost.log_offset,
            "bytes": lost.bytes,
            "reason": lost.reason,
            "kept_as": copy.map(|name| name.to_string_lossy()),
        });
        self.add(&line);
    }

    /// Adds offsets of a queue.
    pub(crate) fn miss(&mut self, files: &StoreFiles, lost: &LostOffsets) {
        let line = json!({
            "kind": "queue",
            "time_ms": files.clock.now_ms(),
            "topic": lost.topic,
            "queue_id": lost.queue_id,
            "from": lost.from,
            "to": lost.to,
        });
        self.add(&line);
    }

    /// Adds a record of `topic` that moves from one queue and queue offset to another.
    pub(crate) fn add_moved_record(
        &mut self,
        files: &StoreFiles,
        (topic, log_offset): (&str, u64),
        from: (i32, i64),
        to: (i32, i64),
    ) {
        let line = json!({
            "kind": "place",
            "time_ms": files.clock.now_ms(),
            "topic": topic,
            "log_offset": log_offset,
            "from": from,
            "to": to,
        });
        self.add(&line);
    }

    fn add(&mut self, line: &Value) {
        self.text.extend_from_slice(line.to_string().as_bytes());
        self.text.push(b'\n');
        self.learn(line);
        self.changed = true;
    }

    /// Makes the changes of the lines durable.
    pub(crate) fn store(&mut self, files: &StoreFiles) -> Result<(), StoreError> {
        if !self.changed {
            return Ok(());
        }
        let path = files.repairs();
        if let Some(bytes) = self.damaged.take() {
            files.keep_config(&path, &bytes)?;
        }
        files.replace_file(&path, &self.text, "writing down what is lost")?;
        self.changed = false;
        Ok(())
    }
}

/// A range of the log whose messages are lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRange {
    /// The segment.
    pub path: PathBuf,
    /// Byte offset of the range in the segment.
    pub offset: u64,
    /// Log offset of the range.
    pub log_offset: u64,
    /// Length of the range in bytes.
    pub bytes: u64,
    /// Reason why the range is damaged.
    pub reason: String,
    /// The copy of the bytes; `None` if all of them were zero.
    pub kept_as: Option<PathBuf>,
}

/// Offsets of a queue that no record has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LostOffsets {
    /// The topic.
    pub topic: String,
    /// The queue.
    pub queue_id: i32,
    /// The first offset.
    pub from: i64,
    /// The offset after the last one.
    pub to: i64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqstore_engine::testing::World;

    fn lost(from: i64, to: i64) -> LostOffsets {
        LostOffsets { topic: "a\"b".into(), queue_id: 3, from, to }
    }

    #[test]
    fn what_is_written_down_is_known_to_the_next_one() {
        let (world, _, _) = World::simulated();
        let files = world.files();
        files.vfs.create_dir_all(&files.root).unwrap();
        let mut ledger = LossReport::load(&files).unwrap();
        ledger.miss(&files, &lost(5, 8));
        ledger.miss(&files, &lost(8, 9));
        let lost_range = LostRange {
            path: files.commit_log().join(offset_file_name(0)),
            offset: 100,
            log_offset: 100,
            bytes: 200,
            reason: "a\nb".into(),
            kept_as: Some(files.lost_and_found().join("kept")),
        };
        ledger.give_up(&files, &lost_range);
        ledger.store(&files).unwrap();
        // One invalid line and one incomplete line.
        let mut text = files.vfs.read_file(&files.repairs(), 1 << 20).unwrap();
        text.extend_from_slice(b"[]\n{\"kind\":\"queue\",\"fr");
        files.vfs.write_atomic(&files.repairs(), &files.staging().join("x"), &text).unwrap();
        let mut ledger = LossReport::load(&files).unwrap();
        assert_eq!(ledger.unreadable, 2);
        ledger.miss(&files, &lost(20, 21));
        ledger.store(&files).unwrap();
        let kept = files.lost_and_found().join("config_repairs.jsonl");
        assert_eq!(files.vfs.read_file(&kept, 1 << 20).unwrap(), text);
        let ledger = LossReport::load(&files).unwrap();
        assert_eq!(ledger.unreadable, 0);
        for (from, to, known) in
            [(5, 9, true), (6, 7, true), (4, 6, false), (5, 10, false), (20, 21, true), (9, 20, false)]
        {
            assert_eq!(ledger.knows("a\"b", 3, from, to), known, "{from}..{to}");
            assert!(!ledger.knows("a\"b", 2, from, to) && !ledger.knows("ab", 3, from, to));
        }
        for (from, kept) in [(100, Some("kept")), (200, Some("kept")), (99, None)] {
            let known = ledger.given_up(from, 300).and_then(|known| known.kept_as.as_deref());
            assert_eq!(known, kept, "{from}");
        }
    }
}
