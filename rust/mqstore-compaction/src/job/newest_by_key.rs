//! Finds, in bounded memory, the records of a queue that are the newest of their keys.
//!
//! Owns the spill files of keys, and the decision. Records come in ascending queue offset. Each keyed record gets an
//! *ordinal*, and its key goes to a spill file in a staging folder. Only one bit for each ordinal stays in memory:
//! *superseded* (a later record has the key).
//!
//! ```text
//! spill   k0 k1 k2 | k3 k4 k5 | k6 ...      full keys: [hash:8][length:4][key], digests: [MD5:16]
//! round 1 map of k0..k2   marks among these
//! round 2 map of k3..k5   marks among these, then k0..k2 against the map
//! round 3 map of k6..     marks among these, then k0..k5 against the map
//! ```
//!
//! Each round fills the map up to its memory limit and starts where the last round stopped. So any limit is sufficient.
//! RocketMQ's map throws an exception if it is full, and the queue is never compacted again
//! (`CompactionLog.OffsetMap`). A record is superseded only if the map holds a newer one with its key; later rounds
//! compare it with later keys.
//!
//! Keys are equal if their texts are equal ([`KeyEquality::FullKeys`]), or, as in RocketMQ, if their MD5 are equal
//! ([`KeyEquality::Digests`]). If the keys of a queue are split into shares (see `ranges`), all equal texts go to the
//! same share. The spill of a share has the record's ordinal before each key, `[ordinal:4]`. One share is decided from
//! the spills of several ranges of the queue, in their order. No file is needed after a crash; a spill is garbage with
//! its staging folder.

use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_io::{Access, VfsFile};

use super::key_map::{BitSet, Key, KeyEquality, KeyMap, MapFull};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;

/// Bytes of one read, and bytes that a collector buffers for its spill files together.
const CHUNK_BYTES: usize = 1 << 20;

/// Minimum bytes that are buffered for one file.
const LEAST_CHUNK_BYTES: usize = 16 << 10;

/// Bytes of an MD5, of the header of a full key in a spill, and of an ordinal before either.
const DIGEST_BYTES: usize = 16;
const HEAD_BYTES: usize = 12;
const ORDINAL_BYTES: usize = 4;

/// Bytes of the trailer of a share's file, for another process: number of keys, and length of their texts.
const TRAILER_BYTES: usize = 16;

/// A file of keys in ascending ordinal.
#[derive(Debug)]
pub(crate) struct Spill {
    path: PathBuf,
    file: Arc<dyn VfsFile>,
    equality: KeyEquality,
    /// Whether each key has its ordinal before it; otherwise they count up.
    numbered: bool,
    /// The value added to each ordinal.
    first: u64,
    /// Number of keys.
    count: u64,
    /// Bytes of the keys' texts.
    text_bytes: u64,
    /// Bytes of the keys in the file.
    written: u64,
    buffer: Vec<u8>,
}

/// A position in a spill: the number of keys before it, and its byte offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct KeyPlace {
    index: u64,
    position: u64,
}

impl Spill {
    fn create(
        files: &StoreFiles,
        path: PathBuf,
        equality: KeyEquality,
        numbered: bool,
    ) -> Result<Self, StoreError> {
        let file = files.vfs.create_new(&path).at(&path, "creating a file of keys")?;
        let (buffer, first) = (Vec::new(), 0);
        Ok(Self { path, file, equality, numbered, first, count: 0, text_bytes: 0, written: 0, buffer })
    }

