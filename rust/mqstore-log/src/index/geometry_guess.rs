//! The geometry of an index file with an unreadable header, guessed from its first entries.
//!
//! This module only reads, in one pass over the file. Entry 0 is never used. So entry 1 follows 20 bytes of zeros, and
//! its distance from the end of the file is a multiple of 20 bytes:
//!
//! ```text
//! ????? | slots of S .......... | 0 0 0 .. | entry 1: previous 0 | entry 2: previous 0 or 1 | ...     N entries
//! ```
//!
//! A place matches if the entries there lead back to earlier ones of the same slot, and their slots lead to them or to
//! later ones. It gives the geometry if no other place matches.
//!
//! Source: `IndexFile#putKey`, `IndexHeader`, whose count begins with 1.

use std::io;

use mqstore_format::index::{INDEX_ENTRY_BYTES, INDEX_HEADER_BYTES, INDEX_SLOT_BYTES};
use mqstore_format::{IndexEntry, IndexGeometry};
use mqstore_io::VfsFile;

use super::file::is_possible;

/// Maximum number of places to try.
pub(super) const PLACES_TRIED: usize = 65_536;

/// Maximum number of geometries to check closely.
pub(super) const GEOMETRIES_TRIED: usize = 64;

/// Bytes of one read.
pub(super) const CHUNK_BYTES: u64 = 1 << 20;

/// Minimum number of entries that a place must have, and maximum number to check.
const LEAST_ENTRIES: u32 = 3;
const MOST_ENTRIES: u32 = 256;

/// Returns the only geometry that matches the first entries of a file of `len` bytes; `None` if there is none, or
/// several.
pub(super) fn guess_geometry(file: &dyn VfsFile, len: u64) -> io::Result<Option<IndexGeometry>> {
    let (mut found, mut tried) = (Vec::new(), 0);
    let step = INDEX_ENTRY_BYTES as u64;
    let mut at = len % step;
    let mut buffer = Vec::new();
    let mut blank = false;
    while let Some(data) = file.next_data(at)? {
        if data >= at + step {
            at += (data - at) / step * step;
            blank = true;
        }
        let bytes = len.saturating_sub(at).min(CHUNK_BYTES) / step * step;
        if bytes == 0 {
            break;
        }
        buffer.resize(bytes as usize, 0);
        file.read_exact_at(&mut buffer, at)?;
        for (place, entry) in (at..).step_by(INDEX_ENTRY_BYTES).zip(buffer.as_chunks::<INDEX_ENTRY_BYTES>().0)
        {
            let is_blank = *entry == [0; INDEX_ENTRY_BYTES];
            if blank && !is_blank && is_first(&IndexEntry::decode(entry)) {
                tried += 1;
                found.extend(geometry_at(file, len, place)?);
            }
            blank = is_blank;
        }
        if tried > PLACES_TRIED || found.len() > GEOMETRIES_TRIED {
            return Ok(None);
        }
        at += bytes;
    }
    Ok(if let [geometry] = found[..] { Some(geometry) } else { None })
}

fn is_first(entry: &IndexEntry) -> bool {
    entry.previous == 0 && entry.hash >= 0 && entry.physical_offset >= 0 && entry.time_diff_s >= 0
}

/// Returns the geometry with entry 1 at `place`, if the entries from there on match it.
fn geometry_at(file: &dyn VfsFile, len: u64, place: u64) -> io::Result<Option<IndexGeometry>> {
    let before = (INDEX_HEADER_BYTES + INDEX_ENTRY_BYTES) as u64;
    let Some(slots) = place.checked_sub(before).map(|bytes| bytes / INDEX_SLOT_BYTES as u64) else {
        return Ok(None);
    };
    let entries = (len - place) / INDEX_ENTRY_BYTES as u64 + 1;
    let (Ok(slots), Ok(entries)) = (u32::try_from(slots), u32::try_from(entries)) else { return Ok(None) };
    let geometry = IndexGeometry { slots, entries };
    if !is_possible(geometry) || geometry.file_len() != len || geometry.entry_position(1) != place {
        return Ok(None);
    }
    let mut hashes = vec![0];
    for number in 1..entries.min(MOST_ENTRIES) {
        let mut bytes = [0; INDEX_ENTRY_BYTES];
        file.read_exact_at(&mut bytes, geometry.entry_position(number))?;
        if bytes == [0; INDEX_ENTRY_BYTES] {
            break;
        }
        let entry = IndexEntry::decode(&bytes);
        let slot = geometry.slot_of(entry.hash);
        let mut newest = [0; 4];
        file.read_exact_at(&mut newest, geometry.slot_position(slot))?;
        let newest = u32::from_be_bytes(newest);
        let previous = usize::try_from(entry.previous).ok().and_then(|previous| hashes.get(previous));
        let leads_back = previous.is_some_and(|hash| entry.previous == 0 || geometry.slot_of(*hash) == slot);
        if entry.hash < 0 || entry.physical_offset < 0 || !leads_back || newest < number || newest >= entries
        {
            return Ok(None);
        }
        hashes.push(entry.hash);
    }
    Ok((hashes.len() as u32 > LEAST_ENTRIES).then_some(geometry))
}
