//! Which record of a queue is the newest of its key, in bounded memory.
//!
//! Owns the key digests of one task. Records are fed in ascending queue offset; each keyed one gets
//! the next *ordinal*. Its 16-byte MD5 goes to a spill file in the task's staging folder, and two bits
//! an ordinal stay in memory: *superseded* (a later record has the key) and *tombstone* (no body).
//!
//! ```text
//! spill   d0 d1 d2 | d3 d4 d5 | d6 ...      16 bytes an ordinal
//! round 1 map of d0..d2   marks within itself
//! round 2 map of d3..d5   marks within itself, then d0..d2 against it
//! round 3 map of d6..     marks within itself, then d0..d5 against it
//! ```
//!
//! Each round fills the map as far as its memory goes and starts where the last one stopped, so that
//! any budget finishes: RocketMQ's own map throws when it is full and the queue is never compacted
//! again (`CompactionLog.OffsetMap`). Equal digests are equal keys, as there. Nothing here outlives a
//! crash; the spill file is garbage with its staging folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_io::VfsFile;

use crate::error::{IoContext, StoreError};
use crate::files::StoreFiles;

/// Bytes of a digest.
const DIGEST_BYTES: usize = 16;

/// Digests that one read or write of the spill file moves.
const CHUNK_DIGESTS: usize = 1 << 16;

/// Slots that a map starts with.
const FIRST_SLOTS: usize = 1 << 10;

/// A digest as two words, so that a slot has 24 bytes and not 32.
type Digest = [u64; 2];

/// A place in the map.
#[derive(Clone, Copy, Debug)]
struct Slot {
    digest: Digest,
    ordinal: u64,
}

const FREE: Slot = Slot { digest: [0, 0], ordinal: u64::MAX };

impl Slot {
    fn is_free(&self) -> bool {
        self.ordinal == FREE.ordinal
    }
}

/// An open-addressing map from digest to ordinal that grows up to a bound.
#[derive(Debug)]
struct DigestMap {
    slots: Vec<Slot>,
    used: usize,
    most_slots: usize,
}

impl DigestMap {
    /// A map that takes at most `memory_bytes`, and room for one digest in any case.
    fn new(memory_bytes: u64) -> Self {
        // While growing, the old and the new table are both there: 3/2 of the new one.
        let slots = memory_bytes / size_of::<Slot>() as u64 * 2 / 3;
        let slots = usize::try_from(slots).unwrap_or(usize::MAX).clamp(2, 1 << 40);
        let most_slots = 1 << slots.ilog2();
        Self { slots: vec![FREE; most_slots.min(FIRST_SLOTS)], used: 0, most_slots }
    }

    fn clear(&mut self) {
        self.slots.fill(FREE);
        self.used = 0;
    }

