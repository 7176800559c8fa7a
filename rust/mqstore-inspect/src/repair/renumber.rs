//! Corrects the queue or the queue offset of records that contradict their neighbours.
//!
//! Owns two fields of a record, or for a record of a batch queue one property, which keeps its length:
//!
//! ```text
//! TOTALSIZE 4 | MAGICCODE 4 | BODYCRC 4 | QUEUEID 4 | FLAG 4 | QUEUEOFFSET 8 | ...
//!                                         ^ this               ^ or this
//! ... | INNER_BASE \x01 4711 \x02 ...
//!                        ^ or this
//! ```
//!
//! It changes only records whose checksum does not cover these bytes, because a valid checksum proves the value. The
//! old value is durable in `mqstore/repairs.jsonl` before it changes. After a crash in the middle, each record has its
//! old or its new value, or one that another repair corrects. A record that fits into no queue and hides others is
//! replaced by a placeholder.
//!
//! Source: `CommitLog#checkMessageAndReturnSize` for the order of the fields.

use std::collections::BTreeMap;

use mqstore_format::properties::INNER_BASE;
use mqstore_format::{QUEUE_ID_POSITION, QUEUE_OFFSET_POSITION, RecordView};
use mqstore_io::{Access, switch};

use super::backup;
use super::damage_scan::WalkedLog;
use super::queue_records::{Contradiction, Correction, Corrections};
use super::segment_files::load;
use crate::verify::misordered::{self, MisorderedRecords};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;
use mqstore_log::commit_log::{SegmentList, read_record};

/// Bytes of the first read of a record.
const RECORD_GUESS_BYTES: usize = 4096;

/// A record that cannot have its stored queue or queue offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MisplacedRecord {
    pub(crate) topic: String,
    pub(crate) queue_id: i32,
    pub(crate) queue_offset: i64,
    /// Log offset of the record.
    pub(crate) log_offset: u64,
    pub(crate) correction: Correction,
    /// The new bytes, and their position in the record.
    patch: Option<(usize, Vec<u8>)>,
}

impl MisplacedRecord {
    /// Returns its new queue and queue offset; `None` if it is given up.
    pub(crate) fn destination(&self) -> Option<(i32, i64)> {
        match self.correction {
            Correction::Offset(offset) => Some((self.queue_id, offset)),
            Correction::Queue(queue_id) => Some((queue_id, self.queue_offset)),
            Correction::GivenUp => None,
        }
    }
}

/// Plans the corrections of the records that contradict others of their queues.
pub(crate) fn plan(
    files: &StoreFiles,
    list: &SegmentList,
    walked: &WalkedLog,
) -> Result<Vec<MisplacedRecord>, StoreError> {
    let mut found = Vec::new();
    for queue in &walked.said.contradictions {
        let offsets = misordered::corrections(&queue.misfits, |from, to| walked.is_damaged(from, to));
        // The checksum proves the values of a record whose checksum only lost its name.
        let unnamed = |offset: u64| walked.unnamed.binary_search_by_key(&offset, |(at, _)| *at).is_ok();
        let single = |misfit: &&MisorderedRecords| misfit.range.records == 1 && !unnamed(misfit.range.first);
        for misfit in queue.misfits.iter().filter(single) {
            let bytes = read_record(files, list, misfit.range.first, RECORD_GUESS_BYTES)?;
            let Ok(record) = RecordView::decode(bytes.as_slice()) else { continue };
            // The offset in a light queue is a property.
            let is_own = record.topic == &*queue.topic && record.queue_id == queue.queue_id;
            if is_own && !record.has_property_crc() {
                found.extend(correct(queue, misfit, &offsets, &record));
            }
        }
    }
    found.sort_unstable_by_key(|one| one.log_offset);
    Ok(found)
}

