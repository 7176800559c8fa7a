//! Values as Python shows them: parts of `repr`, and times.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyString};

/// Bytes of a body that `repr` shows.
const SHOWN_BYTES: usize = 40;

/// Returns a body as `repr` shows it: its first bytes, and its length if there are more.
pub(crate) fn shown_body(py: Python<'_>, body: &[u8]) -> PyResult<String> {
    let shown = body.get(..SHOWN_BYTES).unwrap_or(body);
    let text = PyBytes::new(py, shown).repr()?.to_string();
    Ok(if shown.len() < body.len() { format!("{text}... ({} bytes)", body.len()) } else { text })
}

/// Returns a text as `repr` shows it.
pub(crate) fn repr(py: Python<'_>, text: &str) -> PyResult<String> {
    Ok(PyString::new(py, text).repr()?.to_string())
}

/// Returns a time as an aware UTC datetime.
pub(crate) fn datetime(py: Python<'_>, milliseconds: i64) -> PyResult<Bound<'_, PyAny>> {
    static CONVERT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    CONVERT.import(py, "mqstore._times", "time_of")?.call1((milliseconds,))
}
