//! The open of a store: a directory or a URL, the progress of its recovery, and the notes of the open.

use mqstore::Store;
use mqstore::error::StoreError;
use mqstore::options::OpenMode;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use super::NativeStore;
use crate::convert::options;
use crate::runtime::{SharedStore, detached, tell_recovery};
use crate::store::delay;
use crate::store::folder::StoreFolder;
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
        let (open_mode, mut mode) = options::mode(mode)?;
        let options = options::from_dict(options)?;
        let (host, default_queues) = (options.store_host, options.default_queues);
        let compression = options.body_compression();
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
                builder.options(options).watcher(&mut watch).open_undelivered()
            })
        });
        if let Some(error) = raised {
            return Err(error);
        }
        let store = opened?;
        if store.mode() == OpenMode::Read {
            mode = "r";
        }
        let shared = SharedStore::new(store, text, faulty);
        let place = folder.is_remote().then(|| path.unbind());
        let store = Self { shared, path: name, place, mode, host, default_queues, compression };
        store.shared.say_notes(py)?;
        delay::begin(py, store.core()?)?;
        // The open of delayed messages may add notes.
        store.shared.say_notes(py)?;
        Ok(store)
    }
}
