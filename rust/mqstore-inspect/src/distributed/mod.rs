//! The check of one store by several workers, each a process of its own.
//!
//! Owns the split of the check, and the files that workers exchange in the folder of a job; it changes nothing in the
//! store. The report has the same problems as that of [`crate::verify`]. [`VerifyPlan`] has the steps.
//!
//! A worker writes only into a folder that no other attempt has. Length and checksums of its files are checked when
//! they are read, so any attempt of a step will do, and other attempts may still be writing. The files are not synced:
//! after a crash of the machine no job reads them.

mod attempt;
mod documents;
mod findings;
mod log_range;
pub mod merge_report;
mod plan;

use std::path::Path;

pub use documents::{Step, StepAnswer, VerifyPlan};
pub use merge_report::assemble;
#[cfg(test)]
pub(crate) use plan::plan_at;
pub use plan::{Cut, log_bytes, plan};

use crate::verify::checks::load_index;
use attempt::begin;
use documents::Work;
use mqstore_base::error::StoreError;
use mqstore_base::options::StoreOptions;
use mqstore_base::progress::Progress;
use mqstore_base::progress::ProgressWatcher;
use mqstore_base::store_files::StoreFiles;

/// Does one step in the folder `attempt`, which must lie in the job's folder and must not exist yet.
///
/// `progress` is called now and then; an error that it returns ends the step.
///
/// # Errors
/// [`StoreError::NotAStore`] when this process does not see the job's folder or the store, [`StoreError::Busy`] when
/// files of the store went away meanwhile, and errors of the system.
pub fn run_step(
    files: &StoreFiles,
    options: &StoreOptions,
    step: &Step,
    attempt: &Path,
    progress: ProgressWatcher<'_>,
) -> Result<StepAnswer, StoreError> {
    let mut found = begin(files, &step.settled, attempt)?;
    match &step.work {
        Work::Stretch(stretch) => {
            log_range::run(files, options, &step.settled, stretch, &mut found, progress)?;
        }
        Work::Index { files: names, bytes } => {
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
