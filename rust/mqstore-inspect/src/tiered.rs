//! The description of the tiered store of a broker, and the last step of its check.

use std::path::PathBuf;

use super::problem::{ProblemKind, VerifyReport};
use mqstore_base::error::StoreError;
use mqstore_base::store_files::{StoreFiles, TieredFaultKind, TieredStore};

/// The tiered store of one broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TieredInfo {
    /// Name of the cluster; `None` if the folder above that of the broker has another name.
    pub cluster: Option<String>,
    /// Name of the broker.
    pub broker: String,
    /// The folder of the broker.
    pub folder: PathBuf,
    /// Number of files of logs and queues.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl TieredInfo {
    pub(crate) fn of(store: &TieredStore) -> Self {
        let (files, bytes) = store.sizes();
        Self {
            cluster: store.cluster(),
            broker: store.broker(),
            folder: store.folder().to_path_buf(),
            files,
            bytes,
        }
    }
}

/// Adds the faults of the files of a tiered store and of its units, and replaces the paths and offsets of joined files.
/// Does nothing for other stores.
pub(crate) fn finish_check(files: &StoreFiles, report: &mut VerifyReport) -> Result<(), StoreError> {
    let Some(tiered) = files.tiered() else { return Ok(()) };
    for problem in &mut report.problems {
        let below = problem.path.strip_prefix(&files.root).ok();
        if let Some((path, offset)) = below.and_then(|path| tiered.real_place(path, problem.offset)) {
            (problem.path, problem.offset) = (path, offset);
        } else if let Ok(queue) = problem.path.strip_prefix(files.consume_queue()) {
            problem.path = tiered.folder().join(queue);
        }
    }
    for fault in tiered.faults().iter().chain(&tiered.check_units()?) {
        let kind = match fault.kind {
            TieredFaultKind::Stray => ProblemKind::TieredFileStray,
            TieredFaultKind::Gap => ProblemKind::TieredFileGap,
            TieredFaultKind::Dangling => ProblemKind::TieredEntryDangling,
            TieredFaultKind::Wrong => ProblemKind::QueueEntryWrong,
        };
        report.add(kind, &fault.path, fault.offset, fault.detail.as_str());
    }
    report.notes.extend(tiered.notes().iter().cloned());
    Ok(())
}