    /// Opens the spill of a share that another process may have made; `first` is added to its ordinals.
    pub(crate) fn open(
        files: &StoreFiles,
        path: PathBuf,
        equality: KeyEquality,
        first: u64,
    ) -> Result<Self, StoreError> {
        let file = files.vfs.open(&path, Access::Read).at(&path, "opening a file of keys")?;
        let len = file.len().at(&path, "looking at a file of keys")?;
        let Some(written) = len.checked_sub(TRAILER_BYTES as u64) else {
            return Err(cut_off(&path, len));
        };
        let mut trailer = [0; TRAILER_BYTES];
        file.read_exact_at(&mut trailer, written).at(&path, "reading keys")?;
        let (count, text_bytes) = trailer.split_at(TRAILER_BYTES / 2);
        let [count, text_bytes] =
            [count, text_bytes].map(|part| part.try_into().map_or(0, u64::from_be_bytes));
        let least = ORDINAL_BYTES + if equality == KeyEquality::Digests { DIGEST_BYTES } else { HEAD_BYTES };
        if count > written / least as u64 || text_bytes > written.max(count.saturating_mul(1 << 15)) {
            return Err(cut_off(&path, len));
        }
        let buffer = Vec::new();
        Ok(Self { path, file, equality, numbered: true, first, count, text_bytes, written, buffer })
    }

    fn add(&mut self, ordinal: u64, hash: u64, low: u64, key: &str) {
        if self.numbered {
            self.buffer.extend_from_slice(&(ordinal as u32).to_be_bytes());
        }
        self.buffer.extend_from_slice(&hash.to_be_bytes());
        match self.equality {
            KeyEquality::Digests => self.buffer.extend_from_slice(&low.to_be_bytes()),
            KeyEquality::FullKeys => {
                self.buffer.extend_from_slice(&(key.len() as u32).to_be_bytes());
                self.buffer.extend_from_slice(key.as_bytes());
            }
        }
        self.count += 1;
        self.text_bytes += key.len() as u64;
    }

    fn write(&mut self) -> Result<(), StoreError> {
        self.file.write_all_at(&self.buffer, self.written).at(&self.path, "spilling keys")?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Writes the buffered keys and the trailer for other processes.
    fn close(mut self) -> Result<(), StoreError> {
        self.write()?;
        let trailer = [self.count.to_be_bytes(), self.text_bytes.to_be_bytes()].concat();
        self.file.write_all_at(&trailer, self.written).at(&self.path, "spilling keys")
    }

    /// Calls `visit` with each key from `from` to before `to` and its ordinal, until it returns `false`. Returns where
    /// it stopped.
    fn scan(
        &self,
        from: KeyPlace,
        to: u64,
        mut visit: impl FnMut(u64, Key<'_>) -> bool,
    ) -> Result<KeyPlace, StoreError> {
        let mut place = from;
        let mut wanted = CHUNK_BYTES;
        let mut chunk = Vec::new();
        while place.index < to {
            let len = (self.written - place.position).min(wanted as u64) as usize;
            chunk.resize(len, 0);
            self.file.read_exact_at(&mut chunk, place.position).at(&self.path, "reading keys")?;
            let mut rest = chunk.as_slice();
            let before = place;
            while let Some((ordinal, key, len)) = self.parse(place.index, rest).filter(|_| place.index < to) {
                if !visit(ordinal, key) {
                    return Ok(place);
                }
                rest = rest.get(len..).unwrap_or_default();
                place = KeyPlace { index: place.index + 1, position: place.position + len as u64 };
            }
            if place == before {
                if chunk.len() as u64 == self.written - place.position {
                    return Err(cut_off(&self.path, place.position));
                }
                wanted *= 2;
            }
        }
        if place.index == self.count && place.position != self.written {
            return Err(cut_off(&self.path, place.position));
        }
        Ok(place)
    }

    /// Returns the ordinal of the key at the start of `bytes` with this index, the key, and its length in bytes; `None`
    /// if it is incomplete.
    fn parse<'b>(&self, index: u64, bytes: &'b [u8]) -> Option<(u64, Key<'b>, usize)> {
        let (ordinal, bytes, before) = if self.numbered {
            let (ordinal, rest) = bytes.split_first_chunk::<ORDINAL_BYTES>()?;
            (u64::from(u32::from_be_bytes(*ordinal)), rest, ORDINAL_BYTES)
        } else {
            (index, bytes, 0)
        };
        let (hash, rest) = bytes.split_first_chunk::<8>()?;
        let hash = u64::from_be_bytes(*hash);
        let (key, len) = match self.equality {
            KeyEquality::Digests => {
                let low = u64::from_be_bytes(*rest.first_chunk::<8>()?);
                (Key { hash, low, text: &[] }, DIGEST_BYTES)
            }
            KeyEquality::FullKeys => {
                let (len, rest) = rest.split_first_chunk::<4>()?;
                let len = u32::from_be_bytes(*len) as usize;
                (Key { hash, low: 0, text: rest.get(..len)? }, HEAD_BYTES + len)
            }
        };
        Some((self.first + ordinal, key, before + len))
    }
}

fn cut_off(path: &Path, position: u64) -> StoreError {
    StoreError::corrupt(path, position, "the file of keys is incomplete; run the job again".to_owned())
}

/// Seed for the hashes of full keys. It is unpredictable, so that no sender can choose keys that share one slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seed(u64);

impl Seed {
    /// Returns the seed of a job: all its processes get the same one from its nonce.
    pub(crate) fn from_nonce(nonce: &str) -> Self {
        Self(hash_of(0, nonce))
    }
}

fn hash_of(seed: u64, text: &str) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write_u64(seed);
    hasher.write(text.as_bytes());
    hasher.finish()
}

