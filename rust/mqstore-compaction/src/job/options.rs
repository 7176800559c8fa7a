//! What a compaction may be told.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::json::{decode, malformed};
use crate::files::file_sizes::{CompactionGeometry, DEFAULT_LOG_FILE_BYTES, DEFAULT_QUEUE_FILE_BYTES};
use mqstore_base::error::StoreError;

/// The default of [`CompactionOptions::memory_bytes`].
const DEFAULT_MEMORY_BYTES: u64 = 100 << 20;

/// The default of [`CompactionOptions::tombstone_retention_ms`]: a day.
const DEFAULT_TOMBSTONE_RETENTION_MS: u64 = 86_400_000;

/// What becomes of records without a key in compacted files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Keyless {
    /// They are dropped and counted, as in RocketMQ.
    #[default]
    Drop,
    /// All of them stay. A broker's own compaction drops them.
    Keep,
    /// A queue that has one is left out.
    Refuse,
}

/// Options of one compaction job.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CompactionOptions {
    /// Names the job; a job that was published before does nothing. Default: a fresh id.
    pub job_id: Option<String>,
    /// Wished bytes of a log file, in a store without compacted files. Default 104,857,600.
    /// `compactionMappedFileSize`.
    pub log_file_bytes: u64,
    /// Wished bytes of a sparse queue file, likewise. Default 10,485,760. `compactionCqMappedFileSize`.
    pub queue_file_bytes: u64,
    /// Bytes that the keys of one task may take in memory, any number; with little of it a task takes
    /// more rounds. One bit a record comes on top. Default 100 MiB. `maxOffsetMapSize` /
    /// `compactionThreadNum`.
    pub memory_bytes: u64,
    /// How long a record without a body, which deletes its key, is kept after the generation that removed
    /// the last older value of the key, so that a slow reader sees it. 0: not at all, as in RocketMQ.
    /// Default a day.
    pub tombstone_retention_ms: u64,
    /// Whether keys are compared in full; otherwise equal MD5 are equal keys, as in RocketMQ. Default true.
    pub confirm_keys: bool,
    /// What becomes of records without a key.
    pub keyless: Keyless,
    /// Whether queues are compacted that have not changed since, and topics that are no compaction topics:
    /// RocketMQ keeps such files and serves the topic from the commit log as before. Default false.
    pub force: bool,
    /// Whether a compaction in this process only tells what came out, and throws it away. Default false.
    pub dry_run: bool,
}

impl Default for CompactionOptions {
    fn default() -> Self {
        Self {
            job_id: None,
            log_file_bytes: DEFAULT_LOG_FILE_BYTES,
            queue_file_bytes: DEFAULT_QUEUE_FILE_BYTES,
            memory_bytes: DEFAULT_MEMORY_BYTES,
            tombstone_retention_ms: DEFAULT_TOMBSTONE_RETENTION_MS,
            confirm_keys: true,
            keyless: Keyless::Drop,
            force: false,
            dry_run: false,
        }
    }
}

impl CompactionOptions {
    /// From a JSON object with any of the fields; null counts as missing.
    ///
    /// # Errors
    /// [`StoreError::InvalidOption`] for an unknown field, a wrong type or a value out of bounds.
    pub fn from_json(text: &str) -> Result<Self, StoreError> {
        let mut fields: Map<String, Value> = decode("compaction options", text.as_bytes())?;
        fields.retain(|_, value| !value.is_null());
        let options: Self = serde_path_to_error::deserialize(Value::Object(fields))
            .map_err(|error| malformed("compaction options", &error.to_string()))?;
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
        let keep = CompactionOptions::from_json(r#"{"keyless": "keep", "confirm_keys": false}"#).unwrap();
        assert_eq!((keep.keyless, keep.confirm_keys), (Keyless::Keep, false));
        assert!(options.force && options.memory_bytes == 0 && options.job_id.is_none());
        for wrong in [
            r#"{"forse": true}"#,
            r#"{"keyless": "lose"}"#,
            r#"{"force": 1}"#,
            r#"{"queue_file_bytes": 91}"#,
            "[]",
            "",
        ] {
            assert!(CompactionOptions::from_json(wrong).is_err(), "{wrong}");
        }
    }
}
