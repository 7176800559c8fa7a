//! Which record of a queue is the newest of its key, in bounded memory.
//!
//! Owns what one task knows of its keys. Records are fed in ascending queue offset; each keyed one gets
//! the next *ordinal* and goes to a spill file in the task's staging folder; one bit an ordinal stays in
//! memory: *superseded* (a later record has the key).
//!
//! ```text
//! spill   k0 k1 k2 | k3 k4 k5 | k6 ...      full keys: [hash:8][length:4][key], digests: [MD5:16]
//! round 1 map of k0..k2   marks within itself
//! round 2 map of k3..k5   marks within itself, then k0..k2 against it
//! round 3 map of k6..     marks within itself, then k0..k5 against it
//! ```
//!
//! Each round fills the map as far as its memory goes and starts where the last one stopped, so that
//! any budget finishes: RocketMQ's own map throws when it is full and the queue is never compacted
//! again (`CompactionLog.OffsetMap`). A record is superseded only where the map holds a newer one of
//! its key; what lies behind a round is the business of the next.
//!
//! Keys are the same when their texts are ([`Equality::FullKeys`]), or, as in RocketMQ, when their
//! MD5 is ([`Equality::Digests`]). A slot has 24 bytes and at most three of four are taken: 32 bytes
//! a key, and the text of the key where texts are compared. The table is made for the number of keys
//! that there can be, never larger than the budget, and never grows. Nothing here outlives a crash;
//! the spill file is garbage with its staging folder.

use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_io::VfsFile;

use crate::error::{IoContext, StoreError};
use crate::files::StoreFiles;

/// Bytes that are gathered before they go to the spill file, and that one read of it fetches.
const CHUNK_BYTES: usize = 1 << 20;

/// Bytes of an MD5, and of what precedes a full key in the spill file.
const DIGEST_BYTES: usize = 16;
const HEAD_BYTES: usize = 12;

/// A place in the map: hash; MD5's second half or the place of the key's text; ordinal plus one, 0 when free.
type Slot = [u64; 3];

const SLOT_BYTES: u64 = size_of::<Slot>() as u64;

/// When two records have the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Equality {
    /// When the texts are equal.
    FullKeys,
    /// When the MD5 of the texts are equal.
    Digests,
}

/// A key in the map's terms.
#[derive(Clone, Copy, Debug)]
struct Key<'a> {
    hash: u64,
    /// The second half of the MD5; not used with full keys.
    low: u64,
    /// The text; empty with digests.
    text: &'a [u8],
}

/// An open-addressing map from key to ordinal, of a fixed size.
#[derive(Debug)]
struct KeyMap {
    equality: Equality,
    /// Odd and not to be foreseen: nobody can send keys that all belong into one slot.
    spread: u64,
    slots: Vec<Slot>,
    used: usize,
    /// The texts of the keys, each behind its length.
    texts: Vec<u8>,
    most_text_bytes: u64,
}

#[derive(Debug)]
struct MapFull;

impl KeyMap {
    /// A map of at most `memory_bytes` for at most `keys` keys whose texts have `text_bytes` bytes together;
    /// it has room for one key in any case.
    fn new(equality: Equality, seed: u64, memory_bytes: u64, keys: u64, text_bytes: u64) -> Self {
        let texts = match equality {
            Equality::FullKeys => text_bytes.saturating_add(keys.saturating_mul(4)),
            Equality::Digests => 0,
        };
        // Three of four slots hold a key, and its text.
        let a_slot = SLOT_BYTES + texts.checked_div(keys).unwrap_or(0) * 3 / 4;
        let needed = keys.saturating_mul(4) / 3 + 2;
        let slots = (memory_bytes / a_slot).clamp(2, needed.max(2));
        let most_text_bytes = memory_bytes.saturating_sub(slots * SLOT_BYTES).min(texts);
        let mut slots = vec![[0; 3]; usize::try_from(slots).unwrap_or(usize::MAX)];
        // A page that is looked at first and written later costs two faults, and the second one all processors.
        std::hint::black_box(&mut slots).fill([0; 3]);
        Self { equality, spread: seed | 1, slots, used: 0, texts: Vec::new(), most_text_bytes }
    }

