//! The first round: reads a range of the queue and writes its keys to the files of their shares.

use std::path::{Path, PathBuf};

use super::super::job::documents::TaskResult;
use super::super::job::newest_by_key::{KeyCollector, Seed};
use super::documents::Scan;
use super::step_files::{NoteWriter, RecordNote};
use crate::job::survivor_rule::RecordKind;
use crate::job::task::{TaskInput, collect_keys};
use mqstore_base::error::StoreError;

/// Path of the keys of a share, in the folder of a range.
pub(super) fn keys_file(staging: &Path, share: u32) -> PathBuf {
    staging.join(format!("keys-{share:03}"))
}

pub(super) fn run(
    input: &TaskInput<'_>,
    scan: &Scan,
    staging: &Path,
    result: &mut TaskResult,
) -> Result<(), StoreError> {
    let paths = (0..scan.plan.shares).map(|share| keys_file(staging, share)).collect();
    let seed = Seed::from_nonce(&input.task.nonce);
    let mut collector = KeyCollector::create_shares(input.files, paths, input.equality(), seed)?;
    let mut notes = NoteWriter::create(input.files, staging)?;
    collect_keys(input, scan.range, result, &mut |record, key| {
        notes.add(RecordNote {
            is_keyed: key.is_some(),
            kind: RecordKind::of(record, input.task),
            queue_offset: record.queue_offset,
            size: record.size,
        })?;
        key.map_or(Ok(()), |key| collector.add(key))
    })?;
    notes.write()?;
    collector.close()
}
