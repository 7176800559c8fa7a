//! The state of delayed messages that mqstore keeps in addition to RocketMQ's files.
//!
//! Owns `mqstore/delays`, two slots that are written alternately, and writes `config/timercheck` and
//! `config/delayOffset.json`. The state describes only durable data: a slot is written after the syncs on which it
//! relies. Brokers write the other two files too. The state has their checksums, known and intended, so an open
//! detects whether a broker wrote them since.
//!
//! ```text
//! 0 and 4096: "MQSDELAY" | version 4 | number 8 | read slot 8 | scan from 8 | as of 8 | queue offset 8 | its record 8
//!             | log begin 8 | log end 8 | wheel end 8 | pending 8 | checksums: timercheck known 4, intended 4,
//!             delayOffset known 4, intended 4 | levels 4 | (level 4 | offset 8)... | CRC 4 over all before it
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use mqstore_base::error::IoContext;
use mqstore_base::error::StoreError;
use mqstore_base::store_files::{LoadedConfig, StoreFiles};
use mqstore_format::delays::timer::TIMER_CHECK_BYTES;
use mqstore_format::json::DelayOffsets;
use mqstore_format::names::{DELAY_OFFSET_FILE, TIMERCHECK_FILE};
use mqstore_format::{DelayLevels, Fields, crc32};
use mqstore_io::{Access, VfsFile, switch};

const MAGIC: &[u8; 8] = b"MQSDELAY";
const VERSION: u32 = 1;
const SLOT: usize = 4096;
/// Maximum number of levels in a slot.
pub(crate) const MOST_LEVELS: usize = DelayLevels::MOST as usize;

/// The content of a slot; see the module's text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DelayState {
    pub(crate) number: u64,
    /// All slots before this time were delivered.
    pub(crate) read_slot: i64,
    /// Deliveries of later slots are after this offset of the commit log.
    pub(crate) scan_from: u64,
    /// `pending` excludes all deliveries before this offset of the commit log.
    pub(crate) as_of: u64,
    /// The first offset of the timer queue that is in neither wheel nor timer log.
    pub(crate) queue_next: i64,
    /// The log offset of the record before it; -1 if there is none.
    pub(crate) last_record: i64,
    /// The timer log starts at this position or earlier.
    pub(crate) log_begin: u64,
    /// The end of the timer log.
    pub(crate) log_end: u64,
    /// The position in the timer log up to which the wheel on disk has its units.
    pub(crate) wheel_end: u64,
    /// Number of waiting messages.
    pub(crate) pending: u64,
    /// Checksums of `timercheck`: known and intended.
    pub(crate) check: [u32; 2],
    /// Checksums of `delayOffset.json`: known and intended.
    pub(crate) offsets: [u32; 2],
    /// The next offset of each delay level.
    pub(crate) levels: BTreeMap<i32, i64>,
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
pub(crate) struct StateFiles {
    files: StoreFiles,
    file: Option<Arc<dyn VfsFile>>,
    number: u64,
}

impl StateFiles {
    fn path(files: &StoreFiles) -> PathBuf {
        files.delays()
    }

    /// Reads the state of the store at `files`.
    pub(crate) fn load(files: &StoreFiles) -> Result<(Self, Option<DelayState>), StoreError> {
        let bytes = files.read_state(&Self::path(files), 2 * SLOT as u64)?;
        let slots = [bytes.get(..SLOT.min(bytes.len())), bytes.get(SLOT..)];
        let states = slots.into_iter().flatten().filter_map(DelayState::decode);
        let newest = states.max_by_key(|state| state.number);
        let number = newest.as_ref().map_or(0, |state| state.number);
        Ok((Self { files: files.clone(), file: None, number }, newest))
    }

    /// Returns a note if the file of the saved state exists and neither slot is valid. With `keep`, makes a copy of it
    /// in `lost+found`.
    pub(crate) fn damage_note(&self, keep: bool) -> Result<Option<String>, StoreError> {
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
    pub(crate) fn store(&mut self, state: &mut DelayState) -> Result<(), StoreError> {
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
                    let mut both = vec![0; 2 * SLOT];
                    let place = both.get_mut(at as usize..).and_then(|slot| slot.get_mut(..bytes.len()));
                    if let Some(place) = place {
                        place.copy_from_slice(&bytes);
                    }
                    return self.files.replace_file(&path, &both, "writing the state of delays");
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
    pub(crate) fn check(&self) -> Vec<u8> {
        self.files.vfs.read_file(&self.check_path(), 1 << 16).unwrap_or_default()
    }

    /// Reads `delayOffset.json` and, if it is missing or damaged, its backup.
    pub(crate) fn offsets(&self) -> Result<LoadedConfig<DelayOffsets>, StoreError> {
        self.files.load_config(DELAY_OFFSET_FILE)
    }

    pub(crate) fn write_timer_check(&self, fields: &[u8]) -> Result<(), StoreError> {
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
        self.files.replace_file(&path, &bytes, "writing the timer's checkpoint")
    }

    /// Replaces `delayOffset.json`. A damaged file is copied first.
    pub(crate) fn write_delay_offsets(&self, text: &[u8]) -> Result<(), StoreError> {
        if let Some(damage) = self.offsets()?.damage() {
            self.files.keep_config(&damage.path, &damage.bytes)?;
        }
        self.files.replace_file(&self.offsets_path(), text, "writing the offsets of delay levels")
    }
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
