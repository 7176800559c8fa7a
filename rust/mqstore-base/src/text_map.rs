//! A map from text to a small value, for very many keys.
//!
//! Owns the texts, one after the other in pieces of up to one mebibyte, and a table of hashes. A key costs its bytes
//! and one table entry, but no allocation. The map keeps the hashes, so it merges two maps without computing them
//! again. Texts of removed keys are dropped once they are half of all texts. Nothing on disk; one thread at a time.

use std::hash::BuildHasher;
use std::sync::LazyLock;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry as Slot;

/// Bytes of the first and of the largest piece.
const FIRST_PIECE: usize = 4096;
const LARGEST_PIECE: usize = 1 << 20;

/// One hasher for all maps of the process, so that one map can use the hashes of another.
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::default);

/// The position of a key's text.
#[derive(Clone, Copy, Debug)]
struct TextPlace {
    piece: u32,
    start: u32,
    len: u32,
}

#[derive(Debug)]
struct TextRow<V> {
    hash: u64,
    key: TextPlace,
    value: V,
}

/// The texts.
#[derive(Debug, Default)]
struct TextArena {
    pieces: Vec<String>,
    bytes: usize,
    dropped: usize,
}

impl TextArena {
    fn at(&self, place: TextPlace) -> &str {
        let (start, end) = (place.start as usize, place.start as usize + place.len as usize);
        self.pieces.get(place.piece as usize).and_then(|piece| piece.get(start..end)).unwrap_or_default()
    }

    fn push(&mut self, text: &str) -> TextPlace {
        self.bytes += text.len();
        let has_room = |piece: &String| piece.capacity() - piece.len() >= text.len();
        if !self.pieces.last().is_some_and(has_room) {
            let capacity = self.bytes.clamp(FIRST_PIECE, LARGEST_PIECE).max(text.len());
            self.pieces.push(String::with_capacity(capacity));
        }
        let number = self.pieces.len() as u32 - 1;
        let mut start = 0;
        if let Some(piece) = self.pieces.last_mut() {
            start = piece.len() as u32;
            piece.push_str(text);
        }
        TextPlace { piece: number, start, len: text.len() as u32 }
    }
}

/// The map; see the header of this module.
#[derive(Debug)]
pub struct TextMap<V> {
    rows: HashTable<TextRow<V>>,
    texts: TextArena,
}

impl<V> Default for TextMap<V> {
    fn default() -> Self {
        Self { rows: HashTable::new(), texts: TextArena::default() }
    }
}

impl<V> TextMap<V> {
    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&V> {
        let Self { rows, texts } = self;
        rows.find(HASHER.hash_one(key), |row| texts.at(row.key) == key).map(|row| &row.value)
    }

    /// Returns the keys and values, in any order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &V)> {
        self.rows.iter().map(|row| (self.texts.at(row.key), &row.value))
    }

    /// Changes each value.
    pub fn for_each_value(&mut self, change: impl FnMut(&mut V)) {
        self.rows.iter_mut().map(|row| &mut row.value).for_each(change);
    }

    /// Sets the value of `key`, unless `stays` returns true for its current value.
    pub fn put(&mut self, key: &str, value: V, stays: impl FnOnce(&V) -> bool) {
        let hash = HASHER.hash_one(key);
        let Self { rows, texts } = self;
        match rows.entry(hash, |row| texts.at(row.key) == key, |row| row.hash) {
            Slot::Occupied(mut slot) => {
                if !stays(&slot.get().value) {
                    slot.get_mut().value = value;
                }
            }
            Slot::Vacant(slot) => {
                slot.insert(TextRow { hash, key: texts.push(key), value });
            }
        }
    }

    /// Removes `key` if `goes` returns true for its value.
    pub fn remove(&mut self, key: &str, goes: impl FnOnce(&V) -> bool) {
        let Self { rows, texts } = self;
        let found = rows.find_entry(HASHER.hash_one(key), |row| texts.at(row.key) == key);
        if let Ok(slot) = found.map_err(drop)
            && goes(&slot.get().value)
        {
            texts.dropped += slot.remove().0.key.len as usize;
        }
        self.compact_texts();
    }

    /// Keeps the entries for which `stays` returns true.
    pub fn retain(&mut self, mut stays: impl FnMut(&str, &V) -> bool) {
        let Self { rows, texts } = self;
        let mut dropped = 0;
        rows.retain(|row| {
            let keep = stays(texts.at(row.key), &row.value);
            dropped += if keep { 0 } else { row.key.len as usize };
            keep
        });
        texts.dropped += dropped;
        self.compact_texts();
    }

    /// Adds all entries of `other`. If both maps have a key, the value here stays if `stays(here, other)` returns true.
    pub fn absorb(&mut self, other: Self, mut stays: impl FnMut(&V, &V) -> bool) {
        if self.rows.is_empty() {
            *self = other;
            return;
        }
        let Self { rows, texts } = self;
        let before = texts.pieces.len() as u32;
        texts.bytes += other.texts.bytes;
        texts.dropped += other.texts.dropped;
        texts.pieces.extend(other.texts.pieces);
        rows.reserve(other.rows.len(), |row| row.hash);
        for mut row in other.rows {
            row.key.piece += before;
            let same =
                |known: &TextRow<V>| known.hash == row.hash && texts.at(known.key) == texts.at(row.key);
            match rows.entry(row.hash, same, |row| row.hash) {
                Slot::Occupied(mut slot) => {
                    texts.dropped += row.key.len as usize;
                    if !stays(&slot.get().value, &row.value) {
                        slot.get_mut().value = row.value;
                    }
                }
                Slot::Vacant(slot) => {
                    slot.insert(row);
                }
            }
        }
        self.compact_texts();
    }

    /// Copies the texts of existing keys if half of all texts belong to removed keys.
    fn compact_texts(&mut self) {
        let Self { rows, texts } = self;
        if texts.dropped <= LARGEST_PIECE || texts.dropped < texts.bytes / 2 {
            return;
        }
        let mut kept = TextArena::default();
        for row in rows.iter_mut() {
            row.key = kept.push(texts.at(row.key));
        }
        *texts = kept;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn content(map: &TextMap<u32>) -> BTreeMap<String, u32> {
        map.iter().map(|(key, value)| (key.to_owned(), *value)).collect()
    }

    #[test]
    fn it_does_what_a_map_does_and_forgets_the_texts_of_keys_that_went() {
        let (mut map, mut model) = (TextMap::default(), BTreeMap::new());
        let mut seed = 1_u32;
        for step in 0..60_000_u32 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let key = format!("a key of some length, number {:>80}", seed >> 16 & 0x3fff);
            if step % 3 == 0 {
                map.remove(&key, |_| true);
                model.remove(&key);
            } else {
                map.put(&key, step, |_| false);
                model.insert(key, step);
            }
            assert!(map.texts.bytes <= 2 * (model.len() * 110 + LARGEST_PIECE), "{}", map.texts.bytes);
        }
        assert_eq!(content(&map), model);
        map.retain(|_, value| value % 2 == 0);
        model.retain(|_, value| *value % 2 == 0);
        assert_eq!((content(&map), map.len()), (model.clone(), model.len()));
        let (mut other, both) = (TextMap::default(), model.keys().next().cloned().unwrap());
        other.put(&both, 1, |_| false);
        other.put("", 7, |_| false);
        map.absorb(other, |known, new| known > new);
        model.insert(String::new(), 7);
        assert_eq!(content(&map), model);
        assert_eq!((map.get(""), map.get("none")), (Some(&7), None));
    }
}
