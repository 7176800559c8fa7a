//! The listed files of a remote store, and the reads of their pages.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::pages::{PAGE_BYTES, Page, PageRun, Pages, Place};
use super::source::{RangeBytes, RemoteCause, RemoteEntry, RemoteError, RemoteRange, RemoteSource};
use crate::vfs::{FileKind, FileStat};

/// Bytes of the longest single read, and of the longest request; a longer read is done in parts.
pub(super) const BEST_READ_BYTES: u64 = 8 << 20;

/// The files and their pages in memory.
pub(super) struct RemoteFiles {
    root: PathBuf,
    source: Arc<dyn RemoteSource>,
    entries: Vec<RemoteEntry>,
    pages: Mutex<Pages>,
    /// Signalled when a request was started or has ended.
    arrived: Condvar,
    failure: OnceLock<RemoteError>,
}

impl fmt::Debug for RemoteFiles {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = self.entries.len();
        out.debug_struct("RemoteFiles")
            .field("root", &self.root)
            .field("files", &files)
            .finish_non_exhaustive()
    }
}

impl RemoteFiles {
    /// Takes the list of the files below `root`.
    pub(super) fn new(root: &Path, source: Arc<dyn RemoteSource>, entries: Vec<RemoteEntry>) -> Self {
        Self {
            root: root.to_path_buf(),
            source,
            entries,
            pages: Mutex::default(),
            arrived: Condvar::new(),
            failure: OnceLock::new(),
        }
    }

    /// Notes that a reader will read these pages of a file soon. The fetch of a long range begins now.
    ///
    /// # Errors
    /// A request could not be started.
    pub(super) fn expect(&self, file: usize, expected: &Range<u64>) -> io::Result<()> {
        let mut pages = self.pages.lock();
        let runs = pages.expect(file, expected);
        Ok(self.start(&mut pages, &runs)?)
    }

    /// See [`RemoteSource::real_place`].
    pub(super) fn real_place(&self, path: &Path, offset: u64) -> Option<(PathBuf, u64)> {
        self.source.real_place(path, offset)
    }

    /// Returns the first failure of a request.
    pub(super) fn check(&self) -> io::Result<()> {
        self.failure.get().map_or(Ok(()), |failure| Err(failure.clone().into()))
    }

    /// Returns the data of a file, or of a folder, which has no number.
    pub(super) fn stat(&self, number: Option<usize>) -> FileStat {
        let entry = number.and_then(|number| self.entries.get(number));
        FileStat {
            kind: if entry.is_some() { FileKind::File } else { FileKind::Directory },
            len: entry.map_or(0, |entry| entry.len),
            modified_ms: entry.map_or(0, |entry| entry.modified_ms),
            inode: number.map_or(0, |number| number as u64 + 1),
            links: 1,
            allocated_bytes: entry.map_or(0, |entry| entry.len),
        }
    }

    fn page_count(&self, file: usize) -> u64 {
        self.entries.get(file).map_or(0, |entry| entry.len.div_ceil(PAGE_BYTES))
    }

    /// Reads up to the length of `buf`, but not all of a long range.
    pub(super) fn read(&self, file: usize, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let len = self.entries.get(file).map_or(0, |entry| entry.len);
        let count = len.saturating_sub(offset).min(buf.len() as u64).min(BEST_READ_BYTES);
        if count == 0 {
            return self.check().map(|()| 0);
        }
        let mut filled = 0;
        for (page, bytes) in self.pages(file, offset / PAGE_BYTES..(offset + count).div_ceil(PAGE_BYTES))? {
            let part = bytes.from(offset.saturating_sub(page * PAGE_BYTES) as usize);
            let rest = buf.get_mut(filled..count as usize).unwrap_or_default();
            let copied = part.len().min(rest.len());
            if let (Some(to), Some(from)) = (rest.get_mut(..copied), part.get(..copied)) {
                to.copy_from_slice(from);
            }
            filled += copied;
        }
        Ok(filled)
    }

    /// Returns these pages of a file; fetches those that are not in memory.
    fn pages(&self, file: usize, wanted: Range<u64>) -> io::Result<BTreeMap<u64, Page>> {
        let mut found = BTreeMap::new();
        let mut pages = self.pages.lock();
        loop {
            self.check()?;
            let (mut absent, mut awaited) = (Vec::new(), None);
            for page in wanted.clone() {
                if found.contains_key(&page) {
                    continue;
                }
                match pages.get(file, page) {
                    Place::Memory(bytes) => drop(found.insert(page, bytes)),
                    Place::Way(run) => drop(awaited.get_or_insert(run)),
                    Place::Absent => absent.push(page),
                }
            }
            match awaited {
                // All requests are started before one of them is awaited.
                _ if !absent.is_empty() => {
                    let runs = pages.plan(file, &absent, |file| self.page_count(file));
                    self.begin(&mut pages, &runs)?;
                }
                Some(run) => match pages.take_pending(&run) {
                    Some(pending) => {
                        let outcome = MutexGuard::unlocked(&mut pages, || self.outcome(&run, pending.wait()));
                        self.arrive(&mut pages, &run, outcome)?;
                    }
                    None => self.arrived.wait(&mut pages),
                },
                None => return Ok(found),
            }
        }
    }

