//! Detection of the geometry of index files.
//!
//! The files do not contain it: a length of 40 + 4 S + 20 N bytes fits many pairs. A known or configured geometry is
//! used if its length fits and the newest entries match. Otherwise this module searches for it. The header counts the
//! entries and names the log offset of the last one. Between two possible pairs, the place of the last entry differs by
//! a multiple of 20 bytes. One pass over the file finds the places that can be the last entry, and the chains decide
//! between them.
//!
//! ```text
//! header: c entries, the last for a record at P
//! slots of S ......| entry 0 | 1 | ... | c-1: hash h, offset P ...    slot (h mod S) must hold c-1
//! ```
//!
//! This module only reads. Time and memory are bounded: one pass, and a fixed maximum of places to try.

use std::io;

use mqstore_format::index::{INDEX_ENTRY_BYTES, INDEX_HEADER_BYTES};
use mqstore_format::{IndexEntry, IndexGeometry, IndexHeader, geometries_for_len};
use mqstore_io::{Access, Vfs, VfsFile};

use super::discover::{FoundFile, common_len};
use super::file::{is_possible, read_header};
use super::geometry_guess::{CHUNK_BYTES, GEOMETRIES_TRIED, PLACES_TRIED, guess_geometry};
use mqstore_base::error::{IoContext, StoreError};

/// Number of entries to follow when a geometry is checked.
const PROBED_ENTRIES: u32 = 4096;

/// Maximum number of files to check.
const FILES_ASKED: usize = 4;

/// The result of checking a geometry against files.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GeometryVerdict {
    Agrees,
    Disagrees,
    /// No file has an entry.
    Silent,
}

/// Returns the geometry of `files`; `None` without files, or if it cannot be found.
pub(super) fn choose_geometry(
    vfs: &dyn Vfs,
    files: &[FoundFile],
    known: Option<IndexGeometry>,
    configured: IndexGeometry,
) -> Result<Option<IndexGeometry>, StoreError> {
    let Some(len) = common_len(files) else { return Ok(None) };
    if let Some(known) = known.filter(|known| is_possible(*known) && known.file_len() == len) {
        return Ok(Some(known));
    }
    // The newest files are tried first.
    let asked: Vec<&FoundFile> =
        files.iter().rev().filter(|file| file.len == len).take(FILES_ASKED).collect();
    let mut fallback = None;
    for candidate in [configured, IndexGeometry::default()] {
        if !is_possible(candidate) || candidate.file_len() != len {
            continue;
        }
        if verdict(vfs, &asked, candidate)? != GeometryVerdict::Disagrees {
            return Ok(Some(candidate));
        }
        fallback = fallback.or(Some(candidate));
    }
    if let Some(found) = only_fit(vfs, &asked)?.or(fallback) {
        return Ok(Some(found));
    }
    for found in &asked {
        let Some(file) = open(vfs, found)? else { continue };
        if let Some(found) = guess_geometry(&*file, len).at(&found.path, "reading an index file")? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn verdict(
    vfs: &dyn Vfs,
    files: &[&FoundFile],
    geometry: IndexGeometry,
) -> Result<GeometryVerdict, StoreError> {
    let mut verdict = GeometryVerdict::Silent;
    for found in files {
        let Some(file) = open(vfs, found)? else { continue };
        let said = check_geometry(&*file, geometry).at(&found.path, "reading an index file")?;
        match said {
            GeometryVerdict::Disagrees => return Ok(said),
            GeometryVerdict::Agrees => verdict = said,
            GeometryVerdict::Silent => {}
        }
    }
    Ok(verdict)
}

fn only_fit(vfs: &dyn Vfs, files: &[&FoundFile]) -> Result<Option<IndexGeometry>, StoreError> {
    for found in files {
        let Some(file) = open(vfs, found)? else { continue };
        let header = read_header(&*file).at(&found.path, "reading an index header")?;
        if header.next_entry() < 2 {
            continue;
        }
        let mut fits = fits(&*file, found.len, &header).at(&found.path, "reading an index file")?;
        let mut index = 0;
        while let Some(&geometry) = fits.get(index) {
            if verdict(vfs, files, geometry)? == GeometryVerdict::Agrees {
                index += 1;
            } else {
                fits.remove(index);
            }
        }
        if let [geometry] = fits[..] {
            return Ok(Some(geometry));
        }
    }
    Ok(None)
}

fn open(vfs: &dyn Vfs, found: &FoundFile) -> Result<Option<std::sync::Arc<dyn VfsFile>>, StoreError> {
    match vfs.open(&found.path, Access::Read) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::io(&found.path, "opening an index file", error)),
    }
}

