//! The place of a store that a verb reads: a directory, or a URL with the transport of `mqstore._remote`.
//!
//! [`PythonSource`] calls the transport. The core holds locks meanwhile. That is no deadlock, because no thread waits for
//! a lock of the store while it has the interpreter.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use mqstore::Store;
use mqstore::error::{IoContext, StoreError};
use mqstore::inspect::StoreFiles;
use mqstore::io::{
    OsVfs, PendingRange, RangeBytes, RemoteCause, RemoteEntry, RemoteError, RemoteRange, RemoteSource,
    RemoteVfs, SystemClock, Vfs,
};
use mqstore::options::{DledgerEnd, StoreOptions};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyList;

use crate::convert::buffer::range_bytes;
use crate::convert::options::dledger_end;

/// Reads of one store at the same time, in addition to those that threads wait for.
const READS_AT_ONCE: u32 = 8;

/// A store at a URL. Its files are listed at the first use; all later uses see the same versions.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct RemoteDirectory {
    folder: StoreFolder,
}

#[pymethods]
impl RemoteDirectory {
    /// Takes the URL to show and the transport, which has the methods `files` and `read`.
    #[new]
    fn new(url: String, source: Py<PyAny>) -> Self {
        let source = Arc::new(PythonSource::new(PathBuf::from(&url), source));
        let (path, remote) = (PathBuf::from(url), Some(Remote::new(source)));
        Self { folder: StoreFolder { path, remote, dledger_end: DledgerEnd::default() } }
    }

    /// The URL, without secrets.
    #[getter]
    fn url(&self) -> String {
        self.folder.path.to_string_lossy().into_owned()
    }

    /// Returns the same store, whose files are listed again.
    fn again(&self) -> Self {
        let remote = self.folder.remote.as_ref().map(|remote| Remote::new(Arc::clone(&remote.source)));
        Self { folder: StoreFolder { remote, ..self.folder.clone() } }
    }

    fn __repr__(&self) -> String {
        format!("<store at {:?}>", self.url())
    }
}

/// The place of a store.
#[derive(Clone)]
pub(crate) struct StoreFolder {
    path: PathBuf,
    /// Set for a URL.
    remote: Option<Arc<Remote>>,
    /// The option of that name, for verbs that read the log.
    dledger_end: DledgerEnd,
}

struct Remote {
    source: Arc<PythonSource>,
    listed: Mutex<Option<Arc<RemoteVfs>>>,
}

impl Remote {
    fn new(source: Arc<PythonSource>) -> Arc<Self> {
        Arc::new(Self { source, listed: Mutex::default() })
    }
}

impl StoreFolder {
    /// Converts the argument of a verb: a path, or a [`RemoteDirectory`]; or a tuple of one of them and the option
    /// `dledger_end`.
    pub(crate) fn of(place: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok((place, end)) = place.extract::<(Bound<'_, PyAny>, String)>() {
            return Ok(Self { dledger_end: dledger_end(&end)?, ..Self::of(&place)? });
        }
        match place.cast::<RemoteDirectory>() {
            Ok(remote) => Ok(remote.get().folder.clone()),
            Err(_) => Ok(Self { path: place.extract()?, remote: None, dledger_end: DledgerEnd::default() }),
        }
    }

    /// Returns the path, or the URL without secrets.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is a URL.
    pub(crate) fn is_remote(&self) -> bool {
        self.remote.is_some()
    }

    /// Runs `call` with the file system of the place. Call it with the interpreter released.
    ///
    /// # Errors
    /// The error of `call`; or the first failed request, whatever `call` made of it.
    pub(crate) fn read<T>(
        &self,
        call: impl FnOnce(Arc<dyn Vfs>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let Some(remote) = &self.remote else { return call(Arc::new(OsVfs::new())) };
        let vfs = {
            let mut listed = remote.listed.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(vfs) = &*listed {
                Arc::clone(vfs)
            } else {
                let source = Arc::clone(&remote.source) as Arc<dyn RemoteSource>;
                let vfs = RemoteVfs::open(&self.path, source).map_err(|error| self.no_list(error))?;
                Arc::clone(listed.insert(Arc::new(vfs)))
            }
        };
        let outcome = call(Arc::clone(&vfs) as Arc<dyn Vfs>);
        match vfs.failure() {
            Some(failure) => Err(failure).at(&self.path, "reading the store"),
            None => outcome,
        }
    }

    /// Like [`Self::read`], with the files of the store.
    pub(crate) fn read_files<T>(
        &self,
        call: impl FnOnce(&StoreFiles) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.read(|vfs| call(&StoreFiles::new(vfs, Arc::new(SystemClock::new()), &self.path)))
    }

    /// Like [`Self::read`], with the store open for its log; see `StoreBuilder::open_log`.
    pub(crate) fn read_log<T>(
        &self,
        call: impl FnOnce(Store) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.read(|vfs| {
            let options = StoreOptions { dledger_end: self.dledger_end, ..StoreOptions::default() };
            call(Store::builder(&self.path).vfs(vfs).options(options).open_log()?)
        })
    }

    fn no_list(&self, error: std::io::Error) -> StoreError {
        match RemoteError::of(&error).filter(|error| error.cause == RemoteCause::NoBucket) {
            Some(error) => StoreError::NotAStore { path: self.path.clone(), reason: error.reason.clone() },
            None => StoreError::io(&self.path, "listing the files of the store", error),
        }
    }
}

/// The transport, an object of `mqstore._remote`.
struct PythonSource {
    root: PathBuf,
    object: Py<PyAny>,
    /// The executor of the reads for which no thread waits yet.
    threads: PyOnceLock<Py<PyAny>>,
}

impl fmt::Debug for PythonSource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The object has credentials.
        out.debug_struct("PythonSource").field("root", &self.root).finish_non_exhaustive()
    }
}

