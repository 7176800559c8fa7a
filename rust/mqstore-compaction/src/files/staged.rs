//! The files that a task writes: the folders in its staging folder, the lengths and the checksums.

use std::io;

use mqstore_format::Crc31;
use mqstore_io::VfsFile;
use serde::{Deserialize, Serialize};

/// Folder of the logs in a staging folder.
pub(crate) const STAGED_LOGS: &str = "log";

/// Folder of the queues in a staging folder.
pub(crate) const STAGED_QUEUES: &str = "cq";

/// Bytes of one read of a checksum.
const CHUNK_BYTES: usize = 1 << 20;

/// A file that a task wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputFile {
    /// Bytes up to the last one that is not zero fill.
    pub used_bytes: u64,
    /// `crc31` of these bytes.
    pub crc: u32,
}

/// A log file and a queue file that a task wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputPair {
    /// Their base offset, which is their name.
    pub base: u64,
    /// Units in the queue file, without the end marker.
    pub units: u64,
    /// The log file.
    pub log: OutputFile,
    /// The queue file.
    pub queue: OutputFile,
}

/// Returns the checksum of the first `len` bytes.
pub(crate) fn crc_of(file: &dyn VfsFile, len: u64) -> io::Result<u32> {
    let mut crc = Crc31::new();
    let mut chunk = vec![0; CHUNK_BYTES.min(len as usize)];
    let mut position = 0;
    while position < len {
        let part = ((len - position) as usize).min(chunk.len());
        let part = chunk.get_mut(..part).unwrap_or_default();
        file.read_exact_at(part, position)?;
        crc.update(part);
        position += part.len() as u64;
    }
    Ok(crc.finish())
}
