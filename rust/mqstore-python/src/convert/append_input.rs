//! Converts the messages that `append` and `append_many` take.

use mqstore_base::message::NewMessage;
use mqstore_engine::OwnedMessage;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyString};

use crate::convert::arguments::{EncodedProperties, body, encode, flag, time};
use crate::convert::error::of_message;
use crate::convert::message::Message;

/// The arguments of `append`. Owns everything that the borrowed form points to.
pub(crate) struct MessageParts<'py> {
    body: Bound<'py, PyBytes>,
    encoded: EncodedProperties,
    flag: i32,
    born_timestamp_ms: Option<i64>,
}

impl<'py> MessageParts<'py> {
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

/// An element of `append_many`.
pub(crate) enum InputMessage<'py> {
    Body(Bound<'py, PyBytes>),
    /// A `Message` with its text encoded.
    Message(Bound<'py, Message>),
}

impl<'py> InputMessage<'py> {
    fn of(element: Bound<'py, PyAny>) -> PyResult<Self> {
        match element.cast_into::<Message>() {
            Ok(message) => {
                message.get().encode(message.py())?;
                Ok(Self::Message(message))
            }
            Err(other) => Ok(Self::Body(body(&other.into_inner())?)),
        }
    }

    /// Returns the borrowed form for the store.
    pub(crate) fn message<'a>(
        &'a self,
        topic: &'a str,
        queue_id: Option<i32>,
        durable: bool,
    ) -> NewMessage<'a> {
        let (body, encoded, flag, born_timestamp_ms) = match self {
            Self::Body(body) => (body.as_bytes(), EncodedProperties::empty(), 0, None),
            Self::Message(bound) => {
                let message = bound.get();
                let body = message.body_bytes(bound.py());
                (body, message.encoded(), message.flag_value(), message.born_timestamp_ms())
            }
        };
        NewMessage {
            topic,
            body,
            properties: &encoded.properties,
            unique_key: encoded.unique_key.as_deref(),
            queue_id,
            flag,
            born_timestamp_ms,
            durable,
        }
    }

    /// Converts the message for another thread. Its body stays the caller's `bytes`.
    pub(crate) fn into_owned(self) -> OwnedMessage {
        let parts = match self {
            Self::Body(body) => {
                MessageParts { body, encoded: EncodedProperties::EMPTY, flag: 0, born_timestamp_ms: None }
            }
            Self::Message(bound) => {
                let message = bound.get();
                MessageParts {
                    body: message.body_object(bound.py()),
                    encoded: message.encoded().clone(),
                    flag: message.flag_value(),
                    born_timestamp_ms: message.born_timestamp_ms(),
                }
            }
        };
        parts.into_owned()
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
    let mut found = Vec::with_capacity(messages.len().unwrap_or_default());
    for (index, message) in messages.try_iter()?.enumerate() {
        let part = InputMessage::of(message?).map_err(|error| of_message(py, index, error))?;
        found.push(part);
    }
    Ok(found)
}
