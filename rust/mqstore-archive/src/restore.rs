//! Restores a store from an archive.
//!
//! ```text
//! DIR.partial/commitlog/<20 digits>    the segments, until all of them are complete and synced
//! DIR                                  DIR.partial, with queues, key index and checkpoint
//! ```
//!
//! The files of one range of the log are written before those of the next, so that the list of the written parts is small.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::options::StoreOptions;
use mqstore_base::progress::{Progress, ProgressWatcher};
use mqstore_base::store_files::StoreFiles;
use mqstore_engine::ArchiveState;
use mqstore_inspect::{RestoredLog, empty_folder, rebuild};
use mqstore_io::commit;
use serde_json::json;

use crate::manifest::{ArchivedFile, ArchivedSegment, Manifest, json_text};
use crate::owner::settings_with;
use crate::place::Place;
use crate::records::{ArchiveFile, QueueGap, QueueGaps};
use crate::verify::in_file;

/// A restore of an archive to a new directory.
#[derive(Debug)]
pub struct Restore {
    place: Place,
    manifest: Manifest,
    topics: Option<Vec<String>>,
    segments: Vec<ArchivedSegment>,
    files: Vec<Arc<ArchivedFile>>,
}

/// What a restore has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoreReport {
    /// Number of segments.
    pub segments: u64,
    /// Log offset of the first one.
    pub first_log_offset: u64,
    /// End of the last one.
    pub end_log_offset: u64,
    /// Number of records.
    pub records: u64,
    /// Whether the segments have the bytes of those that were archived.
    pub identical: bool,
}

/// The new directory.
pub struct Restored<'a> {
    /// Its files, at their place before they are complete.
    pub partial: &'a StoreFiles,
    /// Its final path.
    pub home: &'a Path,
    /// Lengths of the new queue and index files.
    pub options: &'a StoreOptions,
    /// The archive as the settings of a store name it.
    pub target: &'a str,
}

impl Restore {
    /// Chooses segments of the newest manifest.
    ///
    /// # Parameters
    /// - `topics`: only records of these topics; placeholders take the places of all others.
    /// - `since_ms`, `until_ms`: only segments with records stored at or after, and before, these epoch milliseconds.
    ///
    /// # Errors
    /// [`StoreError::TopicNotFound`]; [`StoreError::InvalidOption`] if the archive has no segment of this time, or lacks
    /// segments between them; those of [`Place::must_have`].
    pub fn plan(
        place: &Place,
        topics: Option<Vec<String>>,
        since_ms: Option<i64>,
        until_ms: Option<i64>,
    ) -> Result<Self, StoreError> {
        let manifest = place.must_have()?;
        let segments = chosen(&place.shown(), &manifest, since_ms, until_ms)?;
        let is_known =
            |topic: &&String| manifest.files.iter().any(|file| file.topic.as_ref() == Some(*topic));
        if let Some(topic) = topics.iter().flatten().find(|topic| !is_known(topic)) {
            return Err(StoreError::TopicNotFound { topic: topic.clone(), queue_id: None });
        }
        let (start, end) = span(&segments);
        let files = manifest.files.iter().filter(|file| file.start < end && file.end > start);
        let files = files.cloned().collect();
        Ok(Self { place: place.clone(), topics, segments, files, manifest })
    }

    /// Whether the restored segments have the bytes of the archived ones.
    fn is_whole(&self) -> bool {
        self.topics.is_none() && self.manifest.topics.is_none()
    }

    /// Restores the store. The caller prevents a second call at the same time. `tell` gets the bytes of the files.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] for a damaged file; a request failed; errors of the system and of `tell`.
    pub fn run(&self, to: &Restored<'_>, tell: ProgressWatcher<'_>) -> Result<RestoreReport, StoreError> {
        let files = to.partial;
        let partial = &files.root;
        empty_folder(&*files.vfs, partial, "restoring the archive")?;
        let (records, gaps) = self.write_log(files, tell)?;
        let total_bytes = self.files.iter().map(|file| file.bytes).sum();
        rebuild(files, to.options, false, &mut |_| tell(Progress { done_bytes: total_bytes, total_bytes }))?;
        let (first_log_offset, end_log_offset) = span(&self.segments);
        write_gaps(files, &gaps)?;
        if self.topics.is_none() {
            let settings = json!({
                "target": to.target, "older_than": 0, "topics": self.manifest.topics, "level": 3,
            });
            let settings = settings_with(&json_text(&settings), Some(&self.manifest))?;
            ArchiveState { archived_to: end_log_offset, settings }.save_for_copy(files, end_log_offset)?;
        }
        commit::publish_folder(&*files.vfs, partial, to.home).at(to.home, "restoring the archive")?;
        Ok(RestoreReport {
            segments: self.segments.len() as u64,
            first_log_offset,
            end_log_offset,
            records,
            identical: self.is_whole(),
        })
    }

