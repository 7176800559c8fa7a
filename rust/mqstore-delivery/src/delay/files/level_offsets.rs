//! The offsets of the delay levels: the next undelivered message of each.
//!
//! `config/delayOffset.json` has them for brokers, and the saved state for mqstore. An open may find messages after the
//! next offset that are already delivered; they are skipped.

use std::collections::{BTreeMap, BTreeSet};

use mqstore_base::error::StoreError;
use mqstore_base::store_files::LoadedConfig;
use mqstore_engine::Store;
use mqstore_format::json::{DelayOffsets, Dialect};
use mqstore_format::{SCHEDULE_TOPIC, crc32};

use super::state_file::{DelayState, MOST_LEVELS};

/// The next offsets of the delay levels.
#[derive(Debug)]
pub(crate) struct LevelOffsets {
    next: BTreeMap<i32, i64>,
    /// Messages from the next offset of their level on that an open found to be delivered.
    delivered: BTreeMap<i32, BTreeSet<i64>>,
    /// `delayOffset.json` as last read or written.
    file: DelayOffsets,
    dialect: Dialect,
    /// Whether the file must be written.
    changed: bool,
    /// Whether the saved state covers all deliveries. Otherwise an open searches the log for them.
    is_known: bool,
    /// The checksum of the file as it was read.
    crc: u32,
}

/// The queue of a level, and its offsets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LevelQueue {
    pub(crate) queue_id: i32,
    pub(crate) min: i64,
    /// The first offset that may be undelivered.
    pub(crate) next: i64,
    pub(crate) max: i64,
}

impl LevelOffsets {
    /// Returns the levels of `loaded`, as `delayOffset.json` was read, and of `state`, the saved state. If the file is
    /// the one that was written with the state, the state counts. If it is missing or damaged, each level has the
    /// highest offset of the two: offsets only grow.
    pub(crate) fn new(loaded: LoadedConfig<DelayOffsets>, state: Option<&DelayState>) -> Self {
        let is_whole = loaded.file.is_some() && loaded.damage().is_none();
        let text = loaded.file.as_ref().or(loaded.backup.as_ref()).map(|file| file.bytes.clone());
        let text = text.unwrap_or_default();
        let is_ours = state.filter(|state| state.offsets.contains(&crc32(&text)));
        let file = loaded.into_table().unwrap_or_default();
        let next = file.table.iter().filter(|(level, _)| (1..=MOST_LEVELS as i32).contains(*level));
        let mut next: BTreeMap<i32, i64> = next.map(|(level, offset)| (*level, *offset)).collect();
        if let Some(state) = is_ours {
            next.clone_from(&state.levels);
        } else if !is_whole {
            for (level, offset) in state.into_iter().flat_map(|state| &state.levels) {
                let known = next.entry(*level).or_insert(*offset);
                *known = (*known).max(*offset);
            }
        }
        let dialect = Dialect::of(&text).unwrap_or_default();
        // A file that is missing or damaged is written again.
        let changed = !is_whole && is_ours.is_none() && !next.is_empty();
        let is_known = is_ours.is_some();
        Self { next, delivered: BTreeMap::new(), file, dialect, changed, is_known, crc: crc32(&text) }
    }

    pub(crate) fn is_known(&self) -> bool {
        self.is_known
    }

    pub(crate) fn crc(&self) -> u32 {
        self.crc
    }

    /// Returns the next offset of each level.
    pub(crate) fn all(&self) -> &BTreeMap<i32, i64> {
        &self.next
    }

    /// Returns the queues of all levels.
    pub(crate) fn queues(&self, store: &Store) -> Result<Vec<LevelQueue>, StoreError> {
        let queue = |queue_id| {
            let (min, max) = store.bounds(SCHEDULE_TOPIC, queue_id)?;
            Ok(LevelQueue { queue_id, min, next: self.next_of(queue_id, (min, max)), max })
        };
        store.queue_ids(SCHEDULE_TOPIC)?.into_iter().map(queue).collect()
    }

    /// Returns the first offset of the level with this queue that may be undelivered, within the bounds of the queue.
    pub(crate) fn next_of(&self, queue_id: i32, (min, max): (i64, i64)) -> i64 {
        self.next.get(&queue_id.saturating_add(1)).copied().unwrap_or(min).clamp(min, max)
    }

    /// Whether the message at `offset` of `level` is before the next offset.
    pub(crate) fn is_before_next(&self, level: i32, offset: i64) -> bool {
        self.next.get(&level).is_some_and(|next| offset < *next)
    }

    /// Notes that all messages of `level` before `next` are delivered, as an open found.
    pub(crate) fn raise(&mut self, level: i32, next: i64) {
        let known = self.next.entry(level).or_insert(0);
        *known = (*known).max(next);
        self.changed = true;
    }

    /// Notes that the messages of `level` before `end` are delivered. Returns the next offset.
    pub(crate) fn advance(&mut self, level: i32, end: i64) -> i64 {
        let next = self.skip_delivered(level, end);
        self.next.insert(level, next);
        self.changed = true;
        next
    }

    /// Sets the next offset of `level`; the file need not be written for it.
    pub(crate) fn set(&mut self, level: i32, next: i64) {
        self.next.insert(level, next);
    }

    /// Notes that the messages `found` of `level` are delivered, from its offset `next` on.
    pub(crate) fn add_delivered(&mut self, level: i32, next: i64, found: BTreeSet<i64>) {
        if !found.is_empty() {
            self.delivered.insert(level, found);
            self.advance(level, next);
        }
    }

    /// Returns the first offset of `level` from `next` on that is not known as delivered, and forgets those before it.
    fn skip_delivered(&mut self, level: i32, mut next: i64) -> i64 {
        let Some(delivered) = self.delivered.get_mut(&level) else { return next };
        while delivered.remove(&next) {
            next += 1;
        }
        *delivered = delivered.split_off(&next);
        if delivered.is_empty() {
            self.delivered.remove(&level);
        }
        next
    }

    /// Whether the message at `offset` of `level` is delivered, although it is not before the next offset.
    pub(crate) fn is_delivered(&self, level: i32, offset: i64) -> bool {
        self.delivered.get(&level).is_some_and(|delivered| delivered.contains(&offset))
    }

    /// Returns the number of such messages of the level with this queue, from `next` on.
    pub(crate) fn count_delivered(&self, queue_id: i32, next: i64) -> u64 {
        let delivered = self.delivered.get(&queue_id.saturating_add(1));
        delivered.map_or(0, |found| found.range(next..).count() as u64)
    }

    /// Returns the text of `delayOffset.json` if it must be written; [`Self::note_written`] follows.
    pub(crate) fn text_to_write(&mut self, now_ms: i64) -> Option<String> {
        self.changed.then(|| {
            self.file.table.clone_from(&self.next);
            self.file.data_version = self.file.data_version.next(now_ms);
            self.file.to_json(self.dialect)
        })
    }

    pub(crate) fn note_written(&mut self) {
        self.changed = false;
    }
}
