//! Restores a store from a backup, as it was at a time or a log offset.
//!
//! ```text
//! DIR.partial/commitlog/<20 digits>    the segments, cut after the last record that is wanted
//! DIR.partial/...                      the other files, of the newest state that is not later
//! DIR                                  DIR.partial, with queues, key index and checkpoint, verified
//! ```
//!
//! Between two states, the log of the later one has every record, and the metadata is that of the earlier one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_base::durable_mark::DurableMarkFile;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::options::StoreOptions;
use mqstore_base::progress::{Progress, ProgressWatcher};
use mqstore_base::store_files::StoreFiles;
use mqstore_engine::ArchiveState;
use mqstore_format::offset_file_name;
use mqstore_inspect::{CopiedLog, empty_folder, verify};
use mqstore_io::pool::Pool;
use mqstore_io::vfs::parent_dir;
use mqstore_io::{Vfs, VfsFile, commit, switch};
use mqstore_log::commit_log::{LogScanner, ScanChecks, ScanItem, SegmentList};

use crate::manifest::{Manifest, SegmentEntry};
use crate::pieces::Piece;
use crate::place::{AT_ONCE, Lists, Place};

const RESTORING: &str = "restoring the backup";

/// The moment of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestorePoint {
    /// The newest state.
    Newest,
    /// All records that were stored at or before these epoch milliseconds.
    TimeMs(i64),
    /// All records that end at or before this log offset.
    Offset(u64),
}

/// What a restore has made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoreReport {
    /// Log offset at which the log begins.
    pub log_start: u64,
    /// Its end.
    pub log_end: u64,
    /// Number of segments.
    pub segments: u64,
    /// Messages in the queues.
    pub messages: u64,
    /// When the metadata was copied, in epoch milliseconds.
    pub metadata_ms: i64,
    /// The log offset up to which the archive of the store has its log, if it has one.
    pub archived_to: Option<u64>,
    /// What a verification of the directory has found.
    pub problems: Vec<String>,
}

/// A restore whose states are chosen.
#[derive(Debug)]
pub struct Restore {
    place: Place,
    point: RestorePoint,
    /// The state with the log.
    log: Manifest,
    /// The state with the other files. All of its log is wanted.
    files: Manifest,
}

impl Restore {
    /// Chooses the states.
    ///
    /// # Errors
    /// [`StoreError::ResultNotFound`] if there is no backup; [`StoreError::InvalidOption`] if it has no state so early;
    /// those of [`Place::manifests`].
    pub fn plan(place: &Place, point: RestorePoint) -> Result<Self, StoreError> {
        let mut states = place.manifests()?;
        states.retain(|state| state.is_complete);
        let Some(oldest) = states.first() else {
            return Err(StoreError::ResultNotFound { path: place.shown() });
        };
        let first = match point {
            RestorePoint::TimeMs(time_ms) => {
                format!(
                    "its first one was made {} s later",
                    oldest.created_ms.saturating_sub(time_ms).max(1000) / 1000
                )
            }
            _ => format!("its first one has the log up to offset {}", oldest.log_end),
        };
        let is_before = |state: &Manifest| match point {
            RestorePoint::Newest => true,
            RestorePoint::TimeMs(time_ms) => state.created_ms <= time_ms,
            RestorePoint::Offset(offset) => state.log_end <= offset,
        };
        let Some(at) = states.iter().rposition(is_before) else {
            let reason = format!("{} has no state so early: {first}", place.shown());
            return Err(StoreError::InvalidOption { option: "at", reason });
        };
        let files = states.swap_remove(at);
        // The next state took the place of the last one.
        let later = states.into_iter().filter(|state| state.number > files.number);
        let next = later.min_by_key(|state| state.number).filter(|next| next.generation == files.generation);
        Ok(Self { place: place.clone(), point, log: next.unwrap_or_else(|| files.clone()), files })
    }

