//! Decides whether a check is distributed, and splits its log.
//!
//! Owns that decision. Writes the committed offsets into the folder of its attempt, before any other file is read. A
//! range begins at the begin of a piece, as one process would walk the log. For each range, the walk over the
//! index begins at the first entry for a record in it or after it.

use std::path::Path;

use super::attempt::begin;
use super::documents::{JobSettings, LogRange, VerifyPlan};
use crate::verify::checks::{VerifyBounds, load_index};
use crate::verify::group_offsets::StoredOffsets;
use crate::verify::index_walk::MOST_EARLY;
use crate::verify::parallel_walk::LogPieces;
use mqstore_base::error::StoreError;
use mqstore_base::options::StoreOptions;
use mqstore_base::store_files::StoreFiles;
use mqstore_log::commit_log::SegmentList;
use mqstore_log::index::{EntryLocation, IndexSet};

/// Number of index files of one step; most files have 420 MB.
const INDEX_FILES: usize = 8;

/// The rules of the split.
#[derive(Clone, Copy, Debug)]
pub struct PlannedCut {
    /// Number of workers; at least this number of ranges is made, if the log has as many pieces.
    pub parts: u32,
    /// Maximum bytes of a range.
    pub stretch_bytes: u64,
    /// A log with at most this number of bytes is not split.
    pub from_bytes: u64,
}

/// Returns the bytes of a log that contain data, and whether it has a store.
///
/// # Errors
/// [`StoreError::NotAStore`], and I/O errors.
pub fn log_bytes(files: &StoreFiles) -> Result<(u64, bool), StoreError> {
    let files = files.clone().for_reading()?;
    files.refuse_division()?;
    let pieces = LogPieces::all(&SegmentList::load_damaged(&files)?, u64::MAX);
    Ok((pieces.iter().map(|(from, to)| to - from).sum(), !files.is_bare_log()))
}

/// Returns the split of the check of the store at `files`; `None` if one process should check it.
///
/// `job` is the folder that contains the folders of the attempts. `attempt` is the one of this step and must not exist.
///
/// # Errors
/// The errors of [`super::run_step`].
pub fn plan(
    files: &StoreFiles,
    options: &StoreOptions,
    cut: PlannedCut,
    job: &Path,
    attempt: &Path,
) -> Result<Option<VerifyPlan>, StoreError> {
    plan_groups(files, options, job, attempt, |pieces| {
        let bytes: u64 = pieces.iter().map(|(from, to)| to - from).sum();
        if bytes <= cut.from_bytes {
            return Vec::new();
        }
        let count = bytes.div_ceil(cut.stretch_bytes.max(1)).max(u64::from(cut.parts));
        groups(pieces, bytes, count)
    })
}

/// Same as [`plan`], split before the pieces with these numbers.
#[cfg(test)]
pub(crate) fn plan_at(
    files: &StoreFiles,
    options: &StoreOptions,
    cuts: impl Fn(usize) -> Vec<usize>,
    job: &Path,
    attempt: &Path,
) -> Result<Option<VerifyPlan>, StoreError> {
    plan_groups(files, options, job, attempt, |pieces| {
        let mut cuts = cuts(pieces.len());
        cuts.extend([0, pieces.len()]);
        cuts.sort_unstable();
        cuts.dedup();
        cuts.windows(2).filter_map(|two| pieces.get(two[0]..two[1])).collect()
    })
}

/// Same as [`plan`]; `group` assigns the pieces of the log to ranges. Fewer than two ranges make no plan.
fn plan_groups(
    files: &StoreFiles,
    options: &StoreOptions,
    job: &Path,
    attempt: &Path,
    group: impl FnOnce(&[(u64, u64)]) -> Vec<&[(u64, u64)]>,
) -> Result<Option<VerifyPlan>, StoreError> {
    let root = files.root.as_path();
    let files = &files.clone().for_reading()?;
    files.refuse_division()?;
    let settled = JobSettings::new(root, job, VerifyBounds::now(files));
    let mut positions = begin(files, &settled, attempt)?;
    positions.whole(&StoredOffsets::load(files))?;
    let list = &SegmentList::load_damaged(files)?;
    let pieces = LogPieces::all(list, settled.bounds.limit);
    let groups = &group(&pieces);
    if groups.len() < 2 {
        return Ok(None);
    }
    let index = load_index(files, options)?;
    let starts: Vec<u64> = groups.iter().filter_map(|group| group.first()).map(|(start, _)| *start).collect();
    let Some(entries) = places(&index, &starts)? else { return Ok(None) };
    let ends = starts.iter().skip(1).copied().chain([u64::MAX]);
    let ranges = groups.iter().zip(ends).zip(entries);
    let ranges =
        ranges.map(|((group, end), entries)| LogRange { runs: LogPieces::runs(list, group), end, entries });
    let names = index.finished_files(settled.bounds.beside);
    let file_bytes = index.geometry().file_len();
    let index = names.chunks(INDEX_FILES).map(|names| (names.to_vec(), file_bytes * names.len() as u64));
    Ok(Some(VerifyPlan {
        ranges: ranges.collect(),
        index: index.collect(),
        positions: positions.finish()?,
        settled,
    }))
}

/// Splits the pieces into at most `count` groups of similar size.
fn groups(pieces: &[(u64, u64)], bytes: u64, count: u64) -> Vec<&[(u64, u64)]> {
    let (mut groups, mut begin, mut before) = (Vec::new(), 0, 0);
    for (number, (from, to)) in pieces.iter().enumerate() {
        before += to - from;
        // In u128, because the product may exceed 64 bits.
        let due = u128::from(before) * u128::from(count) >= u128::from(bytes) * (groups.len() as u128 + 1);
        if due || number + 1 == pieces.len() {
            groups.extend(pieces.get(begin..=number));
            begin = number + 1;
        }
    }
    groups
}

/// Returns, for each of these ascending log offsets, the first entry for it or for a later one. `None` if so many
/// entries are out of order that a walk may have to skip some.
fn places(index: &IndexSet, starts: &[u64]) -> Result<Option<Vec<Option<EntryLocation>>>, StoreError> {
    let mut places = Vec::with_capacity(starts.len());
    let mut entries = index.entries();
    let (mut before, mut descents) = (i64::MIN, 0);
    while let Some(put) = entries.next_entry()? {
        let at = put.entry.physical_offset;
        descents += usize::from(at < before);
        if descents >= MOST_EARLY {
            return Ok(None);
        }
        before = at;
        while starts.get(places.len()).is_some_and(|start| u64::try_from(at).is_ok_and(|at| at >= *start)) {
            places.push(entries.file_name().map(|file| EntryLocation { file, number: put.number }));
        }
    }
    places.resize(starts.len(), None);
    Ok(Some(places))
}