/// Collects the keys of a queue's keyed records, in ascending queue offset.
#[derive(Debug)]
pub(crate) struct KeyCollector {
    equality: KeyEquality,
    seed: Seed,
    spills: Vec<Spill>,
    chunk_bytes: usize,
    count: u64,
}

/// The decision about all keyed records of a queue.
#[derive(Debug)]
pub(crate) struct NewestBits {
    pub(crate) superseded: BitSet,
    /// Number of keyed records.
    pub(crate) records: u64,
    /// Distinct keys.
    pub(crate) keys: u64,
    /// Number of times that the map was filled.
    pub(crate) rounds: u64,
}

impl NewestBits {
    /// Whether the record with this ordinal is the newest of its key.
    pub(crate) fn is_newest(&self, ordinal: u64) -> bool {
        !self.superseded.get(ordinal)
    }
}

impl KeyCollector {
    /// Creates a collector that spills all keys to a new file at `path`.
    pub(crate) fn create(
        files: &StoreFiles,
        path: &Path,
        equality: KeyEquality,
        seed: Seed,
    ) -> Result<Self, StoreError> {
        let spills = vec![Spill::create(files, path.to_path_buf(), equality, false)?];
        Ok(Self { equality, seed, spills, chunk_bytes: CHUNK_BYTES, count: 0 })
    }

    /// Creates a collector that spills each key to the file of its share, at one of `paths`.
    pub(crate) fn create_shares(
        files: &StoreFiles,
        paths: Vec<PathBuf>,
        equality: KeyEquality,
        seed: Seed,
    ) -> Result<Self, StoreError> {
        let chunk_bytes = (CHUNK_BYTES / paths.len().max(1)).max(LEAST_CHUNK_BYTES);
        let spills = paths.into_iter().map(|path| Spill::create(files, path, equality, true));
        Ok(Self { equality, seed, spills: spills.collect::<Result<_, _>>()?, chunk_bytes, count: 0 })
    }

    /// Adds the key of the next keyed record.
    pub(crate) fn add(&mut self, key: &str) -> Result<(), StoreError> {
        let (hash, low) = match self.equality {
            KeyEquality::FullKeys => (hash_of(self.seed.0, key), 0),
            KeyEquality::Digests => {
                let digest = u128::from_be_bytes(mqstore_format::key_digest(key));
                ((digest >> 64) as u64, digest as u64)
            }
        };
        self.add_hashed(hash, low, key)
    }

    fn add_hashed(&mut self, hash: u64, low: u64, key: &str) -> Result<(), StoreError> {
        // The map uses the upper bits of a product, and a share the lower bits of the hash. So the keys of one share
        // spread over the complete map.
        let share = ((hash & 0xffff_ffff) * self.spills.len() as u64) >> 32;
        let ordinal = self.count;
        if self.spills.len() > 1 && ordinal > u64::from(u32::MAX) {
            return Err(StoreError::TooLarge {
                what: "a range of a queue",
                size: ordinal,
                limit: u64::from(u32::MAX),
            });
        }
        self.count += 1;
        let Some(spill) = self.spills.get_mut(share as usize) else { return Ok(()) };
        spill.add(ordinal, hash, low, key);
        if spill.buffer.len() >= self.chunk_bytes { spill.write() } else { Ok(()) }
    }