    fn clear(&mut self) {
        self.slots.fill([0; 3]);
        self.texts.clear();
        self.used = 0;
    }

    /// The slot of `key`, or the free one where it belongs. One is always free, so that the search ends.
    fn locate(&self, key: Key<'_>) -> usize {
        let len = self.slots.len();
        // The upper half of the product spreads all hashes evenly over any number of slots.
        let mut at = ((u128::from(key.hash.wrapping_mul(self.spread)) * len as u128) >> 64) as usize;
        while let Some(slot) = self.slots.get(at) {
            let [hash, other, ordinal] = *slot;
            if ordinal == 0 || (hash == key.hash && self.is_same(key, other)) {
                break;
            }
            at = if at + 1 == len { 0 } else { at + 1 };
        }
        at
    }

    fn is_same(&self, key: Key<'_>, other: u64) -> bool {
        match self.equality {
            Equality::Digests => other == key.low,
            Equality::FullKeys => {
                let (len, rest) = match self.texts.get(other as usize..).map(<[u8]>::split_first_chunk::<4>) {
                    Some(Some((len, rest))) => (u32::from_be_bytes(*len) as usize, rest),
                    _ => return false,
                };
                rest.get(..len) == Some(key.text)
            }
        }
    }

    fn holds(&self, key: Key<'_>) -> bool {
        self.slots.get(self.locate(key)).is_some_and(|slot| slot[2] != 0)
    }

    /// Sets `key` to `ordinal` and returns what it was. A full map is an error; a key that is in it
    /// always succeeds.
    fn put(&mut self, key: Key<'_>, ordinal: u64) -> Result<Option<u64>, MapFull> {
        let at = self.locate(key);
        let full = (self.used + 1) * 4 > self.slots.len() * 3 && self.used > 0;
        let Some(slot) = self.slots.get_mut(at) else {
            return Err(MapFull);
        };
        if slot[2] != 0 {
            return Ok(Some(std::mem::replace(&mut slot[2], ordinal + 1) - 1));
        }
        let mut second = key.low;
        if self.equality == Equality::FullKeys {
            let wanted = (self.texts.len() + 4 + key.text.len()) as u64;
            if full || (wanted > self.most_text_bytes && self.used > 0) {
                return Err(MapFull);
            }
            second = self.texts.len() as u64;
            self.texts.extend_from_slice(&(key.text.len() as u32).to_be_bytes());
            self.texts.extend_from_slice(key.text);
        } else if full {
            return Err(MapFull);
        }
        *slot = [key.hash, second, ordinal + 1];
        self.used += 1;
        Ok(None)
    }
}

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

/// Collects the keys of a queue's keyed records, in ascending queue offset.
#[derive(Debug)]
pub(crate) struct KeyCollector {
    path: PathBuf,
    file: Arc<dyn VfsFile>,
    equality: Equality,
    /// Makes the hashes of full keys ones that nobody can foresee.
    seed: u64,
    buffer: Vec<u8>,
    written: u64,
    count: u64,
    text_bytes: u64,
}

/// What is known of every keyed record of a queue.
#[derive(Debug)]
pub(crate) struct Verdicts {
    superseded: Bits,
    /// Keyed records.
    pub(crate) records: u64,
    /// Distinct keys.
    pub(crate) keys: u64,
    /// How often the map was filled.
    pub(crate) rounds: u64,
}

impl Verdicts {
    /// Whether the record with this ordinal is the newest of its key.
    pub(crate) fn is_newest(&self, ordinal: u64) -> bool {
        !self.superseded.get(ordinal)
    }
}

/// A place in the spill file: an ordinal and where it starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place {
    ordinal: u64,
    position: u64,
}

impl KeyCollector {
    /// Spills to a new file at `path`.
    pub(crate) fn create(files: &StoreFiles, path: &Path, equality: Equality) -> Result<Self, StoreError> {
        let file = files.vfs.create_new(path).at(path, "creating the file of keys")?;
        Ok(Self {
            path: path.to_path_buf(),
            file,
            equality,
            seed: files.vfs.environment().random_seed,
            buffer: Vec::new(),
            written: 0,
            count: 0,
            text_bytes: 0,
        })
    }

