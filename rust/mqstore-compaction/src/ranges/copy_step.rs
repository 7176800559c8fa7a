//! The third round: writes the survivors of a range in complete files of the result.

use std::path::Path;

use super::super::job::documents::TaskResult;
use super::super::job::survivor_writer::{GenerationWriter, WrittenGeneration};
use super::super::job::task;
use super::super::job::task::TaskInput;
use super::decide_step::folders;
use super::documents::CopyRange;
use super::step_files::read_verdicts;
use mqstore_base::error::StoreError;

pub(super) fn run(
    input: &TaskInput<'_>,
    step: &CopyRange,
    staging: &Path,
    result: &mut TaskResult,
) -> Result<WrittenGeneration, StoreError> {
    let TaskInput { files, task, .. } = *input;
    let counts = step.plan.total()?.counts;
    let keyed = counts.before.saturating_sub(counts.keyless);
    if step.first_ordinal.checked_add(step.keyed).is_none_or(|end| end > keyed) {
        return Err(StoreError::InvalidOption {
            option: "compaction step",
            reason: format!("it has keys up to {} + {} of {keyed}", step.first_ordinal, step.keyed),
        });
    }
    let shares = folders(files, task, step.verdicts.iter())?;
    let newest = read_verdicts(files, &shares, (step.first_ordinal, step.keyed), keyed)?;
    let writer = GenerationWriter::create(files, staging, task.geometry, step.first_pair)?;
    let copy = task::CopyWalk { input: *input, newest: &newest, writer };
    let writer = copy.copy_survivors(step.range, (step.records, counts.keyless == 0), result)?;
    let written = writer.finish(step.another_follows)?;
    result.pairs = written.pairs().to_vec();
    if result.pairs.len() as u64 != step.pairs {
        return Err(StoreError::Busy {
            reason: format!("{}/{} changed while it was compacted", task.topic, task.queue_id),
        });
    }
    Ok(written)
}
