//! The units of a Raft index, read in the order of the entries.
//!
//! The unit of entry i is at byte 32 i of the logical file. The files are much longer than their units, so only the
//! parts with units are read.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::PathBuf;

use mqstore_format::{RAFT_UNIT_BYTES, RaftUnit};
use mqstore_io::{FileLength, MapAccess, MappedFileQueue};

use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::{RaftLog, StoreFiles};

/// Bytes of one read.
const CHUNK_BYTES: u64 = 2048 * RAFT_UNIT_BYTES as u64;

/// The unit of an entry.
#[derive(Debug)]
pub enum FoundUnit {
    /// The file that would contain it is missing, or the unit was never written.
    None,
    /// The unit, its file and its offset there.
    Unit(RaftUnit, PathBuf, u64),
}

/// See the header of this module.
pub struct RaftUnits {
    files: Option<MappedFileQueue>,
    chunk: Vec<u8>,
    /// Position of `chunk` in the logical file.
    start: u64,
}

impl RaftUnits {
    /// Lists the files of the index of `log`.
    pub fn load(files: &StoreFiles, log: &RaftLog) -> Result<Self, StoreError> {
        let folder = log.index();
        let length = FileLength::Discover { default: RAFT_UNIT_BYTES as u64 };
        let folders = std::slice::from_ref(&folder);
        let files = match MappedFileQueue::load_dirs(
            &files.vfs,
            folders,
            length,
            MapAccess::Read,
            &BTreeSet::new(),
        ) {
            Ok((files, _)) => Some(files),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(StoreError::io(&folder, "listing the Raft index", error)),
        };
        Ok(Self { files, chunk: Vec::new(), start: 0 })
    }

    /// Returns the unit of the entry `index`.
    pub fn unit(&mut self, index: i64) -> Result<FoundUnit, StoreError> {
        let position = u64::try_from(index).ok().and_then(|index| index.checked_mul(RAFT_UNIT_BYTES as u64));
        let file = position.and_then(|position| self.files.as_ref()?.find(position));
        let Some((position, file)) = position.zip(file) else { return Ok(FoundUnit::None) };
        let is_inside = position
            .checked_sub(self.start)
            .is_some_and(|skip| skip + RAFT_UNIT_BYTES as u64 <= self.chunk.len() as u64);
        if !is_inside {
            let len = CHUNK_BYTES.min(file.end_offset() - position) as usize;
            self.chunk.resize(len, 0);
            let open = file.file().at_file(|| file.path(), "opening the Raft index")?;
            open.read_exact_at(&mut self.chunk, position - file.base_offset())
                .at_file(|| file.path(), "reading the Raft index")?;
            self.start = position;
        }
        let skip = (position - self.start) as usize;
        let bytes = self.chunk.get(skip..skip + RAFT_UNIT_BYTES).unwrap_or_default();
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(FoundUnit::None);
        }
        let offset = position - file.base_offset();
        let unit =
            RaftUnit::decode(bytes).map_err(|error| StoreError::format(&file.path(), offset, &error))?;
        Ok(FoundUnit::Unit(unit, file.path(), offset))
    }
}
