//! The state of delayed messages that mqstore keeps in addition to RocketMQ's files.
//!
//! Owns `mqstore/delays`, two slots that are written alternately, and writes `config/timercheck` and
//! `config/delayOffset.json`. The state describes only durable data: a slot is written after the syncs on which it
//! relies. Brokers write the other two files too. The state has their checksums, known and intended, so an open
//! detects whether a broker wrote them since. [`LevelOffsets`] holds the values of `delayOffset.json`. [`SaveState`]
//! holds the saved state and the next one.
//!
//! ```text
//! 0 and 4096: "MQSDELAY" | version 4 | number 8 | read slot 8 | scan from 8 | as of 8 | queue offset 8 | its record 8
//!             | log begin 8 | log end 8 | wheel end 8 | pending 8 | checksums: timercheck known 4, intended 4,
//!             delayOffset known 4, intended 4 | levels 4 | (level 4 | offset 8)... | CRC 4 over all before it
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mqstore_base::error::IoContext;
use mqstore_base::error::StoreError;
use mqstore_base::store_files::{LoadedConfig, StoreFiles};
use mqstore_format::delays::timer::{TIMER_CHECK_BYTES, TimerCheckpoint};
use mqstore_format::json::{DelayOffsets, Dialect};
use mqstore_format::names::{DELAY_OFFSET_FILE, TIMERCHECK_FILE};
use mqstore_format::{DelayLevels, Fields, crc32};
use mqstore_io::{Access, VfsFile, switch};

use super::timer_record::Timed;

const MAGIC: &[u8; 8] = b"MQSDELAY";
const VERSION: u32 = 1;
const SLOT: usize = 4096;
/// Maximum number of levels in a slot.
pub(super) const MOST_LEVELS: usize = DelayLevels::MOST as usize;

/// The content of a slot; see the module's text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DelayState {
    pub(super) number: u64,
    /// All slots before this time were delivered.
    pub(super) read_slot: i64,
    /// Deliveries of later slots are after this offset of the commit log.
    pub(super) scan_from: u64,
    /// `pending` excludes all deliveries before this offset of the commit log.
    pub(super) as_of: u64,
    /// The first offset of the timer queue that is in neither wheel nor timer log.
    pub(super) queue_next: i64,
    /// The log offset of the record before it; -1 if there is none.
    pub(super) last_record: i64,
    /// The timer log starts at this position or earlier.
    pub(super) log_begin: u64,
    /// The end of the timer log.
    pub(super) log_end: u64,
    /// The position in the timer log up to which the wheel on disk has its units.
    pub(super) wheel_end: u64,
    /// Number of waiting messages.
    pub(super) pending: u64,
    /// Checksums of `timercheck`: known and intended.
    pub(super) check: [u32; 2],
    /// Checksums of `delayOffset.json`: known and intended.
    pub(super) offsets: [u32; 2],
    /// The next offset of each delay level.
    pub(super) levels: BTreeMap<i32, i64>,
}

impl DelayState {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SLOT);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_be_bytes());
        bytes.extend_from_slice(&self.number.to_be_bytes());
        bytes.extend_from_slice(&self.read_slot.to_be_bytes());
        for place in [self.scan_from, self.as_of] {
            bytes.extend_from_slice(&place.to_be_bytes());
        }
        for number in [self.queue_next, self.last_record] {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        for place in [self.log_begin, self.log_end, self.wheel_end, self.pending] {
            bytes.extend_from_slice(&place.to_be_bytes());
        }
        for sum in self.check.iter().chain(&self.offsets) {
            bytes.extend_from_slice(&sum.to_be_bytes());
        }
        let count = self.levels.len().min(MOST_LEVELS);
        bytes.extend_from_slice(&(count as u32).to_be_bytes());
        for (level, offset) in self.levels.iter().take(count) {
            bytes.extend_from_slice(&level.to_be_bytes());
            bytes.extend_from_slice(&offset.to_be_bytes());
        }
        let crc = crc32(&bytes);
        bytes.extend_from_slice(&crc.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Fields(bytes);
        if reader.take::<8>()? != *MAGIC || reader.u32()? != VERSION {
            return None;
        }
        let mut state = Self {
            number: reader.u64()?,
            read_slot: reader.i64()?,
            scan_from: reader.u64()?,
            as_of: reader.u64()?,
            queue_next: reader.i64()?,
            last_record: reader.i64()?,
            log_begin: reader.u64()?,
            log_end: reader.u64()?,
            wheel_end: reader.u64()?,
            pending: reader.u64()?,
            check: [reader.u32()?, reader.u32()?],
            offsets: [reader.u32()?, reader.u32()?],
            levels: BTreeMap::new(),
        };
        let count = reader.u32()? as usize;
        if count > MOST_LEVELS {
            return None;
        }
        for _ in 0..count {
            let level = reader.u32()?.cast_signed();
            state.levels.insert(level, reader.i64()?);
        }
        let len = bytes.len() - reader.0.len();
        (reader.u32()? == crc32(bytes.get(..len)?)).then_some(state)
    }
}

