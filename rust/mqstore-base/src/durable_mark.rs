//! The durable mark: the log offset up to which all bytes are synced.
//!
//! Owns `mqstore/state.a` and `mqstore/state.b`, two slots. A write uses the slot that does not hold the newest synced
//! mark, so a torn write leaves that mark intact. Recovery uses the mark to tell a torn tail (after the mark) from
//! corruption (before it). The mark is written after the sync that it records, never before.
//!
//! ```text
//!   0  8  "MQSSTATE"           8  4  version 2         12  4  flags: 1 closed cleanly, 2 there is a metadata log
//!  16  8  sequence            24  8  log offset up to which the log is synced
//!  32  8  offset of the last record below it           40  4  its size     44  4  CRC of its bytes
//!  48  8  log offset up to which queues and index are synced
//!  56  8  segment length      64  8  queue file length
//!  72  4  index slots         76  4  index entries     80 16  boot id      96  8  newest store time
//! 104  8  offset of the newest record in the index   112  4  index files
//! 116  8  offset of the oldest record in the newest index file               124  4  CRC of the bytes before
//! 128  8  metadata position up to which the metadata log is synced           136  4  CRC of the bytes before
//! ```
//!
//! Flag 4 says that the slot has the bytes from 128 on. Earlier versions do not read them and do not set the flag.
//!
//! Across threads: one writer at a time (the flush step, or close). RocketMQ ignores the folder.

use std::path::PathBuf;

use mqstore_format::{CQ_UNIT_BYTES, Fields, IndexGeometry, crc31};
use mqstore_io::Access;
use mqstore_io::switch;

use crate::error::{IoContext, StoreError};
use crate::options::StoreOptions;
use crate::store_files::StoreFiles;

const MAGIC: &[u8; 8] = b"MQSSTATE";
const VERSION: u32 = 2;
const SLOT_BYTES: usize = 128;
const FLAG_CLEAN: u32 = 1;
const FLAG_METADATA: u32 = 2;
const FLAG_METADATA_END: u32 = 4;
/// Bytes of the part about the end of the metadata log.
const METADATA_END_BYTES: usize = 12;

/// Numbers that differ between two states of an index, known without reading the index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexExtent {
    /// Number of files.
    pub files: u32,
    /// Log offset of the record of the newest file's first entry; 0 if there is none.
    pub newest_begin: i64,
    /// Log offset of the record of the newest entry; 0 if there is none.
    pub end: i64,
}

/// The content of one slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurableMark {
    /// Grows with each write; the slot with the larger number is the newer one.
    pub sequence: u64,
    /// Whether the store was closed cleanly at this mark.
    pub clean: bool,
    /// Whether the store has a metadata log. If its files are missing then, they are lost.
    pub has_metadata: bool,
    /// The metadata position up to which the metadata log is synced; after a clean close its end. `None` if there is no
    /// metadata log, or if an earlier version wrote the mark.
    pub metadata_end: Option<u64>,
    /// The log offset up to which the log is synced.
    pub position: u64,
    /// Log offset of the last record that ends at or before `position`; 0 with size 0 if there is none.
    pub last_offset: u64,
    /// Its size in bytes.
    pub last_size: u32,
    /// The CRC of its bytes.
    pub last_crc: u32,
    /// The log offset up to which queues and index are complete and synced.
    pub dispatched: u64,
    /// Length of a log segment.
    pub segment_bytes: u64,
    /// Length of a consume-queue file.
    pub queue_file_bytes: u64,
    /// Hash slots of an index file.
    pub index_slots: u32,
    /// Entries of an index file.
    pub index_entries: u32,
    /// The boot of the machine during which the mark was written.
    pub boot_id: [u8; 16],
    /// The newest store timestamp that an append has used.
    pub store_timestamp_ms: i64,
    /// The files of the index.
    pub index: IndexExtent,
}

impl DurableMark {
    /// The index geometry of the store.
    pub fn index_geometry(&self) -> IndexGeometry {
        IndexGeometry { slots: self.index_slots, entries: self.index_entries }
    }