    /// The next keyed record.
    pub(crate) fn add(&mut self, key: &str) -> Result<(), StoreError> {
        match self.equality {
            Equality::Digests => self.buffer.extend_from_slice(&mqstore_format::key_digest(key)),
            Equality::FullKeys => {
                let mut hasher = std::hash::DefaultHasher::new();
                hasher.write_u64(self.seed);
                hasher.write(key.as_bytes());
                self.add_hashed(hasher.finish(), key);
            }
        }
        self.count += 1;
        self.text_bytes += key.len() as u64;
        if self.buffer.len() >= CHUNK_BYTES { self.spill() } else { Ok(()) }
    }

    fn add_hashed(&mut self, hash: u64, key: &str) {
        self.buffer.extend_from_slice(&hash.to_be_bytes());
        self.buffer.extend_from_slice(&(key.len() as u32).to_be_bytes());
        self.buffer.extend_from_slice(key.as_bytes());
    }

    fn spill(&mut self) -> Result<(), StoreError> {
        self.file.write_all_at(&self.buffer, self.written).at(&self.path, "spilling keys")?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Calls `visit` with each ordinal from `from` to the one before `to` and its key, until it answers
    /// `false`; where it stopped.
    fn scan(
        &self,
        from: Place,
        to: u64,
        mut visit: impl FnMut(u64, Key<'_>) -> bool,
    ) -> Result<Place, StoreError> {
        let mut place = from;
        let mut wanted = CHUNK_BYTES;
        let mut chunk = Vec::new();
        while place.ordinal < to {
            let len = (self.written - place.position).min(wanted as u64) as usize;
            chunk.resize(len, 0);
            self.file.read_exact_at(&mut chunk, place.position).at(&self.path, "reading keys")?;
            let mut rest = chunk.as_slice();
            let before = place;
            while let Some((key, len)) = self.parse(rest).filter(|_| place.ordinal < to) {
                if !visit(place.ordinal, key) {
                    return Ok(place);
                }
                rest = rest.get(len..).unwrap_or_default();
                place = Place { ordinal: place.ordinal + 1, position: place.position + len as u64 };
            }
            if place == before {
                if chunk.len() as u64 == self.written - place.position {
                    return Err(StoreError::corrupt(
                        &self.path,
                        place.position,
                        "the spilled keys are cut off".to_owned(),
                    ));
                }
                wanted *= 2;
            }
        }
        Ok(place)
    }

    /// The key at the start of `bytes` and the bytes that it takes; `None` when it is not all there.
    fn parse<'b>(&self, bytes: &'b [u8]) -> Option<(Key<'b>, usize)> {
        match self.equality {
            Equality::Digests => {
                let (high, rest) = bytes.split_first_chunk::<8>()?;
                let low = rest.first_chunk::<8>()?;
                let key = Key { hash: u64::from_be_bytes(*high), low: u64::from_be_bytes(*low), text: &[] };
                Some((key, DIGEST_BYTES))
            }
            Equality::FullKeys => {
                let (hash, rest) = bytes.split_first_chunk::<8>()?;
                let (len, rest) = rest.split_first_chunk::<4>()?;
                let len = u32::from_be_bytes(*len) as usize;
                let key = Key { hash: u64::from_be_bytes(*hash), low: 0, text: rest.get(..len)? };
                Some((key, HEAD_BYTES + len))
            }
        }
    }

    /// Decides about every record with a map of at most `memory_bytes`.
    pub(crate) fn finish(mut self, memory_bytes: u64) -> Result<Verdicts, StoreError> {
        self.spill()?;
        let mut superseded = Bits::default();
        let mut map = KeyMap::new(self.equality, self.seed, memory_bytes, self.count, self.text_bytes);
        let mut start = Place::default();
        let mut rounds = 0;
        while start.ordinal < self.count {
            if rounds > 0 {
                map.clear();
            }
            let stop = self.scan(start, self.count, |ordinal, key| match map.put(key, ordinal) {
                Ok(Some(older)) => {
                    superseded.set(older);
                    true
                }
                Ok(None) => true,
                Err(MapFull) => false,
            })?;
            self.scan(Place::default(), start.ordinal, |ordinal, key| {
                if map.holds(key) {
                    superseded.set(ordinal);
                }
                true
            })?;
            start = stop;
            rounds += 1;
        }
        Ok(Verdicts { keys: self.count - superseded.ones, superseded, records: self.count, rounds })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::compaction::testing::sim_files;
    use proptest::prelude::*;

    fn collector(equality: Equality) -> KeyCollector {
        let files = sim_files();
        KeyCollector::create(&files, &files.root.join("keys"), equality).unwrap()
    }

    fn verdicts(keys: &[u8], memory_bytes: u64, equality: Equality) -> Verdicts {
        let mut collector = collector(equality);
        for key in keys {
            collector.add(&text(*key)).unwrap();
        }
        collector.finish(memory_bytes).unwrap()
    }

    /// Keys of different lengths; one of them is the start of another.
    fn text(key: u8) -> String {
        "k".repeat(usize::from(key % 7)) + &key.to_string()
    }

    fn check(keys: &[u8], found: &Verdicts) {
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
            equality in prop::sample::select(vec![Equality::FullKeys, Equality::Digests]),
        ) {
            check(&keys, &verdicts(&keys, memory, equality));
        }

        /// Every key has one of three hashes; with texts to compare, that costs time and nothing else.
        #[test]
        fn colliding_hashes_make_no_two_keys_one(
            keys in prop::collection::vec(0..40_u8, 0..120),
            memory in prop::sample::select(vec![0_u64, 400, 1 << 20]),
        ) {
            let mut collector = collector(Equality::FullKeys);
            for key in &keys {
                let text = text(*key);
                collector.add_hashed(u64::from(key % 3) << 62, &text);
                collector.count += 1;
                collector.text_bytes += text.len() as u64;
            }
            check(&keys, &collector.finish(memory).unwrap());
        }
    }

    #[test]
    fn little_memory_takes_more_rounds_and_always_ends() {
        let keys: Vec<u8> = (0..=255).collect();
        for equality in [Equality::FullKeys, Equality::Digests] {
            assert_eq!(verdicts(&keys, 1 << 20, equality).rounds, 1);
            let few = verdicts(&keys, 0, equality);
            assert_eq!((few.rounds, few.keys), (256, 256));
            assert_eq!(verdicts(&[], 0, equality).rounds, 0);
        }
    }

    #[test]
    fn a_full_map_still_takes_a_known_key() {
        let mut map = KeyMap::new(Equality::Digests, 7, 0, 10, 0);
        let key = |hash| Key { hash, low: 0, text: &[] };
        assert!(matches!(map.put(key(5), 0), Ok(None)));
        assert!(map.put(key(6), 1).is_err());
        assert!(matches!(map.put(key(5), 2), Ok(Some(0))));
        assert_eq!((map.holds(key(5)), map.holds(key(6))), (true, false));
    }

    #[test]
    fn a_map_stays_in_its_budget_and_takes_32_bytes_a_key() {
        let map = KeyMap::new(Equality::Digests, 7, 32_000, 1 << 40, 0);
        assert!((map.slots.len() * 24) as u64 <= 32_000 && map.slots.len() * 3 / 4 >= 999);
        let map = KeyMap::new(Equality::FullKeys, 7, 52_000, 1 << 40, (1 << 40) * 16);
        let bytes = (map.slots.len() * 24) as u64 + map.most_text_bytes;
        assert!(bytes <= 52_000 && map.slots.len() * 3 / 4 >= 995, "{}", map.slots.len());
        assert!(map.most_text_bytes >= 995 * 20);
    }

    #[test]
    fn a_key_longer_than_a_read_is_read() {
        let mut collector = collector(Equality::FullKeys);
        let long = "x".repeat(3 * CHUNK_BYTES);
        for key in ["a", &long, "b", &long] {
            collector.add(key).unwrap();
        }
        let found = collector.finish(0).unwrap();
        assert_eq!([0, 1, 2, 3].map(|at| found.is_newest(at)), [true, false, true, true]);
    }
}
