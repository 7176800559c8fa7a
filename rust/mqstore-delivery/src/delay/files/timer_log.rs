//! The timer log: the order in which records entered the slots of the wheel.
//!
//! Owns `timerlog/`. Units are only appended, and only for records that are durable in the commit log. After an
//! append, call [`TimerLog::sync`] before any file refers to the units. [`TimerLog::cut`] zeroes the bytes after the
//! known end, so that a broker does not read them as units. Source: `TimerLog`, `MappedFileQueue`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_base::error::IoContext;
use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;
use mqstore_format::delays::timer::{
    TIMER_BLANK_BYTES, TIMER_UNIT_BYTES, TimerEntry, TimerUnit, encode_timer_blank,
};
use mqstore_format::{offset_file_name, parse_offset_file_name};
use mqstore_io::{Access, FileKind, VfsFile, switch};

use super::timer_wheel::{new_file, remove};

const UNIT: u64 = TIMER_UNIT_BYTES as u64;
/// Bytes in one read.
const READ_BYTES: u64 = 8192 * UNIT;

/// The timer log; see the module's text.
#[derive(Debug)]
pub(crate) struct TimerLog {
    files: StoreFiles,
    folder: PathBuf,
    file_bytes: u64,
    /// By the position of their first byte.
    segments: BTreeMap<u64, Arc<dyn VfsFile>>,
    unsynced: BTreeSet<u64>,
    end: u64,
}

impl TimerLog {
    /// Opens the log of the store at `files`. New files have `file_bytes` bytes, unless files exist. The caller sets
    /// the end of the log. `None` if the files are not a valid timer log.
    pub(crate) fn open(
        files: &StoreFiles,
        file_bytes: u64,
        access: Access,
    ) -> Result<Option<Self>, StoreError> {
        let folder = files.timer_log();
        let mut found = BTreeMap::new();
        let mut length = None;
        let entries = match files.vfs.list(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(StoreError::io(&folder, "listing the timer log", error)),
        };
        for entry in entries {
            let base = entry.name.to_str().and_then(parse_offset_file_name);
            let (FileKind::File, Some(base)) = (entry.stat.kind, base) else { continue };
            let len = *length.get_or_insert(entry.stat.len);
            let follows = found
                .last_key_value()
                .is_none_or(|(before, _): (&u64, _)| before.checked_add(len) == Some(base));
            if len < UNIT + TIMER_BLANK_BYTES as u64 || entry.stat.len != len || !follows {
                return Ok(None);
            }
            let path = folder.join(&entry.name);
            found.insert(base, files.vfs.open(&path, access).at(&path, "opening a timer log")?);
        }
        let end = found.first_key_value().map_or(0, |(base, _)| *base);
        let file_bytes = length.unwrap_or(file_bytes);
        let unsynced = BTreeSet::new();
        Ok(Some(Self { files: files.clone(), folder, file_bytes, segments: found, unsynced, end }))
    }

    /// One past the last unit.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Returns the start of the first file and the end of the last one.
    pub(crate) fn bounds(&self) -> (u64, u64) {
        let begin = self.segments.first_key_value().map_or(0, |(base, _)| *base);
        let end = self.segments.last_key_value().map_or(begin, |(base, _)| base + self.file_bytes);
        (begin, end)
    }

    fn path(&self, base: u64) -> PathBuf {
        self.folder.join(offset_file_name(base))
    }

    fn base(&self, position: u64) -> u64 {
        let begin = self.segments.first_key_value().map_or(0, |(base, _)| *base);
        position - position.saturating_sub(begin) % self.file_bytes
    }

    /// Returns the position of a unit that is appended after `end`. It is in the next file if this one has no space
    /// for the unit and a blank.
    pub(crate) fn next_unit_position(&self, end: u64) -> u64 {
        let next = self.base(end) + self.file_bytes;
        if next - end < UNIT + TIMER_BLANK_BYTES as u64 { next } else { end }
    }

    /// Writes units at the positions that consecutive calls of [`Self::next_unit_position`] returned.
    pub(crate) fn append(&mut self, units: &[(u64, TimerUnit)]) -> Result<(), StoreError> {
        let mut end = self.end;
        let mut buffer = Vec::new();
        for run in units.chunk_by(|(before, _), (after, _)| before + UNIT == *after) {
            let Some((start, _)) = run.first() else { continue };
            if *start != end {
                let left = start.saturating_sub(end);
                let blank = encode_timer_blank(u32::try_from(left).unwrap_or(u32::MAX));
                self.write(end, &blank)?;
            }
            buffer.clear();
            for (_, unit) in run {
                buffer.extend_from_slice(&unit.encode());
            }
            self.write(*start, &buffer)?;
            end = start + buffer.len() as u64;
        }
        self.end = end;
        Ok(())
    }

    fn write(&mut self, position: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let base = self.base(position);
        let path = self.path(base);
        let file = if let Some(file) = self.segments.get(&base) {
            Arc::clone(file)
        } else {
            let made = new_file(&self.files, &path, self.file_bytes)?;
            self.segments.insert(base, Arc::clone(&made));
            made
        };
        self.unsynced.insert(base);
        file.write_all_at(bytes, position - base).at(&path, "writing the timer log")
    }

