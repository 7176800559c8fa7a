//! The index file: a hash table on disk from key to physical offsets, newest first.
//!
//! ```text
//! 0             40    header
//! 40            4 S   slots: number of the newest entry of the chain, 0 for none
//! 40 + 4 S      20 N  entries; number 0 is never used
//!
//! header: begin time (8) end time (8) begin physical (8) end physical (8) slots in use (4) next entry (4)
//! entry:  key hash (4) physical offset (8) seconds since begin time (4) number of the older entry (4)
//! ```
//!
//! S and N are not in the file: read it with the geometry that it was written with. The engine owns the chains and the
//! growth of the file; this module owns the bytes. Source: `IndexFile`, `IndexHeader`.

use crate::bytes::{field, put};

/// Byte length of the header.
pub const INDEX_HEADER_BYTES: usize = 40;
/// Byte length of a slot.
pub const INDEX_SLOT_BYTES: usize = 4;
/// Byte length of an entry.
pub const INDEX_ENTRY_BYTES: usize = 20;
/// Default number of slots (`maxHashSlotNum`).
pub const DEFAULT_INDEX_SLOTS: u32 = 5_000_000;
/// Default number of entries (`maxIndexNum`).
pub const DEFAULT_INDEX_ENTRIES: u32 = 20_000_000;

/// The numbers of slots and entries of an index file.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct IndexGeometry {
    /// Slots, S; at least 1.
    pub slots: u32,
    /// Entries, N; at least 2. Entry 0 is never used.
    pub entries: u32,
}

impl Default for IndexGeometry {
    fn default() -> Self {
        Self { slots: DEFAULT_INDEX_SLOTS, entries: DEFAULT_INDEX_ENTRIES }
    }
}

impl IndexGeometry {
    /// Returns the file's length in bytes, 420,000,040 by default.
    pub const fn file_len(&self) -> u64 {
        self.entry_position(self.entries)
    }

    /// Returns the position of a slot in the file.
    pub const fn slot_position(&self, slot: u32) -> u64 {
        INDEX_HEADER_BYTES as u64 + slot as u64 * INDEX_SLOT_BYTES as u64
    }

    /// Returns the position of an entry in the file.
    pub const fn entry_position(&self, number: u32) -> u64 {
        self.slot_position(self.slots) + number as u64 * INDEX_ENTRY_BYTES as u64
    }

    /// Returns the slot of a key hash, see [`crate::index_key_hash`].
    pub const fn slot_of(&self, hash: i32) -> u32 {
        match hash.unsigned_abs().checked_rem(self.slots) {
            Some(slot) => slot,
            None => 0,
        }
    }
}

/// Returns every geometry with at least one slot and two entries whose file has `len` bytes, fewest entries first.
/// There can be up to `len / 20`, so the iterator computes them one by one.
pub fn geometries_for_len(len: u64) -> impl DoubleEndedIterator<Item = IndexGeometry> + Clone {
    const WORDS_AN_ENTRY: u64 = (INDEX_ENTRY_BYTES / INDEX_SLOT_BYTES) as u64;
    // In words of 4 bytes, the length is S + 5 N.
    let words = match len.checked_sub(INDEX_HEADER_BYTES as u64) {
        Some(body) if body % INDEX_SLOT_BYTES as u64 == 0 => body / INDEX_SLOT_BYTES as u64,
        _ => 0,
    };
    // The reference uses 32-bit signed numbers.
    let largest = i32::MAX as u64;
    let fewest = words.saturating_sub(largest).div_ceil(WORDS_AN_ENTRY).max(2);
    let most = (words.saturating_sub(1) / WORDS_AN_ENTRY).min(largest);
    (fewest..most.saturating_add(1).max(fewest)).map(move |entries| IndexGeometry {
        slots: (words - entries * WORDS_AN_ENTRY) as u32,
        entries: entries as u32,
    })
}

/// The header of an index file.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexHeader {
    /// Store timestamp of the first key, epoch milliseconds; entries count their seconds from here.
    pub begin_timestamp: i64,
    /// Store timestamp of the last key.
    pub end_timestamp: i64,
    /// Physical offset of the first key's record.
    pub begin_physical: i64,
    /// Physical offset of the last key's record.
    pub end_physical: i64,
    /// Slots in use.
    pub slot_count: i32,
    /// Number of the next entry; 1 in an empty file. See [`next_entry`](Self::next_entry).
    pub index_count: i32,
}

