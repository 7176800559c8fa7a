//! Facts about an open store: counters, geometry, and the options of a copy.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mqstore_base::durable_mark::DurableMarkFile;
use mqstore_base::error::StoreError;
use mqstore_base::live_page::read_pace;
use mqstore_base::options::StoreOptions;
use mqstore_format::json::parse;
use mqstore_log::commit_log::SegmentList;

use super::{OpenSide, Store};
use crate::Geometry;
use crate::retention::SegmentHolder;

/// Counters and positions of an open store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Messages appended since the open.
    pub appends: u64,
    /// Bytes of their records.
    pub appended_bytes: u64,
    /// The first log offset.
    pub log_min_offset: u64,
    /// One more than the last visible log offset.
    pub log_max_offset: u64,
    /// The log offset up to which the log is synced.
    pub durable_offset: u64,
    /// The log offset up to which queues and index are built.
    pub dispatched_offset: u64,
    /// Number of segments of the log.
    pub segments: u64,
    /// Length of a segment in bytes.
    pub segment_bytes: u64,
    /// Number of segments removed since the open.
    pub expired_segments: u64,
    /// Bytes of the files removed since the open, including queue and index files.
    pub expired_bytes: u64,
    /// Paths of removed segments whose space is not free yet, because the program holds views of their bytes.
    pub held_files: Vec<PathBuf>,
    /// Bytes of all segments of the log.
    pub log_bytes: u64,
    /// Maximum bytes of all segments: the option `max_bytes`.
    pub max_bytes: Option<u64>,
    /// Appends refused since the open: the store was busy, the disk nearly full, or a quota used up.
    pub refused_appends: u64,
    /// Records that this process read near the end of the log since the open. Near means within 40 % of the machine's
    /// memory, so that the records are assumed to be in it. Reads of a queue's store times do not count.
    pub hot_reads: u64,
    /// Records that this process read further from the end of the log.
    pub cold_reads: u64,
    /// Maximum distance in bytes of such a record from the end of the log since the last call of `stats`; 0 if there
    /// was no such read. Source: `MessageStore#checkInMemByConsumeOffset`.
    pub reader_lag_bytes: u64,
    /// Reads of the log from the disk that waited for their turn since the open, because a writer of the store syncs:
    /// see [`mqstore_io::read_pace`].
    pub paced_reads: u64,
    /// Total time of these waits in milliseconds.
    pub paced_read_ms: u64,
    /// Number of damaged records, or damaged parts of the log, that reads skipped since the open.
    pub skipped_damage: u64,
    /// Number of queue and index files that are open.
    pub open_files: u64,
    /// Number of queue and index files that may stay open: the option of that name, or the store's share of the
    /// process's limit.
    pub max_open_files: u64,
    /// The messages that keep the oldest segment that is due by age, by log offset: of each group in each topic the
    /// first unfinished one, and the first delayed message and half message that wait.
    pub segments_kept_by: Vec<SegmentHolder>,
}

impl Store {
    /// Returns counters and positions of the store.
    pub fn stats(&self) -> Result<Stats, StoreError> {
        let view = self.usable_view()?;
        let visible = view.catch_up()?;
        let list = view.list();
        let [(queues, most_queues), (indexes, most_indexes)] = view.open_files();
        let (paced_reads, paced_time) = read_pace(view.files()).waits();
        let mut stats = Stats {
            paced_reads,
            paced_read_ms: paced_time.as_millis() as u64,
            open_files: (queues + indexes) as u64,
            max_open_files: (most_queues + most_indexes) as u64,
            log_min_offset: list.min_offset(),
            log_max_offset: visible,
            durable_offset: visible,
            dispatched_offset: visible,
            segments: list.segments().len() as u64,
            log_bytes: list.segments().iter().map(|segment| segment.len()).sum(),
            segment_bytes: list.segment_bytes().unwrap_or(0),
            skipped_damage: view.skipped(),
            ..Stats::default()
        };
        if let OpenSide::Writer(writer, _) = &self.inner.side {
            (stats.appends, stats.appended_bytes) = writer.engine.log.appended_records();
            stats.durable_offset = writer.engine.log.durable();
            stats.dispatched_offset = writer.engine.dispatcher.position();
            stats.segment_bytes = writer.engine.log.segment_bytes();
            stats.max_bytes = writer.engine.options.max_bytes;
            let (counters, engine) = (&writer.cleaner.counters, &writer.engine);
            stats.expired_segments = counters.expired_segments.load(Ordering::Relaxed);
            stats.expired_bytes = counters.expired_bytes.load(Ordering::Relaxed);
            stats.held_files = writer.cleaner.held_files();
            stats.refused_appends =
                engine.append_gate.refused_appends.load(Ordering::Relaxed) + writer.engine.log.refused();
            let reads = writer.engine.log.read_counts();
            stats.hot_reads = reads.hot.load(Ordering::Relaxed);
            stats.cold_reads = reads.cold.load(Ordering::Relaxed);
            stats.reader_lag_bytes = reads.behind.swap(0, Ordering::Relaxed);
            stats.segments_kept_by = writer.cleaner.kept_by()?;
        }
        Ok(stats)
    }

    /// Returns the current segments of the log.
    pub fn segments(&self) -> Arc<SegmentList> {
        self.view().list()
    }

    /// Returns the functions for tools that work on directories.
    pub fn inspection(&self) -> Inspection<'_> {
        Inspection(self)
    }
}

/// Functions of an open store for the tools that work on directories; from [`Store::inspection`].
#[derive(Clone, Copy)]
pub struct Inspection<'a>(pub(super) &'a Store);

impl Inspection<'_> {
    /// Returns the geometry of queue and index files of a store open for reading; a default for a writer.
    ///
    /// # Errors
    /// The queues cannot be read.
    pub fn geometry(&self) -> Result<Geometry, StoreError> {
        match &self.0.inner.side {
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
        match &self.0.inner.side {
            OpenSide::Writer(writer, _) => {
                writer.engine.flush()?;
                Ok(writer.engine.log.sync_point().position)
            }
            OpenSide::Reader(_) => self.0.view().catch_up(),
        }
    }

    /// Returns options with which a copy of the store gets queue and index files of the same geometry.
    pub fn copy_options(&self) -> StoreOptions {
        let files = &self.0.inner.files;
        let mut options = StoreOptions::default();
        let (queue_file_bytes, index) = match &self.0.inner.side {
            OpenSide::Writer(writer, _) => {
                options = writer.engine.options.clone();
                (Some(writer.engine.queues.file_bytes()), Some(writer.engine.index.geometry()))
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
        options.delay_levels = Some(self.0.delay_tables().latest().clone());
        options.commit_log_paths.clear();
        options.read_only_commit_log_paths.clear();
        options.derived_path = None;
        options
    }

    /// Returns a file of `config/` as JSON text, or its backup if the file is missing or damaged. RocketMQ's dialect
    /// becomes plain JSON, so keys that are numbers become texts. `None` without a file.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if neither of them can be parsed; I/O errors.
    pub fn config_json(&self, name: &str) -> Result<Option<String>, StoreError> {
        self.0.check()?;
        let files = &self.0.inner.files;
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
