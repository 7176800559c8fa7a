//! The options of a compaction job.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::files::file_sizes::{CompactionGeometry, DEFAULT_LOG_FILE_BYTES, DEFAULT_QUEUE_FILE_BYTES};
use crate::json::{decode, malformed};
use mqstore_base::error::StoreError;

/// The default of [`CompactionOptions::memory_bytes`].
const DEFAULT_MEMORY_BYTES: u64 = 100 << 20;

/// The default of [`CompactionOptions::tombstone_retention_ms`]: one day.
const DEFAULT_TOMBSTONE_RETENTION_MS: u64 = 86_400_000;

/// The treatment of records without a key in compacted files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Keyless {
    /// Drop and count them, as in RocketMQ.
    #[default]
    Drop,
    /// Keep all of them. A broker's own compaction drops them.
    Keep,
    /// Skip a queue that has such a record.
    Refuse,
}

/// Options of one compaction job.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CompactionOptions {
    /// Id of the job; a job that is already published does nothing. Default: a new id.
    pub job_id: Option<String>,
    /// Requested bytes of a log file, for a store without compaction files. Default 104,857,600.
    /// `compactionMappedFileSize`.
    pub log_file_bytes: u64,
    /// Requested bytes of a sparse queue file, in the same case. Default 10,485,760. `compactionCqMappedFileSize`.
    pub queue_file_bytes: u64,
    /// Maximum memory in bytes for the keys of one task; any value works, but a small one needs more rounds. One bit
    /// for each record is added. Default 100 MiB. `maxOffsetMapSize` / `compactionThreadNum`.
    pub memory_bytes: u64,
    /// Milliseconds for which a tombstone is kept after the generation that removed the last older value of its key, so
    /// that a slow reader sees it. 0: not kept, as in RocketMQ. Default one day.
    pub tombstone_retention_ms: u64,
    /// Whether keys are compared in full; otherwise keys with equal MD5 are equal, as in RocketMQ. Default true.
    pub confirm_keys: bool,
    /// The treatment of records without a key.
    pub keyless: Keyless,
    /// Whether to compact unchanged queues, and topics that are not compaction topics. RocketMQ keeps the files of such
    /// a topic, and still serves it from the commit log. Default false.
    pub force: bool,
    /// Whether a compaction in this process only reports its result and removes it. Default false.
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
    /// Decodes a JSON object with any of the fields; null counts as missing.
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

    /// Returns the lengths of files for a store that has none yet.
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