    /// Restores the store. The caller prevents a second call at the same time. `tell` gets the bytes of the log.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] for a damaged object; a request failed; errors of the system and of `tell`.
    pub fn run(
        &self,
        partial: &StoreFiles,
        home: &Path,
        tell: ProgressWatcher<'_>,
    ) -> Result<RestoreReport, StoreError> {
        empty_folder(&*partial.vfs, &partial.root, RESTORING)?;
        let segment_bytes = self.write_log(partial, tell)?;
        let end = self.cut(partial)?;
        let files = &self.files;
        self.write_files(partial)?;
        let archive = files.archive.as_ref();
        if let Some(archive) = archive {
            let state = ArchiveState { archived_to: archive.archived_to, settings: archive.settings.clone() };
            state.save_for_copy(partial, end)?;
        }
        let old = DurableMarkFile::new(partial).try_load()?;
        let log = CopiedLog { end, segment_bytes, metadata_end: files.metadata_end, old };
        let options = StoreOptions {
            queue_file_entries: files.geometry.queue_file_entries,
            index_slots: files.geometry.index_slots,
            index_entries: files.geometry.index_entries,
            ..StoreOptions::default()
        };
        let total_bytes = self.log.segments.iter().map(|segment| segment.filled).sum();
        let mut still = |_| tell(Progress { done_bytes: total_bytes, total_bytes });
        let built = log.complete(partial, &options, &mut still)?;
        let found = verify(partial, &options, &mut still)?;
        let list = SegmentList::load(partial)?;
        commit::publish_folder(&*partial.vfs, &partial.root, home).at(home, RESTORING)?;
        Ok(RestoreReport {
            log_start: list.min_offset().min(end),
            log_end: end,
            segments: list.segments().len() as u64,
            messages: built.messages,
            metadata_ms: files.created_ms,
            archived_to: archive.map(|archive| archive.archived_to.min(end)),
            problems: found.problems.iter().map(|problem| problem.detail.clone()).collect(),
        })
    }

    /// Whether a segment can have records that are wanted.
    fn is_wanted(&self, segment: &SegmentEntry) -> bool {
        match self.point {
            RestorePoint::Newest => true,
            // If no clock went back, the first segment of a later time has none.
            RestorePoint::TimeMs(time_ms) => {
                segment.base < self.files.log_end
                    || segment.first_ms.is_none_or(|first_ms| first_ms <= time_ms)
            }
            RestorePoint::Offset(offset) => segment.base < offset,
        }
    }

    /// Writes the segments. Returns the length of the first one.
    fn write_log(&self, files: &StoreFiles, tell: ProgressWatcher<'_>) -> Result<u64, StoreError> {
        let folder = files.commit_log();
        files.vfs.create_dir(&folder).at(&folder, RESTORING)?;
        let wanted: Vec<_> = self.log.segments.iter().take_while(|segment| self.is_wanted(segment)).collect();
        let total_bytes = wanted.iter().map(|segment| segment.filled).sum();
        let mut progress = Progress { done_bytes: 0, total_bytes };
        let mut lists = Lists::new();
        let segments = wanted.iter().map(|segment| {
            let path = folder.join(offset_file_name(segment.base));
            Ok((path, segment.bytes, self.place.pieces_of(segment, &mut lists)?))
        });
        self.write(&*files.vfs, segments, &mut |bytes| {
            progress.done_bytes += bytes;
            tell(progress)
        })?;
        Ok(wanted.first().map_or(0, |segment| segment.bytes))
    }

    /// Writes files, each with its path and length, from their pieces. The directory gets its name after a sync of all.
    fn write(
        &self,
        vfs: &dyn Vfs,
        files: impl Iterator<Item = Result<(PathBuf, u64, Arc<Vec<Piece>>), StoreError>>,
        step: &mut dyn FnMut(u64) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let work = |job: Job| self.run_job(&job);
        Pool::new(AT_ONCE - 1, "mq-restore").in_order(AT_ONCE as usize, &work, |jobs| {
            for file in files {
                let (path, length, pieces) = file?;
                let file = vfs.create_new(&path).at(&path, RESTORING)?;
                file.set_len(length).at(&path, RESTORING)?;
                let new = Arc::new((path, file));
                let mut at = 0;
                for piece in &*pieces {
                    jobs.give((Arc::clone(&new), Some((piece.clone(), at))));
                    at += piece.bytes;
                    while let Some(done) = jobs.take_ready() {
                        step(done?)?;
                    }
                }
                jobs.give((new, None));
            }
            while let Some(done) = jobs.take() {
                step(done?)?;
            }
            Ok(())
        })
    }