    /// The slot of `digest`, or the free one where it belongs.
    fn locate(&self, digest: Digest) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = digest[0] as usize & mask;
        while self.slots.get(at).is_some_and(|slot| !slot.is_free() && slot.digest != digest) {
            at = (at + 1) & mask;
        }
        at
    }

    fn get(&self, digest: Digest) -> Option<u64> {
        let slot = self.slots.get(self.locate(digest))?;
        (!slot.is_free()).then_some(slot.ordinal)
    }

    /// Sets `digest` to `ordinal` and returns what it was. A full map is an error; a digest that is
    /// in it always succeeds.
    fn put(&mut self, digest: Digest, ordinal: u64) -> Result<Option<u64>, MapFull> {
        let mut at = self.locate(digest);
        if let Some(slot) = self.slots.get_mut(at).filter(|slot| !slot.is_free()) {
            return Ok(Some(std::mem::replace(&mut slot.ordinal, ordinal)));
        }
        // One free slot always stays, so that a search for an absent digest ends.
        if self.used + 1 > self.slots.len() * 3 / 4 {
            self.grow()?;
            at = self.locate(digest);
        }
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = Slot { digest, ordinal };
            self.used += 1;
        }
        Ok(None)
    }

    fn grow(&mut self) -> Result<(), MapFull> {
        let doubled = self.slots.len() * 2;
        if doubled > self.most_slots {
            return Err(MapFull);
        }
        let old = std::mem::replace(&mut self.slots, vec![FREE; doubled]);
        for slot in old.into_iter().filter(|slot| !slot.is_free()) {
            let at = self.locate(slot.digest);
            if let Some(free) = self.slots.get_mut(at) {
                *free = slot;
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
struct MapFull;

/// One bit an ordinal.
#[derive(Debug, Default)]
struct Bits {
    words: Vec<u64>,
    ones: u64,
}

impl Bits {
    fn set(&mut self, index: u64) {
        let word = (index / 64) as usize;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        if let Some(word) = self.words.get_mut(word) {
            let bit = 1 << (index % 64);
            self.ones += u64::from(*word & bit == 0);
            *word |= bit;
        }
    }

    fn get(&self, index: u64) -> bool {
        self.words.get((index / 64) as usize).is_some_and(|word| word & (1 << (index % 64)) != 0)
    }
}

/// Collects the digests of a queue's keyed records, in ascending queue offset.
#[derive(Debug)]
pub(crate) struct KeyCollector {
    path: PathBuf,
    file: Arc<dyn VfsFile>,
    buffer: Vec<u8>,
    written: u64,
    count: u64,
    tombstones: Bits,
}

/// What is known of every keyed record of a queue.
#[derive(Debug)]
pub(crate) struct Verdicts {
    superseded: Bits,
    tombstones: Bits,
    /// Keyed records.
    pub(crate) records: u64,
    /// Distinct keys.
    pub(crate) keys: u64,
    /// Keyed records without a body.
    pub(crate) tombstone_records: u64,
    /// How often the map was filled.
    pub(crate) rounds: u64,
}

impl Verdicts {
    /// Whether the record with this ordinal stays: the newest of its key, and with a body.
    pub(crate) fn survives(&self, ordinal: u64) -> bool {
        !self.superseded.get(ordinal) && !self.tombstones.get(ordinal)
    }
}

impl KeyCollector {
    /// Spills to a new file at `path`.
    pub(crate) fn create(files: &StoreFiles, path: &Path) -> Result<Self, StoreError> {
        let file = files.vfs.create_new(path).at(path, "creating the file of key digests")?;
        Ok(Self {
            path: path.to_path_buf(),
            file,
            buffer: Vec::new(),
            written: 0,
            count: 0,
            tombstones: Bits::default(),
        })
    }

    /// The next keyed record.
    pub(crate) fn add(&mut self, keys: &str, has_body: bool) -> Result<(), StoreError> {
        if !has_body {
            self.tombstones.set(self.count);
        }
        self.buffer.extend_from_slice(&mqstore_format::key_digest(keys));
        self.count += 1;
        if self.buffer.len() >= CHUNK_DIGESTS * DIGEST_BYTES {
            self.spill()?;
        }
        Ok(())
    }

    fn spill(&mut self) -> Result<(), StoreError> {
        self.file.write_all_at(&self.buffer, self.written).at(&self.path, "spilling key digests")?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Calls `visit` with each ordinal from `from` to `to` (exclusive) and its digest, until it
    /// answers `false`; the answer is the first ordinal that was not taken.
    fn scan(
        &self,
        from: u64,
        to: u64,
        mut visit: impl FnMut(u64, Digest) -> bool,
    ) -> Result<u64, StoreError> {
        let mut chunk = Vec::new();
        let mut ordinal = from;
        while ordinal < to {
            let digests = (to - ordinal).min(CHUNK_DIGESTS as u64);
            chunk.resize(digests as usize * DIGEST_BYTES, 0);
            let at = ordinal * DIGEST_BYTES as u64;
            self.file.read_exact_at(&mut chunk, at).at(&self.path, "reading key digests")?;
            for digest in chunk.as_chunks::<DIGEST_BYTES>().0 {
                let (high, low) = (u128::from_be_bytes(*digest) >> 64, u128::from_be_bytes(*digest));
                if !visit(ordinal, [high as u64, low as u64]) {
                    return Ok(ordinal);
                }
                ordinal += 1;
            }
        }
        Ok(ordinal)
    }

    /// Decides about every record with a map of at most `memory_bytes`.
    pub(crate) fn finish(mut self, memory_bytes: u64) -> Result<Verdicts, StoreError> {
        self.spill()?;
        let mut superseded = Bits::default();
        let mut map = DigestMap::new(memory_bytes);
        let mut start = 0;
        let mut rounds = 0;
        while start < self.count {
            map.clear();
            let stop = self.scan(start, self.count, |ordinal, digest| match map.put(digest, ordinal) {
                Ok(Some(older)) => {
                    superseded.set(older);
                    true
                }
                Ok(None) => true,
                Err(MapFull) => false,
            })?;
            self.scan(0, start, |ordinal, digest| {
                if map.get(digest).is_some() {
                    superseded.set(ordinal);
                }
                true
            })?;
            start = stop;
            rounds += 1;
        }
        Ok(Verdicts {
            keys: self.count - superseded.ones,
            tombstone_records: self.tombstones.ones,
            superseded,
            tombstones: self.tombstones,
            records: self.count,
            rounds,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::compaction::testing::sim_files;
    use proptest::prelude::*;

    fn verdicts(records: &[(u8, bool)], memory_bytes: u64) -> Verdicts {
        let files = sim_files();
        let mut collector = KeyCollector::create(&files, &files.root.join("digests")).unwrap();
        for (key, has_body) in records {
            collector.add(&format!("k{key}"), *has_body).unwrap();
        }
        collector.finish(memory_bytes).unwrap()
    }

    proptest! {
        #[test]
        fn survivors_are_the_last_of_each_key_for_any_memory(
            records in prop::collection::vec((0..40_u8, prop::bool::weighted(0.8)), 0..200),
            memory in prop::sample::select(vec![0_u64, 100, 400, 1600, 1 << 20]),
        ) {
            let found = verdicts(&records, memory);
            let last: HashMap<u8, usize> =
                records.iter().enumerate().map(|(at, record)| (record.0, at)).collect();
            for (at, (key, has_body)) in records.iter().enumerate() {
                prop_assert_eq!(found.survives(at as u64), last[key] == at && *has_body);
            }
            prop_assert_eq!(found.keys, last.len() as u64);
            prop_assert_eq!(found.records, records.len() as u64);
        }
    }

    #[test]
    fn little_memory_takes_more_rounds_and_always_ends() {
        let records: Vec<(u8, bool)> = (0..=255).map(|key| (key, true)).collect();
        assert_eq!(verdicts(&records, 1 << 20).rounds, 1);
        let few = verdicts(&records, 0);
        assert_eq!((few.rounds, few.keys), (256, 256));
        assert_eq!(verdicts(&[], 0).rounds, 0);
    }

    #[test]
    fn a_full_map_still_takes_a_known_key() {
        let mut map = DigestMap::new(0);
        assert!(matches!(map.put([5, 0], 0), Ok(None)));
        assert!(map.put([6, 0], 1).is_err());
        assert!(matches!(map.put([5, 0], 2), Ok(Some(0))));
        assert_eq!((map.get([5, 0]), map.get([6, 0])), (Some(2), None));
    }
}
