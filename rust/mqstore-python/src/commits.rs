//! The durable steps of results outside a store; see `mqstore-io/src/commit.rs`. They raise `OSError`, as the functions of
//! Python do.

use std::io;
use std::path::{Path, PathBuf};

use mqstore::io::{OsVfs, Vfs, commit};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

use crate::error::{EIO, strip_number};

/// "operation not supported": the file system has no hard links.
const ENOTSUP: i32 = 95;

fn os_error(path: &Path, error: &io::Error) -> PyErr {
    let number = match error.kind() {
        io::ErrorKind::Unsupported => ENOTSUP,
        _ => error.raw_os_error().unwrap_or(EIO),
    };
    PyOSError::new_err((number, strip_number(&error.to_string()), path.to_path_buf()))
}

fn stepped<T: Send>(
    py: Python<'_>,
    path: &Path,
    call: impl FnOnce(&OsVfs) -> io::Result<T> + Send,
) -> PyResult<T> {
    py.detach(|| call(&OsVfs::new())).map_err(|error| os_error(path, &error))
}

/// Makes the names in a folder durable, and the names of the folders on its path.
#[pyfunction]
fn sync_names(py: Python<'_>, folder: PathBuf) -> PyResult<()> {
    stepped(py, &folder, |vfs| commit::sync_names(vfs, &folder))
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

/// Creates a file with this content unless it exists. Returns whether this call has created it; in any case, the file is
/// durable then. `new` is a name of this call in the same folder.
#[pyfunction]
fn create_file(py: Python<'_>, path: PathBuf, new: PathBuf, content: &[u8]) -> PyResult<bool> {
    stepped(py, &path, |vfs| commit::create_file(vfs, &path, &new, content))
}

/// Copies the first bytes of a file to a new file, durably.
#[pyfunction]
fn copy_file(py: Python<'_>, source: PathBuf, dest: PathBuf, length: u64) -> PyResult<()> {
    stepped(py, &dest, |vfs| commit::copy_file(vfs, &source, &dest, length))
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
    module.add_function(wrap_pyfunction!(sync_names, module)?)?;
    module.add_function(wrap_pyfunction!(sync_part, module)?)?;
    module.add_function(wrap_pyfunction!(publish_file, module)?)?;
    module.add_function(wrap_pyfunction!(publish_folder, module)?)?;
    module.add_function(wrap_pyfunction!(create_file, module)?)?;
    module.add_function(wrap_pyfunction!(copy_file, module)?)?;
    module.add_function(wrap_pyfunction!(replace_file, module)?)?;
    module.add_function(wrap_pyfunction!(replace_cached, module)?)
}
