//! One index file: its header, its slots and its entries.
//!
//! ```text
//! index/20240209030405006
//!   0            header: begin and end time, begin and end physical offset, slots used, next entry
//!   40           slots: number of the newest entry of a chain, 0 for none
//!   40 + 4 S     entries: hash 4 | physical offset 8 | seconds 4 | number of the older entry 4
//! ```
//!
//! The writer allocates a file in staging, names it, and writes it through a map: entry, header, slot, in that order.
//! So neither a kill nor a reader in another process finds a slot whose entry the header does not count. Readers use
//! positional reads; in the writer's process they read the newest files through their maps.
//!
//! Owns the ways to reach its bytes. A file that is being written is mapped, after its room was
//! allocated, and its header is kept in memory; any other file is read through a map that the cache of open
//! files keeps, and by position in a process that does not write. Nobody but the writer, which holds the
//! set's lock, changes a byte.
//!
//! Source: `IndexFile`, `IndexHeader`.

use std::io;
use std::path::PathBuf;

use mqstore_format::index::{INDEX_ENTRY_BYTES, INDEX_HEADER_BYTES};
use mqstore_format::{IndexEntry, IndexGeometry, IndexHeader};
use mqstore_io::switch;
use mqstore_io::sync::{Arc, AtomicBool, Ordering, RwLock};
use mqstore_io::{Access, FileCache, MapAccess, RecentMaps, Region, RegionError, VfsFile};

use mqstore_base::error::{IoContext, StoreError};

/// One entry to be: a key of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewEntry {
    /// [`mqstore_format::index_key_hash`] of topic and key.
    pub hash: i32,
    /// Where the record starts in the log.
    pub physical_offset: i64,
    /// The record's store time, epoch milliseconds.
    pub store_timestamp: i64,
    /// Whether it is the one of the record's tags, which not every writer adds.
    pub of_tags: bool,
}

/// Whether a geometry has a slot and room for an entry, in a file that can be mapped.
pub(super) fn is_possible(geometry: IndexGeometry) -> bool {
    let limit = i32::MAX as u32;
    (1..=limit).contains(&geometry.slots) && (2..=limit).contains(&geometry.entries)
}

/// Entries that are added in one turn: their slots are fetched side by side.
pub(super) const GROUP_ENTRIES: usize = 64;

/// Positions of the header's fields.
const BEGIN_TIMESTAMP: usize = 0;
const END_TIMESTAMP: usize = 8;
const BEGIN_PHYSICAL: usize = 16;
const END_PHYSICAL: usize = 24;
const SLOT_COUNT: usize = 32;
const INDEX_COUNT: usize = 36;

/// One file of the index.
#[derive(Debug)]
pub(super) struct IndexFile {
    pub(super) path: PathBuf,
    pub(super) geometry: IndexGeometry,
    cache: Arc<FileCache>,
    access: Access,
    state: RwLock<State>,
    dirty: AtomicBool,
    /// The map for look-ups, of which there is one.
    maps: RecentMaps,
}

#[derive(Debug)]
struct State {
    header: IndexHeader,
    map: Option<WriteMap>,
}

/// The bytes of a file that is written.
#[derive(Clone, Debug)]
pub(super) struct WriteMap {
    file: Arc<dyn VfsFile>,
    region: Region,
}

/// An entry on its way into a file.
#[derive(Clone, Copy, Default)]
struct PreparedEntry {
    slot_position: usize,
    /// All but the number of the older entry.
    bytes: [u8; INDEX_ENTRY_BYTES],
}

