//! One index file: its header, its slots and its entries.
//!
//! ```text
//! index/20240209030405006
//!   0            header: begin and end time, begin and end log offset, slots used, next entry
//!   40           slots: number of the newest entry of a chain, 0 for none
//!   40 + 4 S     entries: hash 4 | log offset 8 | seconds 4 | number of the older entry 4
//! ```
//!
//! The writer creates a file in staging, names it, and writes it through a map, in the order entry, header, slot. Each
//! part gets its disk space before ([`super::space`]). So
//! neither a kill nor a reader in another process finds a slot whose entry the header does not count. The counts are the
//! last store to the header: a kill before it leaves an entry that does not exist, a kill after it one that only its
//! slot does not name. The next open for writing links it ([`IndexFile::link_newest`]).
//!
//! This module owns all access to the bytes of a file. The writer maps the file that it writes, and keeps its header in
//! memory. The writing process reads other files through maps that the cache of open files keeps. In both, a slot that
//! may be in a hole is read by position. A process that does not write uses positional reads. Only the writer, which
//! holds the lock of the set, changes a byte.
//!
//! Source: `IndexFile`, `IndexHeader`.

use std::io;
use std::path::PathBuf;

use mqstore_format::index::{INDEX_ENTRY_BYTES, INDEX_HEADER_BYTES};
use mqstore_format::{IndexEntry, IndexGeometry, IndexHeader};
use mqstore_io::switch;
use mqstore_io::sync::{Arc, AtomicBool, Ordering, RwLock};
use mqstore_io::{Access, FileCache, MapAccess, RecentMaps, Region, RegionError, VfsFile};

use super::space::IndexSpace;
use mqstore_base::error::{IoContext, StoreError};

/// A new entry: one key of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewEntry {
    /// [`mqstore_format::index_key_hash`] of topic and key.
    pub hash: i32,
    /// Log offset of the record.
    pub physical_offset: i64,
    /// Store time of the record in epoch milliseconds.
    pub store_timestamp: i64,
    /// Whether it is an entry for tags, which not every version of RocketMQ writes.
    pub of_tags: bool,
}

/// Whether a geometry has at least one slot and one entry, in a file that can be mapped.
pub(super) fn is_possible(geometry: IndexGeometry) -> bool {
    let limit = i32::MAX as u32;
    (1..=limit).contains(&geometry.slots) && (2..=limit).contains(&geometry.entries)
}

/// Maximum entries of one step; their slots are prefetched in parallel.
pub(super) const GROUP_ENTRIES: usize = 64;

/// Positions of the header's fields.
const BEGIN_TIMESTAMP: usize = 0;
const END_TIMESTAMP: usize = 8;
const BEGIN_PHYSICAL: usize = 16;
const END_PHYSICAL: usize = 24;
/// Slots in use, and the number of the next entry: one aligned word, so that one store changes both.
const COUNTS: usize = 32;

/// One file of the index.
#[derive(Debug)]
pub(super) struct IndexFile {
    pub(super) path: PathBuf,
    pub(super) geometry: IndexGeometry,
    cache: Arc<FileCache>,
    access: Access,
    state: RwLock<IndexFileState>,
    dirty: AtomicBool,
    /// The pages that have space for certain.
    space: Arc<IndexSpace>,
    /// Whether the whole file had space when a lookup mapped it.
    has_no_holes: AtomicBool,
    /// The map for lookups, at most one.
    maps: RecentMaps,
}

#[derive(Debug)]
struct IndexFileState {
    header: IndexHeader,
    map: Option<WriteMap>,
}

/// The map of a file, and the pages of it that are no holes for certain.
#[derive(Clone, Debug)]
pub(super) struct WriteMap {
    file: Arc<dyn VfsFile>,
    region: Region,
    pub(super) space: Arc<IndexSpace>,
}

/// An entry that is about to be written.
#[derive(Clone, Copy, Default)]
struct PreparedEntry {
    slot_position: usize,
    /// The bytes of the entry, complete except the number of the older entry.
    bytes: [u8; INDEX_ENTRY_BYTES],
}

/// The access to a file that is read.
#[derive(Debug)]
pub(super) enum IndexBytes {
    /// A map of a file without holes.
    Map(Region),
    /// A map of a file that may have holes: the file that is written, or an older one.
    Sparse(WriteMap),
    File(Arc<dyn VfsFile>),
}

