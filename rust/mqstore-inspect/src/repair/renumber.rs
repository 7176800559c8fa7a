//! Giving records the places in their queues back that they had.
//!
//! Owns one of two fields of a record, or of one in a batch queue a property of the same length:
//!
//! ```text
//! TOTALSIZE 4 | MAGICCODE 4 | BODYCRC 4 | QUEUEID 4 | FLAG 4 | QUEUEOFFSET 8 | ...
//!                                         ^ this               ^ or this
//! ... | INNER_BASE \x01 4711 \x02 ...
//!                        ^ or this
//! ```
//!
//! Only of records whose checksum does not cover them: what a checksum speaks for is right. What was there stands in the
//! ledger before it changes. A stop in the middle leaves something that is wrong again, or right. A record that has no place in any
//! queue, and hides others, gives way to a placeholder.
//!
//! Source: `CommitLog#checkMessageAndReturnSize` for the order of the fields.

use std::collections::BTreeMap;

use mqstore_format::properties::INNER_BASE;
use mqstore_format::{QUEUE_ID_POSITION, QUEUE_OFFSET_POSITION, RecordView};
use mqstore_io::{Access, switch};

use super::backup;
use super::damage_scan::WalkedLog;
use super::misordered;
use super::misordered::MisorderedRecords;
use super::queue_records::{Contradiction, Correction, Corrections};
use super::segment_files::load;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;
use mqstore_log::commit_log::{SegmentList, read_record};

/// Bytes that are read at first of a record.
const RECORD_GUESS_BYTES: usize = 4096;

/// A record that cannot have the place in a queue that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MisplacedRecord {
    pub(crate) topic: String,
    pub(crate) queue_id: i32,
    pub(crate) queue_offset: i64,
    /// Where it lies in the log.
    pub(crate) log_offset: u64,
    pub(crate) correction: Correction,
    /// What is written for it, and where in the record.
    patch: Option<(usize, Vec<u8>)>,
}

/// The records of a log that contradict the others of their queues.
pub(crate) fn plan(
    files: &StoreFiles,
    list: &SegmentList,
    walked: &WalkedLog,
) -> Result<Vec<MisplacedRecord>, StoreError> {
    let mut found = Vec::new();
    for queue in &walked.said.contradictions {
        let offsets = misordered::corrections(&queue.misfits, |from, to| walked.is_damaged(from, to));
        for misfit in queue.misfits.iter().filter(|misfit| misfit.stretch.records == 1) {
            let bytes = read_record(files, list, misfit.stretch.first, RECORD_GUESS_BYTES)?;
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
    let (log_offset, queue_offset) = (misfit.stretch.first, misfit.stretch.from);
    let elsewhere = queue.elsewhere.iter().find(|(place, _)| *place == log_offset).map(|(_, id)| *id);
    let (correction, patch) = match (offsets.get(&log_offset), elsewhere) {
        (Some(to), _) => (Correction::Offset(*to), offset_patch(queue, record, queue_offset, *to)),
        (None, Some(id)) => (Correction::Queue(id), Some((QUEUE_ID_POSITION, id.to_be_bytes().to_vec()))),
        (None, None) => (Correction::GivenUp, None),
    };
    // Of two records for one offset a plain queue has the first one, and nothing is hidden by the other.
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

/// What gives `record`, which claims `from`, the offset `to`; `None` where that does not fit.
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

/// What becomes of them, for another look at the log.
pub(crate) fn corrections(plan: &[MisplacedRecord]) -> Corrections {
    plan.iter().map(|one| (one.log_offset, one.correction)).collect()
}

/// What a person reads about one of them; of one that is given up its piece tells.
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
        "{}: the record at offset {at} says that it is in {topic}/{queue_id} at offset {queue_offset}, which those around it \
         contradict: put into {to}",
        path.display()
    ))
}

/// Writes what they get, and makes that durable.
pub(crate) fn renumber(
    files: &StoreFiles,
    segment_bytes: u64,
    plan: &[MisplacedRecord],
    watch: backup::Step<'_>,
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
