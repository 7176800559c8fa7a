//! A map of fixed size from a key to its newest record.
//!
//! Owns the memory of a compaction: 24 bytes for each slot, with at most three of four slots in use (32 bytes for each
//! key), and the texts of the keys if texts are compared. The table is sized for the maximum number of keys, within
//! the budget, and never grows. If it is full, `put` returns an error. Nothing is on disk.

/// A slot of the map: hash; second half of the MD5 or position of the key's text; ordinal plus one, 0 if free.
type MapSlot = [u64; 3];

const SLOT_BYTES: u64 = size_of::<MapSlot>() as u64;

/// The rule by which two keys are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyEquality {
    /// The texts are equal.
    FullKeys,
    /// The MD5 of the texts are equal.
    Digests,
}

/// A key in the form of the map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key<'a> {
    pub(crate) hash: u64,
    /// The second half of the MD5; unused with full keys.
    pub(crate) low: u64,
    /// The text; empty with digests.
    pub(crate) text: &'a [u8],
}

/// An open-addressing map from key to ordinal, of a fixed size.
#[derive(Debug)]
pub(crate) struct KeyMap {
    equality: KeyEquality,
    /// An odd, unpredictable factor, so that no sender can choose keys that share one slot.
    spread: u64,
    slots: Vec<MapSlot>,
    used: usize,
    /// The texts of the keys, each after its length.
    texts: Vec<u8>,
    most_text_bytes: u64,
}

#[derive(Debug)]
pub(crate) struct MapFull;

impl KeyMap {
    /// Creates a map of at most `memory_bytes` for at most `keys` keys with `text_bytes` bytes of text in total. It can
    /// always hold one key.
    pub(crate) fn new(
        equality: KeyEquality,
        seed: u64,
        memory_bytes: u64,
        keys: u64,
        text_bytes: u64,
    ) -> Self {
        let texts = match equality {
            KeyEquality::FullKeys => text_bytes.saturating_add(keys.saturating_mul(4)),
            KeyEquality::Digests => 0,
        };
        // Three of four slots hold a key and its text.
        let a_slot = SLOT_BYTES + texts.checked_div(keys).unwrap_or(0) * 3 / 4;
        let needed = keys.saturating_mul(4) / 3 + 2;
        let slots = (memory_bytes / a_slot).clamp(2, needed.max(2));
        let most_text_bytes = memory_bytes.saturating_sub(slots * SLOT_BYTES).min(texts);
        let mut slots = vec![[0; 3]; usize::try_from(slots).unwrap_or(usize::MAX)];
        // Write all pages first: to read a new page before it is written costs two faults, and an interrupt of all
        // CPUs.
        std::hint::black_box(&mut slots).fill([0; 3]);
        Self { equality, spread: seed | 1, slots, used: 0, texts: Vec::new(), most_text_bytes }
    }

    pub(crate) fn clear(&mut self) {
        self.slots.fill([0; 3]);
        self.texts.clear();
        self.used = 0;
    }

    /// Returns the slot of `key`, or the free slot for it. One slot is always free, so that the search ends.
    fn locate(&self, key: Key<'_>) -> usize {
        let len = self.slots.len();
        // The upper half of the product spreads the hashes evenly over any number of slots.
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
            KeyEquality::Digests => other == key.low,
            KeyEquality::FullKeys => {
                let (len, rest) = match self.texts.get(other as usize..).map(<[u8]>::split_first_chunk::<4>) {
                    Some(Some((len, rest))) => (u32::from_be_bytes(*len) as usize, rest),
                    _ => return false,
                };
                rest.get(..len) == Some(key.text)
            }
        }
    }

    pub(crate) fn holds(&self, key: Key<'_>) -> bool {
        self.slots.get(self.locate(key)).is_some_and(|slot| slot[2] != 0)
    }

    /// Sets `key` to `ordinal` and returns the old value. If the map is full, a new key is an error; an existing key
    /// always succeeds.
    pub(crate) fn put(&mut self, key: Key<'_>, ordinal: u64) -> Result<Option<u64>, MapFull> {
        let at = self.locate(key);
        let full = (self.used + 1) * 4 > self.slots.len() * 3 && self.used > 0;
        let Some(slot) = self.slots.get_mut(at) else {
            return Err(MapFull);
        };
        if slot[2] != 0 {
            return Ok(Some(std::mem::replace(&mut slot[2], ordinal + 1) - 1));
        }
        let mut second = key.low;
        if self.equality == KeyEquality::FullKeys {
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

/// One bit for each ordinal.
#[derive(Debug, Default)]
pub(crate) struct BitSet {
    words: Vec<u64>,
    ones: u64,
}

impl BitSet {
    /// Returns the number of set bits.
    pub(crate) fn ones(&self) -> u64 {
        self.ones
    }

    /// Returns the first `count` bits as words of 64, lowest bit first.
    pub(crate) fn words(&self, count: u64) -> impl Iterator<Item = u64> {
        let missing = (count.div_ceil(64) as usize).saturating_sub(self.words.len());
        self.words.iter().copied().chain(std::iter::repeat_n(0, missing))
    }

    /// Sets the bits that are set in `word`, from `index` on, a multiple of 64.
    pub(crate) fn set_word(&mut self, index: u64, word: u64) {
        let at = (index / 64) as usize;
        if self.words.len() <= at {
            self.words.resize(at + 1, 0);
        }
        if let Some(known) = self.words.get_mut(at) {
            self.ones += u64::from((word & !*known).count_ones());
            *known |= word;
        }
    }

    pub(crate) fn set(&mut self, index: u64) {
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

    pub(crate) fn get(&self, index: u64) -> bool {
        self.words.get((index / 64) as usize).is_some_and(|word| word & (1 << (index % 64)) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_map_still_takes_a_known_key() {
        let mut map = KeyMap::new(KeyEquality::Digests, 7, 0, 10, 0);
        let key = |hash| Key { hash, low: 0, text: &[] };
        assert!(matches!(map.put(key(5), 0), Ok(None)));
        assert!(map.put(key(6), 1).is_err());
        assert!(matches!(map.put(key(5), 2), Ok(Some(0))));
        assert_eq!((map.holds(key(5)), map.holds(key(6))), (true, false));
    }

    #[test]
    fn a_map_stays_in_its_budget_and_takes_32_bytes_a_key() {
        let map = KeyMap::new(KeyEquality::Digests, 7, 32_000, 1 << 40, 0);
        assert!((map.slots.len() * 24) as u64 <= 32_000 && map.slots.len() * 3 / 4 >= 999);
        let map = KeyMap::new(KeyEquality::FullKeys, 7, 52_000, 1 << 40, (1 << 40) * 16);
        let bytes = (map.slots.len() * 24) as u64 + map.most_text_bytes;
        assert!(bytes <= 52_000 && map.slots.len() * 3 / 4 >= 995, "{}", map.slots.len());
        assert!(map.most_text_bytes >= 995 * 20);
    }
}
