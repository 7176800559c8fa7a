//! Adds entries, and rolls to the next file when one is full.
//!
//! This module follows `IndexFile#putKey` and `IndexService#getAndCreateLastIndexFile` byte for byte:
//!
//! - The first entry has number 1, and a file takes N - 1 entries.
//! - The seconds of an entry count from the begin time that the header has *before* the entry.
//! - A new file starts with the end of the one before it as its begin, until its own first entry.
//!
//! A new file gets its length and its header in staging, and is then named. A crash before that leaves only a staged
//! file.
//!
//! Source: `IndexService#buildIndex`, `#putKey`, `#getAndCreateLastIndexFile`, `IndexFile#putKey`.

use std::path::{Path, PathBuf};

use mqstore_format::{IndexFileTime, IndexHeader, index_file_name};
use mqstore_io::LocalTime;
use mqstore_io::sync::Arc;

use super::file::{GROUP_ENTRIES, IndexFile, NewEntry, WriteMap};
use super::set::{IndexSet, Writer};
use mqstore_base::error::{IoContext, StoreError};

/// Maximum number of names to try for one file.
const NAME_TRIES: u32 = 10_000;

impl IndexSet {
    /// Adds entries in log order. An entry for a record before [`Self::end_physical`] exists already and is skipped. An
    /// entry for the record at that offset is added again, as in RocketMQ. After an error, any number of the first
    /// entries is added.
    pub fn put(&self, entries: &[NewEntry]) -> Result<(), StoreError> {
        self.writable("write index entries")?;
        let mut writer = self.writer();
        let mut end_physical = self.end_physical();
        let mut current: Option<(Arc<IndexFile>, WriteMap)> = None;
        let mut rest = entries;
        while let Some((first, later)) = rest.split_first() {
            if first.physical_offset < end_physical {
                rest = later;
                continue;
            }
            if current.as_ref().is_none_or(|(file, _)| file.is_full()) {
                let file = match self.last().filter(|file| !file.is_full()) {
                    Some(file) => file,
                    None => self.roll(&mut writer)?,
                };
                let map = file.map()?;
                current = Some((file, map));
            }
            if let Some((file, map)) = &current {
                // The file is not full, so it takes at least one entry.
                let count = file.put(map, ascending(rest))?.clamp(1, rest.len());
                let (added, later) = rest.split_at(count);
                end_physical = added.last().map_or(end_physical, |entry| entry.physical_offset);
                rest = later;
            }
        }
        Ok(())
    }

    /// Begins a new file if most entries of the last one are for records before `log_min`, so that
    /// [`Self::remove_below`] can remove the last one soon. It would end only after its last entry otherwise.
    pub fn leave_old_file(&self, log_min: u64) -> Result<(), StoreError> {
        self.writable("begin an index file")?;
        let mut writer = self.writer();
        if let Some(last) = self.last()
            && last.is_mostly_before(log_min)?
        {
            self.roll(&mut writer)?;
            last.unmap();
        }
        Ok(())
    }

    /// Creates the file after the last one.
    fn roll(&self, writer: &mut Writer) -> Result<Arc<IndexFile>, StoreError> {
        let header = next_header(self.last().map(|file| file.known_header()));
        let geometry = self.geometry();
        let (staged, file) = self.stage(writer)?;
        // The first entry needs the page of the header, and the writer reserves the rest when it needs it.
        let bytes = header.encode();
        let filled = file
            .allocate_front(geometry.file_len(), bytes.len() as u64)
            .and_then(|_| file.write_all_at(&bytes, 0));
        drop(file);
        let named = filled.at(&staged, "allocating an index file").and_then(|()| self.name(writer, &staged));
        match named {
            Ok(path) => Ok(self.push(path, header)),
            Err(error) => {
                // The first error is the one to report; the next open empties the staging folder.
                let _ = self.store_files().vfs.remove_file(&staged);
                Err(error)
            }
        }
    }

    /// Gives the staged file the next free name.
    fn name(&self, writer: &mut Writer, staged: &Path) -> Result<PathBuf, StoreError> {
        let files = self.store_files();
        let folder = files.index();
        let now = file_time(files.clock.local_time(files.clock.now_ms()));
        let mut time = writer.last_name.map_or(now, |last| now.max(last.successor()));
        for _ in 0..NAME_TRIES {
            let name = index_file_name(&time).map_err(|error| StoreError::format(&folder, 0, &error))?;
            let path = folder.join(name);
            match files.vfs.rename_noreplace(staged, &path) {
                Ok(()) => {
                    writer.last_name = Some(time);
                    writer.mark_folder(&folder);
                    return Ok(path);
                }
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => time = time.successor(),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    files.vfs.create_dir_all(&folder).at(&folder, "creating the index folder")?;
                    writer.mark_folder(&files.root);
                }
                Err(error) => return Err(StoreError::io(&path, "naming an index file", error)),
            }
        }
        Err(StoreError::Busy { reason: format!("{}: no name is free for an index file", folder.display()) })
    }
}

/// Returns the first entries, at most [`GROUP_ENTRIES`], while their log offsets do not descend.
fn ascending(entries: &[NewEntry]) -> &[NewEntry] {
    let group = entries.get(..GROUP_ENTRIES).unwrap_or(entries);
    let neighbours = group.iter().zip(group.iter().skip(1));
    let ordered = neighbours.take_while(|(left, right)| left.physical_offset <= right.physical_offset);
    group.get(..ordered.count() + 1).unwrap_or(group)
}

/// Returns the header of a file after one with the header `previous`.
fn next_header(previous: Option<IndexHeader>) -> IndexHeader {
    let end = previous.unwrap_or_default();
    let timestamp = end.end_timestamp.max(0);
    let physical = end.end_physical.max(0);
    IndexHeader {
        begin_timestamp: timestamp,
        end_timestamp: timestamp,
        begin_physical: physical,
        end_physical: physical,
        slot_count: 0,
        index_count: 1,
    }
}

fn file_time(time: LocalTime) -> IndexFileTime {
    IndexFileTime {
        year: time.year.clamp(0, 9999) as u16,
        month: time.month as u8,
        day: time.day as u8,
        hour: time.hour as u8,
        minute: time.minute as u8,
        second: time.second as u8,
        millis: time.millisecond as u16,
    }
}
