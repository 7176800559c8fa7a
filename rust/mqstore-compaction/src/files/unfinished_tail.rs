//! The end of compaction files that were copied while a writer appended to them.
//!
//! ```text
//! compactionLog/T/0   record | record | record      copied last: may have records
//! compactionCq/T/0    unit   | unit   |             that have no unit in the copy
//! ```
//!
//! Owns nothing else. A broker that starts cuts a log after the record of its last unit, and copies the cut records from
//! the commit log again; so does this. Source: `CompactionLog.TopicPartitionLog#init`.

use std::io::ErrorKind;

use mqstore_format::{BLANK_HEADER_BYTES, Peek, peek};
use mqstore_io::{Access, switch};

use super::cursor::{last_unit, read_units};
use super::folder::{FilePair, QueueFolder, queue_ids, topics};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;

/// Cuts the compaction logs of a copy that has no writer: no record remains after the last unit of its queue.
///
/// # Errors
/// I/O errors.
pub fn cut_unfinished_tails(files: &StoreFiles) -> Result<(), StoreError> {
    let compaction = files.compaction();
    for topic in topics(files, &compaction)? {
        for queue_id in queue_ids(files, &compaction, &topic)? {
            let folder = QueueFolder::load(files, &compaction, &topic, queue_id)?;
            for pair in folder.pairs.iter().rev() {
                if cut(files, pair)? {
                    break;
                }
            }
        }
    }
    Ok(())
}

/// Cuts one log. Returns whether its queue has a unit, so that earlier files are complete.
fn cut(files: &StoreFiles, pair: &FilePair) -> Result<bool, StoreError> {
    let path = &pair.log.path;
    let Some(queue) = &pair.queue else {
        return match files.vfs.remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(StoreError::io(path, "removing a log without a queue", error))
            }
            _ => Ok(false),
        };
    };
    // Units that were cut off a damaged queue file say nothing about the log.
    if read_units(files, queue, u64::MAX)?.is_some_and(|run| run.is_cut && !run.units.is_empty()) {
        return Ok(true);
    }
    let unit = last_unit(files, queue)?;
    let end = unit.map_or(0, |unit| {
        let size = u64::try_from(unit.size).unwrap_or(0);
        u64::try_from(unit.physical_offset).unwrap_or(0).saturating_sub(pair.log.base).saturating_add(size)
    });
    if end.saturating_add(BLANK_HEADER_BYTES as u64) <= pair.log.len {
        let file = files.vfs.open(path, Access::ReadWrite).at(path, "opening a compaction log")?;
        let mut head = [0; BLANK_HEADER_BYTES];
        file.read_exact_at(&mut head, end).at(path, "reading a compaction log")?;
        if matches!(peek(&head), Ok(Peek::Record { .. })) {
            // A hole reads as zeros.
            file.set_len(end).at(path, "cutting a compaction log")?;
            file.set_len(pair.log.len).at(path, "cutting a compaction log")?;
            switch::step("snapshot.sync_cut", || file.sync_all()).at(path, "syncing a compaction log")?;
        }
    }
    Ok(unit.is_some())
}
