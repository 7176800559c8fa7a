//! One run: archives the sealed segments of a store that the archive does not contain yet.
//!
//! The steps are: scan, write a file in memory, decode it again and compare it with the log, upload, read the object back,
//! create the next manifest, move the log offset in `mqstore/archive` of the store. The log is read once, in its order, in
//! ranges of a bounded size (`ranges`). Threads sort and write one range each (`writers`), and upload its files (`files`).
//! After some segments, the next manifest is created. After an error or a kill at any step, the archive is that of the last
//! manifest; of two runs at the same time, one creates it.

mod files;
mod ranges;
mod settings;
mod writers;

use mqstore_base::error::StoreError;
use mqstore_base::progress::{Progress, ProgressWatcher};
use mqstore_engine::{ArchiveState, Store};
use mqstore_io::target::random_id;

use crate::manifest::{ArchivedSegment, Manifest};
use crate::owner::{checked, settings_with};
use crate::place::WRITE;

use files::GroupFiles;

pub use ranges::records_of_log;
pub use settings::{Run, RunSettings, RunSizes};

/// What a run has archived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunReport {
    /// Segments.
    pub segments: u64,
    /// Records in them, of the chosen topics.
    pub records: u64,
    /// Bytes of these records, and of other bytes.
    pub record_bytes: u64,
    /// New files.
    pub files: u64,
    /// Bytes of the new files.
    pub bytes: u64,
    /// Log offset up to which the archive contains the log.
    pub archived_to: u64,
    /// Bytes of the log before the first of these segments that were deleted before they were archived.
    pub missing_bytes: u64,
    /// Segments that are full and too young.
    pub young_segments: u64,
}

/// Why a group of segments was not archived, and whether a manifest can name its files now or later.
struct Failed {
    error: StoreError,
    may_be_named: bool,
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self { error, may_be_named: false }
    }
}