/// The bytes of a file that is read.
#[derive(Debug)]
pub(super) enum Source {
    Map(Region),
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
        let state = RwLock::new(State { header, map: None });
        // Whether an earlier process synced what it wrote is not known; asking again is cheap.
        let dirty = AtomicBool::new(access == Access::ReadWrite);
        Self { path, geometry, cache: Arc::clone(cache), access, state, dirty, maps: RecentMaps::default() }
    }

    /// The header: in memory where this process is the writer, else as it is on disk now.
    pub(super) fn header(&self) -> Result<IndexHeader, StoreError> {
        if self.access == Access::ReadWrite {
            return Ok(self.state.read().header);
        }
        read_header(&*self.open()?).at(&self.path, "reading an index header")
    }

    /// The header as it was when the file was loaded, or written since.
    pub(super) fn known_header(&self) -> IndexHeader {
        self.state.read().header
    }

    /// Whether no entry fits any more.
    pub(super) fn is_full(&self) -> bool {
        self.known_header().next_entry() >= self.geometry.entries
    }

    /// Its descriptor, for reading by position.
    pub(super) fn open(&self) -> Result<Arc<dyn VfsFile>, StoreError> {
        self.cache.get(&self.path, Access::Read).at(&self.path, "opening an index file")
    }

    /// The bytes, for a look-up.
    pub(super) fn source(&self) -> Result<Source, StoreError> {
        if let Some(map) = &self.state.read().map {
            return Ok(Source::Map(map.region.clone()));
        }
        match self.in_memory() {
            Some(map) => Ok(Source::Map(Region::clone(&map))),
            None => self.open().map(Source::File),
        }
    }

    /// All of it in memory, in the process that writes the index; another one may cut the file.
    fn in_memory(&self) -> Option<Arc<Region>> {
        if self.access == Access::Read {
            return None;
        }
        let map = || self.cache.map(&self.path, Access::ReadWrite, self.geometry.file_len());
        self.maps.get(0, map).ok()
    }

    /// The bytes, for the writer: takes the file's room on disk and maps it.
    pub(super) fn map(&self) -> Result<WriteMap, StoreError> {
        let mut state = self.state.write();
        if let Some(map) = &state.map {
            return Ok(map.clone());
        }
        let file = self
            .cache
            .get(&self.path, Access::ReadWrite)
            .and_then(|file| file.allocate(self.geometry.file_len()).map(|()| file))
            .at(&self.path, "allocating an index file")?;
        let region = usize::try_from(self.geometry.file_len())
            .map_err(|_| io::ErrorKind::FileTooLarge.into())
            .and_then(|len| file.map(0, len, MapAccess::ReadWrite))
            .at(&self.path, "mapping an index file")?;
        let map = WriteMap { file, region };
        state.map = Some(map.clone());
        Ok(map)
    }

    /// Gives the map back until it is written to again.
    pub(super) fn unmap(&self) {
        self.state.write().map = None;
    }

    /// Adds the first of `new`, at most [`GROUP_ENTRIES`] and those that there is room for, and answers how
    /// many. The caller holds the writer's lock.
    ///
    /// Each entry is put as if it came alone, so that a kill between any two stores leaves what it always
    /// left. Look-ups in this process wait meanwhile: they would meet slots that the header in memory does
    /// not count yet.
    pub(super) fn put(&self, map: &WriteMap, new: &[NewEntry]) -> Result<usize, StoreError> {
        let mut state = self.state.write();
        let room = self.geometry.entries.saturating_sub(state.header.next_entry()) as usize;
        // What comes behind the first entry of a file counts its seconds from that one.
        let most = if state.header.next_entry() <= 1 { 1 } else { GROUP_ENTRIES };
        let group = new.get(..new.len().min(room).min(most)).unwrap_or_default();
        let written = self.put_group(&map.region, &mut state.header, group);
        self.dirty.store(true, Ordering::Release);
        written.map_err(io::Error::from).at(&self.path, "writing an index entry")?;
        Ok(group.len())
    }

    fn put_group(
        &self,
        region: &Region,
        header: &mut IndexHeader,
        group: &[NewEntry],
    ) -> Result<(), RegionError> {
        let mut entries = [PreparedEntry::default(); GROUP_ENTRIES];
        for (entry, new) in entries.iter_mut().zip(group) {
            entry.slot_position = self.geometry.slot_position(self.geometry.slot_of(new.hash)) as usize;
            // Slots lie anywhere in the file. Asked for one after the other, without a use of the answers,
            // they come from memory side by side.
            region.load_u32_be_acquire(entry.slot_position)?;
            // Made here, the bytes are long in memory when they are copied.
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

    /// The steps of `IndexFile#putKey`; the entry comes first, the slot that makes it reachable last.
    fn put_key(
        &self,
        region: &Region,
        header: &mut IndexHeader,
        new: &NewEntry,
        entry: &mut PreparedEntry,
    ) -> Result<(), RegionError> {
        let number = header.next_entry();
        let newest = region.load_u32_be_acquire(entry.slot_position)?;
        // A slot that points ahead is a leftover; RocketMQ, too, begins its chain anew.
        let previous = if newest < number { newest } else { 0 };
        if let Some(place) = entry.bytes.last_chunk_mut() {
            // The number of the older entry stands last.
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
        region.store_u32_be_release(SLOT_COUNT, header.slot_count.cast_unsigned())?;
        region.store_u32_be_release(INDEX_COUNT, header.index_count.cast_unsigned())?;
        region.store_i64_be_release(END_PHYSICAL, header.end_physical)?;
        region.store_i64_be_release(END_TIMESTAMP, header.end_timestamp)?;
        region.store_u32_be_release(entry.slot_position, number)
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    /// Syncs what changed; a full file then gives its map back.
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

impl Source {
    /// The number of the newest entry in the chain of `slot`.
    pub(super) fn slot(&self, geometry: IndexGeometry, slot: u32) -> io::Result<u32> {
        let position = geometry.slot_position(slot);
        match self {
            Self::Map(region) => Ok(region.load_u32_be_acquire(position as usize)?),
            Self::File(file) => {
                let mut bytes = [0; 4];
                file.read_exact_at(&mut bytes, position)?;
                Ok(u32::from_be_bytes(bytes))
            }
        }
    }

    /// Entry `number`, which the header counts.
    pub(super) fn entry(&self, geometry: IndexGeometry, number: u32) -> io::Result<IndexEntry> {
        let position = geometry.entry_position(number);
        let mut bytes = [0; INDEX_ENTRY_BYTES];
        match self {
            Self::Map(region) => region.read(position as usize, &mut bytes)?,
            Self::File(file) => file.read_exact_at(&mut bytes, position)?,
        }
        Ok(IndexEntry::decode(&bytes))
    }
}

/// Reads the header of a file that is not written by this process.
pub(super) fn read_header(file: &dyn VfsFile) -> io::Result<IndexHeader> {
    let mut bytes = [0; INDEX_HEADER_BYTES];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(IndexHeader::decode(&bytes))
}

/// Why `header` cannot be that of a file with `geometry`.
pub(super) fn header_damage(header: &IndexHeader, geometry: IndexGeometry) -> Option<String> {
    if header.index_count < 0 || header.next_entry() > geometry.entries {
        let text = format!("its header counts {} entries of {}", header.index_count, geometry.entries);
        return Some(text);
    }
    let physical = header.begin_physical < 0 || header.end_physical < 0;
    physical.then(|| "its header names a place before the start of the log".to_owned())
}