    /// Closes the files of the shares for other processes.
    pub(crate) fn close(self) -> Result<(), StoreError> {
        self.spills.into_iter().try_for_each(Spill::close)
    }

    /// Decides about each record with a map of at most `memory_bytes`.
    pub(crate) fn finish(mut self, memory_bytes: u64) -> Result<NewestBits, StoreError> {
        self.spills.iter_mut().try_for_each(Spill::write)?;
        decide(&self.spills, self.equality, self.seed, memory_bytes)
    }
}

/// Decides about each record of `spills`, in their order, with a map of at most `memory_bytes`.
pub(crate) fn decide(
    spills: &[Spill],
    equality: KeyEquality,
    seed: Seed,
    memory_bytes: u64,
) -> Result<NewestBits, StoreError> {
    let records = spills.iter().map(|spill| spill.count).sum();
    let text_bytes = spills.iter().map(|spill| spill.text_bytes).sum();
    let mut superseded = BitSet::default();
    let mut map = KeyMap::new(equality, seed.0, memory_bytes, records, text_bytes);
    let (mut start, mut rounds) = ((0, KeyPlace::default()), 0);
    while start.0 < spills.len() {
        if rounds > 0 {
            map.clear();
        }
        let mut stop = (spills.len(), KeyPlace::default());
        for (at, spill) in spills.iter().enumerate().skip(start.0) {
            let from = if at == start.0 { start.1 } else { KeyPlace::default() };
            let place = spill.scan(from, spill.count, |ordinal, key| match map.put(key, ordinal) {
                Ok(Some(older)) => {
                    superseded.set(older);
                    true
                }
                Ok(None) => true,
                Err(MapFull) => false,
            })?;
            if place.index < spill.count {
                stop = (at, place);
                break;
            }
        }
        for (at, spill) in spills.iter().enumerate().take(start.0 + 1) {
            let to = if at == start.0 { start.1.index } else { spill.count };
            spill.scan(KeyPlace::default(), to, |ordinal, key| {
                if map.holds(key) {
                    superseded.set(ordinal);
                }
                true
            })?;
        }
        start = stop;
        rounds += u64::from(records > 0);
    }
    Ok(NewestBits { keys: records - superseded.ones(), superseded, records, rounds })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::testing::sim_files;
    use proptest::prelude::*;

    fn collector(equality: KeyEquality) -> KeyCollector {
        let files = sim_files();
        KeyCollector::create(&files, &files.root.join("keys"), equality, Seed(7)).unwrap()
    }

    fn newest_of(keys: &[u8], memory_bytes: u64, equality: KeyEquality) -> NewestBits {
        let mut collector = collector(equality);
        for key in keys {
            collector.add(&text(*key)).unwrap();
        }
        collector.finish(memory_bytes).unwrap()
    }

    /// Keys of different lengths; some are prefixes of others.
    fn text(key: u8) -> String {
        "k".repeat(usize::from(key % 7)) + &key.to_string()
    }

    fn check(keys: &[u8], found: &NewestBits) {
        let last: HashMap<u8, usize> = keys.iter().enumerate().map(|(at, key)| (*key, at)).collect();
        for (at, key) in keys.iter().enumerate() {
            assert_eq!(found.is_newest(at as u64), last[key] == at);
        }
        assert_eq!((found.keys, found.records), (last.len() as u64, keys.len() as u64));
    }

    proptest! {
        #[test]
        fn the_newest_is_the_last_of_each_key_for_any_memory(
            keys in prop::collection::vec(0..40_u8, 0..200),
            memory in prop::sample::select(vec![0_u64, 100, 400, 1600, 1 << 20]),
            equality in prop::sample::select(vec![KeyEquality::FullKeys, KeyEquality::Digests]),
        ) {
            check(&keys, &newest_of(&keys, memory, equality));
        }

        /// Each key has one of three hashes. If texts are compared, that only costs time.
        #[test]
        fn colliding_hashes_make_no_two_keys_one(
            keys in prop::collection::vec(0..40_u8, 0..120),
            memory in prop::sample::select(vec![0_u64, 400, 1 << 20]),
        ) {
            let mut collector = collector(KeyEquality::FullKeys);
            for key in &keys {
                collector.add_hashed(u64::from(key % 3) << 62, 0, &text(*key)).unwrap();
            }
            check(&keys, &collector.finish(memory).unwrap());
        }
    }

    proptest! {
        /// With shares and several ranges, each share decides about its own keys, and all shares together about all
        /// keys.
        #[test]
        fn shares_decide_as_one(
            keys in prop::collection::vec(0..40_u8, 0..200),
            cuts in prop::collection::vec(0..200_usize, 0..4),
            shares in 1..6_usize,
            memory in prop::sample::select(vec![0_u64, 400, 1 << 20]),
            equality in prop::sample::select(vec![KeyEquality::FullKeys, KeyEquality::Digests]),
        ) {
            let files = sim_files();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(keys.len())).collect();
            cuts.extend([0, keys.len()]);
            cuts.sort_unstable();
            let path = |piece: usize, share| files.root.join(format!("keys-{piece}-{share}"));
            for (piece, cut) in cuts.windows(2).enumerate() {
                let paths = (0..shares).map(|share| path(piece, share)).collect();
                let mut collector = KeyCollector::create_shares(&files, paths, equality, Seed(7)).unwrap();
                for key in &keys[cut[0]..cut[1]] {
                    collector.add(&text(*key)).unwrap();
                }
                collector.close().unwrap();
            }
            let mut together = NewestBits { superseded: BitSet::default(), records: 0, keys: 0, rounds: 0 };
            for share in 0..shares {
                let spills: Vec<Spill> = cuts
                    .windows(2)
                    .enumerate()
                    .map(|(piece, cut)| Spill::open(&files, path(piece, share), equality, cut[0] as u64).unwrap())
                    .collect();
                let found = decide(&spills, equality, Seed(7), memory).unwrap();
                (0..keys.len() as u64).filter(|at| !found.is_newest(*at)).for_each(|at| together.superseded.set(at));
                together.records += found.records;
                together.keys += found.keys;
            }
            check(&keys, &together);
        }
    }

    #[test]
    fn a_spill_that_is_cut_off_is_found() {
        let files = sim_files();
        let path = files.root.join("keys-0");
        let mut collector =
            KeyCollector::create_shares(&files, vec![path.clone()], KeyEquality::FullKeys, Seed(7)).unwrap();
        (0..9).for_each(|key| collector.add(&text(key)).unwrap());
        collector.close().unwrap();
        let file = files.vfs.open(&path, Access::ReadWrite).unwrap();
        for len in (0..file.len().unwrap()).rev() {
            file.set_len(len).unwrap();
            let found = Spill::open(&files, path.clone(), KeyEquality::FullKeys, 0)
                .and_then(|spill| decide(&[spill], KeyEquality::FullKeys, Seed(7), 1 << 20));
            assert!(matches!(found, Err(StoreError::Corrupt { .. })), "{len}: {found:?}");
        }
    }

    #[test]
    fn little_memory_takes_more_rounds_and_always_ends() {
        let keys: Vec<u8> = (0..=255).collect();
        for equality in [KeyEquality::FullKeys, KeyEquality::Digests] {
            assert_eq!(newest_of(&keys, 1 << 20, equality).rounds, 1);
            let few = newest_of(&keys, 0, equality);
            assert_eq!((few.rounds, few.keys), (256, 256));
            assert_eq!(newest_of(&[], 0, equality).rounds, 0);
        }
    }

    #[test]
    fn a_key_longer_than_a_read_is_read() {
        let mut collector = collector(KeyEquality::FullKeys);
        let long = "x".repeat(3 * CHUNK_BYTES);
        for key in ["a", &long, "b", &long] {
            collector.add(key).unwrap();
        }
        let found = collector.finish(0).unwrap();
        assert_eq!([0, 1, 2, 3].map(|at| found.is_newest(at)), [true, false, true, true]);
    }
}
