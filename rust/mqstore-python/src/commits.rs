//! The durable steps of results outside a store; see `mqstore-io/src/commit.rs`. They raise `OSError`, as the functions of
//! Python do.

use std::io;
use std::path::{Path, PathBuf};

use mqstore::io::{OsVfs, Vfs, commit};
use pyo3::exceptions::PyOSError;
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

/// Replaces a file in one step, durably. A failure leaves the old file. `new` is a name in the same folder.
#[pyfunction]
fn replace_file(py: Python<'_>, path: PathBuf, new: PathBuf, content: &[u8]) -> PyResult<()> {
    stepped(py, &path, |vfs| vfs.write_atomic(&path, &new, content))
}

/// Replaces a file that may be lost or damaged after a crash. `new` is a name of this call in the same folder.
#[pyfunction]
fn replace_cached(py: Python<'_>, path: PathBuf, new: PathBuf, content: &[u8]) -> PyResult<()> {
    stepped(py, &path, |vfs| commit::replace_cached(vfs, &path, &new, content))
}

/// Adds the functions.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(sync_part, module)?)?;
    module.add_function(wrap_pyfunction!(publish_file, module)?)?;
    module.add_function(wrap_pyfunction!(publish_folder, module)?)?;
    module.add_function(wrap_pyfunction!(replace_file, module)?)?;
    module.add_function(wrap_pyfunction!(replace_cached, module)?)
}