impl IndexFile {
    pub(super) fn new(
        path: PathBuf,
        geometry: IndexGeometry,
        cache: &Arc<FileCache>,
        access: Access,
        header: IndexHeader,
    ) -> Self {
        let state = RwLock::new(IndexFileState { header, map: None });
        // An earlier process may not have synced its writes; one more sync is cheap.
        let dirty = AtomicBool::new(access == Access::ReadWrite);
        Self {
            path,
            geometry,
            cache: Arc::clone(cache),
            access,
            state,
            dirty,
            space: Arc::new(IndexSpace::new(geometry, header.next_entry())),
            has_no_holes: AtomicBool::new(false),
            maps: RecentMaps::default(),
        }
    }

    /// Returns the header: from memory if this process is the writer, else from the disk.
    pub(super) fn header(&self) -> Result<IndexHeader, StoreError> {
        if self.access == Access::ReadWrite {
            return Ok(self.state.read().header);
        }
        read_header(&*self.open()?).at(&self.path, "reading an index header")
    }

    /// Returns the header as it was when the file was loaded, or last written.
    pub(super) fn known_header(&self) -> IndexHeader {
        self.state.read().header
    }

    /// Whether no more entry fits.
    pub(super) fn is_full(&self) -> bool {
        self.known_header().next_entry() >= self.geometry.entries
    }

    /// Whether all entries are for records before `log_min`, or more than half of them, with more bytes than the slots
    /// of a new file take.
    pub(super) fn is_mostly_before(&self, log_min: u64) -> Result<bool, StoreError> {
        let header = self.known_header();
        let is_before = |physical: i64| u64::try_from(physical).is_ok_and(|at| at < log_min);
        let entries = header.next_entry() - 1;
        if entries == 0 || is_before(header.end_physical) {
            return Ok(entries > 0);
        }
        let slots_as_entries = u64::from(self.geometry.slots) * 4 / INDEX_ENTRY_BYTES as u64;
        let Some(number) = u32::try_from(slots_as_entries).ok().map(|least| least.max(entries / 2) + 1)
        else {
            return Ok(false);
        };
        if number > entries {
            return Ok(false);
        }
        let entry = self.source()?.entry(self.geometry, number).at(&self.path, "reading an index entry")?;
        Ok(is_before(entry.physical_offset))
    }

    /// Opens the file for positional reads.
    pub(super) fn open(&self) -> Result<Arc<dyn VfsFile>, StoreError> {
        self.cache.get(&self.path, Access::Read).at(&self.path, "opening an index file")
    }

    /// Returns the access for a lookup.
    pub(super) fn source(&self) -> Result<IndexBytes, StoreError> {
        if let Some(map) = &self.state.read().map {
            return Ok(IndexBytes::Sparse(map.clone()));
        }
        let Some(map) = self.in_memory() else { return self.open().map(IndexBytes::File) };
        let region = Region::clone(&map);
        if self.has_no_holes.load(Ordering::Acquire) {
            return Ok(IndexBytes::Map(region));
        }
        Ok(IndexBytes::Sparse(WriteMap { file: self.open()?, region, space: Arc::clone(&self.space) }))
    }

    /// Maps the complete file. A process that only reads uses no map, because the writer could cut the file under it.
    fn in_memory(&self) -> Option<Arc<Region>> {
        if self.access == Access::Read {
            return None;
        }
        let map = || {
            let len = self.geometry.file_len();
            let stat = self.cache.get(&self.path, Access::ReadWrite)?.stat()?;
            self.has_no_holes.store(stat.allocated_bytes >= len, Ordering::Release);
            self.cache.map(&self.path, Access::ReadWrite, len)
        };
        self.maps.get(&self.cache, 0, map).ok()
    }

    /// Returns the access for the writer; maps the file.
    pub(super) fn map(&self) -> Result<WriteMap, StoreError> {
        let mut state = self.state.write();
        if let Some(map) = &state.map {
            return Ok(map.clone());
        }
        let file = self.cache.get(&self.path, Access::ReadWrite).at(&self.path, "opening an index file")?;
        let region = usize::try_from(self.geometry.file_len())
            .map_err(|_| io::ErrorKind::FileTooLarge.into())
            .and_then(|len| file.map(0, len, MapAccess::ReadWrite))
            .at(&self.path, "mapping an index file")?;
        let map = WriteMap { file, region, space: Arc::clone(&self.space) };
        state.map = Some(map.clone());
        Ok(map)
    }