impl Run<'_> {
    /// Archives all segments of a store that are due. `tell` gets the bytes of the log.
    ///
    /// # Errors
    /// [`StoreError::Busy`] if another run has extended the archive meanwhile, a reclaim has rewritten the segments, or a
    /// clean has removed the files of this run; those of [`checked`] and of `tell`; a request failed.
    pub fn run(&self, store: &Store, tell: ProgressWatcher<'_>) -> Result<RunReport, StoreError> {
        let vfs = &*store.files().vfs;
        let run = random_id(vfs);
        let found = checked(store, self.place, self.settings.topics.as_deref(), self.recorded)?;
        let mut manifest = if let Some(manifest) = found {
            manifest
        } else {
            self.place.probe(&random_id(vfs))?;
            Manifest::first(random_id(vfs), self.settings.topics.clone())
        };
        let (due, young_segments) = self.due(store, manifest.end())?;
        let mut report = RunReport { young_segments, ..RunReport::default() };
        if let Some(first) = due.first().filter(|_| !manifest.segments.is_empty()) {
            report.missing_bytes = first.base.saturating_sub(manifest.end());
        }
        let mut known = self.recorded.map(|state| state.settings.clone());
        self.advance(store, &mut known, &manifest)?;
        let total_bytes = due.iter().map(|segment| segment.bytes).sum();
        let mut before = 0;
        for group in groups(&due, self.sizes.commit_bytes) {
            let start = group.first().map_or(0, |segment| segment.base);
            let mut tell_group = |position: u64| {
                tell(Progress { done_bytes: before + position.saturating_sub(start), total_bytes })
            };
            manifest = self.archive(store, &run, &manifest, group, &mut report, &mut tell_group)?;
            self.advance(store, &mut known, &manifest)?;
            before += group.iter().map(|segment| segment.bytes).sum::<u64>();
        }
        report.archived_to = manifest.end();
        Ok(report)
    }

    /// Moves the log offset of the store's archive forward, if it has the settings `known`.
    fn advance(
        &self,
        store: &Store,
        known: &mut Option<String>,
        manifest: &Manifest,
    ) -> Result<(), StoreError> {
        let (Some(recorder), Some(settings)) = (self.recorder, known.as_mut()) else { return Ok(()) };
        if manifest.segments.is_empty() {
            return Ok(());
        }
        let archived_to = manifest.covered_from(store.log().bounds()?.0);
        let next = ArchiveState { archived_to, settings: settings_with(settings, Some(manifest))? };
        let found = recorder.advance(settings, &next)?;
        if found.is_some_and(|found| found.settings == next.settings) {
            *settings = next.settings;
        }
        Ok(())
    }

    /// Returns the segments to archive after log offset `end`, oldest first, and the number of those that are too young.
    fn due(&self, store: &Store, end: u64) -> Result<(Vec<ArchivedSegment>, u64), StoreError> {
        let mut sealed = store.archive().sealed_log()?.segments(end)?;
        sealed.retain(|segment| segment.base_offset >= end);
        let now_ms = self.clock.now_ms();
        let mut due = Vec::new();
        for one in &sealed {
            // A store time in the future, from a clock that was ahead, gives no age. The file has another one.
            let last_ms = if one.newest_ms <= now_ms { one.newest_ms } else { one.modified_ms.min(now_ms) };
            if now_ms - last_ms < self.settings.older_than_ms {
                break;
            }
            let (base, bytes, first_ms) = (one.base_offset, one.bytes, one.first_ms);
            due.push(ArchivedSegment { base, bytes, first_ms, last_ms: one.newest_ms });
        }
        let young = (sealed.len() - due.len()) as u64;
        Ok((due, young))
    }

    /// Writes the files of neighbouring segments, and creates the next manifest. Returns it.
    fn archive(
        &self,
        store: &Store,
        run: &str,
        manifest: &Manifest,
        group: &[ArchivedSegment],
        report: &mut RunReport,
        tell: &mut dyn FnMut(u64) -> Result<(), StoreError>,
    ) -> Result<Manifest, StoreError> {
        let files = GroupFiles::new(store, self, &manifest.archive, run, group);
        match self.commit(store, run, manifest, &files, tell) {
            Ok(next) => {
                let new = next.files.get(manifest.files.len()..).unwrap_or_default();
                report.segments += group.len() as u64;
                report.files += new.len() as u64;
                for file in new {
                    report.records += if file.topic.is_some() { file.rows } else { 0 };
                    report.record_bytes += file.record_bytes;
                    report.bytes += file.bytes;
                }
                Ok(next)
            }
            Err(Failed { error, may_be_named }) => {
                if !may_be_named {
                    self.place.discard(&files.take_paths());
                }
                Err(error)
            }
        }
    }

    fn commit(
        &self,
        store: &Store,
        run: &str,
        manifest: &Manifest,
        files: &GroupFiles<'_>,
        tell: &mut dyn FnMut(u64) -> Result<(), StoreError>,
    ) -> Result<Manifest, Failed> {
        let archive = store.archive();
        let log = archive.sealed_log()?;
        let span = files.span();
        let before = log.inodes(span.start, span.end)?;
        files.write(tell)?;
        self.check_segments(&before, &log.inodes(span.start, span.end)?)?;
        let new = files.take_new();
        self.place.check_present(&new.files)?;
        let entries = new.files.clone();
        let next = manifest.extended(run, self.clock.now_ms(), new);
        let created = self.place.create(self.clock, WRITE, &next);
        // The manifest may name the files now, or name them later.
        match created.map_err(|(error, is_final)| Failed { error, may_be_named: !is_final })? {
            None => {}
            Some(other) => {
                // A manifest that was rebuilt from the files can name them.
                files.keep_paths(&other);
                return Err(self.extended_by_other(&other).into());
            }
        }
        // A clean that has read the manifest before can have removed them since the last check.
        if let Err(error) = self.place.check_present(&entries) {
            let may_be_named = !matches!(error, StoreError::Busy { .. });
            if !may_be_named {
                self.place.withdraw(&next).map_err(|error| Failed { error, may_be_named: true })?;
            }
            return Err(Failed { error, may_be_named });
        }
        Ok(next)
    }

    fn extended_by_other(&self, other: &Manifest) -> StoreError {
        let reason = format!(
            "{}: another run has extended the archive to log offset {} meanwhile; the files of this run are removed, and \
             no message is lost: run it again",
            self.place.shown(),
            other.end()
        );
        StoreError::Busy { reason }
    }

    /// Makes sure that no segment got another file while it was read. Its records are then at other places.
    fn check_segments(&self, before: &[(u64, u64)], after: &[(u64, u64)]) -> Result<(), StoreError> {
        for (base, inode) in after {
            let known = before.iter().find(|(other, _)| other == base);
            if known.is_some_and(|(_, known)| known != inode) {
                let reason = format!(
                    "{}: a reclaim has rewritten the segment at log offset {base} while it was archived; the files of \
                     this run are removed, and no message is lost: run it again",
                    self.place.shown()
                );
                return Err(StoreError::Busy { reason });
            }
        }
        Ok(())
    }
}

/// Returns groups of neighbouring segments; one manifest is created for each.
fn groups(segments: &[ArchivedSegment], commit_bytes: u64) -> impl Iterator<Item = &[ArchivedSegment]> {
    let mut bytes = 0;
    segments.chunk_by(move |one, next| {
        bytes = if bytes == 0 { one.bytes } else { bytes };
        bytes += next.bytes;
        let is_same = one.end() == next.base && bytes <= commit_bytes;
        if !is_same {
            bytes = 0;
        }
        is_same
    })
}
