//! The manifest of published generations: `mqstore/compaction.json`.
//!
//! Owns facts for which RocketMQ's files have no place, a few for each queue:
//!
//! ```text
//! {"version": 1, "queues": {"prices/0": [
//!   {"token": "…", "replaces": "…", "job_id": "…",      the files that these facts describe: the first of the folder
//!    "end": 1200,                                       one past the last queue offset that was read
//!    "first_tombstone": 310, "keyless": 0,              records that a later run may still drop,
//!    "oldest_ms": 1700000000000,                        and the time of the oldest value, which may expire
//!    "removed": [[700, 1700000000000], [1200, …]],      times since when no value is older than
//!                                                       the tombstones below the offset
//!    "files": [{"base": …, "units": …, "log": {"used_bytes", "crc"}, "queue": …}]}, …]},
//!  "fed": {"prices/0": 1200}}                          from this offset on, all records in the files
//!                                                      were also in the commit log
//! ```
//!
//! RocketMQ's folders are the truth. Facts are valid only for the files that their token describes. If a broker changed
//! the folder, its token differs, and the facts are ignored. A file that does not parse is ignored completely. Ignored
//! facts cost time, never a record: the queue is compacted again, and its tombstones are kept for another period.
//!
//! Across a crash: the file is replaced in one step before the folders are swapped. Until the swap it holds the facts
//! of the current and the next generation of a queue, so that either folder finds its own facts. Only a driver writes
//! it, under the store's lock.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use mqstore_io::FileStat;
use mqstore_io::sync::Mutex;
use serde::{Deserialize, Serialize};

use super::staged::OutputPair;
use crate::json::Document;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;

/// Maximum bytes of the file; a queue and a file of it have a few hundred bytes each.
const LIMIT_BYTES: u64 = 256 << 20;

/// Facts about one generation of a queue's files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct GenerationFacts {
    /// The token of the files.
    pub(crate) token: String,
    /// The token of the files that they replaced.
    pub(crate) replaces: String,
    /// The job that created them.
    pub(crate) job_id: String,
    /// One past the last queue offset that was read for them.
    pub(crate) end: i64,
    /// The queue offset of the first tombstone in them.
    pub(crate) first_tombstone: Option<i64>,
    /// Records without a key in them.
    pub(crate) keyless: u64,
    /// Store time in milliseconds of the oldest value in them, the largest number without a value; `None` if an earlier
    /// version wrote these facts.
    #[serde(default)]
    pub(crate) oldest_ms: Option<i64>,
    /// `(offset, milliseconds)`, both ascending: since this time, no record is left that is older than a tombstone
    /// below the offset and has its key.
    pub(crate) removed: Vec<(i64, i64)>,
    /// Names, lengths and checksums.
    pub(crate) files: Vec<OutputPair>,
}

impl GenerationFacts {
    /// The queue offset below which tombstones have been kept for `retention_ms`.
    pub(crate) fn tombstones_below(&self, retention_ms: u64, now_ms: i64) -> i64 {
        let retention = i64::try_from(retention_ms).unwrap_or(i64::MAX);
        let over = self.removed.iter().filter(|(_, since)| since.saturating_add(retention) <= now_ms);
        over.map(|(offset, _)| *offset).max().unwrap_or(0)
    }

    /// Whether a value in the files may have expired, if values expire up to store time `expired_to_ms`.
    pub(crate) fn may_have_expired(&self, expired_to_ms: Option<i64>) -> bool {
        let is_due = |to_ms| self.oldest_ms.is_none_or(|oldest_ms| oldest_ms <= to_ms);
        expired_to_ms.is_some_and(is_due)
    }

    /// Returns the number of records in the files.
    pub(crate) fn records(&self) -> u64 {
        self.files.iter().map(|pair| pair.units).fold(0, u64::saturating_add)
    }

    /// Continues the facts `before` about the replaced generation: its tombstones keep their times, and the
    /// new ones up to `end` get `now_ms`.
    pub(crate) fn follow(&mut self, before: Option<&Self>, now_ms: i64) {
        let Some(first) = self.first_tombstone else {
            return;
        };
        let known = before.map(|before| before.removed.as_slice()).unwrap_or_default();
        // If the clock was set back, a time in the future must not count as old.
        let mut all: Vec<(i64, i64)> =
            known.iter().copied().filter(|(offset, since)| *offset > first && *since <= now_ms).collect();
        if all.last().is_none_or(|(offset, _)| *offset < self.end) {
            all.push((self.end, now_ms));
        }
        self.removed = thin_times(&all, now_ms);
    }
}

/// Drops times that are close to others. A removal then counts as later by at most a sixteenth of the time that has
/// passed since. So the list stays short, however often a queue is compacted.
fn thin_times(all: &[(i64, i64)], now_ms: i64) -> Vec<(i64, i64)> {
    let mut kept: Vec<(i64, i64)> = Vec::new();
    for (offset, since) in all {
        while let [.., (_, before), _] = kept.as_slice()
            && since.saturating_sub(*before) <= now_ms.saturating_sub(*before) / 16
        {
            kept.pop();
        }
        kept.push((*offset, *since));
    }
    kept
}

