//! Restoring lost compaction files from another store.
//!
//! Compaction files are data: if they are lost, or end before the commit log begins, this store has lost all messages
//! between them. Another store with the same messages, such as a replica or an older copy, still has them. This folder
//! owns `mqstore/restore/`, which keeps the pulled messages until a compaction publishes them. `pull` lists the steps.
//!
//! A restore holds the store's lock until it ends. Readers see no change before the single step of `publish`.
//!
//! Source: `CompactionLog#load`, `#pullMessageFromMaster`, `MessageFetcher`.

mod pull;
pub(crate) mod queue_folder;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_format::RecordView;
use serde::{Serialize, Serializer};

use super::append::uncompacted::CompactedEnds;
use super::files::folder::list_or_none;
use super::files::generation::GenerationState;
use super::job::control::JobControl;
use super::job::documents::CompactionReport;
use super::job::json::encode;
use super::job::options::CompactionOptions;
use super::job::plan::{ChosenTopics, OpenStore, PlannedJob, Planner, require_store, start_chosen_job};
use super::job::publish::publish_held;
use super::local_job::run_all;
use mqstore_base::error::StoreError;
use mqstore_base::live_page::lock_store;
use mqstore_base::message::StoredRecord;
use mqstore_base::store_files::StoreFiles;
use mqstore_log::commit_log::{CommitLog, LogScanner, ScanChecks, ScanItem, read_record};
use pull::{MissingQueue, QueuePull};
use queue_folder::{queue_dir, remove};

pub use pull::{RestoreSource, RestoredQueue};

/// The report of a restore, or of its dry run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RestoreReport {
    /// The other store's directory.
    #[serde(serialize_with = "as_shown")]
    pub source: PathBuf,
    /// Whether this was a dry run, which changes nothing.
    pub dry_run: bool,
    /// The restored queues.
    pub queues: Vec<RestoredQueue>,
    /// The skipped queues, each with its reason.
    pub skipped: Vec<String>,
    /// The report of the compaction at the end; `None` if there was nothing to restore.
    pub compaction: Option<CompactionReport>,
}

/// Serializes a path, also one that is not UTF-8.
fn as_shown<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

impl RestoreReport {
    /// Encodes the report.
    ///
    /// # Errors
    /// None: JSON can encode each value of a report.
    pub fn to_json(&self) -> Result<String, StoreError> {
        encode("restore report", self)
    }
}

/// The inputs of a restore.
#[derive(Clone, Copy)]
pub struct RestoreRun<'a> {
    /// Topics to restore; `None` for all.
    pub topics: Option<&'a [String]>,
    /// Geometry and limits of the new files.
    pub options: &'a CompactionOptions,
    /// Number of threads that restore queues.
    pub threads: usize,
    /// Progress and cancellation.
    pub control: &'a Arc<JobControl>,
    /// The commit log of this process, if it has the store open for writing.
    pub log: Option<&'a Arc<CommitLog>>,
}

/// Restores queues of a store that no process has open.
pub fn restore(
    files: &StoreFiles,
    source: &dyn RestoreSource,
    run: &RestoreRun<'_>,
) -> Result<RestoreReport, StoreError> {
    require_store(files)?;
    let _held = lock_store(files)?;
    restore_by(files, Planner::new(files, run.options)?, source, run, &|| Ok(0))
}

/// Same as [`restore`], for the process that has the store open for writing. `flush` makes the log
/// durable, and returns its durable offset.
pub fn restore_open(
    files: &StoreFiles,
    open: &OpenStore<'_>,
    source: &dyn RestoreSource,
    run: &RestoreRun<'_>,
    flush: &dyn Fn() -> Result<u64, StoreError>,
) -> Result<RestoreReport, StoreError> {
    restore_by(files, Planner::of_open(files, run.options, open)?, source, run, flush)
}

