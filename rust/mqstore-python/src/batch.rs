//! What `append_many` takes.

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::error::of_message;
use crate::input::{Encoded, body, encode, flag, time};

/// One message of a batch, with everything that its borrowed form points to.
pub(crate) struct Part<'py> {
    pub(crate) body: Bound<'py, PyBytes>,
    pub(crate) encoded: Encoded,
    pub(crate) flag: i32,
    pub(crate) born_timestamp_ms: Option<i64>,
}

/// The messages of one call: bodies or `Message`s.
pub(crate) fn parts<'py>(messages: &Bound<'py, PyAny>) -> PyResult<Vec<Part<'py>>> {
    if messages.is_instance_of::<PyBytes>() || messages.is_instance_of::<PyString>() {
        let kind = messages.get_type().name()?;
        return Err(PyTypeError::new_err(format!(
            "messages must be an iterable of bodies or Messages, not {kind}"
        )));
    }
    let py = messages.py();
    let class = crate::input::message_class(py)?;
    let mut found = Vec::new();
    for (index, message) in messages.try_iter()?.enumerate() {
        let part = part(&message?, class).map_err(|error| of_message(py, index, error))?;
        found.push(part);
    }
    Ok(found)
}

fn part<'py>(message: &Bound<'py, PyAny>, class: &Bound<'py, PyAny>) -> PyResult<Part<'py>> {
    let py = message.py();
    if !message.is_instance(class)? {
        return Ok(Part {
            body: body(message)?,
            encoded: Encoded::default(),
            flag: 0,
            born_timestamp_ms: None,
        });
    }
    let born = message.getattr(intern!(py, "born_timestamp"))?;
    Ok(Part {
        body: body(&message.getattr(intern!(py, "body"))?)?,
        encoded: encode(
            Some(&message.getattr(intern!(py, "keys"))?),
            Some(&message.getattr(intern!(py, "tags"))?),
            Some(&message.getattr(intern!(py, "properties"))?),
        )?,
        flag: flag(&message.getattr(intern!(py, "flag"))?)?,
        born_timestamp_ms: if born.is_none() { None } else { Some(time("born_timestamp", &born)?) },
    })
}