impl IndexHeader {
    /// Returns the header's bytes.
    pub fn encode(&self) -> [u8; INDEX_HEADER_BYTES] {
        let mut bytes = [0; INDEX_HEADER_BYTES];
        put(&mut bytes, 0, self.begin_timestamp.to_be_bytes());
        put(&mut bytes, 8, self.end_timestamp.to_be_bytes());
        put(&mut bytes, 16, self.begin_physical.to_be_bytes());
        put(&mut bytes, 24, self.end_physical.to_be_bytes());
        put(&mut bytes, 32, self.slot_count.to_be_bytes());
        put(&mut bytes, 36, self.index_count.to_be_bytes());
        bytes
    }

    /// Decodes a header. Any forty bytes are valid; zeros are the header of an empty file.
    pub fn decode(bytes: &[u8; INDEX_HEADER_BYTES]) -> Self {
        Self {
            begin_timestamp: i64::from_be_bytes(field(bytes, 0)),
            end_timestamp: i64::from_be_bytes(field(bytes, 8)),
            begin_physical: i64::from_be_bytes(field(bytes, 16)),
            end_physical: i64::from_be_bytes(field(bytes, 24)),
            slot_count: i32::from_be_bytes(field(bytes, 32)),
            index_count: i32::from_be_bytes(field(bytes, 36)),
        }
    }

    /// Returns the number of the next entry. A stored count of 0 or less means 1 (`IndexHeader#load`).
    #[inline]
    pub fn next_entry(&self) -> u32 {
        u32::try_from(self.index_count).unwrap_or(0).max(1)
    }

    /// Returns the time difference of an entry that is stored now: whole seconds from the begin time, from 0 to
    /// 2,147,483,647; 0 if there is no begin time yet (`IndexFile#putKey`).
    #[inline]
    pub fn time_diff_s(&self, store_timestamp: i64) -> i32 {
        if self.begin_timestamp <= 0 {
            return 0;
        }
        let seconds = store_timestamp.wrapping_sub(self.begin_timestamp) / 1000;
        seconds.clamp(0, i64::from(i32::MAX)) as i32
    }
}

/// One entry of an index file.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct IndexEntry {
    /// [`crate::index_key_hash`] of topic and key.
    pub hash: i32,
    /// Log offset of the record.
    pub physical_offset: i64,
    /// Seconds from the header's begin time to the record's store time.
    pub time_diff_s: i32,
    /// Number of the next older entry of the slot; 0 at the end of the chain.
    pub previous: i32,
}

impl IndexEntry {
    /// Returns the entry's bytes.
    #[inline]
    pub fn encode(&self) -> [u8; INDEX_ENTRY_BYTES] {
        let mut bytes = [0; INDEX_ENTRY_BYTES];
        put(&mut bytes, 0, self.hash.to_be_bytes());
        put(&mut bytes, 4, self.physical_offset.to_be_bytes());
        put(&mut bytes, 12, self.time_diff_s.to_be_bytes());
        put(&mut bytes, 16, self.previous.to_be_bytes());
        bytes
    }

    /// Decodes an entry. Any twenty bytes are valid.
    pub fn decode(bytes: &[u8; INDEX_ENTRY_BYTES]) -> Self {
        Self {
            hash: i32::from_be_bytes(field(bytes, 0)),
            physical_offset: i64::from_be_bytes(field(bytes, 4)),
            time_diff_s: i32::from_be_bytes(field(bytes, 12)),
            previous: i32::from_be_bytes(field(bytes, 16)),
        }
    }