/// The three files of the state.
#[derive(Debug)]
pub(super) struct StateFiles {
    files: StoreFiles,
    file: Option<Arc<dyn VfsFile>>,
    number: u64,
}

impl StateFiles {
    fn path(files: &StoreFiles) -> PathBuf {
        files.side().join("delays")
    }

    /// Reads the state of the store at `files`.
    pub(super) fn load(files: &StoreFiles) -> Result<(Self, Option<DelayState>), StoreError> {
        let bytes = files.read_state(&Self::path(files), 2 * SLOT as u64)?;
        let slots = [bytes.get(..SLOT.min(bytes.len())), bytes.get(SLOT..)];
        let states = slots.into_iter().flatten().filter_map(DelayState::decode);
        let newest = states.max_by_key(|state| state.number);
        let number = newest.as_ref().map_or(0, |state| state.number);
        Ok((Self { files: files.clone(), file: None, number }, newest))
    }

    /// Returns a note if the file of the saved state exists and neither slot is valid. With `keep`, makes a copy of it
    /// in `lost+found`.
    pub(super) fn damage_note(&self, keep: bool) -> Result<Option<String>, StoreError> {
        let path = Self::path(&self.files);
        let bytes = self.files.read_config(&path)?.unwrap_or_default();
        if bytes.is_empty() || self.number > 0 {
            return Ok(None);
        }
        let copy = if keep { self.files.keep_config(&path, &bytes)? } else { None };
        let kept =
            copy.map_or_else(String::new, |copy| format!("; a copy of the file is in {}", copy.display()));
        Ok(Some(format!(
            "{}: damaged (neither slot has a valid checksum); the state of delayed messages comes from the log and \
             from RocketMQ's files{kept}",
            path.display()
        )))
    }

    /// Writes `state`; durable when this returns.
    pub(super) fn store(&mut self, state: &mut DelayState) -> Result<(), StoreError> {
        let path = Self::path(&self.files);
        self.number += 1;
        state.number = self.number;
        let mut bytes = state.encode();
        let at = self.number % 2 * SLOT as u64;
        let file = match &self.file {
            Some(file) => file,
            None => match self.files.vfs.open(&path, Access::ReadWrite) {
                Ok(file) => self.file.insert(file),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    let staged = self.files.staging().join("delays");
                    self.files.ensure_folder(&self.files.staging())?;
                    let mut both = vec![0; 2 * SLOT];
                    let place = both.get_mut(at as usize..).and_then(|slot| slot.get_mut(..bytes.len()));
                    if let Some(place) = place {
                        place.copy_from_slice(&bytes);
                    }
                    let written = self.files.vfs.write_atomic(&path, &staged, &both);
                    return written.at(&path, "writing the state of delays");
                }
                Err(error) => return Err(StoreError::io(&path, "opening the state of delays", error)),
            },
        };
        bytes.resize(SLOT, 0);
        file.write_all_at(&bytes, at).at(&path, "writing the state of delays")?;
        switch::step("delay.sync_state", || file.sync_data()).at(&path, "syncing the state of delays")
    }

    fn check_path(&self) -> PathBuf {
        self.files.config().join(TIMERCHECK_FILE)
    }

    fn offsets_path(&self) -> PathBuf {
        self.files.config().join(DELAY_OFFSET_FILE)
    }

    /// Reads `timercheck`; empty if there is none.
    pub(super) fn check(&self) -> Vec<u8> {
        self.files.vfs.read_file(&self.check_path(), 1 << 16).unwrap_or_default()
    }

    /// Reads `delayOffset.json` and, if it is missing or damaged, its backup.
    pub(super) fn offsets(&self) -> Result<LoadedConfig<DelayOffsets>, StoreError> {
        self.files.load_config(DELAY_OFFSET_FILE)
    }

    /// Replaces `timercheck`.
    pub(super) fn write_timer_check(&self, fields: &[u8]) -> Result<(), StoreError> {
        let path = self.check_path();
        let known = self.files.vfs.open(&path, Access::ReadWrite);
        if let Ok(file) = known
            && file.len().is_ok_and(|len| len >= fields.len() as u64)
        {
            file.write_all_at(fields, 0).at(&path, "writing the timer's checkpoint")?;
            return switch::step("delay.sync_check", || file.sync_data())
                .at(&path, "syncing the timer's checkpoint");
        }
        let mut bytes = fields.to_vec();
        bytes.resize(TIMER_CHECK_BYTES, 0);
        self.replace(&path, &bytes, "writing the timer's checkpoint")
    }

    /// Replaces `delayOffset.json`. A damaged file is copied first.
    pub(super) fn write_delay_offsets(&self, text: &[u8]) -> Result<(), StoreError> {
        if let Some(damage) = self.offsets()?.damage() {
            self.files.keep_config(&damage.path, &damage.bytes)?;
        }
        self.replace(&self.offsets_path(), text, "writing the offsets of delay levels")
    }

    fn replace(&self, path: &std::path::Path, bytes: &[u8], action: &'static str) -> Result<(), StoreError> {
        self.files.ensure_folder(&self.files.config())?;
        let staging = self.files.staging_for(path);
        self.files.ensure_folder(&staging)?;
        let staged = staging.join(path.file_name().unwrap_or_default());
        self.files.vfs.write_atomic(path, &staged, bytes).at(path, action)
    }
}

