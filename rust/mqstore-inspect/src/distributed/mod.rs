//! The check of one store by several worker processes.
//!
//! Owns the split of the check, and the files that workers exchange in the folder of a job. It changes nothing in the
//! store. The report has the same problems as that of [`crate::verify`]. [`VerifyPlan`] describes the steps.
//!
//! Each attempt of a step writes only into its own folder. The reader checks the length and checksum of each file. So
//! any complete attempt of a step can be used, even while other attempts still write. The files are not synced, because
//! no job reads them after a crash of the machine.

mod attempt;
mod documents;
mod findings;
mod log_range;
pub mod merge_report;
mod plan;

use std::path::Path;

pub use documents::{StepAnswer, VerifyPlan, VerifyStep};
pub use merge_report::assemble;
#[cfg(test)]
pub(crate) use plan::plan_at;
pub use plan::{PlannedCut, log_bytes, plan};

pub use crate::verify::checks::CONFIRMATIONS;
use crate::verify::checks::load_index;
use attempt::begin;
use documents::VerifyWork;
use mqstore_base::error::StoreError;
use mqstore_base::options::StoreOptions;
use mqstore_base::progress::Progress;
use mqstore_base::progress::ProgressWatcher;
use mqstore_base::store_files::StoreFiles;

/// Runs one step in the folder `attempt`, which must be in the job's folder and must not exist yet.
///
/// `progress` is called from time to time; an error that it returns ends the step.
///
/// # Errors
/// [`StoreError::NotAStore`] if this process does not see the job's folder or the store, [`StoreError::Busy`] if
/// files of the store were removed meanwhile, and I/O errors.
pub fn run_step(
    files: &StoreFiles,
    options: &StoreOptions,
    step: &VerifyStep,
    attempt: &Path,
    progress: ProgressWatcher<'_>,
) -> Result<StepAnswer, StoreError> {
    let mut found = begin(files, &step.settled, attempt)?;
    match &step.work {
        VerifyWork::Range(range) => {
            log_range::run(files, options, &step.settled, range, &mut found, progress)?;
        }
        VerifyWork::Index { files: names, bytes } => {
            let index = load_index(&files.clone().for_reading()?, options)?;
            let mut wrong = Vec::new();
            for (done, name) in (1..).zip(names) {
                wrong.extend(index.wrong_files(std::slice::from_ref(name))?);
                let done_bytes = bytes / names.len().max(1) as u64 * done;
                progress(Progress { done_bytes, total_bytes: *bytes })?;
            }
            found.whole(&wrong)?;
        }
    }
    found.finish()
}