    /// Releases the map until the next write.
    pub(super) fn unmap(&self) {
        self.state.write().map = None;
    }

    /// Adds the first entries of `new`: at most [`GROUP_ENTRIES`], and only those that fit. Returns their number. The
    /// caller holds the writer's lock.
    ///
    /// Each entry is written as if it came alone, so a kill between any two stores leaves a normal state. Lookups in
    /// this process wait meanwhile; they would meet slots that the header in memory does not count yet.
    pub(super) fn put(&self, map: &WriteMap, new: &[NewEntry]) -> Result<usize, StoreError> {
        let mut state = self.state.write();
        let space = self.geometry.entries.saturating_sub(state.header.next_entry()) as usize;
        // The seconds of later entries count from the first entry of the file, so the first one is written alone.
        let most = if state.header.next_entry() <= 1 { 1 } else { GROUP_ENTRIES };
        let group = new.get(..new.len().min(space).min(most)).unwrap_or_default();
        let written = self.put_group(map, &mut state.header, group);
        self.dirty.store(true, Ordering::Release);
        written.at(&self.path, "writing an index entry")?;
        Ok(group.len())
    }

    fn put_group(&self, map: &WriteMap, header: &mut IndexHeader, group: &[NewEntry]) -> io::Result<()> {
        let WriteMap { file, region, space } = map;
        let mut entries = [PreparedEntry::default(); GROUP_ENTRIES];
        for (entry, new) in entries.iter_mut().zip(group) {
            let position = self.geometry.slot_position(self.geometry.slot_of(new.hash));
            space.reserve_slot(&**file, position)?;
            entry.slot_position = position as usize;
        }
        let first = header.next_entry();
        space.reserve_entries(&**file, first..first + group.len() as u32)?;
        for (entry, new) in entries.iter_mut().zip(group) {
            // Slots are at random places in the file. These loads do not depend on each other, so memory delivers them
            // in parallel.
            region.load_u32_be_acquire(entry.slot_position)?;
            // Encoded in this loop, the bytes are in memory well before they are copied.
            entry.bytes = IndexEntry {
                hash: new.hash,
                physical_offset: new.physical_offset,
                time_diff_s: header.time_diff_s(new.store_timestamp),
                previous: 0,
            }
            .encode();
        }
        for (entry, new) in entries.iter_mut().zip(group) {
            let mut next = *header;
            self.put_key(region, &mut next, new, entry)?;
            *header = next;
        }
        Ok(())
    }

    /// Does the steps of `IndexFile#putKey`: the entry is first, and the slot that makes it reachable is last.
    fn put_key(
        &self,
        region: &Region,
        header: &mut IndexHeader,
        new: &NewEntry,
        entry: &mut PreparedEntry,
    ) -> Result<(), RegionError> {
        let number = header.next_entry();
        let newest = region.load_u32_be_acquire(entry.slot_position)?;
        // A slot that points ahead is a leftover; RocketMQ starts a new chain there too.
        let previous = if newest < number { newest } else { 0 };
        if let Some(place) = entry.bytes.last_chunk_mut() {
            // The number of the older entry is the last field.
            *place = previous.to_be_bytes();
        }
        region.write(self.geometry.entry_position(number) as usize, &entry.bytes)?;
        if number <= 1 {
            header.begin_physical = new.physical_offset;
            header.begin_timestamp = new.store_timestamp;
            region.store_i64_be_release(BEGIN_PHYSICAL, header.begin_physical)?;
            region.store_i64_be_release(BEGIN_TIMESTAMP, header.begin_timestamp)?;
        }
        header.slot_count = header.slot_count.saturating_add(i32::from(previous == 0));
        header.index_count = (number + 1).cast_signed();
        header.end_physical = new.physical_offset;
        header.end_timestamp = new.store_timestamp;
        // The end comes before the counts. A kill between them leaves a file that ends with the record that the next
        // open indexes again; after the counts, the header says nothing about an entry that is not complete.
        region.store_i64_be_release(END_PHYSICAL, header.end_physical)?;
        region.store_i64_be_release(END_TIMESTAMP, header.end_timestamp)?;
        region.store_i64_be_release(COUNTS, counts(header))?;
        region.store_u32_be_release(entry.slot_position, number)
    }

