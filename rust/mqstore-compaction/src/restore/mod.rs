//! Restoring lost compaction files from another store.
//!
//! Compaction files are data: if they are lost, or end before the commit log begins, this store has lost all messages
//! between them. Another store with the same messages, such as a replica or an older copy, still has them. This folder
//! owns `mqstore/restore/`, which keeps the pulled messages until a compaction publishes them. `pull` lists the steps.
//!
//! A restore holds the store's lock until it ends. Readers see no change before the single step of `publish`.
//!
//! Source: `CompactionLog#load`, `#pullMessageFromMaster`, `MessageFetcher`.

mod missing;
mod pull;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Serialize, Serializer};

use super::files::folder::list_or_none;
use super::files::restored::{queue_dir, remove};
use super::job::control::JobControl;
use super::job::documents::CompactionReport;
use super::job::options::CompactionOptions;
use super::job::plan::{ChosenTopics, PlannedJob, Planner};
use super::job::publish::publish;
use super::job::store_lock::StoreLockHeld;
use super::local_job::run_all;
use crate::json::encode;
use missing::MissingQueues;
use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;
use mqstore_log::commit_log::CommitLog;
use pull::{MissingQueue, QueuePull};

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

/// Restores queues of the store at `files` from `source`.
pub fn restore(
    files: &StoreFiles,
    held: &StoreLockHeld<'_>,
    source: &dyn RestoreSource,
    run: &RestoreRun<'_>,
) -> Result<RestoreReport, StoreError> {
    let mut planner = Planner::new(files, run.options, held)?;
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
    let PlannedJob { plan, job } = planner.start(ChosenTopics { skipped: Vec::new(), ..chosen })?;
    let (job, results) = run_all(files, run.log, job, &plan.tasks, run.threads, run.control)?;
    let done = publish(files, held, job, &plan, &results)?.sweep(files, held)?;
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