    /// Returns the store time in the index, in epoch milliseconds: the begin time plus whole seconds.
    pub fn store_timestamp(&self, header: &IndexHeader) -> i64 {
        header.begin_timestamp.saturating_add(i64::from(self.time_diff_s) * 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::index_key_hash;
    use crate::testing::hex;
    use proptest::prelude::*;

    #[test]
    fn the_default_geometry() {
        let geometry = IndexGeometry::default();
        assert_eq!(geometry.file_len(), 420_000_040);
        assert_eq!(geometry.entry_position(1), 20_000_060);
        let examples = [("KeyA", 1_937_756, 7_751_064), ("KeyB", 1_937_755, 7_751_060)];
        let unique = [("7F00000100002A139A5528E4F2AB0000", 4_389_491, 17_558_004)];
        for (key, slot, position) in examples.into_iter().chain(unique) {
            assert_eq!(geometry.slot_of(index_key_hash("TopicTest", key)), slot);
            assert_eq!(geometry.slot_position(slot), position);
        }
        assert_eq!(geometry.slot_position(geometry.slot_of(0)), 40);
        assert_eq!(IndexGeometry { slots: 0, entries: 0 }.slot_of(7), 0);
    }

    #[test]
    fn first_entry_and_header_of_the_specified_example() {
        let mut header = IndexHeader::decode(&[0; 40]);
        assert_eq!(header.next_entry(), 1);
        let hash = index_key_hash("TopicTest", "KeyA");
        let time_diff_s = header.time_diff_s(1_700_000_000_123);
        let entry = IndexEntry { hash, physical_offset: 1024, time_diff_s, previous: 0 };
        assert_eq!(entry.encode().to_vec(), hex("62c2dd1c 0000000000000400 00000000 00000000"));
        header = IndexHeader {
            begin_timestamp: 1_700_000_000_123,
            end_timestamp: 1_700_000_000_123,
            begin_physical: 1024,
            end_physical: 1024,
            slot_count: 1,
            index_count: 2,
        };
        let text = "0000018bcfe5687b 0000018bcfe5687b 0000000000000400 0000000000000400 00000001 00000002";
        assert_eq!(header.encode().to_vec(), hex(text));
        assert_eq!(entry.store_timestamp(&header), 1_700_000_000_123);
    }

    #[test]
    fn seconds_are_cut_and_clamped() {
        let header = IndexHeader { begin_timestamp: 1_000_000, ..IndexHeader::default() };
        assert_eq!(header.time_diff_s(1_002_500), 2);
        assert_eq!(header.time_diff_s(999_999), 0);
        assert_eq!(header.time_diff_s(0), 0);
        assert_eq!(header.time_diff_s(i64::MAX), i32::MAX);
        assert_eq!(IndexHeader::default().time_diff_s(5_000), 0);
        // After a roll, the entry counts from the end of the previous file; then the header changes.
        let rolled = IndexHeader { begin_timestamp: 1_060_000, ..IndexHeader::default() };
        let time_diff_s = rolled.time_diff_s(1_090_000);
        let own = IndexHeader { begin_timestamp: 1_090_000, ..IndexHeader::default() };
        assert_eq!(IndexEntry { time_diff_s, ..IndexEntry::default() }.store_timestamp(&own), 1_120_000);
    }

    #[test]
    fn geometries_of_a_length() {
        let small = IndexGeometry { slots: 5, entries: 10 };
        let all: Vec<_> = geometries_for_len(small.file_len()).collect();
        assert!(all.contains(&small));
        assert_eq!(all.first(), Some(&IndexGeometry { slots: 45, entries: 2 }));
        assert_eq!(all.last(), Some(&small));
        assert_eq!(geometries_for_len(0).count(), 0);
        assert_eq!(geometries_for_len(41).count(), 0);
        assert_eq!(geometries_for_len(40 + 44).map(|g| (g.slots, g.entries)).collect::<Vec<_>>(), [(1, 2)]);
        let default = IndexGeometry::default();
        assert!(geometries_for_len(default.file_len()).skip(19_000_000).any(|g| g == default));
    }

    proptest! {
        #[test]
        fn geometries_have_their_length(len in prop_oneof![0u64..4000, any::<u64>()]) {
            for geometry in geometries_for_len(len).take(50).chain(geometries_for_len(len).rev().take(50)) {
                prop_assert_eq!(geometry.file_len(), len);
                prop_assert!(geometry.slots >= 1 && geometry.entries >= 2);
            }
        }

        #[test]
        fn every_geometry_is_found(slots in 1u32..300, entries in 2u32..300) {
            let geometry = IndexGeometry { slots, entries };
            prop_assert!(geometries_for_len(geometry.file_len()).any(|g| g == geometry));
        }

        #[test]
        fn any_bytes_come_back(entry in any::<[u8; 20]>(), a in any::<[u8; 32]>(), b in any::<[u8; 8]>(), t: i64) {
            prop_assert_eq!(IndexEntry::decode(&entry).encode(), entry);
            let bytes: [u8; 40] = [a.as_slice(), &b].concat().try_into().unwrap();
            let header = IndexHeader::decode(&bytes);
            prop_assert_eq!(header.encode(), bytes);
            let _ = (header.next_entry(), header.time_diff_s(t), IndexEntry::decode(&entry).store_timestamp(&header));
        }

        #[test]
        fn slots_are_in_range(slots in 1u32.., hash: i32) {
            let geometry = IndexGeometry { slots, entries: 2 };
            prop_assert!(geometry.slot_of(hash) < slots);
        }
    }
}