    /// Links the newest entry if a kill came between the counts in the header and the slot: then the slot still names
    /// the older entry, and the next entry of this chain would leave the newest one out.
    pub(super) fn link_newest(&self) -> Result<(), StoreError> {
        let header = self.known_header();
        let newest = header.next_entry() - 1;
        if newest == 0 {
            return Ok(());
        }
        let bytes = IndexBytes::File(self.open()?);
        let entry = bytes.entry(self.geometry, newest).at(&self.path, "reading an index entry")?;
        let slot = self.geometry.slot_of(entry.hash);
        let named = bytes.slot(self.geometry, slot).at(&self.path, "reading an index slot")?;
        let is_unlinked = named < newest && u32::try_from(entry.previous) == Ok(named);
        // Damage may look like this. It stays for verify if the entry is not that of the last record.
        if !is_unlinked || entry.hash < 0 || entry.physical_offset != header.end_physical {
            return Ok(());
        }
        self.dirty.store(true, Ordering::Release);
        self.cache
            .get(&self.path, Access::ReadWrite)
            .and_then(|file| file.write_all_at(&newest.to_be_bytes(), self.geometry.slot_position(slot)))
            .at(&self.path, "writing an index slot")
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    /// Syncs the changes; then releases the map of a full file.
    pub(super) fn flush(&self) -> Result<(), StoreError> {
        if self.access == Access::Read || !self.dirty.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let mapped = self.state.read().map.clone();
        let file = match mapped {
            Some(map) => Ok(map.file),
            None => self.cache.get(&self.path, Access::ReadWrite),
        };
        let synced = file.and_then(|file| switch::step("index.sync_file", || file.sync_data()));
        if synced.is_err() {
            self.dirty.store(true, Ordering::Release);
        } else if self.is_full() {
            self.state.write().map = None;
        }
        synced.at(&self.path, "syncing an index file")
    }
}

/// Returns the word at [`COUNTS`].
fn counts(header: &IndexHeader) -> i64 {
    i64::from(header.slot_count) << 32 | i64::from(header.index_count.cast_unsigned())
}

impl IndexBytes {
    /// Returns the number of the newest entry in the chain of `slot`.
    pub(super) fn slot(&self, geometry: IndexGeometry, slot: u32) -> io::Result<u32> {
        let position = geometry.slot_position(slot);
        match self {
            Self::Map(region) => Ok(region.load_u32_be_acquire(position as usize)?),
            Self::Sparse(map) if map.space.has_slot(position) => {
                Ok(map.region.load_u32_be_acquire(position as usize)?)
            }
            Self::Sparse(WriteMap { file, space, .. }) => {
                let newest = read_slot(&**file, position)?;
                if newest != 0 {
                    // A hole has only zeros.
                    space.note_slot(position);
                }
                Ok(newest)
            }
            Self::File(file) => read_slot(&**file, position),
        }
    }

    /// Returns entry `number`, which the header counts.
    pub(super) fn entry(&self, geometry: IndexGeometry, number: u32) -> io::Result<IndexEntry> {
        let position = geometry.entry_position(number);
        let mut bytes = [0; INDEX_ENTRY_BYTES];
        match self {
            Self::Sparse(WriteMap { region, .. }) | Self::Map(region) => {
                region.read(position as usize, &mut bytes)?;
            }
            Self::File(file) => file.read_exact_at(&mut bytes, position)?,
        }
        Ok(IndexEntry::decode(&bytes))
    }
}

fn read_slot(file: &dyn VfsFile, position: u64) -> io::Result<u32> {
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, position)?;
    Ok(u32::from_be_bytes(bytes))
}

/// Reads the header of a file that this process does not write.
pub(super) fn read_header(file: &dyn VfsFile) -> io::Result<IndexHeader> {
    let mut bytes = [0; INDEX_HEADER_BYTES];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(IndexHeader::decode(&bytes))
}

/// Returns why `header` is not possible for a file with `geometry`; `None` if it is.
pub(super) fn header_damage(header: &IndexHeader, geometry: IndexGeometry) -> Option<String> {
    if header.index_count < 0 || header.next_entry() > geometry.entries {
        let text = format!(
            "its header counts {} entries, but the file holds at most {}",
            header.index_count, geometry.entries
        );
        return Some(text);
    }
    let physical = header.begin_physical < 0 || header.end_physical < 0;
    physical.then(|| "its header contains a negative log offset".to_owned())
}
