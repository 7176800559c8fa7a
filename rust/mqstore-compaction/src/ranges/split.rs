//! Decides whether a queue is compacted in steps, and where it is split.
//!
//! Owns that decision. Writes nothing. A range begins at a pair of compaction files, or at a unit of the consume queue.

use super::super::files::folder::FilePair;
use super::super::job::documents::QueueTask;
use super::documents::{CompactionStep, MOST_SHARES, RangePlan, Scan};
use crate::files::cursor::{first_offset, last_offset};
use crate::job::source::{OffsetRange, previous_folder, units};
use crate::json::malformed;
use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;

/// A task that reads more bytes than this is split, even if it has few keys.
const MOST_BYTES: u64 = 4 << 30;

/// Bytes of a key in the map, with a text of usual length.
const BYTES_PER_KEY: u64 = 32;
const BYTES_PER_TEXT: u64 = 24;

/// Maximum number of ranges.
const MOST_PARTS: u32 = 1024;

/// Number of units whose sizes are a sample for all.
const SAMPLED_UNITS: i64 = 4096;

/// The rule that decides whether several workers compact a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// If its keys do not fit into the task's memory, or if it has very many bytes.
    #[default]
    Auto,
    /// Never.
    Partition,
    /// Whenever it can be split.
    Ranged,
}

impl Strategy {
    const NAMES: [(&'static str, Self); 3] =
        [("auto", Self::Auto), ("partition", Self::Partition), ("ranged", Self::Ranged)];

    /// Returns the strategy with this name.
    ///
    /// # Errors
    /// [`StoreError::InvalidOption`] for an unknown name.
    pub fn from_name(name: &str) -> Result<Self, StoreError> {
        let found = Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        found.ok_or_else(|| malformed("strategy", &format!("{name:?} is not auto, partition or ranged")))
    }
}

/// Returns the first round of steps that compact the queue of `task`, for about `parts` workers; one step if one task
/// compacts the complete queue.
///
/// # Errors
/// I/O errors.
pub(crate) fn split(
    files: &StoreFiles,
    task: &QueueTask,
    strategy: Strategy,
    parts: u32,
) -> Result<Vec<CompactionStep>, StoreError> {
    let whole = || Ok(vec![CompactionStep::Whole(task.clone())]);
    let parts = parts.clamp(2, MOST_PARTS);
    let blocks = match strategy {
        Strategy::Partition => None,
        _ => blocks(files, task, parts)?,
    };
    let Some(blocks) = blocks else { return whole() };
    let bytes = blocks.iter().map(|block| block.bytes).fold(0, u64::saturating_add);
    let a_key = BYTES_PER_KEY + if task.confirm_keys { BYTES_PER_TEXT } else { 0 };
    let key_bytes = task.records.saturating_mul(a_key);
    if strategy == Strategy::Auto && key_bytes <= task.memory_bytes && bytes <= MOST_BYTES {
        return whole();
    }
    let ranges = split_evenly(&blocks, bytes, parts);
    if ranges.len() < 2 {
        return whole();
    }
    let fitting = key_bytes.div_ceil(task.memory_bytes.max(1)).min(u64::from(MOST_SHARES)) as u32;
    // The same number of shares for each worker, so that no worker waits for another.
    let shares = fitting.max(1).next_multiple_of(parts).min(MOST_SHARES);
    let plan = RangePlan { task: task.clone(), parts, shares, total: None };
    Ok(ranges.into_iter().map(|range| CompactionStep::Scan(Scan { plan: plan.clone(), range })).collect())
}

/// Returns the approximate bytes of the records of a queue.
///
/// # Errors
/// I/O errors.
pub(crate) fn expected_bytes(files: &StoreFiles, task: &QueueTask) -> Result<u64, StoreError> {
    let sum = |parts: &[UnsplitRange]| parts.iter().map(|block| block.bytes).fold(0, u64::saturating_add);
    if let Some(blocks) = blocks(files, task, 2)? {
        return Ok(sum(&blocks));
    }
    // The task walks the log itself.
    let files_of = previous_folder(files, task)?.pairs;
    let before = files_of.iter().map(|pair| pair.log.len).fold(0, u64::saturating_add);
    Ok(before.saturating_add(task.log.log_end.saturating_sub(task.log.scan_from)))
}

/// A part of a queue that is not split.
struct UnsplitRange {
    from: i64,
    bytes: u64,
}

/// Returns the blocks of a queue in ascending offset; `None` if their borders are unknown.
fn blocks(files: &StoreFiles, task: &QueueTask, parts: u32) -> Result<Option<Vec<UnsplitRange>>, StoreError> {
    if task.restored {
        return Ok(None);
    }
    let mut blocks = Vec::new();
    if task.previous_end > 0 {
        let mut end = -1;
        for FilePair { log, queue } in previous_folder(files, task)?.pairs {
            let Some(queue) = queue else { return Ok(None) };
            let (first, last) = (first_offset(files, &queue)?, last_offset(files, &queue)?);
            match (first, last) {
                (Some(first), Some(last)) if first > end && last >= first => {
                    blocks.push(UnsplitRange { from: first, bytes: log.len });
                    end = last;
                }
                _ => return Ok(None),
            }
        }
        blocks.retain(|block| block.from < task.previous_end);
    }
    let (from, to) = (task.log.queue_from, task.log.queue_to);
    if from < to {
        let sampled = units(files, task, from, SAMPLED_UNITS.min(to - from))?;
        let sizes = sampled.iter().map(|unit| u64::try_from(unit.size).unwrap_or(0));
        let mean = sizes.sum::<u64>().checked_div(sampled.len() as u64).unwrap_or(0);
        let step = ((to - from) as u64).div_ceil(u64::from(parts) * 4);
        for at in (from..to).step_by(step as usize) {
            let entries = step.min((to - at) as u64);
            blocks.push(UnsplitRange { from: at, bytes: entries.saturating_mul(mean) });
        }
    } else if task.log.scan_from < task.log.log_end {
        // No consume queue describes the content of the log.
        return Ok(None);
    }
    Ok(Some(blocks))
}

/// Joins the blocks to at most `parts` ranges of similar size that cover the complete queue.
fn split_evenly(blocks: &[UnsplitRange], bytes: u64, parts: u32) -> Vec<OffsetRange> {
    let each = (bytes / u64::from(parts)).max(1);
    let (mut cuts, mut before) = (Vec::new(), 0_u64);
    for block in blocks {
        if before >= each.saturating_mul(cuts.len() as u64 + 1) && cuts.len() + 1 < parts as usize {
            cuts.push(block.from);
        }
        before = before.saturating_add(block.bytes);
    }
    let starts = std::iter::once(0).chain(cuts.iter().copied());
    let ends = cuts.iter().copied().chain([i64::MAX]);
    starts.zip(ends).map(|(from, to)| OffsetRange { from, to }).collect()
}
