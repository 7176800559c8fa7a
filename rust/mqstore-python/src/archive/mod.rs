//! Archives for Python: `log` makes their files from the log, `files` reads whole files, `history` has the messages from
//! before the log, `older` those for consumers and for the limits of topics, and `target` calls the transport.

mod files;
mod history;
mod log;
mod older;
mod target;

use pyo3::prelude::*;

pub(crate) use older::PythonMessages;

/// Adds the classes and functions.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    files::register(module)?;
    history::register(module)?;
    log::register(module)?;
    older::register(module)?;
    target::register(module)
}
