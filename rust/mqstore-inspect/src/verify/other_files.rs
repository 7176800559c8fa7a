//! Checks the files that a walk of the log does not cover: checkpoint, compacted queues, configuration, metadata log.
//!
//! Owns nothing on disk.

use std::path::PathBuf;

use mqstore_io::FileKind;

use super::compacted_queues;
use super::config_check::{check_config, config_files};
use crate::loss_report::LossReport;
use crate::problem::{ProblemKind, VerifyReport};
use mqstore_base::error::StoreError;
use mqstore_base::store_files::{CONFIG_LIMIT_BYTES, DELAY_LEVELS_FILE, StoreFiles};
use mqstore_compaction::{CompactedQueue, changed_files, compaction_losses};
use mqstore_log::checkpoint::CheckpointFile;
use mqstore_meta::find_damage;

/// The check of the remaining files of a store.
pub(super) struct OtherFilesCheck<'a> {
    pub files: &'a StoreFiles,
    pub report: VerifyReport,
    /// End of the log.
    pub end: u64,
    /// See `VerifyBounds`.
    pub dispatched: u64,
    /// Whether a writer has the store open now.
    pub beside: bool,
}

impl OtherFilesCheck<'_> {
    /// Checks that a broker can read each of its files, and that mqstore can read its delay levels.
    pub(super) fn config(&mut self) {
        for (path, name) in config_files(self.files).unwrap_or_default() {
            let Ok(text) = self.files.vfs.read_file(&path, CONFIG_LIMIT_BYTES) else { continue };
            if let Err(reason) = check_config(&name, &text) {
                let kind = if name == DELAY_LEVELS_FILE {
                    ProblemKind::DelayLevelsDamaged
                } else {
                    ProblemKind::ConfigDamaged
                };
                self.report.add(kind, &path, None, reason);
            }
        }
        let lost = LossReport::load(self.files).map_or(0, |report| report.unreadable);
        if lost > 0 {
            let detail = format!("{lost} lines cannot be read");
            self.report.add(ProblemKind::LossReportDamaged, &self.files.repairs(), None, detail);
        }
    }

    /// Checks that the metadata log is readable up to its synced end.
    pub(super) fn meta(&mut self) -> Result<(), StoreError> {
        if let Some((path, offset, reason)) = find_damage(self.files)? {
            self.report.add(ProblemKind::MetaDamaged, &path, Some(offset), reason);
        }
        Ok(())
    }

    pub(super) fn checkpoint(&mut self) {
        let path = self.files.checkpoint();
        if self.files.vfs.stat(&path).is_err() {
            return;
        }
        let checkpoint = CheckpointFile::new(self.files).load();
        for (name, value) in [
            ("confirmPhyOffset", checkpoint.confirm_physical_offset),
            ("logicsPhysicalOffset", checkpoint.logics_physical_offset),
        ] {
            // RocketMQ stores -1 if no offset was confirmed.
            let wrong = u64::try_from(value).map_or(value < -1, |value| value > self.end);
            if wrong && (self.dispatched == u64::MAX || !self.beside) {
                let detail = format!("{name} is {value}; the log ends at {}", self.end);
                self.report.add(ProblemKind::CheckpointAhead, &path, None, detail);
            }
        }
    }

    /// Notes that queues and index were not compared for the end of the log, because the writer was stopped.
    pub(super) fn tell_stop(&mut self) {
        if !self.beside && self.dispatched < self.end && !self.files.is_bare_log() {
            self.report.notes.push(format!(
                "the writer was stopped before it closed the store: queues and index may lack the messages from log \
                 offset {} on; this loses nothing, and the next open for writing adds them",
                self.dispatched
            ));
        }
    }

    /// Checks that each compacted queue is readable from its first unit to its last, and has all files that a
    /// compaction wrote.
    pub(super) fn compaction(&mut self) -> Result<(), StoreError> {
        let losses = compaction_losses(self.files)?;
        if let Some((_, reason)) = losses.manifest {
            let path = self.files.compaction_manifest();
            self.report.add(ProblemKind::CompactionFacts, &path, None, reason);
        }
        if let Some(damage) = losses.positions {
            let detail = damage.note("the positions that parse are used", None);
            self.report.add(ProblemKind::CompactionPositions, &damage.path, None, detail);
        }
        if let Some(path) = losses.missing_positions {
            let detail = "the file is missing, although a compaction wrote it";
            self.report.add(ProblemKind::CompactionPositions, &path, None, detail);
        }
        for lost in losses.files {
            self.report.add(ProblemKind::CompactionFile, &lost.path, None, lost.detail);
        }
        for (topic, queue_id) in self.compacted_queues() {
            let folder =
                self.files.compaction().join("compactionLog").join(&topic).join(queue_id.to_string());
            if let Err(error) = read_through(self.files, &topic, queue_id) {
                if matches!(error, StoreError::Io { .. }) {
                    return Err(error);
                }
                self.report.add(ProblemKind::CompactionDamaged, &folder, None, error.to_string());
            }
            // The check above reports other damage.
            let unfinished = self.beside || self.dispatched != u64::MAX;
            let (queue, states) = ((topic.as_str(), queue_id), (self.beside, unfinished));
            let compared = compacted_queues::check(self.files, queue, states, &mut self.report);
            if let Err(error @ StoreError::Io { .. }) = compared {
                return Err(error);
            }
            match changed_files(self.files, &topic, queue_id) {
                Ok(found) => found.iter().for_each(|changed| {
                    self.report.add(
                        ProblemKind::CompactionFile,
                        &changed.path,
                        None,
                        changed.detail.as_str(),
                    );
                }),
                Err(error @ StoreError::Io { .. }) => return Err(error),
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn compacted_queues(&self) -> Vec<(String, i32)> {
        let root = self.files.compaction().join("compactionLog");
        let folders = |path: &PathBuf| -> Vec<String> {
            let entries = self.files.vfs.list(path).unwrap_or_default();
            entries
                .into_iter()
                .filter(|entry| entry.stat.kind == FileKind::Directory)
                .filter_map(|entry| entry.name.into_string().ok())
                .collect()
        };
        let mut queues = Vec::new();
        for topic in folders(&root) {
            let ids = folders(&root.join(&topic)).into_iter().filter_map(|id| id.parse().ok());
            queues.extend(ids.map(|id| (topic.clone(), id)));
        }
        queues
    }
}

/// Reads a compacted queue from the first record to the last.
fn read_through(files: &StoreFiles, topic: &str, queue_id: i32) -> Result<(), StoreError> {
    if let Some(queue) = CompactedQueue::open(files, topic, queue_id)? {
        for record in queue.read(0) {
            record?;
        }
    }
    Ok(())
}