    /// Returns `options` with the sizes of files in this mark, except for sizes that `options` sets. A size that equals
    /// the default counts as not set. So a store that has no file yet keeps the sizes with which it was created.
    #[must_use]
    pub fn with_sizes(&self, options: &StoreOptions) -> StoreOptions {
        fn size<T: Copy + PartialEq + Default>(given: T, default: T, known: T) -> T {
            if given == default && known != T::default() { known } else { given }
        }
        let default = StoreOptions::default();
        let entries = u32::try_from(self.queue_file_bytes / CQ_UNIT_BYTES as u64).unwrap_or(0);
        StoreOptions {
            segment_bytes: size(options.segment_bytes, default.segment_bytes, self.segment_bytes),
            queue_file_entries: size(options.queue_file_entries, default.queue_file_entries, entries),
            index_slots: size(options.index_slots, default.index_slots, self.index_slots),
            index_entries: size(options.index_entries, default.index_entries, self.index_entries),
            ..options.clone()
        }
    }

    /// Whether the log, which ends at `log_end`, is unchanged since a clean close.
    pub fn is_clean_end(&self, log_end: u64) -> bool {
        self.clean && self.position == log_end
    }

    /// Whether the log, and the index with the extent `index`, are unchanged since a clean close.
    pub fn is_unchanged_since_close(&self, log_end: u64, index: IndexExtent) -> bool {
        self.is_clean_end(log_end) && self.index == index
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SLOT_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_be_bytes());
        let flags = [
            (self.clean, FLAG_CLEAN),
            (self.has_metadata, FLAG_METADATA),
            (self.metadata_end.is_some(), FLAG_METADATA_END),
        ];
        let flags = flags.iter().filter(|(set, _)| *set).fold(0, |all, (_, flag)| all | flag);
        bytes.extend_from_slice(&flags.to_be_bytes());
        for value in [self.sequence, self.position, self.last_offset] {
            bytes.extend_from_slice(&value.to_be_bytes());
        }
        bytes.extend_from_slice(&self.last_size.to_be_bytes());
        bytes.extend_from_slice(&self.last_crc.to_be_bytes());
        for value in [self.dispatched, self.segment_bytes, self.queue_file_bytes] {
            bytes.extend_from_slice(&value.to_be_bytes());
        }
        bytes.extend_from_slice(&self.index_slots.to_be_bytes());
        bytes.extend_from_slice(&self.index_entries.to_be_bytes());
        bytes.extend_from_slice(&self.boot_id);
        bytes.extend_from_slice(&self.store_timestamp_ms.to_be_bytes());
        bytes.extend_from_slice(&self.index.end.to_be_bytes());
        bytes.extend_from_slice(&self.index.files.to_be_bytes());
        bytes.extend_from_slice(&self.index.newest_begin.to_be_bytes());
        push_crc(&mut bytes);
        if let Some(end) = self.metadata_end {
            bytes.extend_from_slice(&end.to_be_bytes());
            push_crc(&mut bytes);
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut cursor = Fields(checked(bytes.get(..SLOT_BYTES)?)?);
        if cursor.take::<8>()? != *MAGIC || cursor.u32()? != VERSION {
            return None;
        }
        let flags = cursor.u32()?;
        let metadata_end = if flags & FLAG_METADATA_END == 0 {
            None
        } else {
            let extended = checked(bytes.get(..SLOT_BYTES + METADATA_END_BYTES)?)?;
            Some(u64::from_be_bytes(*extended.last_chunk()?))
        };
        Some(Self {
            metadata_end,
            clean: flags & FLAG_CLEAN != 0,
            has_metadata: flags & FLAG_METADATA != 0,
            sequence: cursor.u64()?,
            position: cursor.u64()?,
            last_offset: cursor.u64()?,
            last_size: cursor.u32()?,
            last_crc: cursor.u32()?,
            dispatched: cursor.u64()?,
            segment_bytes: cursor.u64()?,
            queue_file_bytes: cursor.u64()?,
            index_slots: cursor.u32()?,
            index_entries: cursor.u32()?,
            boot_id: cursor.take()?,
            store_timestamp_ms: cursor.i64()?,
            index: IndexExtent { end: cursor.i64()?, files: cursor.u32()?, newest_begin: cursor.i64()? },
        })
    }
}

fn push_crc(bytes: &mut Vec<u8>) {
    let crc = crc31(bytes);
    bytes.extend_from_slice(&crc.to_be_bytes());
}