    /// Makes the requests for planned ranges. Returns when the answers of the short ones have arrived; those of the long
    /// ones are awaited by the threads that need them.
    fn begin(&self, pages: &mut MutexGuard<'_, Pages>, runs: &[PageRun]) -> Result<(), RemoteError> {
        let (long, short): (Vec<PageRun>, Vec<PageRun>) = runs.iter().cloned().partition(PageRun::is_long);
        let mut outcome = self.start(pages, &long);
        if short.is_empty() {
            return outcome;
        }
        let ranges: Vec<RemoteRange<'_>> = short.iter().map(|run| self.range(run)).collect();
        let dropped = pages.take_dropped();
        let answer = MutexGuard::unlocked(pages, || {
            drop(dropped);
            self.source.read(&ranges)
        });
        let mut parts = answer.map(Vec::into_iter);
        for run in &short {
            let part = match &mut parts {
                Ok(parts) => parts.next().ok_or_else(|| self.too_few(ranges.len())),
                Err(error) => Err(error.clone()),
            };
            let arrived = self.arrive(pages, run, self.outcome(run, part));
            outcome = outcome.and(arrived);
        }
        outcome
    }

    /// Starts the requests for planned ranges.
    fn start(&self, pages: &mut MutexGuard<'_, Pages>, runs: &[PageRun]) -> Result<(), RemoteError> {
        if runs.is_empty() {
            return Ok(());
        }
        let dropped = pages.take_dropped();
        let started = MutexGuard::unlocked(pages, || {
            drop(dropped);
            let start = |run: &PageRun| self.source.start(&self.range(run));
            runs.iter().map(start).collect::<Vec<_>>()
        });
        let mut outcome = Ok(());
        for (run, started) in runs.iter().zip(started) {
            match started {
                Ok(pending) => pages.started(run, pending),
                Err(error) => outcome = self.arrive(pages, run, Err(self.fail(error))),
            }
        }
        self.arrived.notify_all();
        outcome
    }

    /// Ends a request.
    fn arrive(
        &self,
        pages: &mut Pages,
        run: &PageRun,
        outcome: Result<RangeBytes, RemoteError>,
    ) -> Result<(), RemoteError> {
        let (bytes, outcome) = match outcome {
            Ok(bytes) => (Some(bytes), Ok(())),
            Err(error) => (None, Err(error)),
        };
        pages.arrive(run, bytes);
        self.arrived.notify_all();
        outcome
    }

    /// Returns the range of pages in a file; its length is 0 if there is no such file.
    fn range(&self, run: &PageRun) -> RemoteRange<'_> {
        let start = run.pages.start * PAGE_BYTES;
        let (path, version, file_len) = match self.entries.get(run.file) {
            Some(entry) => (&*entry.path, &*entry.version, entry.len),
            None => ("", "", 0),
        };
        let len = (run.pages.end * PAGE_BYTES).min(file_len).saturating_sub(start);
        RemoteRange { path, version, start, len }
    }

    /// Checks the length of an answer, and notes a failure.
    fn outcome(
        &self,
        run: &PageRun,
        answer: Result<RangeBytes, RemoteError>,
    ) -> Result<RangeBytes, RemoteError> {
        let range = self.range(run);
        let checked = answer.and_then(|bytes| {
            let len = (*bytes).as_ref().len();
            if len as u64 == range.len {
                return Ok(bytes);
            }
            Err(RemoteError {
                cause: RemoteCause::Changed,
                path: self.root.join(range.path),
                reason: format!(
                    "{} bytes at offset {} were requested and {len} were returned",
                    range.len, range.start
                ),
            })
        });
        checked.map_err(|error| self.fail(error))
    }

    fn too_few(&self, count: usize) -> RemoteError {
        let reason = format!("fewer ranges were returned than the {count} that were requested");
        RemoteError { cause: RemoteCause::Other, path: self.root.clone(), reason }
    }

    /// Notes a failure. Returns the first one.
    fn fail(&self, error: RemoteError) -> RemoteError {
        self.failure.get_or_init(|| error).clone()
    }
}

/// Returns the error of every change.
pub(super) fn read_only_error() -> io::Error {
    io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "a store at a URL can only be read")
}

/// Returns the outcome of every change.
pub(super) fn read_only<T>() -> io::Result<T> {
    Err(read_only_error())
}