fn correct(
    queue: &Contradiction,
    misfit: &MisorderedRecords,
    offsets: &BTreeMap<u64, i64>,
    record: &RecordView<'_>,
) -> Option<MisplacedRecord> {
    let (log_offset, queue_offset) = (misfit.range.first, misfit.range.from);
    let elsewhere = queue.elsewhere.iter().find(|(place, _)| *place == log_offset).map(|(_, id)| *id);
    let (correction, patch) = match (offsets.get(&log_offset), elsewhere) {
        (Some(to), _) => (Correction::Offset(*to), offset_patch(queue, record, queue_offset, *to)),
        (None, Some(id)) => (Correction::Queue(id), Some((QUEUE_ID_POSITION, id.to_be_bytes().to_vec()))),
        (None, None) => (Correction::GivenUp, None),
    };
    // Of two records for one offset, a plain queue keeps the first one, and the other one hides nothing.
    if patch.is_none() && !queue.batch && !misfit.hides_others() {
        return None;
    }
    Some(MisplacedRecord {
        topic: record.topic.to_owned(),
        queue_id: record.queue_id,
        queue_offset,
        log_offset,
        correction: if patch.is_some() { correction } else { Correction::GivenUp },
        patch,
    })
}

/// Returns the bytes that change the offset of `record` from `from` to `to`; `None` if they have another length.
fn offset_patch(
    queue: &Contradiction,
    record: &RecordView<'_>,
    from: i64,
    to: i64,
) -> Option<(usize, Vec<u8>)> {
    if !queue.batch || record.inner_batch().is_none() {
        return Some((QUEUE_OFFSET_POSITION, to.to_be_bytes().to_vec()));
    }
    let (old, new) = (format!("{INNER_BASE}\x01{from}\x02"), format!("{INNER_BASE}\x01{to}\x02"));
    let raw = record.properties.raw();
    let place = raw.windows(old.len()).position(|window| window == old.as_bytes())?;
    (old.len() == new.len()).then(|| (record.size as usize - raw.len() + place, new.into_bytes()))
}

/// Returns the corrections by log offset, for the next walk of the log.
pub(crate) fn corrections(plan: &[MisplacedRecord]) -> Corrections {
    plan.iter().map(|one| (one.log_offset, one.correction)).collect()
}

/// Describes one of them; a record that is given up is described by its piece.
pub(crate) fn describe_change(
    files: &StoreFiles,
    list: &SegmentList,
    one: &MisplacedRecord,
) -> Option<String> {
    let MisplacedRecord { topic, queue_id, queue_offset, log_offset, correction, .. } = one;
    let (queue_id, to) = match correction {
        Correction::Offset(to) => (queue_id, format!("{topic}/{queue_id} at offset {to}")),
        Correction::Queue(id) => (queue_id, format!("{topic}/{id} at that offset")),
        Correction::GivenUp => return None,
    };
    let segment = list.find(*log_offset);
    let path = segment.map_or_else(|| files.commit_log(), |segment| segment.path());
    let at = segment.map_or(*log_offset, |segment| log_offset - segment.base_offset());
    Some(format!(
        "{}: the record at offset {at} has {topic}/{queue_id} and queue offset {queue_offset}, which the records \
         around it contradict; moved to {to}",
        path.display()
    ))
}

/// Writes the corrections and syncs them.
pub(crate) fn renumber(
    files: &StoreFiles,
    segment_bytes: u64,
    plan: &[MisplacedRecord],
    watch: backup::ByteProgress<'_>,
) -> Result<(), StoreError> {
    let same_segment = |left: &MisplacedRecord, right: &MisplacedRecord| {
        left.log_offset / segment_bytes.max(1) == right.log_offset / segment_bytes.max(1)
    };
    for together in plan.chunk_by(same_segment) {
        let list = load(files, segment_bytes)?;
        let Some(segment) = together.first().and_then(|one| list.find(one.log_offset)) else { continue };
        let path = segment.path();
        backup::break_hard_link(files, &path, watch)?;
        let file = files.vfs.open(&path, Access::ReadWrite).at(&path, "opening a log segment")?;
        for one in together {
            watch(0)?;
            let place = one.log_offset - segment.base_offset();
            if let Some((at, bytes)) = &one.patch {
                file.write_all_at(bytes, place + *at as u64).at(&path, "correcting a queue offset")?;
            }
        }
        switch::step("repair.sync_renumbered", || file.sync_data()).at(&path, "syncing a queue offset")?;
    }
    Ok(())
}