    /// Makes all appended units durable.
    pub(crate) fn sync(&mut self) -> Result<(), StoreError> {
        for base in &self.unsynced {
            let Some(file) = self.segments.get(base) else { continue };
            let path = self.folder.join(offset_file_name(*base));
            switch::step("delay.sync_log", || file.sync_data()).at(&path, "syncing the timer log")?;
        }
        self.unsynced.clear();
        Ok(())
    }

    /// Returns the unit at `position`; `None` if there is none.
    pub(crate) fn unit(&self, position: i64) -> Result<Option<TimerUnit>, StoreError> {
        let Ok(place) = u64::try_from(position) else { return Ok(None) };
        let base = self.base(place);
        let (Some(file), true) = (self.segments.get(&base), place < self.end) else { return Ok(None) };
        let mut bytes = [0; TIMER_UNIT_BYTES];
        if place - base + UNIT > self.file_bytes {
            return Ok(None);
        }
        file.read_exact_at(&mut bytes, place - base).at(&self.path(base), "reading the timer log")?;
        Ok(match TimerEntry::decode(&bytes, position) {
            TimerEntry::Unit(unit) => Some(unit),
            _ => None,
        })
    }

    /// Calls `visit` with the units from `from` to `end`, or to the first bytes that are not a unit. Returns the
    /// position at which it stops, and makes it the end of the log.
    pub(crate) fn walk(
        &mut self,
        from: u64,
        end: u64,
        mut visit: impl FnMut(i64, TimerUnit) -> Result<(), StoreError>,
    ) -> Result<u64, StoreError> {
        let mut at = from;
        let mut buffer = Vec::new();
        'files: while at < end {
            let base = self.base(at);
            let Some(file) = self.segments.get(&base) else { break };
            let left = (base + self.file_bytes - at).min(end - at) / UNIT * UNIT;
            if left == 0 {
                // The rest of the file is too short for a unit.
                at = base + self.file_bytes;
                continue;
            }
            buffer.resize(left.min(READ_BYTES) as usize, 0);
            file.read_exact_at(&mut buffer, at - base).at(&self.path(base), "reading the timer log")?;
            for bytes in buffer.as_chunks::<TIMER_UNIT_BYTES>().0 {
                match TimerEntry::decode(bytes, at as i64) {
                    TimerEntry::Unit(unit) => visit(at as i64, unit)?,
                    TimerEntry::Blank => {
                        at = base + self.file_bytes;
                        continue 'files;
                    }
                    _ => break 'files,
                }
                at += UNIT;
            }
        }
        self.end = at.min(end.max(from));
        Ok(self.end)
    }

    /// Makes `end` the end of the log and zeroes all written bytes after it.
    pub(crate) fn cut(&mut self, end: u64) -> Result<(), StoreError> {
        self.end = end;
        let bases: Vec<u64> =
            self.segments.keys().copied().filter(|base| base + self.file_bytes > end).collect();
        for base in bases {
            let path = self.path(base);
            let Some(file) = self.segments.get(&base) else { continue };
            let mut at = end.max(base);
            let mut changed = false;
            while let Some(data) = file.next_data(at - base).at(&path, "looking for data in the timer log")? {
                at = at.max(base + data);
                let len = (base + self.file_bytes).saturating_sub(at).min(READ_BYTES) as usize;
                let mut bytes = vec![0; len];
                file.read_exact_at(&mut bytes, at - base).at(&path, "reading the timer log")?;
                if bytes.iter().any(|byte| *byte != 0) {
                    file.write_all_at(&vec![0; len], at - base).at(&path, "writing the timer log")?;
                    changed = true;
                }
                at += len as u64;
                if len == 0 || at >= base + self.file_bytes {
                    break;
                }
            }
            if changed {
                self.unsynced.insert(base);
            }
        }
        self.sync()
    }

    /// Returns the start of the first file to keep, for [`Self::remove_before`]. The records of all earlier files are
    /// below `log_min`, the first offset of the commit log.
    pub(crate) fn first_kept_file(&self, log_min: u64) -> Result<u64, StoreError> {
        let (mut begin, _) = self.bounds();
        while begin + self.file_bytes < self.end {
            // The last position at which a unit fits, whatever the file has after its last unit.
            let units = (self.file_bytes - TIMER_BLANK_BYTES as u64) / UNIT;
            let last = self.unit((begin + (units - 1) * UNIT) as i64)?;
            if last.is_none_or(|unit| unit.physical_offset as u64 >= log_min) {
                break;
            }
            begin += self.file_bytes;
        }
        Ok(begin)
    }

    pub(crate) fn remove_before(&mut self, begin: u64) -> Result<(), StoreError> {
        while let Some(base) = self.segments.keys().next().copied().filter(|base| *base < begin) {
            self.remove(base)?;
        }
        Ok(())
    }

    pub(crate) fn reset(&mut self) -> Result<(), StoreError> {
        while let Some((base, _)) = self.segments.first_key_value() {
            let base = *base;
            self.remove(base)?;
        }
        self.unsynced.clear();
        self.end = 0;
        Ok(())
    }

    fn remove(&mut self, base: u64) -> Result<(), StoreError> {
        let path: &Path = &self.path(base);
        remove(&self.files, path)?;
        self.segments.remove(&base);
        self.unsynced.remove(&base);
        Ok(())
    }
}