/// Whether the newest entries of `file` are at the places of `geometry`.
fn check_geometry(file: &dyn VfsFile, geometry: IndexGeometry) -> io::Result<GeometryVerdict> {
    let header = read_header(file)?;
    let next = header.next_entry();
    if next < 2 {
        return Ok(GeometryVerdict::Silent);
    }
    if next > geometry.entries {
        return Ok(GeometryVerdict::Disagrees);
    }
    let oldest = next.saturating_sub(PROBED_ENTRIES).max(1);
    for number in (oldest..next).rev() {
        if !entry_matches(file, geometry, number, &header)? {
            return Ok(GeometryVerdict::Disagrees);
        }
    }
    Ok(GeometryVerdict::Agrees)
}

/// Whether entry `number` is at its place in `geometry`, and its slot and predecessor belong to it.
fn entry_matches(
    file: &dyn VfsFile,
    geometry: IndexGeometry,
    number: u32,
    header: &IndexHeader,
) -> io::Result<bool> {
    let entry = entry_at(file, geometry, number)?;
    let slot = geometry.slot_of(entry.hash);
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, geometry.slot_position(slot))?;
    let newest = u32::from_be_bytes(bytes);
    let last = number + 1 == header.next_entry();
    // Another process may be adding entries, so the slot may already name a later one.
    let linked = newest >= number && newest <= geometry.entries;
    if entry.hash < 0 || entry.physical_offset < 0 || entry.time_diff_s < 0 || !linked {
        return Ok(false);
    }
    if last && entry.physical_offset != header.end_physical {
        return Ok(false);
    }
    match u32::try_from(entry.previous) {
        Ok(0) => Ok(true),
        Ok(previous) if previous < number => {
            Ok(geometry.slot_of(entry_at(file, geometry, previous)?.hash) == slot)
        }
        _ => Ok(false),
    }
}

fn entry_at(file: &dyn VfsFile, geometry: IndexGeometry, number: u32) -> io::Result<IndexEntry> {
    let mut bytes = [0; INDEX_ENTRY_BYTES];
    file.read_exact_at(&mut bytes, geometry.entry_position(number))?;
    Ok(IndexEntry::decode(&bytes))
}

/// Returns all geometries for which the chains of `file` match its hashes.
fn fits(file: &dyn VfsFile, len: u64, header: &IndexHeader) -> io::Result<Vec<IndexGeometry>> {
    let (last, mut fits, mut tried) = (header.next_entry() - 1, Vec::new(), 0);
    for place in last_entry_places(file, len, header)? {
        let Some(geometry) = geometry_of(len, place, last) else { continue };
        if !entry_matches(file, geometry, last, header)? {
            continue;
        }
        tried += 1;
        if tried > GEOMETRIES_TRIED {
            return Ok(Vec::new());
        }
        if check_geometry(file, geometry)? == GeometryVerdict::Agrees {
            fits.push(geometry);
        }
    }
    Ok(fits)
}

/// Returns the geometry of a file of `len` bytes whose entry `last` is at `place`.
fn geometry_of(len: u64, place: u64, last: u32) -> Option<IndexGeometry> {
    let slot_bytes = place
        .checked_sub(INDEX_HEADER_BYTES as u64)?
        .checked_sub(u64::from(last) * INDEX_ENTRY_BYTES as u64)?;
    let slots = u32::try_from(slot_bytes / 4).ok()?;
    let entries = (len - place) / INDEX_ENTRY_BYTES as u64 + u64::from(last);
    let geometry = IndexGeometry { slots, entries: u32::try_from(entries).ok()? };
    (is_possible(geometry) && geometry.file_len() == len && geometry.entry_position(last) == place)
        .then_some(geometry)
}

/// Returns the places in the file that look like the last entry, ascending; none if they are too many.
fn last_entry_places(file: &dyn VfsFile, len: u64, header: &IndexHeader) -> io::Result<Vec<u64>> {
    let last = header.next_entry() - 1;
    // The geometry with the most entries has the fewest slots, so its last entry is at the lowest place.
    let Some(lowest) = geometries_for_len(len).next_back() else { return Ok(Vec::new()) };
    let (mut position, step) = (lowest.entry_position(last), INDEX_ENTRY_BYTES as u64);
    let (mut places, mut buffer) = (Vec::new(), Vec::new());
    while position + step <= len {
        // An entry is never all zero, so holes are skipped.
        let Some(data) = file.next_data(position)? else { break };
        if data > position {
            position += (data - position) / step * step;
        }
        let chunk = (len - position).min(CHUNK_BYTES) / step * step;
        if chunk == 0 {
            break;
        }
        buffer.resize(chunk as usize, 0);
        file.read_exact_at(&mut buffer, position)?;
        for (index, bytes) in buffer.as_chunks::<INDEX_ENTRY_BYTES>().0.iter().enumerate() {
            let entry = IndexEntry::decode(bytes);
            if entry.physical_offset == header.end_physical
                && entry.hash >= 0
                && *bytes != [0; INDEX_ENTRY_BYTES]
            {
                places.push(position + index as u64 * step);
            }
        }
        if places.len() > PLACES_TRIED {
            return Ok(Vec::new());
        }
        position += chunk;
    }
    Ok(places)
}
