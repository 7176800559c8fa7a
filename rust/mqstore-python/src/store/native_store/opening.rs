//! The open of a store: a directory or a URL, the progress of its recovery, and the notes of the open.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mqstore::Store;
use mqstore::error::StoreError;
use mqstore::options::OpenMode;
use mqstore_server::master::Master;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use super::NativeStore;
use crate::convert::options;
use crate::runtime::{Reopen, SharedStore, Source, detached, tell_recovery};
use crate::store::folder::StoreFolder;
use crate::store::{delay, shared};
use crate::testing::TestEnv;

impl NativeStore {
    /// Opens the store at `path`, a name or a `RemoteDirectory`, and starts its delivery if it is open for writing.
    pub(super) fn open(
        py: Python<'_>,
        path: Bound<'_, PyAny>,
        mode: &str,
        options: &Bound<'_, PyDict>,
        progress: Option<&Py<PyAny>>,
        env: TestEnv,
    ) -> PyResult<Self> {
        let folder = StoreFolder::of(&path)?;
        if mode == "share" {
            return Self::open_shared(py, &path, folder.path(), options, progress, env);
        }
        let (open_mode, mut mode) = options::mode(mode)?;
        let options = options::from_dict(options)?;
        let (host, default_queues) = (options.store_host, options.default_queues);
        let compression = options.body_compression();
        let replicates = options.replication.is_some() && open_mode.writes();
        let text = folder.path().to_string_lossy().into_owned();
        let name = if folder.is_remote() {
            PyString::new(py, &text).unbind()
        } else {
            path.cast::<PyString>()?.clone().unbind()
        };
        let TestEnv { vfs, clock, faulty } = env;
        let mut raised = None;
        let opened = detached(py, || {
            let path = folder.path();
            folder.read(|remote| {
                let vfs = if folder.is_remote() { remote } else { vfs };
                let mut watch = |step| {
                    tell_recovery(progress, step).map_err(|error| {
                        // Any error ends the open. The caller gets the one that Python raised.
                        raised = Some(error);
                        StoreError::Closed { path: path.to_path_buf() }
                    })
                };
                let builder = Store::builder(path).vfs(vfs).clock(clock).mode(open_mode);
                let store = builder.options(options).watcher(&mut watch).open_undelivered()?;
                let master = Master::start(&store)?;
                Ok((store, master))
            })
        });
        if let Some(error) = raised {
            return Err(error);
        }
        let (store, master) = opened?;
        if store.mode() == OpenMode::Read {
            mode = "r";
        }
        let shared = SharedStore::new(Source::own(store, master), text, faulty, None);
        let place = folder.is_remote().then(|| path.unbind());
        let store = Self { shared, path: name, place, mode, host, default_queues, compression, replicates };
        store.shared.say_notes(py)?;
        delay::begin(py, store.core()?)?;
        // The open of delayed messages may add notes.
        store.shared.say_notes(py)?;
        Ok(store)
    }

    /// Opens the store together with other processes. `options` has the entries `share`, an object that decides, and
    /// `own` and `timeout`: whether this process may become the owner, and the longest wait in seconds.
    fn open_shared(
        py: Python<'_>,
        path: &Bound<'_, PyAny>,
        root: &Path,
        options: &Bound<'_, PyDict>,
        progress: Option<&Py<PyAny>>,
        env: TestEnv,
    ) -> PyResult<Self> {
        let entry = |name: &str| options.get_item(name)?.ok_or_else(|| PyKeyError::new_err(name.to_owned()));
        let (program, may_own) = (entry("share")?.unbind(), entry("own")?.extract::<bool>()?);
        let timeout = entry("timeout")?.extract::<Option<f64>>()?.map(Duration::from_secs_f64);
        let (faulty, handle) = (env.faulty.clone(), Arc::default());
        let known = Arc::clone(&handle);
        let opening = shared::Opening { root: root.to_path_buf(), program, may_own, timeout, env, handle };
        let shared = shared::open(py, &opening, progress)?;
        let (form, _): (Bound<'_, PyDict>, String) =
            opening.program.bind(py).call_method1("options", (shared.options(),))?.extract()?;
        let options = options::from_dict(&form)?;
        let text = root.to_string_lossy().into_owned();
        let again: Reopen = Box::new(move || Python::attach(|py| shared::open(py, &opening, None)));
        let shared = SharedStore::new(Source::Shared(shared), text, faulty, Some(again));
        // It is set once.
        let _ = known.set(Arc::downgrade(&shared));
        let store = Self {
            shared,
            path: path.cast::<PyString>()?.clone().unbind(),
            place: None,
            mode: "share",
            host: options.store_host,
            default_queues: options.default_queues,
            compression: options.body_compression(),
            replicates: options.replication.is_some(),
        };
        store.shared.say_notes(py)?;
        Ok(store)
    }
}
