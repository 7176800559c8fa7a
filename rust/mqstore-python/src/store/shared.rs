//! A store that several processes share: what the program decides, and the open.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use mqstore::Store;
use mqstore::error::StoreError;
use mqstore::options::StoreOptions;
use mqstore_server::share::{Program, Setup, SharedStore as Shared};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use crate::convert::options;
use crate::error::Raised;
use crate::runtime::{SharedStore, detached, tell_recovery};
use crate::testing::TestEnv;

/// The Python object that decides: `mqstore._share.Program`.
struct PythonProgram {
    own: Py<PyAny>,
    root: PathBuf,
    /// The handle, once it is made: its archive continues the reads of later opens.
    handle: Arc<OnceLock<Weak<SharedStore>>>,
}

impl PythonProgram {
    /// Calls a method; an exception becomes an error that gives it back.
    fn call<T>(
        &self,
        action: &'static str,
        call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>,
    ) -> Result<T, StoreError> {
        let closed = || StoreError::Closed { path: self.root.clone() };
        Python::try_attach(|py| {
            call(self.own.bind(py)).map_err(|error| {
                let source = std::io::Error::other(Raised::new(py, error));
                StoreError::Io { path: self.root.clone(), action, source }
            })
        })
        // The interpreter ends.
        .unwrap_or_else(|| Err(closed()))
    }
}

impl Program for PythonProgram {
    fn options(&self, last: Option<&str>) -> Result<(StoreOptions, String), StoreError> {
        self.call("reading the options", |own| {
            let (form, text): (Bound<'_, PyDict>, String) =
                own.call_method1("options", (last,))?.extract()?;
            Ok((options::from_dict(&form)?, text))
        })
    }

    fn agree(&self, owner: &str) -> Result<(), StoreError> {
        self.call("comparing the options", |own| own.call_method1("agree", (owner,)).map(drop))
    }

    fn opened(&self, store: &Store) {
        let archive = self.handle.get().and_then(Weak::upgrade).and_then(|handle| handle.archive());
        if let Some(archive) = archive {
            store.set_older(Some(Arc::new(archive.for_store(store.downgrade()))));
        }
    }

    fn note(&self, line: &str) {
        static GET_LOGGER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let _ = self.call("logging", |own| {
            let logger = GET_LOGGER.import(own.py(), "logging", "getLogger")?.call1(("mqstore",))?;
            logger.call_method1("warning", ("%s", line)).map(drop)
        });
    }

    fn interrupted(&self) -> Result<(), StoreError> {
        self.call("waiting for the owner", |own| own.py().check_signals())
    }
}

/// How a process opens a shared store, also again in a forked child.
pub(crate) struct Opening {
    pub(crate) root: PathBuf,
    pub(crate) program: Py<PyAny>,
    pub(crate) may_own: bool,
    pub(crate) timeout: Option<Duration>,
    pub(crate) env: TestEnv,
    pub(crate) handle: Arc<OnceLock<Weak<SharedStore>>>,
}

/// Opens a store together with other processes.
pub(crate) fn open(py: Python<'_>, opening: &Opening, progress: Option<&Py<PyAny>>) -> PyResult<Shared> {
    let root = opening.root.clone();
    let handle = Arc::clone(&opening.handle);
    let own = PythonProgram { own: opening.program.clone_ref(py), root: root.clone(), handle };
    let setup = Setup {
        root: root.clone(),
        may_own: opening.may_own,
        timeout: opening.timeout,
        program: Arc::new(own),
        vfs: Arc::clone(&opening.env.vfs),
        clock: Arc::clone(&opening.env.clock),
    };
    let mut raised = None;
    let opened = crate::runtime::delivered(py, || {
        Shared::open(setup, &mut |step| {
            tell_recovery(progress, step).map_err(|error| {
                // Any error ends the open. The caller gets the one that Python raised.
                raised = Some(error);
                StoreError::Closed { path: root.clone() }
            })
        })
    });
    match raised {
        Some(error) => Err(error),
        None => opened,
    }
}

/// Returns the process id of the owner of a shared store, and its clients.
///
/// Each with its process id, its version, its work queues, its consumers with their queues, and the number of its
/// transactions.
#[pyfunction]
pub(crate) fn processes(store: &Bound<'_, crate::store::NativeStore>) -> PyResult<(u32, Vec<ProcessRow>)> {
    let verbs = store.get().verbs()?;
    let (owner, clients) = crate::runtime::delivered(store.py(), || verbs.processes())?;
    let row = |client: mqstore_server::wire::response::ClientInfo| {
        let consumers = client.consumers.into_iter().map(|(group, queues)| {
            (group, queues.into_iter().map(|queue| (queue.topic.to_string(), queue.queue_id)).collect())
        });
        (client.pid, client.library, client.queues, consumers.collect(), client.transactions)
    };
    Ok((owner, clients.into_iter().map(row).collect()))
}

/// Process id, version, work queues, consumers, transactions.
type ProcessRow = (u32, String, Vec<(String, String)>, Vec<(String, Vec<(String, i32)>)>, u32);

/// Returns the process that holds the lock of the store in a directory, and whether it shares the store.
///
/// None if no process has it open for writing; the id is None if the system does not report it.
#[pyfunction]
pub(crate) fn lock_holder(py: Python<'_>, path: PathBuf) -> PyResult<Option<(Option<i32>, bool)>> {
    detached(py, || {
        let files = crate::runtime::files_at(&path);
        let holder = files
            .vfs
            .lock_holder(&files.lock())
            .map_err(|source| StoreError::io(&files.lock(), "reading the lock", source))?;
        let pid = mqstore::inspect::writer_pid(&files);
        Ok(holder.map(|holder| (pid, mqstore_server::share::is_shared(&path) && holder.may_be_ours)))
    })
}

/// Adds the functions.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(processes, module)?)?;
    module.add_function(wrap_pyfunction!(lock_holder, module)?)
}
