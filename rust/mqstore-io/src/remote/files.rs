//! The listed files of a remote store, and the reads of their pages.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::pages::{PAGE_BYTES, PageRun, Pages};
use super::source::{RemoteCause, RemoteEntry, RemoteError, RemoteRange, RemoteSource};
use crate::vfs::{FileKind, FileStat};

/// Bytes of the longest single read; a longer one is done in parts.
const MOST_READ_BYTES: u64 = 8 << 20;

/// The files and their pages in memory.
#[derive(Debug)]
pub(super) struct RemoteFiles {
    root: PathBuf,
    source: Arc<dyn RemoteSource>,
    entries: Vec<RemoteEntry>,
    pages: Mutex<Pages>,
    /// Signalled when a fetch ends.
    arrived: Condvar,
    failure: OnceLock<RemoteError>,
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

    /// Notes that a reader will read these pages of a file soon.
    pub(super) fn expect(&self, file: usize, pages: &Range<u64>) {
        self.pages.lock().expect(file, pages);
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
        let count = len.saturating_sub(offset).min(buf.len() as u64).min(MOST_READ_BYTES);
        if count == 0 {
            return self.check().map(|()| 0);
        }
        let mut filled = 0;
        for (page, bytes) in self.pages(file, offset / PAGE_BYTES..(offset + count).div_ceil(PAGE_BYTES))? {
            let skipped = offset.saturating_sub(page * PAGE_BYTES) as usize;
            let part = bytes.get(skipped..).unwrap_or_default();
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
    fn pages(&self, file: usize, wanted: Range<u64>) -> io::Result<BTreeMap<u64, Arc<[u8]>>> {
        let mut found = BTreeMap::new();
        let mut pages = self.pages.lock();
        loop {
            self.check()?;
            let mut missing = Vec::new();
            let absent: Vec<u64> = wanted.clone().filter(|page| !found.contains_key(page)).collect();
            for page in absent {
                match pages.get(file, page) {
                    Some(bytes) => drop(found.insert(page, bytes)),
                    None => missing.push(page),
                }
            }
            if missing.is_empty() {
                return Ok(found);
            }
            missing.retain(|page| !pages.is_fetching(file, *page));
            if missing.is_empty() {
                self.arrived.wait(&mut pages);
                continue;
            }
            let runs = pages.plan(file, &missing, |file| self.page_count(file));
            let fetched = MutexGuard::unlocked(&mut pages, || self.fetch(&runs));
            pages.arrive(&runs, fetched.as_deref().unwrap_or_default());
            self.arrived.notify_all();
            fetched?;
        }
    }

    fn fetch(&self, runs: &[PageRun]) -> Result<Vec<Vec<u8>>, RemoteError> {
        let ranges = runs.iter().filter_map(|run| {
            let entry = self.entries.get(run.file)?;
            let start = run.pages.start * PAGE_BYTES;
            let len = (run.pages.end * PAGE_BYTES).min(entry.len).saturating_sub(start);
            Some(RemoteRange { path: &entry.path, version: &entry.version, start, len })
        });
        let ranges: Vec<RemoteRange<'_>> = ranges.collect();
        let fetched = self.source.read(&ranges).and_then(|parts| {
            let short = ranges.iter().zip(&parts).find(|(range, part)| range.len != part.len() as u64);
            match short {
                Some((range, part)) => Err(RemoteError {
                    cause: RemoteCause::Changed,
                    path: self.root.join(range.path),
                    reason: format!(
                        "{} bytes at offset {} were requested and {} were returned",
                        range.len,
                        range.start,
                        part.len()
                    ),
                }),
                None if parts.len() == ranges.len() => Ok(parts),
                None => Err(RemoteError {
                    cause: RemoteCause::Other,
                    path: self.root.clone(),
                    reason: format!("{} ranges were requested and {} returned", ranges.len(), parts.len()),
                }),
            }
        });
        fetched.map_err(|error| self.failure.get_or_init(|| error).clone())
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