/// The facts about all queues.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Manifest {
    queues: BTreeMap<String, Vec<GenerationFacts>>,
    #[serde(default)]
    fed: BTreeMap<String, i64>,
}

impl Document for Manifest {
    const WHAT: &'static str = "compaction manifest";
}

/// A cache of the last manifest read, for frequent callers.
#[derive(Debug, Default)]
pub struct ManifestCache(Mutex<Option<(FileStat, Arc<Manifest>)>>);

impl ManifestCache {
    /// Same as [`Manifest::load`], but reads an unchanged file only once.
    pub(crate) fn load(&self, files: &StoreFiles) -> Result<Arc<Manifest>, StoreError> {
        // A replaced file has another inode, time or length; a change after this check is seen by the next one.
        let Ok(stat) = files.vfs.stat(&files.compaction_manifest()) else {
            return Ok(Arc::new(Manifest::load(files)?));
        };
        let mut known = self.0.lock();
        if let Some((of, manifest)) = known.as_ref()
            && *of == stat
        {
            return Ok(Arc::clone(manifest));
        }
        let manifest = Arc::new(Manifest::load(files)?);
        *known = Some((stat, Arc::clone(&manifest)));
        Ok(manifest)
    }
}

/// The content of a manifest that does not parse, and the reason.
pub(crate) type DamagedManifest = (Vec<u8>, String);

fn key(topic: &str, queue_id: i32) -> String {
    format!("{topic}/{queue_id}")
}

impl Manifest {
    /// Reads the file; a missing file, or one that does not parse, has no facts.
    pub(crate) fn load(files: &StoreFiles) -> Result<Self, StoreError> {
        Ok(Self::load_with_damage(files)?.0)
    }

