//! Archives for Python: `log` makes their files from the log, `files` reads whole files, `linked` has the archive in which
//! the reads of an open store continue, and `target` calls the transport.

mod files;
mod linked;
mod log;
mod target;

use pyo3::prelude::*;

/// Adds the classes and functions.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    files::register(module)?;
    linked::register(module)?;
    log::register(module)?;
    target::register(module)
}