/// The next offsets of the delay levels.
#[derive(Debug)]
pub(super) struct LevelOffsets {
    pub(super) next: BTreeMap<i32, i64>,
    /// Messages from the next offset of their level on that an open found to be delivered.
    pub(super) delivered: BTreeMap<i32, BTreeSet<i64>>,
    /// `delayOffset.json` as last read or written.
    pub(super) file: DelayOffsets,
    pub(super) dialect: Dialect,
    /// Whether the file must be written.
    pub(super) changed: bool,
    /// Whether the saved state covers all deliveries. Otherwise an open searches the log for them.
    pub(super) is_known: bool,
    /// The checksum of the file as it was read.
    pub(super) crc: u32,
}

impl LevelOffsets {
    /// Returns the levels of `loaded`, as `delayOffset.json` was read, and of `state`, the saved state. If the file is
    /// the one that was written with the state, the state counts. If it is missing or damaged, each level has the
    /// highest offset of the two: offsets only grow.
    pub(super) fn new(loaded: LoadedConfig<DelayOffsets>, state: Option<&DelayState>) -> Self {
        let is_whole = loaded.file.is_some() && loaded.damage().is_none();
        let text = loaded.file.as_ref().or(loaded.backup.as_ref()).map(|file| file.bytes.clone());
        let text = text.unwrap_or_default();
        let is_ours = state.filter(|state| state.offsets.contains(&crc32(&text)));
        let file = loaded.into_table().unwrap_or_default();
        let next = file.table.iter().filter(|(level, _)| (1..=MOST_LEVELS as i32).contains(*level));
        let mut next: BTreeMap<i32, i64> = next.map(|(level, offset)| (*level, *offset)).collect();
        if let Some(state) = is_ours {
            next.clone_from(&state.levels);
        } else if !is_whole {
            for (level, offset) in state.into_iter().flat_map(|state| &state.levels) {
                let known = next.entry(*level).or_insert(*offset);
                *known = (*known).max(*offset);
            }
        }
        let dialect = Dialect::of(&text).unwrap_or_default();
        // A file that is missing or damaged is written again.
        let changed = !is_whole && is_ours.is_none() && !next.is_empty();
        let is_known = is_ours.is_some();
        Self { next, delivered: BTreeMap::new(), file, dialect, changed, is_known, crc: crc32(&text) }
    }

    /// Returns the first offset of `level` from `next` on that is not known as delivered, and forgets those before it.
    pub(super) fn skip_delivered(&mut self, level: i32, mut next: i64) -> i64 {
        let Some(delivered) = self.delivered.get_mut(&level) else { return next };
        while delivered.remove(&next) {
            next += 1;
        }
        *delivered = delivered.split_off(&next);
        if delivered.is_empty() {
            self.delivered.remove(&level);
        }
        next
    }

    /// Whether the message at `offset` of `level` is delivered, although it is not before the next offset.
    pub(super) fn is_delivered(&self, level: i32, offset: i64) -> bool {
        self.delivered.get(&level).is_some_and(|delivered| delivered.contains(&offset))
    }

    /// Returns the current text of `delayOffset.json`.
    pub(super) fn write_json(&mut self, now_ms: i64) -> String {
        self.file.table.clone_from(&self.next);
        self.file.data_version = self.file.data_version.next(now_ms);
        self.file.to_json(self.dialect)
    }
}

/// The saved state, and the next one.
#[derive(Debug)]
pub(super) struct SaveState {
    pub(super) files: StateFiles,
    pub(super) state: DelayState,
    pub(super) check: TimerCheckpoint,
    /// Whether anything changed since the last snapshot.
    pub(super) dirty: bool,
    pub(super) snapshot: Option<Box<SaveSnapshot>>,
    /// Time of the last snapshot, on the interval clock.
    pub(super) taken: Duration,
    /// Whether a sync failed. Then nothing more is saved, and the next open uses the last saved state.
    pub(super) failed: bool,
}

/// The content of the next save: the state, and the records that enter the timer log.
#[derive(Debug)]
pub(super) struct SaveSnapshot {
    pub(super) state: DelayState,
    pub(super) units: Vec<Timed>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_comes_back_and_a_changed_byte_is_noticed() {
        let state = DelayState {
            number: 7,
            read_slot: 1_700_000_000,
            scan_from: 4096,
            queue_next: 3,
            last_record: -1,
            check: [1, 2],
            levels: [(3, 12), (18, 1)].into(),
            ..DelayState::default()
        };
        let mut bytes = state.encode();
        assert_eq!(DelayState::decode(&bytes), Some(state.clone()));
        bytes.resize(SLOT, 0);
        assert_eq!(DelayState::decode(&bytes), Some(state));
        for at in 0..120 {
            bytes[at] ^= 0x10;
            assert_eq!(DelayState::decode(&bytes), None, "byte {at}");
            bytes[at] ^= 0x10;
        }
        for len in 0..100 {
            assert_eq!(DelayState::decode(&bytes[..len]), None);
        }
    }
}