    /// Reads the file like [`Self::load`]; also returns its damage.
    pub(crate) fn load_with_damage(
        files: &StoreFiles,
    ) -> Result<(Self, Option<DamagedManifest>), StoreError> {
        let path = files.compaction_manifest();
        let bytes = match files.vfs.read_file(&path, LIMIT_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Self::default(), None)),
            Err(error) => return Err(StoreError::io(&path, "reading the compaction manifest", error)),
        };
        Ok(match Self::from_json(&bytes) {
            Ok(manifest) => (manifest, None),
            Err(error) => (Self::default(), Some((bytes, error.to_string()))),
        })
    }

    /// Returns the queues with facts, each with its generations.
    pub(crate) fn queues(&self) -> impl Iterator<Item = (&str, i32, &[GenerationFacts])> {
        self.queues.iter().filter_map(|(key, generations)| {
            let (topic, queue_id) = key.rsplit_once('/')?;
            Some((topic, queue_id.parse().ok()?, generations.as_slice()))
        })
    }

    /// Returns the facts about generations of a queue; the files may belong to one of them.
    pub(crate) fn generations(&self, topic: &str, queue_id: i32) -> &[GenerationFacts] {
        self.queues.get(&key(topic, queue_id)).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the queue offset from which on all records in the files were also in the commit log.
    pub(crate) fn appended_from(&self, topic: &str, queue_id: i32) -> Option<i64> {
        self.fed.get(&key(topic, queue_id)).copied()
    }

    /// Sets the queue offset from which on all records in the files were also in the commit log.
    pub(crate) fn set_appended_from(&mut self, topic: &str, queue_id: i32, offset: i64) {
        self.fed.insert(key(topic, queue_id), offset);
    }

    /// Adds the facts about the next generation of a queue; keeps those about the current one, and drops all
    /// others.
    pub(crate) fn add(&mut self, topic: &str, queue_id: i32, next: GenerationFacts) {
        let generations = self.queues.entry(key(topic, queue_id)).or_default();
        generations.retain(|generation| generation.token == next.replaces && next.token != next.replaces);
        // All earlier records are in the files of either generation.
        self.fed.insert(key(topic, queue_id), next.end);
        generations.push(next);
    }

    /// Removes the facts about the queues of `topic` for which `is_gone` returns true. Returns whether there were any.
    pub(crate) fn remove(&mut self, topic: &str, is_gone: impl Fn(i32) -> bool) -> bool {
        let before = self.queues.len() + self.fed.len();
        let stays = |key: &str| {
            let queue = key.rsplit_once('/').filter(|(name, _)| *name == topic);
            !queue.is_some_and(|(_, queue_id)| queue_id.parse().is_ok_and(&is_gone))
        };
        self.queues.retain(|key, _| stays(key));
        self.fed.retain(|key, _| stays(key));
        self.queues.len() + self.fed.len() < before
    }

    /// Replaces the file. A file that does not parse is copied first.
    pub(crate) fn write(&self, files: &StoreFiles) -> Result<(), StoreError> {
        let text = self.to_json()?;
        let path = files.compaction_manifest();
        if let (_, Some((bytes, _))) = Self::load_with_damage(files)? {
            files.keep_config(&path, &bytes)?;
        }
        files
            .vfs
            .write_atomic(&path, &path.with_extension("json.tmp"), text.as_bytes())
            .at(&path, "writing the compaction manifest")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::staged::OutputFile;
    use crate::testing::sim_files;

    fn generation(token: &str, replaces: &str, end: i64) -> GenerationFacts {
        GenerationFacts {
            token: token.to_owned(),
            replaces: replaces.to_owned(),
            end,
            first_tombstone: Some(0),
            files: vec![OutputPair {
                base: 0,
                units: 2,
                log: OutputFile { used_bytes: 9, crc: 7 },
                queue: OutputFile { used_bytes: 92, crc: 8 },
            }],
            ..GenerationFacts::default()
        }
    }

    fn by_token<'m>(manifest: &'m Manifest, token: &str) -> Option<&'m GenerationFacts> {
        manifest.generations("t", 0).iter().find(|generation| generation.token == token)
    }

    #[test]
    fn both_sides_of_a_publication_find_their_facts() {
        let files = sim_files();
        files.vfs.create_dir_all(&files.side()).unwrap();
        let mut manifest = Manifest::load(&files).unwrap();
        for (token, replaces) in [("a", ""), ("b", "a"), ("c", "b")] {
            let mut next = generation(token, replaces, 10);
            next.follow(by_token(&manifest, replaces), 5);
            manifest.add("t", 0, next);
            manifest.write(&files).unwrap();
        }
        let found = Manifest::load(&files).unwrap();
        assert_eq!(found.queues, manifest.queues);
        assert!(by_token(&found, "b").is_some() && by_token(&found, "c").is_some());
        assert!(by_token(&found, "a").is_none() && found.generations("t", 1).is_empty());
        assert_eq!((found.appended_from("t", 0), found.appended_from("t", 1)), (Some(10), None));
    }

    #[test]
    fn a_deleted_topic_leaves_no_facts() {
        let mut manifest = Manifest::default();
        for (topic, queue_id) in [("t", 0), ("t", 1), ("t2", 0)] {
            manifest.add(topic, queue_id, generation("a", "", 10));
        }
        assert!(
            manifest.remove("t", |queue_id| queue_id == 1) && !manifest.remove("t", |queue_id| queue_id == 1)
        );
        let left = |manifest: &Manifest| {
            manifest.queues().map(|(topic, id, _)| format!("{topic}/{id}")).collect::<Vec<_>>()
        };
        assert_eq!(
            (left(&manifest), manifest.appended_from("t", 1)),
            (vec!["t/0".into(), "t2/0".into()], None)
        );
        assert!(manifest.remove("t", |_| true));
        assert_eq!(left(&manifest), ["t2/0"]);
    }

    #[test]
    fn a_file_that_does_not_parse_is_void() {
        let files = sim_files();
        files.vfs.create_dir_all(&files.side()).unwrap();
        let file = files.vfs.create_new(&files.compaction_manifest()).unwrap();
        for text in [
            "",
            "{",
            "[]",
            r#"{"version":2,"queues":{}}"#,
            r#"{"version":1,"queues":{"t/0":[{}]}}"#,
            r#"{"version":1,"queues":{},"fed":{"t/0":"x"}}"#,
        ] {
            file.set_len(0).unwrap();
            file.write_all_at(text.as_bytes(), 0).unwrap();
            assert!(Manifest::load(&files).unwrap().queues.is_empty(), "{text}");
        }
    }

    #[test]
    fn a_tombstone_keeps_its_time_within_a_sixteenth() {
        let retention = 100_000;
        let mut before: Option<GenerationFacts> = None;
        // A run every ten milliseconds, each with one more tombstone; none of them may be dropped.
        for run in 1..=9_999 {
            let mut next = generation("t", "t", run);
            next.follow(before.as_ref(), run * 10);
            before = Some(next);
        }
        let last = before.unwrap();
        assert!(last.removed.len() < 400, "{}", last.removed.len());
        for offset in 0..9_999 {
            let seen = (offset + 1) * 10;
            assert!(last.tombstones_below(retention, seen + 99_999) <= offset);
            assert!(last.tombstones_below(retention, seen + 100_000 + 100_000 / 16 + 10) > offset);
        }
    }

    #[test]
    fn a_clock_that_is_set_back_keeps_tombstones_longer() {
        let mut first = generation("a", "", 10);
        first.follow(None, 1_000_000);
        assert_eq!(first.tombstones_below(1000, 5000), 0);
        let mut second = generation("b", "a", 12);
        second.follow(Some(&first), 5000);
        assert_eq!(second.removed, [(12, 5000)]);
        assert_eq!(second.tombstones_below(1000, 6000), 12);
    }
}
