//! Finds the queues whose compaction files end before their first message in the commit log.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use mqstore_format::RecordView;

use super::pull::{MissingQueue, RestoreSource};
use crate::append::uncompacted::CompactedEnds;
use crate::files::generation::GenerationState;
use crate::job::plan::{ChosenTopics, Planner};
use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_base::store_files::StoreFiles;
use mqstore_log::commit_log::{LogScanner, ScanChecks, ScanItem, read_record};

/// The first message of a queue in the commit log.
struct FirstMessage {
    queue_offset: i64,
    /// Body checksum, length and keys; `None` if they cannot be read.
    content: Option<(u32, usize, Option<Vec<u8>>)>,
}

fn content(record: &RecordView<'_>) -> (u32, usize, Option<Vec<u8>>) {
    let keys = record.properties.get_raw(mqstore_format::properties::KEYS).map(<[u8]>::to_vec);
    (record.body_crc, record.body.len(), keys)
}

pub(super) struct MissingQueues<'a> {
    pub(super) files: &'a StoreFiles,
    pub(super) planner: &'a Planner<'a>,
    pub(super) source: &'a dyn RestoreSource,
}

impl MissingQueues<'_> {
    pub(super) fn find(
        &self,
        chosen: &ChosenTopics,
        skipped: &mut Vec<String>,
    ) -> Result<Vec<MissingQueue>, StoreError> {
        let (queues, _) = self.planner.queues_of(&chosen.topics)?;
        let mut taken = CompactedEnds::load(self.files)?;
        let mut walked = None;
        let mut found = Vec::new();
        for ((topic, queue_id), _) in queues {
            let first = self.first_in_log(&topic, queue_id, &mut walked)?;
            let end = taken.end(&topic, queue_id)?;
            let name = format!("{topic}/{queue_id}");
            let Some(first) = first else {
                skipped.push(format!(
                    "{name}: this store has no offset at which the queue continues; restore the complete store"
                ));
                continue;
            };
            let until = first.queue_offset;
            if until == 0 || (end >= until && !self.planner.options.force) {
                skipped.push(format!("{name}: nothing is missing"));
                continue;
            }
            let state = GenerationState::load(self.files, &topic, queue_id)?;
            if !state.blocked.is_empty() {
                skipped.push(format!("{name}: {}", state.blocked.join("; ")));
                continue;
            }
            if let Some(reason) = self.foreign_reason(&topic, queue_id, &first)? {
                skipped.push(format!("{name}: {reason}"));
                continue;
            }
            let geometry = match state.geometry {
                Some(geometry) => geometry,
                None => self.planner.options.geometry()?,
            };
            found.push(MissingQueue { topic, queue_id, until, geometry });
        }
        Ok(found)
    }

    /// Returns the reason why the other store does not have the same messages, if there is one.
    fn foreign_reason(
        &self,
        topic: &str,
        queue_id: i32,
        first: &FirstMessage,
    ) -> Result<Option<String>, StoreError> {
        let Some(ours) = &first.content else { return Ok(None) };
        let Some(theirs) = self.source.message_at(topic, queue_id, first.queue_offset)? else {
            return Ok(None);
        };
        let view = view_of(&theirs, self.source.root())?;
        Ok((content(&view) != *ours).then(|| {
            format!(
                "{} has another message at offset {}: it is not a copy of this store",
                self.source.root().display(),
                first.queue_offset
            )
        }))
    }

    /// Returns the first message of a queue in the log, or without one, the offset at which the queue continues.
    fn first_in_log(
        &self,
        topic: &str,
        queue_id: i32,
        walked: &mut Option<BTreeMap<(String, i32), FirstMessage>>,
    ) -> Result<Option<FirstMessage>, StoreError> {
        let list = &self.planner.list;
        let queue = self.planner.queues.get(topic, queue_id);
        if let Some(queue) = queue.filter(|queue| self.planner.trusted && queue.damaged().is_none()) {
            queue.correct_min_offset(list.min_offset())?;
            let queue_offset = queue.min_offset();
            let mut units = Vec::new();
            queue.read(queue_offset, 1, &mut units)?;
            let place = units.first().filter(|unit| unit.is_valid());
            let content = place.and_then(|unit| {
                let place = u64::try_from(unit.physical_offset).ok()?;
                let bytes = read_record(self.files, list, place, unit.size.max(0) as usize).ok()?;
                RecordView::decode(bytes.as_slice()).ok().map(|record| content(&record))
            });
            return Ok((!queue.is_empty()).then_some(FirstMessage { queue_offset, content }));
        }
        let walked = match walked {
            Some(walked) => walked,
            None => walked.insert(self.walk()?),
        };
        Ok(walked.remove(&(topic.to_owned(), queue_id)))
    }

    fn walk(&self) -> Result<BTreeMap<(String, i32), FirstMessage>, StoreError> {
        let list = &self.planner.list;
        let checks = ScanChecks { crc: true };
        let mut scanner = LogScanner::new(Arc::clone(list), list.min_offset(), u64::MAX >> 1, checks);
        let mut found = BTreeMap::new();
        let floors = self.planner.topics.floors();
        loop {
            let offset = scanner.position();
            match scanner.next_item()? {
                ScanItem::Record(record) if floors.hides(record.topic, offset) => {}
                ScanItem::Record(record) if record.dispatches_to_queue() => {
                    found.entry((record.topic.to_owned(), record.queue_id)).or_insert_with(|| FirstMessage {
                        queue_offset: record.queue_offset,
                        content: Some(content(&record)),
                    });
                }
                ScanItem::Record(_) | ScanItem::Filler { .. } => {}
                ScanItem::End { .. } => return Ok(found),
                ScanItem::Damaged(damage) => {
                    if scanner.skip(&damage)?.is_none() {
                        return Ok(found);
                    }
                }
            }
        }
    }
}

fn view_of<'r>(record: &'r StoredRecord, root: &Path) -> Result<RecordView<'r>, StoreError> {
    record.view().map_err(|error| StoreError::format(root, record.commit_log_offset, &error))
}
