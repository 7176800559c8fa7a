//! A running scan for Python objects: turns, Ctrl-C, warnings, forks.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use mqstore_base::error::StoreError;
use mqstore_base::options::StoreOptions;
use mqstore_engine::{MakeSink, Passed, Scan, ScanBatch, ScanOutput, ScanRequest, ScanSink, Store};
use mqstore_io::{OsVfs, SystemClock};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::runtime::{ForkGuarded, SLICE, SharedStore, about_topic, detached};
use crate::store::NativeStore;

/// A scan, and the store that it reads.
pub(super) struct RunningScan<S: ScanSink> {
    pub(super) shared: Arc<SharedStore>,
    scan: ForkGuarded<Scan<S>>,
}

impl<S: ScanSink> RunningScan<S> {
    /// Returns the next output, within one slice.
    pub(super) fn next(&mut self) -> Result<ScanOutput<S::Batch>, StoreError> {
        self.scan.get_mut().map_or(Ok(ScanOutput::End), |scan| scan.next(SLICE))
    }
}

/// One pass over the messages. Threads that share a pass take turns.
pub(super) struct ScanHandle<S: ScanSink> {
    running: Mutex<Option<RunningScan<S>>>,
    /// The records that were skipped before the pass ended.
    passed: Mutex<Vec<(Passed, String)>>,
    shared: Arc<SharedStore>,
    pub(super) start: u64,
    pub(super) limit: u64,
    pub(super) follows_entries: bool,
}

impl<S: ScanSink> ScanHandle<S> {
    /// Starts a pass over an open store, or over the directory with this path.
    pub(super) fn begin(
        source: &Bound<'_, PyAny>,
        request: &ScanRequest,
        make: MakeSink<S>,
    ) -> PyResult<Self> {
        let py = source.py();
        let shared = if let Ok(path) = source.cast::<PyString>() {
            let path: PathBuf = path.extract()?;
            let text = path.to_string_lossy().into_owned();
            let store = detached(py, || {
                let (vfs, clock) = (Arc::new(OsVfs::new()), Arc::new(SystemClock::new()));
                Store::open_log(vfs, clock, &path, &StoreOptions::default())
            })?;
            SharedStore::new(store, text, None)
        } else {
            source.cast::<NativeStore>()?.get().shared()
        };
        let store = shared.store()?;
        let scan = about_topic(py, store, || store.scan(request, make))?;
        shared.say_notes(py, 3)?;
        let (start, limit, follows_entries) = (scan.start(), scan.limit(), scan.follows_entries());
        let scan = ForkGuarded::new(Arc::clone(&shared), scan);
        let running = RunningScan { shared: Arc::clone(&shared), scan };
        Ok(Self {
            running: Mutex::new(Some(running)),
            passed: Mutex::default(),
            shared,
            start,
            limit,
            follows_entries,
        })
    }

    /// Returns the store that the pass reads.
    pub(super) fn store(&self) -> PyResult<&Store> {
        self.shared.store()
    }

    /// Takes the running scan, which ends this pass.
    pub(super) fn take(&self) -> Option<RunningScan<S>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns the next rows.
    pub(super) fn next(&self, py: Python<'_>) -> PyResult<Option<ScanBatch<S::Batch>>> {
        loop {
            let step = detached(py, || {
                let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
                let step = running.as_mut().map_or(Ok(ScanOutput::End), RunningScan::next);
                if !matches!(step, Ok(ScanOutput::Batch(_) | ScanOutput::Later)) {
                    let over = running.take();
                    let scan = over.as_ref().and_then(|running| running.scan.peek());
                    let passed = scan.map(Scan::passed).unwrap_or_default();
                    *self.passed.lock().unwrap_or_else(PoisonError::into_inner) = passed;
                }
                step
            })?;
            self.shared.say_notes(py, 3)?;
            match step {
                ScanOutput::Batch(batch) => return Ok(Some(batch)),
                ScanOutput::Later => py.check_signals()?,
                ScanOutput::End => return Ok(None),
            }
        }
    }

    /// Returns the records that were skipped so far.
    pub(super) fn passed(&self, py: Python<'_>) -> Vec<(Passed, String)> {
        py.detach(|| {
            let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            let passed = running.as_ref().and_then(|running| running.scan.peek()).map(Scan::passed);
            passed.unwrap_or_else(|| self.passed.lock().unwrap_or_else(PoisonError::into_inner).clone())
        })
    }

    /// Returns the log offset before which all rows were returned.
    pub(super) fn position(&self, py: Python<'_>) -> u64 {
        py.detach(|| {
            let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            running.as_ref().and_then(|running| running.scan.peek()).map_or(self.limit, Scan::position)
        })
    }
}