fn restore_by(
    files: &StoreFiles,
    mut planner: Planner<'_>,
    source: &dyn RestoreSource,
    run: &RestoreRun<'_>,
    flush: &dyn Fn() -> Result<u64, StoreError>,
) -> Result<RestoreReport, StoreError> {
    if source.root() == files.root {
        return Err(StoreError::InvalidOption {
            option: "source",
            reason: "it is the store itself".to_owned(),
        });
    }
    let chosen = planner.choose(run.topics)?;
    let mut report = RestoreReport {
        source: source.root().to_path_buf(),
        dry_run: run.options.dry_run,
        ..RestoreReport::default()
    };
    report.skipped.clone_from(&chosen.skipped);
    let lacking = MissingQueues { files, planner: &planner, source }.find(&chosen, &mut report.skipped)?;
    let restored = pull_queues(files, source, run, lacking, &mut report)?;
    if restored.is_empty() || report.dry_run {
        return Ok(report);
    }
    planner.restored = Some(restored);
    let PlannedJob { plan, job } =
        start_chosen_job(files, &planner, ChosenTopics { skipped: Vec::new(), ..chosen })?;
    let (job, results) = run_all(files, run.log, job, &plan.tasks, run.threads, run.control)?;
    let durable = flush()?;
    let done = publish_held(files, job, &plan, &results, durable)?;
    let names: BTreeSet<(Option<&str>, Option<i64>)> =
        done.queues.iter().map(|one| (one["topic"].as_str(), one["queue_id"].as_i64())).collect();
    report.queues.retain(|queue| names.contains(&(Some(&*queue.topic), Some(queue.queue_id.into()))));
    report.skipped.extend(done.skipped.iter().cloned());
    for queue in &report.queues {
        remove(files, &queue_dir(files, &queue.topic, queue.queue_id))?;
    }
    report.compaction = Some(done);
    Ok(report)
}

/// The first message of a queue in the commit log.
struct FirstMessage {
    queue_offset: i64,
    /// Body checksum, length and keys; `None` if they cannot be read.
    content: Option<(u32, usize, Option<Vec<u8>>)>,
}

fn content(record: &RecordView<'_>) -> (u32, usize, Option<Vec<u8>>) {
    let keys = record.properties.get_raw(mqstore_format::properties::KEYS).map(<[u8]>::to_vec);
    (record.body_crc, record.body.len(), keys)
}

struct MissingQueues<'a> {
    files: &'a StoreFiles,
    planner: &'a Planner<'a>,
    source: &'a dyn RestoreSource,
}

impl MissingQueues<'_> {
    fn find(
        &self,
        chosen: &ChosenTopics,
        skipped: &mut Vec<String>,
    ) -> Result<Vec<MissingQueue>, StoreError> {
        let (queues, _) = self.planner.queues_of(&chosen.topics)?;
        let mut taken = CompactedEnds::load(self.files)?;
        let mut walked = None;
        let mut found = Vec::new();
        for ((topic, queue_id), _) in queues {
            let first = self.first_in_log(&topic, queue_id, &mut walked)?;
            let end = taken.end(&topic, queue_id)?;
            let name = format!("{topic}/{queue_id}");
            let Some(first) = first else {
                skipped.push(format!(
                    "{name}: this store has no offset at which the queue continues; restore the complete store"
                ));
                continue;
            };
            let until = first.queue_offset;
            if until == 0 || (end >= until && !self.planner.options.force) {
                skipped.push(format!("{name}: nothing is missing"));
                continue;
            }
            let state = GenerationState::load(self.files, &topic, queue_id)?;
            if !state.blocked.is_empty() {
                skipped.push(format!("{name}: {}", state.blocked.join("; ")));
                continue;
            }
            if let Some(reason) = self.foreign_reason(&topic, queue_id, &first)? {
                skipped.push(format!("{name}: {reason}"));
                continue;
            }
            let geometry = match state.geometry {
                Some(geometry) => geometry,
                None => self.planner.options.geometry()?,
            };
            found.push(MissingQueue { topic, queue_id, until, geometry });
        }
        Ok(found)
    }

    /// Returns the reason why the other store does not have the same messages, if there is one.
    fn foreign_reason(
        &self,
        topic: &str,
        queue_id: i32,
        first: &FirstMessage,
    ) -> Result<Option<String>, StoreError> {
        let Some(ours) = &first.content else { return Ok(None) };
        let Some(theirs) = self.source.message_at(topic, queue_id, first.queue_offset)? else {
            return Ok(None);
        };
        let view = view_of(&theirs, self.source.root())?;
        Ok((content(&view) != *ours).then(|| {
            format!(
                "{} has another message at offset {}: it is not a copy of this store",
                self.source.root().display(),
                first.queue_offset
            )
        }))
    }

    /// Returns the first message of a queue in the log, or without one, the offset at which the queue continues.
    fn first_in_log(
        &self,
        topic: &str,
        queue_id: i32,
        walked: &mut Option<BTreeMap<(String, i32), FirstMessage>>,
    ) -> Result<Option<FirstMessage>, StoreError> {
        let list = &self.planner.list;
        let queue = self.planner.queues.get(topic, queue_id);
        if let Some(queue) = queue.filter(|queue| self.planner.trusted && queue.damaged().is_none()) {
            queue.correct_min_offset(list.min_offset())?;
            let queue_offset = queue.min_offset();
            let mut units = Vec::new();
            queue.read(queue_offset, 1, &mut units)?;
            let place = units.first().filter(|unit| unit.is_valid());
            let content = place.and_then(|unit| {
                let place = u64::try_from(unit.physical_offset).ok()?;
                let bytes = read_record(self.files, list, place, unit.size.max(0) as usize).ok()?;
                RecordView::decode(bytes.as_slice()).ok().map(|record| content(&record))
            });
            return Ok((!queue.is_empty()).then_some(FirstMessage { queue_offset, content }));
        }
        let walked = match walked {
            Some(walked) => walked,
            None => walked.insert(self.walk()?),
        };
        Ok(walked.remove(&(topic.to_owned(), queue_id)))
    }

    fn walk(&self) -> Result<BTreeMap<(String, i32), FirstMessage>, StoreError> {
        let list = &self.planner.list;
        let checks = ScanChecks { crc: true };
        let mut scanner = LogScanner::new(Arc::clone(list), list.min_offset(), u64::MAX >> 1, checks);
        let mut found = BTreeMap::new();
        let floors = self.planner.topics.floors();
        loop {
            let offset = scanner.position();
            match scanner.next_item()? {
                ScanItem::Record(record) if floors.hides(record.topic, offset) => {}
                ScanItem::Record(record) if record.dispatches_to_queue() => {
                    found.entry((record.topic.to_owned(), record.queue_id)).or_insert_with(|| FirstMessage {
                        queue_offset: record.queue_offset,
                        content: Some(content(&record)),
                    });
                }
                ScanItem::Record(_) | ScanItem::Filler { .. } => {}
                ScanItem::End { .. } => return Ok(found),
                ScanItem::Damaged(damage) => {
                    if scanner.skip(&damage)?.is_none() {
                        return Ok(found);
                    }
                }
            }
        }
    }
}

