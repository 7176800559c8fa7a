//! Segments that the archive of the store does not contain yet.
//!
//! Owns this rule: while `mqstore/archive` exists, no segment that ends after its log offset is removed, whatever the
//! reason for the removal. If the file cannot be read, every segment stays. RocketMQ has no such rule.

use std::fmt::Write;

use super::plan::PlannedDeletion;
use super::report;
use crate::archive::state::ArchiveState;
use mqstore_base::store_files::StoreFiles;
use mqstore_log::commit_log::Segment;

/// Returns why `segment` must stay for the archive.
pub(crate) fn why(files: &StoreFiles, segment: &Segment) -> Option<String> {
    let mut why = "it is not in the archive yet".to_owned();
    match ArchiveState::load(files) {
        Ok(None) => return None,
        Ok(Some(archive)) if segment.end_offset() <= archive.archived_to => return None,
        Ok(Some(archive)) => {
            let _ = write!(why, ", which ends at log offset {}", archive.archived_to);
            why.push_str("; run the archive first, or remove its configuration");
        }
        Err(error) => {
            let _ = write!(why, " as far as known: {error}");
        }
    }
    Some(why)
}

/// Returns the segments of `planned` that the archive lets go, and why the next one would stay.
pub(super) fn split<'p>(
    files: &StoreFiles,
    planned: &'p [PlannedDeletion],
) -> (&'p [PlannedDeletion], Option<String>) {
    for (at, one) in planned.iter().enumerate() {
        if let Some(why) = why(files, &one.segment) {
            let path = report::segment(one).path;
            return (planned.get(..at).unwrap_or_default(), Some(format!("{}: {why}", path.display())));
        }
    }
    (planned, None)
}
