//! The durable steps of results outside a store; see `mqstore-io/src/commit.rs`. They raise `OSError`, as the functions of
//! Python do.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore::io::sync::Mutex;
use mqstore::io::{OsVfs, commit};
use mqstore::results::partial;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::error::{EIO, strip_number};

fn os_error(path: &Path, error: &io::Error) -> PyErr {
    let number = error.raw_os_error().unwrap_or(EIO);
    PyOSError::new_err((number, strip_number(&error.to_string()), path.to_path_buf()))
}

fn stepped<T: Send>(
    py: Python<'_>,
    path: &Path,
    call: impl FnOnce(&OsVfs) -> io::Result<T> + Send,
) -> PyResult<T> {
    py.detach(|| call(&OsVfs::new())).map_err(|error| os_error(path, &error))
}

/// Makes a complete file, and its name in the folder, durable, before a state counts it.
#[pyfunction]
fn sync_part(py: Python<'_>, path: PathBuf) -> PyResult<()> {
    stepped(py, &path, |vfs| commit::sync_part(vfs, &path))
}

/// Gives a complete file its final name.
#[pyfunction]
fn publish_file(py: Python<'_>, path: PathBuf, dest: PathBuf) -> PyResult<()> {
    stepped(py, &dest, |vfs| commit::publish_file(vfs, &path, &dest))
}

/// Gives a complete folder its final name, which must be free or an empty folder.
#[pyfunction]
fn publish_folder(py: Python<'_>, folder: PathBuf, dest: PathBuf) -> PyResult<()> {
    stepped(py, &dest, |vfs| commit::publish_folder(vfs, &folder, &dest))
}

/// Replaces a file that may be lost or damaged after a crash. `new` is a name of this call in the same folder.
#[pyfunction]
fn replace_cached(py: Python<'_>, path: PathBuf, new: PathBuf, content: &[u8]) -> PyResult<()> {
    stepped(py, &path, |vfs| commit::replace_cached(vfs, &path, &new, content))
}

/// Removes the state of an export to a path.
#[pyfunction]
fn remove_export_state(py: Python<'_>, dest: PathBuf) -> PyResult<()> {
    stepped(py, &dest, |vfs| partial::remove_state(vfs, &dest))
}

fn members_of(text: &str) -> PyResult<partial::Members> {
    serde_json::from_str(text).map_err(|error| PyValueError::new_err(error.to_string()))
}

fn text_of(members: Option<partial::Members>) -> Option<String> {
    members.and_then(|members| serde_json::to_string(&members).ok())
}

/// The file of an export in progress, and its state. A call at a time.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct PartialFile {
    file: Mutex<partial::PartialFile>,
    dest: PathBuf,
}

#[pymethods]
impl PartialFile {
    /// Opens or creates the file of an export to a path; the digest is that of its arguments.
    #[new]
    fn new(py: Python<'_>, dest: PathBuf, digest: &str) -> PyResult<Self> {
        let opened = py.detach(|| partial::PartialFile::open(Arc::new(OsVfs::new()), &dest, digest));
        let file = opened.map_err(|error| os_error(&dest, &error))?;
        Ok(Self { file: Mutex::new(file), dest })
    }

    /// Returns the state of an interrupted call with the same arguments, as JSON.
    fn left(&self, py: Python<'_>) -> Option<String> {
        text_of(py.detach(|| self.file.lock().left()))
    }

    /// Begins to write after the first bytes; the rest of the file goes.
    fn resume(&self, py: Python<'_>, bytes: u64) -> PyResult<()> {
        stepped(py, &self.dest, |_| self.file.lock().resume(bytes))
    }

    /// Appends bytes, which `save` makes durable.
    fn write(&self, py: Python<'_>, content: &[u8]) -> PyResult<()> {
        stepped(py, &self.dest, |_| self.file.lock().write(content))
    }

    /// Syncs the file, then records its state: JSON, and the rules in the first state of a call.
    fn save(&self, py: Python<'_>, members: &str, rules: Option<&[u8]>) -> PyResult<()> {
        let members = members_of(members)?;
        stepped(py, &self.dest, |_| self.file.lock().save(members, rules))
    }

    /// Gives the file its final name, and returns its length.
    fn publish(&self, py: Python<'_>) -> PyResult<u64> {
        stepped(py, &self.dest, |_| self.file.lock().publish())
    }
}

/// The folder of an export of parts in progress, and its state. A call at a time.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct PartialFolder {
    folder: Mutex<partial::PartialFolder>,
    dest: PathBuf,
}

#[pymethods]
impl PartialFolder {
    /// Takes the path of an export, the digest of its arguments, and its format. The folder exists.
    #[new]
    fn new(dest: PathBuf, digest: &str, format: &str) -> Self {
        let folder = partial::PartialFolder::new(Arc::new(OsVfs::new()), &dest, digest, format);
        Self { folder: Mutex::new(folder), dest }
    }

    /// Returns the state of an interrupted call with the same arguments, as JSON.
    fn left(&self, py: Python<'_>) -> Option<String> {
        text_of(py.detach(|| self.folder.lock().left()))
    }

    /// Begins to write after the first parts; all other files of the folder go.
    fn resume(&self, py: Python<'_>, parts: u64) -> PyResult<()> {
        stepped(py, &self.dest, |_| self.folder.lock().resume(parts))
    }

    /// The number of durable parts.
    #[getter]
    fn parts(&self) -> u64 {
        self.folder.lock().parts()
    }

    /// Returns the path of one more part in a folder, which is created; "" is the folder of the export.
    fn next_path(&self, py: Python<'_>, folder: &str) -> PyResult<PathBuf> {
        stepped(py, &self.dest, |_| self.folder.lock().next_path(folder))
    }

    /// Makes the next parts durable, then records the state: JSON, and the rules in the first state of a call.
    fn add(&self, py: Python<'_>, members: &str, rules: Option<&[u8]>) -> PyResult<()> {
        let members = members_of(members)?;
        stepped(py, &self.dest, |_| self.folder.lock().add(members, rules))
    }

    /// Gives the folder its final name.
    fn publish(&self, py: Python<'_>) -> PyResult<()> {
        stepped(py, &self.dest, |_| self.folder.lock().publish())
    }
}

/// Adds the classes and functions.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PartialFile>()?;
    module.add_class::<PartialFolder>()?;
    module.add_function(wrap_pyfunction!(remove_export_state, module)?)?;
    module.add_function(wrap_pyfunction!(sync_part, module)?)?;
    module.add_function(wrap_pyfunction!(publish_file, module)?)?;
    module.add_function(wrap_pyfunction!(publish_folder, module)?)?;
    module.add_function(wrap_pyfunction!(replace_cached, module)?)
}