fn view_of<'r>(record: &'r StoredRecord, root: &Path) -> Result<RecordView<'r>, StoreError> {
    record.view().map_err(|error| StoreError::format(root, record.commit_log_offset, &error))
}

/// Pulls all queues; returns the offsets up to which they are complete now.
fn pull_queues(
    files: &StoreFiles,
    source: &dyn RestoreSource,
    run: &RestoreRun<'_>,
    lacking: Vec<MissingQueue>,
    report: &mut RestoreReport,
) -> Result<BTreeMap<(String, i32), i64>, StoreError> {
    if !report.dry_run {
        sweep(files, &lacking)?;
    }
    let mut restored = BTreeMap::new();
    for lack in lacking {
        let mut queue = RestoredQueue {
            topic: lack.topic.clone(),
            queue_id: lack.queue_id,
            until: lack.until,
            ..RestoredQueue::default()
        };
        let pull = QueuePull { files, source, lack: &lack, control: run.control };
        let reason = if report.dry_run {
            source.generation(&lack.topic, lack.queue_id, lack.until)?.err()
        } else {
            pull.run(&mut queue)?
        };
        if let Some(reason) = reason {
            report.skipped.push(format!("{}/{}: {reason}", lack.topic, lack.queue_id));
            continue;
        }
        report.queues.push(queue);
        restored.insert((lack.topic, lack.queue_id), lack.until);
    }
    Ok(restored)
}

/// Removes leftovers of an earlier restore for queues that are complete.
fn sweep(files: &StoreFiles, lacking: &[MissingQueue]) -> Result<(), StoreError> {
    for topic in list_or_none(files, &files.restore())? {
        let folder = files.restore().join(&topic.name);
        for queue in list_or_none(files, &folder)? {
            let wanted = lacking.iter().any(|lack| {
                topic.name == *lack.topic && queue.name.to_str() == Some(&lack.queue_id.to_string())
            });
            if !wanted {
                remove(files, &folder.join(&queue.name))?;
            }
        }
    }
    Ok(())
}
