//! Archives for Python: `place` has the verbs of an archive, `log` reads the log with its columns, and `linked` has the archive
//! in which the reads of an open store continue.

mod linked;
mod log;
mod place;

use pyo3::prelude::*;

/// Adds the classes and functions.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    linked::register(module)?;
    log::register(module)?;
    place::register(module)
}