/// Returns the bytes before the CRC at the end of `bytes`; `None` if it is wrong.
fn checked(bytes: &[u8]) -> Option<&[u8]> {
    let (body, crc) = bytes.split_last_chunk::<4>()?;
    (!switch::on("mark.slot_crc") || *crc == crc31(body).to_be_bytes()).then_some(body)
}

/// The two slots.
#[derive(Clone, Debug)]
pub struct DurableMarkFile {
    files: StoreFiles,
}

impl DurableMarkFile {
    /// Returns the slots of a store; opens no file.
    pub fn new(files: &StoreFiles) -> Self {
        Self { files: files.clone() }
    }

    fn slot(&self, sequence: u64) -> PathBuf {
        let second = switch::on("mark.two_slots") && !sequence.is_multiple_of(2);
        self.files.side().join(if second { "state.b" } else { "state.a" })
    }

    /// Returns the newest mark with a valid checksum. Missing and damaged slots count as absent.
    pub fn load(&self) -> Option<DurableMark> {
        self.try_load().ok().flatten()
    }

    /// Like [`Self::load`], but fails if a slot cannot be read for lack of a descriptor or memory. Without its mark, a
    /// store would be taken for one of RocketMQ.
    pub fn try_load(&self) -> Result<Option<DurableMark>, StoreError> {
        let slots = [self.read_slot(0)?, self.read_slot(1)?];
        let marks = slots.iter().filter_map(|bytes| DurableMark::decode(bytes));
        Ok(marks.max_by_key(|mark| mark.sequence))
    }

    fn read_slot(&self, sequence: u64) -> Result<Vec<u8>, StoreError> {
        self.files.read_state(&self.slot(sequence), 1 << 16)
    }

    /// Writes `mark` to slot a if its sequence is even, else to slot b; syncs it if `durable` is set.
    pub fn store(&self, mark: &DurableMark, durable: bool) -> Result<(), StoreError> {
        let path = self.slot(mark.sequence);
        let file = match self.files.vfs.open(&path, Access::ReadWrite) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let file = self.files.vfs.create_new(&path).at(&path, "making a state slot")?;
                switch::step("mark.sync_slot_name", || self.files.vfs.sync_dir(&self.files.side()))
                    .at(&path, "syncing the side folder")?;
                file
            }
            Err(error) => return Err(StoreError::io(&path, "opening a state slot", error)),
        };
        file.write_all_at(&mark.encode(), 0).at(&path, "writing the durable mark")?;
        if durable {
            switch::step("mark.sync_slot", || file.sync_data()).at(&path, "syncing the durable mark")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark() -> DurableMark {
        DurableMark {
            sequence: 7,
            clean: true,
            has_metadata: true,
            metadata_end: Some(1 << 33),
            position: 1 << 40,
            last_offset: 12,
            last_size: 100,
            last_crc: 5,
            dispatched: 9,
            segment_bytes: 4096,
            queue_file_bytes: 400,
            index_slots: 3,
            index_entries: 8,
            boot_id: [3; 16],
            store_timestamp_ms: -1,
            index: IndexExtent { end: 12, files: 1, newest_begin: -7 },
        }
    }

    #[test]
    fn slot_round_trips() {
        let bytes = mark().encode();
        assert_eq!(bytes.len(), SLOT_BYTES + METADATA_END_BYTES);
        assert_eq!(DurableMark::decode(&bytes), Some(mark()));
    }

    #[test]
    fn a_slot_of_an_earlier_version_has_no_end_of_the_metadata_log() {
        let earlier = DurableMark { sequence: 9, metadata_end: None, ..mark() };
        let bytes = earlier.encode();
        assert_eq!(bytes.len(), SLOT_BYTES);
        assert_eq!(DurableMark::decode(&bytes), Some(earlier));
        // It overwrote the start of a longer slot.
        let mut longer = mark().encode();
        longer[..SLOT_BYTES].copy_from_slice(&bytes);
        assert_eq!(DurableMark::decode(&longer), Some(earlier));
    }

    #[test]
    fn any_flipped_bit_voids_a_slot() {
        let bytes = mark().encode();
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(DurableMark::decode(&damaged), None, "bit {bit}");
        }
        assert_eq!(DurableMark::decode(&bytes[..SLOT_BYTES - 1]), None);
    }
}
