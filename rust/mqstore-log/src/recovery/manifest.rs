//! The manifest: the list of the queues and their bounds at the last flush.
//!
//! This module owns `mqstore/queues`. A clean close, and the first thorough flush after a queue was created, replace
//! the file in one step. A queue was lost if its folder is missing or it ends before the listed end. It also was lost
//! if it begins after the listed start although the log still begins where it did. RocketMQ's own files do not show
//! such a loss.
//!
//! ```text
//! "MQSQUEU2" log minimum:8 dispatched:8 count:4 { topic length:2 topic queue:4 min offset:8 max offset:8 }* CRC:4
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use mqstore_format::{Fields, crc31};

use crate::consume_queue::QueueSet;
use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;

/// The queues and their bounds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueManifest {
    log_min: u64,
    /// Log offset up to which the queues were complete.
    dispatched: u64,
    queues: Vec<ListedQueue>,
}

/// Result of the comparison of a manifest with the queues on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestComparison<'a> {
    /// Queues that lost units since the manifest was written, by topic and id.
    pub lost: Vec<(&'a str, i32)>,
    /// Whether the manifest names exactly the queues on disk.
    pub complete: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ListedQueue {
    /// Topic name; consecutive queues of a topic share it.
    topic: Arc<str>,
    queue_id: i32,
    min_offset: i64,
    max_offset: i64,
}

const MANIFEST_MAGIC: &[u8; 8] = b"MQSQUEU2";
/// Upper bound of the file: ten million queues with the longest names. The file is ours, so its length bounds the
/// memory.
const MANIFEST_LIMIT_BYTES: u64 = 2 << 30;

impl QueueManifest {
    /// Lists the queues of a log that begins at `log_min`, as far as they are complete, which is up to log offset
    /// `dispatched`. Later units of a running dispatch are not listed, because no reader of the manifest depends on
    /// them.
    pub fn of(queues: &QueueSet, log_min: u64, dispatched: u64) -> Result<Self, StoreError> {
        let mut listed = Vec::new();
        let mut list = |topic: &Arc<str>, queue_id, min_offset, max_offset| {
            listed.push(ListedQueue { topic: Arc::clone(topic), queue_id, min_offset, max_offset });
        };
        // The order matters: a queue publishes the end of its last record before its maximum.
        queues.try_each(|queue| {
            let (max, min) = (queue.max_offset(), queue.min_offset());
            let further = u64::try_from(queue.max_physical_end()).is_ok_and(|end| end > dispatched);
            let max = if further { queue.max_offset_for(dispatched)? } else { max };
            list(queue.shared_topic(), queue.queue_id(), min, max);
            Ok(())
        })?;
        for queue in queues.batches() {
            let (max, min) = (queue.max_offset(), queue.min_offset());
            let further = queue.last_physical_offset().is_some_and(|last| last as u64 >= dispatched);
            let max = if further { queue.max_offset_for(dispatched)? } else { max };
            list(&queue.topic().into(), queue.queue_id(), min, max);
        }
        Ok(Self { log_min, dispatched, queues: listed })
    }

    /// Leaves out the queues of the topics that `is_removed` names.
    #[must_use]
    pub fn without(mut self, is_removed: impl Fn(&str) -> bool) -> Self {
        self.queues.retain(|listed| !is_removed(&listed.topic));
        self
    }

    /// Number of queues in the manifest.
    pub fn len(&self) -> usize {
        self.queues.len()
    }

    /// Whether the manifest names no queue.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Returns the maximum offset of each queue.
    pub fn max_offsets(&self) -> HashMap<(&str, i32), i64> {
        self.queues.iter().map(|listed| ((&*listed.topic, listed.queue_id), listed.max_offset)).collect()
    }

    /// Compares the manifest with `queues`, which should be complete up to log offset `dispatched`.
    ///
    /// The caller must have corrected the minimum offsets for a log that begins at `log_min`, and must have listed the
    /// queue folders after it read this manifest. If the manifest is ahead of `dispatched` (a stop came between both
    /// writes), its ends are not used. But each queue that it names was on disk before it.
    pub fn compare(&self, queues: &QueueSet, log_min: u64, dispatched: u64) -> ManifestComparison<'_> {
        let (lost, there) = self.compare_some(queues, log_min, dispatched, |_, _| true);
        ManifestComparison { lost, complete: there == self.len() && there == queues.count() }
    }

    /// Returns those of `ManifestComparison::lost` that `is_wanted` names by topic and id. The rules of
    /// [`Self::compare`] apply to these queues only.
    pub fn lost(
        &self,
        queues: &QueueSet,
        log_min: u64,
        dispatched: u64,
        is_wanted: impl Fn(&str, i32) -> bool,
    ) -> Vec<(&str, i32)> {
        self.compare_some(queues, log_min, dispatched, is_wanted).0
    }

    /// Returns the wanted queues that are lost, and how many of the listed and wanted ones exist.
    fn compare_some(
        &self,
        queues: &QueueSet,
        log_min: u64,
        dispatched: u64,
        is_wanted: impl Fn(&str, i32) -> bool,
    ) -> (Vec<(&str, i32)>, usize) {
        let ahead = self.dispatched > dispatched;
        let floors = queues.floors().now();
        // Written before the topic was deleted: all listed units were deleted with it.
        let is_deleted = |listed: &ListedQueue| {
            let deleted = floors.deleted(&listed.topic);
            deleted > 0 && self.dispatched <= deleted
        };
        // A retention has raised the minimum since, or moves it to the first message after the floor.
        let is_raised = |listed: &ListedQueue, min: i64| {
            floors.log_offset(&listed.topic) > floors.deleted(&listed.topic)
                && min <= floors.first_offset(&listed.topic, listed.queue_id)
        };
        let whole = |listed: &ListedQueue, bounds: Option<(i64, i64)>| {
            bounds.map_or(listed.max_offset == 0, |(min, max)| {
                let begins = log_min != self.log_min
                    || min <= listed.min_offset
                    || is_raised(listed, min)
                    || max == 0 && ahead;
                begins && (ahead || max >= listed.max_offset)
            })
        };
        let wanted: Vec<_> =
            self.queues.iter().filter(|listed| is_wanted(&listed.topic, listed.queue_id)).collect();
        let names: Vec<_> = wanted.iter().map(|listed| (&*listed.topic, listed.queue_id)).collect();
        let bounds = queues.bounds_of(&names);
        let there = bounds.iter().flatten().count();
        let is_lost = |listed: &ListedQueue, bounds| !is_deleted(listed) && !whole(listed, bounds);
        let lost = wanted.into_iter().zip(bounds).filter(|(listed, bounds)| is_lost(listed, *bounds));
        (lost.map(|(listed, _)| (&*listed.topic, listed.queue_id)).collect(), there)
    }

    /// Returns the ids of the listed queues of each topic, sorted.
    pub fn ids(&self) -> BTreeMap<&str, BTreeSet<i32>> {
        let mut ids: BTreeMap<&str, BTreeSet<i32>> = BTreeMap::new();
        for listed in &self.queues {
            ids.entry(&listed.topic).or_default().insert(listed.queue_id);
        }
        ids
    }

    /// Reads the manifest; `None` if the file is missing or its checksum is wrong.
    pub fn load(files: &StoreFiles) -> Option<Self> {
        let bytes = files.vfs.read_file(&files.side().join("queues"), MANIFEST_LIMIT_BYTES).ok()?;
        Self::decode(&bytes)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, crc) = bytes.split_last_chunk::<4>()?;
        if *crc != crc31(body).to_be_bytes() {
            return None;
        }
        let mut fields = Fields(body.strip_prefix(MANIFEST_MAGIC)?);
        let (log_min, dispatched) = (fields.u64()?, fields.u64()?);
        let count = fields.u32()?;
        let mut queues: Vec<ListedQueue> = Vec::new();
        for _ in 0..count {
            let length = u16::from_be_bytes(fields.take()?);
            let topic = std::str::from_utf8(fields.bytes(length.into())?).ok()?;
            let before = queues.last().map(|listed| &listed.topic).filter(|before| ***before == *topic);
            queues.push(ListedQueue {
                topic: before.map_or_else(|| topic.into(), Arc::clone),
                queue_id: i32::from_be_bytes(fields.take()?),
                min_offset: fields.i64()?,
                max_offset: fields.i64()?,
            });
        }
        fields.0.is_empty().then_some(Self { log_min, dispatched, queues })
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = MANIFEST_MAGIC.to_vec();
        bytes.extend_from_slice(&self.log_min.to_be_bytes());
        bytes.extend_from_slice(&self.dispatched.to_be_bytes());
        bytes.extend_from_slice(&(self.queues.len() as u32).to_be_bytes());
        for listed in &self.queues {
            bytes.extend_from_slice(&(listed.topic.len() as u16).to_be_bytes());
            bytes.extend_from_slice(listed.topic.as_bytes());
            bytes.extend_from_slice(&listed.queue_id.to_be_bytes());
            bytes.extend_from_slice(&listed.min_offset.to_be_bytes());
            bytes.extend_from_slice(&listed.max_offset.to_be_bytes());
        }
        let crc = crc31(&bytes);
        bytes.extend_from_slice(&crc.to_be_bytes());
        bytes
    }

    /// Writes the manifest atomically and durably.
    pub fn store(&self, files: &StoreFiles) -> Result<(), StoreError> {
        files.replace_file(&files.side().join("queues"), &self.encode(), "writing the queue manifest")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqstore_base::topic_floors::{TopicFloor, TopicFloors};

    #[test]
    fn manifest_round_trips_and_refuses_damage() {
        let listed = |topic: &str, queue_id, max_offset| ListedQueue {
            topic: topic.into(),
            queue_id,
            min_offset: 7,
            max_offset,
        };
        let queues = vec![listed("orders", 3, 99), listed("%RETRY%g", 0, i64::MAX)];
        let manifest = QueueManifest { log_min: 1 << 40, dispatched: 1 << 41, queues };
        let bytes = manifest.encode();
        assert_eq!(QueueManifest::decode(&bytes), Some(manifest));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(QueueManifest::decode(&damaged), None, "byte {at}");
            assert_eq!(QueueManifest::decode(&bytes[..at]), None, "cut at {at}");
        }
    }

    fn files() -> StoreFiles {
        let sim = mqstore_io::SimVfs::default();
        let root = std::path::Path::new("/store");
        mqstore_io::Vfs::create_dir_all(&sim, root).unwrap();
        StoreFiles::new(Arc::new(sim), Arc::new(mqstore_io::ManualClock::new(1_700_000_000_000)), root)
    }

    /// A retention moves the minimum of a queue after the manifest was written. That is no loss; a minimum after the
    /// floor is one.
    #[test]
    fn a_raised_minimum_is_no_loss() {
        let unit = |n: i64| mqstore_format::CqUnit { physical_offset: n * 100, size: 100, tags_code: 0 };
        let floors = TopicFloors::default();
        let set = loaded_with(&files(), &floors);
        let queue = set.get_or_create("orders", 0).unwrap();
        queue.write(0, &(0..12).map(unit).collect::<Vec<_>>()).unwrap();
        queue.commit(12).unwrap();
        let manifest = QueueManifest::of(&set, 0, 1200).unwrap();
        let queues = std::collections::BTreeMap::from([(0, 7)]);
        floors.raise([("orders".into(), TopicFloor { log_offset: 700, deleted: 0, queues })]);
        queue.correct_min_offset(0).unwrap();
        assert_eq!((queue.min_offset(), manifest.compare(&set, 0, 1200).lost), (7, vec![]));
        queue.correct_min_offset(800).unwrap();
        assert_eq!(manifest.compare(&set, 0, 1200).lost, [("orders", 0)]);
    }

    fn loaded(files: &StoreFiles) -> QueueSet {
        loaded_with(files, &TopicFloors::default())
    }

    fn loaded_with(files: &StoreFiles, floors: &TopicFloors) -> QueueSet {
        let set = QueueSet::load(files, 100, mqstore_io::Access::ReadWrite, floors).unwrap();
        set.recover_bounds().unwrap();
        set
    }

    /// The manifest does not list units that dispatch adds while it is made. A queue that lacks only such units is not
    /// reported as lost; one that lacks complete units is.
    #[test]
    fn entries_behind_the_dispatched_position_are_not_listed() {
        let unit = |n: i64| mqstore_format::CqUnit { physical_offset: n * 100, size: 100, tags_code: 0 };
        let files = files();
        let set = loaded(&files);
        let queue = set.get_or_create("orders", 0).unwrap();
        queue.write(0, &(0..12).map(unit).collect::<Vec<_>>()).unwrap();
        queue.commit(12).unwrap();
        let late = set.get_or_create("orders", 1).unwrap();
        late.write(0, &[unit(12)]).unwrap();
        late.commit(1).unwrap();

        let manifest = QueueManifest::of(&set, 0, 700).unwrap();
        assert_eq!(manifest.queues.iter().map(|listed| listed.max_offset).collect::<Vec<_>>(), [7, 0]);
        late.truncate(700).unwrap();
        for (log_end, lost) in [(1200, vec![]), (700, vec![]), (600, vec![("orders", 0)])] {
            queue.truncate(log_end).unwrap();
            assert_eq!(manifest.compare(&set, 0, 700).lost, lost, "queues up to {log_end}");
        }
        // A stop before the mark was written: the ends are unknown, but the files existed.
        queue.truncate(0).unwrap();
        assert_eq!(manifest.compare(&set, 0, 100).lost, []);
        set.set_aside("orders", 0).unwrap();
        for dispatched in [100, 700] {
            assert_eq!(manifest.compare(&loaded(&files), 0, dispatched).lost, [("orders", 0)]);
        }
    }
}
