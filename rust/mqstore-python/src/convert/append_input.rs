//! Converts the messages that `append` and `append_many` take.

use mqstore_base::message::NewMessage;
use mqstore_engine::OwnedMessage;
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyString};

use crate::convert::arguments::{EncodedProperties, body, encode, flag, time};
use crate::convert::error::of_message;

/// One message that owns everything its borrowed form points to.
pub(crate) struct InputMessage<'py> {
    pub(crate) body: Bound<'py, PyBytes>,
    pub(crate) encoded: EncodedProperties,
    pub(crate) flag: i32,
    pub(crate) born_timestamp_ms: Option<i64>,
}

impl<'py> InputMessage<'py> {
    /// Converts the arguments of `append`.
    pub(crate) fn of(
        message: &Bound<'py, PyAny>,
        keys: Option<&Bound<'py, PyAny>>,
        tags: Option<&Bound<'py, PyAny>>,
        properties: Option<&Bound<'py, PyAny>>,
        number: Option<&Bound<'py, PyAny>>,
        born_timestamp: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        Ok(Self {
            body: body(message)?,
            encoded: encode(keys, tags, properties)?,
            flag: number.map(flag).transpose()?.unwrap_or_default(),
            born_timestamp_ms: born_timestamp.map(|when| time("born_timestamp", when)).transpose()?,
        })
    }

    /// Returns the borrowed form for the store.
    pub(crate) fn message<'a>(
        &'a self,
        topic: &'a str,
        queue_id: Option<i32>,
        durable: bool,
    ) -> NewMessage<'a> {
        NewMessage {
            topic,
            body: self.body.as_bytes(),
            properties: &self.encoded.properties,
            unique_key: self.encoded.unique_key.as_deref(),
            queue_id,
            flag: self.flag,
            born_timestamp_ms: self.born_timestamp_ms,
            durable,
        }
    }

    /// Converts the message for another thread. Its body stays the caller's `bytes`.
    pub(crate) fn into_owned(self) -> OwnedMessage {
        OwnedMessage {
            body: Box::new(PyBackedBytes::from(self.body)),
            properties: self.encoded.properties,
            unique_key: self.encoded.unique_key,
            flag: self.flag,
            born_timestamp_ms: self.born_timestamp_ms,
        }
    }
}

/// Converts the messages of one call: bodies or `Message`s.
pub(crate) fn parts<'py>(messages: &Bound<'py, PyAny>) -> PyResult<Vec<InputMessage<'py>>> {
    if messages.is_instance_of::<PyBytes>() || messages.is_instance_of::<PyString>() {
        let kind = messages.get_type().name()?;
        return Err(PyTypeError::new_err(format!(
            "messages must be an iterable of bodies or Messages, not {kind}"
        )));
    }
    let py = messages.py();
    let class = crate::convert::arguments::message_class(py)?;
    let mut found = Vec::new();
    for (index, message) in messages.try_iter()?.enumerate() {
        let part = part(&message?, class).map_err(|error| of_message(py, index, error))?;
        found.push(part);
    }
    Ok(found)
}

fn part<'py>(message: &Bound<'py, PyAny>, class: &Bound<'py, PyAny>) -> PyResult<InputMessage<'py>> {
    let py = message.py();
    if !message.is_instance(class)? {
        return Ok(InputMessage {
            body: body(message)?,
            encoded: EncodedProperties::default(),
            flag: 0,
            born_timestamp_ms: None,
        });
    }
    let born = message.getattr(intern!(py, "born_timestamp"))?;
    Ok(InputMessage {
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
