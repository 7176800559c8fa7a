//! The second round: finds the newest record of each key of a share. After it, the driver computes the first record
//! of each file of the result.

use std::path::{Path, PathBuf};

use super::super::files::file_sizes::{CompactionGeometry, UNIT_BYTES};
use super::super::job::documents::{QueueTask, TaskResult};
use super::super::job::job_folder::check_staging_name;
use super::super::job::job_record::job_dir;
use super::super::job::newest_by_key::{Seed, Spill, decide};
use super::documents::{CompactionStep, CopyRange, Decide, RangePlan, ScannedRange};
use super::scan_step::keys_file;
use super::step_files::{RecordNote, open_notes, read_notes, read_verdicts, write_verdicts};
use crate::job::source::OffsetRange;
use crate::job::survivor_rule::{SurvivorRule, Verdict};
use crate::job::task::TaskInput;
use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;

pub(super) fn run(
    input: &TaskInput<'_>,
    step: &Decide,
    staging: &Path,
    result: &mut TaskResult,
) -> Result<(), StoreError> {
    let (mut spills, mut keyed) = (Vec::new(), 0);
    for (piece, folder) in step.pieces.iter().zip(folders(input.files, input.task, names(&step.pieces))?) {
        open_notes(input.files, &folder, piece.records)?;
        spills.push(Spill::open(input.files, keys_file(&folder, step.share), input.equality(), keyed)?);
        keyed += piece.keyed;
    }
    let seed = Seed::from_nonce(&input.task.nonce);
    let newest = decide(&spills, input.equality(), seed, input.task.memory_bytes)?;
    write_verdicts(input.files, staging, &newest, keyed)?;
    result.counts.before = newest.records;
    result.counts.keys = newest.keys;
    result.counts.rounds = newest.rounds;
    Ok(())
}

fn names(pieces: &[ScannedRange]) -> impl Iterator<Item = &String> {
    pieces.iter().map(|piece| &piece.staging)
}

/// Returns the paths of the staging folders with these names.
pub(super) fn folders<'n>(
    files: &StoreFiles,
    task: &QueueTask,
    names: impl Iterator<Item = &'n String>,
) -> Result<Vec<PathBuf>, StoreError> {
    let job = job_dir(files, &task.job_id);
    names.map(|name| check_staging_name(name).map(|()| job.join(name))).collect()
}

/// Plans the files to copy, after all shares are decided.
pub(super) fn copy_steps(
    files: &StoreFiles,
    step: &Decide,
    answers: &[TaskResult],
) -> Result<Vec<CompactionStep>, StoreError> {
    let mut total = step.plan.total()?.clone();
    let keyed: u64 = step.pieces.iter().map(|piece| piece.keyed).sum();
    let decided: u64 = answers.iter().map(|answer| answer.counts.before).sum();
    if decided != keyed {
        let path = job_dir(files, &total.job_id);
        return Err(StoreError::corrupt(&path, 0, format!("{decided} of {keyed} keys were decided")));
    }
    total.counts.keys = answers.iter().map(|answer| answer.counts.keys).sum();
    total.counts.rounds = answers.iter().map(|answer| answer.counts.rounds).max().unwrap_or(0);
    let verdicts: Vec<String> = answers.iter().map(|answer| answer.staging.clone()).collect();
    let plan = RangePlan { total: Some(total), ..step.plan.clone() };
    let starts = starts(files, &plan.task, &step.pieces, &verdicts)?;
    let end =
        Start { queue_offset: i64::MAX, record: step.pieces.iter().map(|piece| piece.records).sum(), keyed };
    let (pairs, groups) = (starts.len(), starts.len().min(plan.parts as usize).max(1));
    let start_of = |pair: usize| match pair {
        0 => Start::default(),
        pair => starts.get(pair).copied().unwrap_or(end),
    };
    let copy = |group: usize| {
        let (first, behind) = (group * pairs / groups, (group + 1) * pairs / groups);
        let (from, to) = (start_of(first), if group + 1 == groups { end } else { start_of(behind) });
        CompactionStep::Copy(CopyRange {
            plan: plan.clone(),
            range: OffsetRange { from: from.queue_offset, to: to.queue_offset },
            records: to.record - from.record,
            keyed: to.keyed - from.keyed,
            first_ordinal: from.keyed,
            first_pair: first as u64,
            pairs: (behind - first) as u64,
            another_follows: group + 1 < groups,
            verdicts: verdicts.clone(),
        })
    };
    Ok((0..groups).map(copy).collect())
}

/// The first record of a pair of files: its queue offset, and the numbers of records and keyed records before it.
#[derive(Clone, Copy, Debug, Default)]
struct Start {
    queue_offset: i64,
    record: u64,
    keyed: u64,
}

/// Returns the start of each pair of files of the result.
fn starts(
    files: &StoreFiles,
    task: &QueueTask,
    pieces: &[ScannedRange],
    verdicts: &[String],
) -> Result<Vec<Start>, StoreError> {
    let shares = folders(files, task, verdicts.iter())?;
    let keyed = pieces.iter().map(|piece| piece.keyed).sum();
    let mut layout = FileLayout { geometry: task.geometry, starts: Vec::new(), log: 0, queue: 0 };
    let mut next = Start::default();
    for (piece, folder) in pieces.iter().zip(folders(files, task, names(pieces))?) {
        let newest = read_verdicts(files, &shares, (next.keyed, piece.keyed), keyed)?;
        let (rule, first) = (SurvivorRule { task, newest: &newest }, next.keyed);
        read_notes(files, &folder, piece.records, |note| {
            let RecordNote { is_keyed, kind, queue_offset, size } = note;
            let ordinal = is_keyed.then(|| next.keyed - first);
            if rule.decide(ordinal, queue_offset, kind) == Verdict::Keep {
                layout.place(u64::from(size), Start { queue_offset, ..next });
            }
            next.record += 1;
            next.keyed += u64::from(is_keyed);
            Ok(())
        })?;
    }
    Ok(layout.starts)
}

/// Assigns records to pairs of files as the writer does.
struct FileLayout {
    geometry: CompactionGeometry,
    starts: Vec<Start>,
    log: u64,
    queue: u64,
}

impl FileLayout {
    fn place(&mut self, size: u64, start: Start) {
        if self.starts.is_empty() || !self.geometry.has_room(self.log, self.queue, size) {
            self.starts.push(start);
            (self.log, self.queue) = (0, 0);
        }
        // A record that does not fit into any file is refused by the copy step.
        self.log = (self.log + size).min(self.geometry.log_file_bytes);
        self.queue += UNIT_BYTES;
    }
}
