//! Functions of an open store for the tools that work on directories.

use std::sync::Arc;

use mqstore_base::durable_mark::DurableMarkFile;
use mqstore_base::error::StoreError;
use mqstore_base::options::StoreOptions;
use mqstore_format::json::parse;
use mqstore_log::commit_log::SegmentList;

use super::group_offsets::{offsets_with_lag, saved_offsets};
use super::{OpenSide, Store};
use crate::{Geometry, GroupOffsets};

impl Store {
    /// Returns the current segments of the log.
    pub fn segments(&self) -> Arc<SegmentList> {
        self.view().list()
    }

    /// Returns the geometry of queue and index files of a store open for reading; a default for a writer.
    ///
    /// # Errors
    /// The queues cannot be read.
    pub fn geometry(&self) -> Result<Geometry, StoreError> {
        match &self.inner.side {
            OpenSide::Reader(reader) => {
                reader.look_at_all()?;
                Ok(reader.geometry())
            }
            OpenSide::Writer(..) => Ok(Geometry::default()),
        }
    }

    /// Flushes a store that is open for writing. Returns the log offset at which a copy must end: the durable one, or
    /// in a reader the one that the writer published.
    pub fn settle(&self) -> Result<u64, StoreError> {
        match &self.inner.side {
            OpenSide::Writer(writer, _) => {
                writer.flush()?;
                Ok(writer.log.sync_point().position)
            }
            OpenSide::Reader(_) => self.view().catch_up(),
        }
    }

    /// Returns options with which a copy of the store gets queue and index files of the same geometry.
    pub fn copy_options(&self) -> StoreOptions {
        let files = &self.inner.files;
        let mut options = StoreOptions::default();
        let (queue_file_bytes, index) = match &self.inner.side {
            OpenSide::Writer(writer, _) => {
                options = writer.options.clone();
                (Some(writer.queues.file_bytes()), Some(writer.index.geometry()))
            }
            OpenSide::Reader(reader) => {
                let known = reader.geometry();
                (known.queue_file_bytes, known.index)
            }
        };
        let mark = DurableMarkFile::new(files).load();
        let queue_file_bytes = queue_file_bytes.or(mark.map(|mark| mark.queue_file_bytes));
        if let Some(bytes) = queue_file_bytes {
            options.queue_file_entries = (bytes / mqstore_format::CQ_UNIT_BYTES as u64) as u32;
        }
        if let Some(index) = index.or(mark.map(|mark| mark.index_geometry())) {
            (options.index_slots, options.index_entries) = (index.slots, index.entries);
        }
        // For a copy of a directory that stores no table.
        options.delay_levels = Some(self.delay_tables().latest().clone());
        options.commit_log_paths.clear();
        options.read_only_commit_log_paths.clear();
        options.derived_path = None;
        options
    }

    /// Returns the saved offsets of all groups with their lag, read from files. Adds unreadable files to `notes`.
    pub fn saved_group_offsets(&self, notes: &mut Vec<String>) -> Result<Vec<GroupOffsets>, StoreError> {
        offsets_with_lag(&*self.view(), saved_offsets(&self.inner.files, notes))
    }

    /// Returns a file of `config/` as JSON text, or its backup if the file is missing or damaged. RocketMQ's dialect
    /// becomes plain JSON, so keys that are numbers become texts. `None` without a file.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if neither of them can be parsed; I/O errors.
    pub fn config_json(&self, name: &str) -> Result<Option<String>, StoreError> {
        self.check()?;
        let files = &self.inner.files;
        let path = files.config().join(name);
        let mut damage = None;
        for path in [path.clone(), path.with_extension("json.bak")] {
            let Some(bytes) = files.read_config(&path)?.filter(|bytes| !bytes.is_empty()) else { continue };
            match parse(&bytes) {
                Ok(content) => return Ok(Some(content.to_string())),
                Err(error) => damage = damage.or_else(|| Some(StoreError::format(&path, 0, &error))),
            }
        }
        damage.map_or(Ok(None), Err)
    }
}
