//! A running scan for Python objects: turns, Ctrl-C, warnings, forks.

use std::sync::{Arc, Mutex, PoisonError};

use mqstore::Store;
use mqstore::error::StoreError;
use mqstore::read::{MakeSink, Passed, Scan, ScanBatch, ScanOutput, ScanRequest, ScanSink};
use pyo3::prelude::*;

use crate::runtime::{
    ForkGuarded, SLICE, SharedStore, Source, about_topic, detached, reading, settled, without_interpreter,
};
use crate::store::NativeStore;
use crate::store::folder::StoreFolder;
use crate::store::iterators::raised_again;

/// A scan, and the store that it reads.
pub(crate) struct RunningScan<S: ScanSink> {
    pub(crate) shared: Arc<SharedStore>,
    scan: ForkGuarded<Scan<S>>,
    /// Whether the transport of the store or of its archive may be Python, which the workers call.
    calls_python: bool,
}

impl<S: ScanSink> RunningScan<S> {
    /// Returns the next output, within one slice.
    pub(crate) fn next(&mut self) -> Result<ScanOutput<S::Batch>, StoreError> {
        let Some(scan) = self.scan.get_mut() else { return Ok(ScanOutput::End) };
        let Ok(store) = self.shared.store() else { return Ok(ScanOutput::End) };
        if !self.calls_python {
            return scan.next(SLICE);
        }
        let step = without_interpreter(|| scan.next(SLICE));
        let closed = || Err(StoreError::Closed { path: store.path().to_path_buf() });
        settled(store, step.unwrap_or_else(closed))
    }
}

impl<S: ScanSink> Drop for RunningScan<S> {
    fn drop(&mut self) {
        if !self.calls_python || self.shared.is_forked() {
            return;
        }
        // The end of a scan waits for its workers, which may wait for the interpreter.
        let mut scan = self.scan.take();
        let _ = without_interpreter(|| drop(scan.take()));
        #[expect(
            clippy::mem_forget,
            reason = "the interpreter ends, and workers that wait for it never end"
        )]
        std::mem::forget(scan);
    }
}

/// One pass over the messages. Threads that share a pass take turns.
pub(crate) struct ScanHandle<S: ScanSink> {
    running: Mutex<Option<RunningScan<S>>>,
    /// The records that were skipped before the pass ended.
    passed: Mutex<Vec<(Passed, String)>>,
    /// The error that ended the pass. Each call raises it again: it is not the end of the rows.
    failure: Mutex<Option<PyErr>>,
    shared: Arc<SharedStore>,
    pub(crate) start: u64,
    pub(crate) limit: u64,
    pub(crate) follows_entries: bool,
}

impl<S: ScanSink> ScanHandle<S> {
    /// Starts a pass over an open store, or over the directory with this path.
    pub(crate) fn begin(
        source: &Bound<'_, PyAny>,
        request: &ScanRequest,
        make: MakeSink<S>,
    ) -> PyResult<Self> {
        let py = source.py();
        let shared = if let Ok(store) = source.cast::<NativeStore>() {
            store.get().shared()
        } else {
            let folder = StoreFolder::of(source)?;
            let text = folder.path().to_string_lossy().into_owned();
            let store = detached(py, || folder.read_log(Ok))?;
            SharedStore::new(Source::own(store, None), text, None, None)
        };
        let store = shared.reads()?;
        let scan = about_topic(py, store, || store.scan(request, make))?;
        shared.say_notes(py)?;
        let (start, limit, follows_entries) = (scan.start(), scan.limit(), scan.follows_entries());
        let scan = ForkGuarded::new(Arc::clone(&shared), scan);
        let calls_python = store.files().vfs.is_remote() || request.with_older;
        let running = RunningScan { shared: Arc::clone(&shared), scan, calls_python };
        Ok(Self {
            running: Mutex::new(Some(running)),
            passed: Mutex::default(),
            failure: Mutex::default(),
            shared,
            start,
            limit,
            follows_entries,
        })
    }

    /// Returns the store that the pass reads.
    pub(crate) fn store(&self) -> PyResult<&Store> {
        self.shared.store()
    }

    /// Takes the running scan, which ends this pass.
    pub(crate) fn take(&self) -> Option<RunningScan<S>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns the next rows.
    pub(crate) fn next(&self, py: Python<'_>) -> PyResult<Option<ScanBatch<S::Batch>>> {
        let store = self.shared.store()?;
        if let Some(error) = self.failure.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            return Err(raised_again(py, error));
        }
        loop {
            let step = reading(py, store, || {
                let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
                let step = running.as_mut().map_or(Ok(ScanOutput::End), RunningScan::next);
                if !matches!(step, Ok(ScanOutput::Batch(_) | ScanOutput::Later)) {
                    let over = running.take();
                    let scan = over.as_ref().and_then(|running| running.scan.peek());
                    let passed = scan.map(Scan::passed).unwrap_or_default();
                    *self.passed.lock().unwrap_or_else(PoisonError::into_inner) = passed;
                }
                step
            });
            let step = step.inspect_err(|error| {
                *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.clone_ref(py));
            })?;
            self.shared.say_notes(py)?;
            match step {
                ScanOutput::Batch(batch) => return Ok(Some(batch)),
                ScanOutput::Later => py.check_signals()?,
                ScanOutput::End => return Ok(None),
            }
        }
    }

    /// Returns the records that were skipped so far.
    pub(crate) fn passed(&self, py: Python<'_>) -> Vec<(Passed, String)> {
        py.detach(|| {
            let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            let passed = running.as_ref().and_then(|running| running.scan.peek()).map(Scan::passed);
            passed.unwrap_or_else(|| self.passed.lock().unwrap_or_else(PoisonError::into_inner).clone())
        })
    }

    /// Returns the log offset before which all rows were returned.
    pub(crate) fn position(&self, py: Python<'_>) -> u64 {
        py.detach(|| {
            let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            running.as_ref().and_then(|running| running.scan.peek()).map_or(self.limit, Scan::position)
        })
    }
}