    /// Writes a piece, or begins to write a file to the disk while the next one is restored. Returns the bytes.
    fn run_job(&self, (new, piece): &Job) -> Result<u64, StoreError> {
        let (path, file) = &**new;
        let Some((piece, at)) = piece else {
            switch::step("backup.sync_early", || file.sync_all()).at(path, RESTORING)?;
            return Ok(0);
        };
        // A hole for zero bytes.
        let content = self.place.content(piece)?;
        file.write_all_at(&content, *at).at(path, RESTORING)?;
        Ok(piece.bytes)
    }

    /// Removes the records that are not wanted from the end of the log. Returns the new end.
    fn cut(&self, files: &StoreFiles) -> Result<u64, StoreError> {
        let list = Arc::new(SegmentList::load_if_any(files)?);
        let Some(last) = list.segments().last() else { return Ok(self.log.log_end) };
        let written = last.end_offset().min(self.log.log_end);
        let end = match self.point {
            RestorePoint::Newest => return Ok(written),
            _ => self.end_of_wanted(&list, written)?,
        };
        for segment in list.segments().iter().rev() {
            let path = segment.path();
            if segment.base_offset() >= end && segment.base_offset() > list.min_offset() {
                files.vfs.remove_file(&path).at(&path, RESTORING)?;
            } else if segment.end_offset() > end {
                let file = files.vfs.open(&path, mqstore_io::Access::ReadWrite).at(&path, RESTORING)?;
                file.set_len(end.saturating_sub(segment.base_offset())).at(&path, RESTORING)?;
                file.set_len(segment.len()).at(&path, RESTORING)?;
            }
        }
        Ok(end)
    }

    /// Returns the end of the last record that is wanted: those of the state with the files, and later ones.
    fn end_of_wanted(&self, list: &Arc<SegmentList>, written: u64) -> Result<u64, StoreError> {
        let last = list.find(self.files.log_end.saturating_sub(1)).or(list.segments().first());
        let mut end = last.map_or(0, |segment| segment.base_offset());
        let mut scanner = LogScanner::new(Arc::clone(list), end, written, ScanChecks { crc: false });
        loop {
            let is_in_time = match scanner.next_item()? {
                ScanItem::Record(record) => {
                    !matches!(self.point, RestorePoint::TimeMs(time_ms) if record.store_timestamp > time_ms)
                }
                ScanItem::Filler { .. } => true,
                ScanItem::End { .. } => return Ok(end),
                ScanItem::Damaged(damage) => match scanner.skip(&damage)? {
                    Some(_) => continue,
                    None => return Ok(end),
                },
            };
            let after = scanner.position();
            let is_before = !matches!(self.point, RestorePoint::Offset(offset) if after > offset);
            // A reclaim can have made one placeholder of records before and after the end of the state.
            if end >= self.files.log_end && !(is_in_time && is_before) {
                return Ok(end);
            }
            end = after;
        }
    }

    fn write_files(&self, files: &StoreFiles) -> Result<(), StoreError> {
        let new = self.files.files.iter().map(|file| {
            let path = files.root.join(&file.path);
            let folder = parent_dir(&path);
            files.vfs.create_dir_all(folder).at(folder, RESTORING)?;
            Ok((path, file.bytes, Arc::new(file.pieces.clone())))
        });
        self.write(&*files.vfs, new, &mut |_| Ok(()))
    }
}

/// A new file, and the piece to write at an offset; without a piece, to sync.
type Job = (Arc<(PathBuf, Arc<dyn VfsFile>)>, Option<(Piece, u64)>);
