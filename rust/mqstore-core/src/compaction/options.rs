//! What a compaction may be told.

use super::geometry::{CompactionGeometry, DEFAULT_LOG_FILE_BYTES, DEFAULT_QUEUE_FILE_BYTES};
use super::json::{Fields, malformed, parse};
use crate::error::StoreError;

/// The default of [`CompactionOptions::memory_bytes`].
const DEFAULT_MEMORY_BYTES: u64 = 256 << 20;

/// Options of one compaction job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactionOptions {
    /// Names the job; a job that was published before does nothing. Default: a fresh id.
    pub job_id: Option<String>,
    /// Wished bytes of a log file, in a store without compacted files. Default 104,857,600.
    /// `compactionMappedFileSize`.
    pub log_file_bytes: u64,
    /// Wished bytes of a sparse queue file, likewise. Default 10,485,760. `compactionCqMappedFileSize`.
    pub queue_file_bytes: u64,
    /// Bytes that the key digests of one task may take in memory, any number; with little of it a task
    /// takes more rounds. Two bits a record come on top. Default 256 MiB. `maxOffsetMapSize` /
    /// `compactionThreadNum`.
    pub memory_bytes: u64,
    /// Whether topics are compacted that are no compaction topics: RocketMQ keeps such files and serves
    /// the topic from the commit log as before. Default false.
    pub force: bool,
}

impl Default for CompactionOptions {
    fn default() -> Self {
        Self {
            job_id: None,
            log_file_bytes: DEFAULT_LOG_FILE_BYTES,
            queue_file_bytes: DEFAULT_QUEUE_FILE_BYTES,
            memory_bytes: DEFAULT_MEMORY_BYTES,
            force: false,
        }
    }
}

impl CompactionOptions {
    /// From a JSON object with any of the fields; null counts as missing.
    ///
    /// # Errors
    /// [`StoreError::InvalidOption`] for an unknown field, a wrong type or a value out of bounds.
    pub fn from_json(text: &str) -> Result<Self, StoreError> {
        let value = parse("compaction options", text)?;
        let fields = Fields::of("compaction options", &value)?;
        let mut options = Self::default();
        for name in fields.names() {
            if fields.optional(name).is_none() {
                continue;
            }
            match name {
                "job_id" => options.job_id = Some(fields.text(name)?.to_owned()),
                "log_file_bytes" => options.log_file_bytes = fields.u64(name)?,
                "queue_file_bytes" => options.queue_file_bytes = fields.u64(name)?,
                "memory_bytes" => options.memory_bytes = fields.u64(name)?,
                "force" => options.force = fields.flag(name)?,
                _ => {
                    let known = "job_id, log_file_bytes, queue_file_bytes, memory_bytes, force";
                    return Err(malformed(
                        "compaction options",
                        &format!("has no field {name:?}; there are {known}"),
                    ));
                }
            }
        }
        options.geometry()?;
        Ok(options)
    }

    /// The lengths of files in a store that has none yet.
    pub(crate) fn geometry(&self) -> Result<CompactionGeometry, StoreError> {
        CompactionGeometry::from_settings(self.log_file_bytes, self.queue_file_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_optional_and_checked() {
        assert_eq!(CompactionOptions::from_json("{}").unwrap(), CompactionOptions::default());
        let options =
            CompactionOptions::from_json(r#"{"force": true, "memory_bytes": 0, "job_id": null}"#).unwrap();
        assert!(options.force && options.memory_bytes == 0 && options.job_id.is_none());
        for wrong in [r#"{"forse": true}"#, r#"{"force": 1}"#, r#"{"queue_file_bytes": 91}"#, "[]", ""] {
            assert!(CompactionOptions::from_json(wrong).is_err(), "{wrong}");
        }
    }
}