impl PythonSource {
    fn new(root: PathBuf, object: Py<PyAny>) -> Self {
        Self { root, object, threads: PyOnceLock::new() }
    }

    /// Calls the transport for a range, in a thread of the executor. Returns the future of the answer.
    fn submit(&self, py: Python<'_>, range: &RemoteRange<'_>) -> PyResult<Py<PyAny>> {
        let threads = self.threads.get_or_try_init(py, || -> PyResult<Py<PyAny>> {
            let executor = py.import("concurrent.futures")?.getattr("ThreadPoolExecutor")?;
            Ok(executor.call1((READS_AT_ONCE, "mqstore-read"))?.unbind())
        })?;
        let read = self.object.bind(py).getattr("read")?;
        let wanted = PyList::new(py, [row(range)])?;
        Ok(threads.bind(py).call_method1("submit", (read, wanted))?.unbind())
    }
}

/// Converts an exception of the transport of the files at `root`. It names the kind of the failure.
pub(crate) fn failure(root: &Path, py: Python<'_>, error: &PyErr) -> RemoteError {
    let value = error.value(py);
    let told = |name: &str| value.getattr(name).and_then(|found| found.extract::<String>()).ok();
    if error.is_instance_of::<PyKeyboardInterrupt>(py) {
        let reason = "interrupted; open the store again".to_owned();
        return RemoteError { cause: RemoteCause::Interrupted, path: root.to_owned(), reason };
    }
    let cause = match told("cause").as_deref() {
        Some("denied") => RemoteCause::Denied,
        Some("no-bucket") => RemoteCause::NoBucket,
        Some("changed") => RemoteCause::Changed,
        _ => RemoteCause::Other,
    };
    let path = told("path").filter(|path| !path.is_empty()).map_or(root.to_owned(), |path| root.join(path));
    // The text of any other exception may contain secrets.
    let reason = told("reason").unwrap_or_else(|| {
        value.get_type().name().map_or_else(|_| "failed".to_owned(), |name| name.to_string())
    });
    RemoteError { cause, path, reason }
}

impl RemoteSource for PythonSource {
    fn list(&self) -> Result<Vec<RemoteEntry>, RemoteError> {
        Python::attach(|py| {
            let listed = self.object.call_method0(py, "files").and_then(|found| {
                let rows: Vec<(String, u64, i64, String)> = found.extract(py)?;
                Ok(rows)
            });
            let rows = listed.map_err(|error| failure(&self.root, py, &error))?;
            let entry = |(path, len, modified_ms, version)| RemoteEntry { path, len, modified_ms, version };
            Ok(rows.into_iter().map(entry).collect())
        })
    }

    fn read(&self, ranges: &[RemoteRange<'_>]) -> Result<Vec<RangeBytes>, RemoteError> {
        Python::attach(|py| {
            let wanted: Vec<_> = ranges.iter().map(row).collect();
            let fetch = || -> PyResult<Vec<RangeBytes>> {
                let parts = self.object.bind(py).call_method1("read", (PyList::new(py, wanted)?,))?;
                parts.try_iter()?.map(|part| range_bytes(&part?)).collect()
            };
            fetch().map_err(|error| failure(&self.root, py, &error))
        })
    }

    fn start(&self, range: &RemoteRange<'_>) -> Result<Box<dyn PendingRange>, RemoteError> {
        Python::attach(|py| {
            let future = self.submit(py, range).map_err(|error| failure(&self.root, py, &error))?;
            Ok(Box::new(FutureRange { root: self.root.clone(), future }) as Box<dyn PendingRange>)
        })
    }
}

/// A read that a thread of the transport does.
struct FutureRange {
    root: PathBuf,
    future: Py<PyAny>,
}

impl PendingRange for FutureRange {
    fn wait(self: Box<Self>) -> Result<RangeBytes, RemoteError> {
        Python::attach(|py| {
            let result = || -> PyResult<RangeBytes> {
                let parts = self.future.bind(py).call_method0("result")?;
                range_bytes(&parts.get_item(0)?)
            };
            result().map_err(|error| failure(&self.root, py, &error))
        })
    }
}

/// Returns a range as the transport takes it.
fn row<'a>(range: &RemoteRange<'a>) -> (&'a str, &'a str, u64, u64) {
    (range.path, range.version, range.start, range.len)
}