    fn write_log(
        &self,
        files: &StoreFiles,
        tell: ProgressWatcher<'_>,
    ) -> Result<(u64, Vec<QueueGap>), StoreError> {
        let folder = files.root.join("commitlog");
        files.vfs.create_dir(&folder).at(&folder, "restoring the archive")?;
        let mut log = RestoredLog::new(Arc::clone(&files.vfs), &folder);
        for segment in &self.segments {
            log.add(segment.base, segment.bytes)?;
        }
        let total_bytes = self.files.iter().map(|file| file.bytes).sum();
        let (mut done_bytes, mut records, mut gaps) = (0, 0, QueueGaps::default());
        let (start, end) = span(&self.segments);
        for (range_start, range_end, some) in self.ranges() {
            for file in some {
                records += self.write_file(&mut log, &mut gaps, file)?;
                done_bytes += file.bytes;
                tell(Progress { done_bytes, total_bytes })?;
            }
            let placeholder_ms = self.placeholder_ms(range_start);
            let left = log.complete(range_start.max(start), range_end.min(end), placeholder_ms)?;
            if let Some((offset, length)) = left.first() {
                let reason = format!(
                    "the archive lacks the {length} bytes at log offset {offset}; verify the archive"
                );
                return Err(StoreError::corrupt(self.place.shown().as_ref(), 0, reason));
            }
        }
        log.sync()?;
        Ok((records, gaps.finish()))
    }

    fn write_file(
        &self,
        log: &mut RestoredLog,
        gaps: &mut QueueGaps,
        file: &ArchivedFile,
    ) -> Result<u64, StoreError> {
        let is_wanted = |topic: &String| self.topics.as_ref().is_none_or(|topics| topics.contains(topic));
        if !file.topic.as_ref().is_none_or(is_wanted) {
            return Ok(0);
        }
        let content = self.place.checked_content(file)?;
        let opened = ArchiveFile::open(Box::new(content), Some(file.record_bytes));
        in_file(&self.place, &file.path, opened.and_then(|file| file.restore(log, gaps)))
    }

    /// Returns each range of the log that follows the one before, with its files. Together they are the whole log.
    fn ranges(&self) -> Vec<(u64, u64, Vec<&ArchivedFile>)> {
        let mut files: BTreeMap<(u64, u64), Vec<&ArchivedFile>> = BTreeMap::new();
        for file in &self.files {
            files.entry((file.start, file.end)).or_default().push(file);
        }
        let (mut at, end) = span(&self.segments);
        let mut ranges = Vec::new();
        for ((start, range_end), some) in files {
            if start > at {
                // A range whose bytes are fillers, or records of other topics.
                ranges.push((at, start, Vec::new()));
            }
            ranges.push((start, range_end, some));
            at = at.max(range_end);
        }
        if at < end {
            ranges.push((at, end, Vec::new()));
        }
        ranges
    }

    /// Returns the store time of placeholders in a range; `None` if it must have none.
    fn placeholder_ms(&self, offset: u64) -> Option<i64> {
        if self.is_whole() {
            return None;
        }
        let before = self.segments.iter().rfind(|segment| segment.base <= offset);
        before.or(self.segments.first()).map(|segment| segment.first_ms.unwrap_or(0))
    }
}

/// Notes the offsets of queues that no record has, which are no loss.
fn write_gaps(files: &StoreFiles, gaps: &[QueueGap]) -> Result<(), StoreError> {
    if gaps.is_empty() {
        return Ok(());
    }
    let time_ms = files.clock.now_ms();
    let mut text = String::new();
    for gap in gaps {
        let line = json!({
            "kind": "queue", "time_ms": time_ms, "topic": gap.topic, "queue_id": gap.queue_id, "from": gap.start,
            "to": gap.end,
        });
        text.push_str(&json_text(&line));
        text.push('\n');
    }
    let folder = files.root.join("mqstore");
    let path = folder.join("repairs.jsonl");
    files.vfs.create_dir_all(&folder).at(&folder, "restoring the archive")?;
    let file = files.vfs.create_new(&path).at(&path, "restoring the archive")?;
    file.write_all_at(text.as_bytes(), 0).at(&path, "restoring the archive")
}

fn span(segments: &[ArchivedSegment]) -> (u64, u64) {
    let start = segments.first().map_or(0, |segment| segment.base);
    (start, segments.last().map_or(0, ArchivedSegment::end))
}

/// Returns the segments with records in a range of time, and those between them.
fn chosen(
    shown: &str,
    manifest: &Manifest,
    since_ms: Option<i64>,
    until_ms: Option<i64>,
) -> Result<Vec<ArchivedSegment>, StoreError> {
    let invalid = |reason: String| StoreError::InvalidOption { option: "since", reason };
    let has_times = |one: &ArchivedSegment| {
        since_ms.is_none_or(|since| one.last_ms >= since)
            && until_ms.is_none_or(|until| one.first_ms.unwrap_or(one.last_ms) < until)
    };
    let all = &manifest.segments;
    let (Some(first), Some(last)) = (all.iter().position(has_times), all.iter().rposition(has_times)) else {
        return Err(invalid(format!("{shown} has no segment of this time")));
    };
    let segments = all.get(first..=last).unwrap_or_default().to_vec();
    for pair in segments.windows(2) {
        if let [before, after] = pair
            && before.end() != after.base
        {
            let missing =
                format!("the archive has no segments from log offset {} to {}", before.end(), after.base);
            return Err(invalid(format!("{missing}: choose a time before or after them")));
        }
    }
    Ok(segments)
}
