//! Converts the messages that `append` and `append_many` take, and compresses their bodies.

use std::time::Duration;

use mqstore::Store;
use mqstore::append::OwnedMessage;
use mqstore::body_compression::{BodyCompression, CompressedBodies, CompressedBody};
use mqstore::delivery::NewWork;
use mqstore::format::SysFlag;
use mqstore::message::NewMessage;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyString};

use crate::convert::arguments::{EncodedProperties, body, encode, flag, time};
use crate::convert::message::Message;
use crate::error::of_message;
use crate::runtime::detached;

/// Maximum bytes of the bodies that the thread of an event loop compresses itself: some tenths of a millisecond.
const LOOP_BYTES: usize = 16 << 10;

/// The arguments of `append`. Owns everything that the borrowed form points to.
pub(crate) struct MessageParts<'py> {
    body: Bound<'py, PyBytes>,
    /// The form of the body that is stored instead.
    compressed: Option<CompressedBody>,
    encoded: EncodedProperties,
    flag: i32,
    born_timestamp_ms: Option<i64>,
}

impl<'py> MessageParts<'py> {
    /// Converts the arguments of `append`.
    pub(crate) fn of(
        body: Bound<'py, PyBytes>,
        keys: Option<&Bound<'py, PyAny>>,
        tags: Option<&Bound<'py, PyAny>>,
        properties: Option<&Bound<'py, PyAny>>,
        number: Option<&Bound<'py, PyAny>>,
        born_timestamp: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        Ok(Self {
            body,
            compressed: None,
            encoded: encode(keys, tags, properties)?,
            flag: number.map(flag).transpose()?.unwrap_or_default(),
            born_timestamp_ms: born_timestamp.map(|when| time("born_timestamp", when)).transpose()?,
        })
    }

    /// A message of a body and of encoded properties.
    pub(crate) fn of_encoded(body: Bound<'py, PyBytes>, encoded: EncodedProperties) -> Self {
        Self { body, compressed: None, encoded, flag: 0, born_timestamp_ms: None }
    }

    /// Compresses the body if `rule` covers it, with the interpreter released.
    #[inline]
    pub(crate) fn compress(&mut self, rule: &BodyCompression) -> PyResult<()> {
        let body = self.body.as_bytes();
        if rule.covers(body.len()) {
            self.compressed = detached(self.body.py(), || Ok(rule.compress(body)))?;
        }
        Ok(())
    }

    /// Like [`Self::compress`], for the thread of an event loop. Returns the rule if the body is so large that another
    /// thread must compress it.
    pub(crate) fn compress_in_loop(&mut self, rule: BodyCompression) -> PyResult<Option<BodyCompression>> {
        let body_bytes = self.body.as_bytes().len();
        if body_bytes > LOOP_BYTES && rule.covers(body_bytes) {
            return Ok(Some(rule));
        }
        self.compress(&rule)?;
        Ok(None)
    }

    /// Returns the borrowed form for the store.
    pub(crate) fn message<'a>(
        &'a self,
        topic: &'a str,
        queue_id: Option<i32>,
        durable: bool,
    ) -> NewMessage<'a> {
        let (body, sys_flag) = CompressedBody::stored_form(self.compressed.as_ref(), self.body.as_bytes());
        NewMessage {
            topic,
            body,
            sys_flag,
            properties: &self.encoded.properties,
            unique_key: self.encoded.unique_key.as_deref(),
            queue_id,
            flag: self.flag,
            born_timestamp_ms: self.born_timestamp_ms,
            durable,
        }
    }

    /// Converts the message for another thread. A body that is not compressed stays the caller's `bytes`.
    pub(crate) fn into_owned(self) -> OwnedMessage {
        let (body, sys_flag): (Box<dyn AsRef<[u8]> + Send + Sync>, _) = match self.compressed {
            Some(compressed) => (Box::new(compressed.bytes), compressed.sys_flag),
            None => (Box::new(PyBackedBytes::from(self.body)), SysFlag(0)),
        };
        OwnedMessage {
            body,
            sys_flag,
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

    /// Returns the body as given.
    fn body(&self) -> &[u8] {
        match self {
            Self::Body(body) => body.as_bytes(),
            Self::Message(bound) => bound.get().body_bytes(bound.py()),
        }
    }

    /// Returns the borrowed form for the store, with the body as given.
    fn message<'a>(&'a self, topic: &'a str, queue_id: Option<i32>, durable: bool) -> NewMessage<'a> {
        let (encoded, flag, born_timestamp_ms) = match self {
            Self::Body(_) => (EncodedProperties::empty(), 0, None),
            Self::Message(bound) => {
                let message = bound.get();
                (message.encoded(), message.flag_value(), message.born_timestamp_ms())
            }
        };
        NewMessage {
            topic,
            body: self.body(),
            sys_flag: SysFlag(0),
            properties: &encoded.properties,
            unique_key: encoded.unique_key.as_deref(),
            queue_id,
            flag,
            born_timestamp_ms,
            durable,
        }
    }

    /// Converts the message for another thread. Its body stays the caller's `bytes`.
    fn into_owned(self) -> OwnedMessage {
        let parts = match self {
            Self::Body(body) => MessageParts::of_encoded(body, EncodedProperties::EMPTY),
            Self::Message(bound) => {
                let message = bound.get();
                MessageParts {
                    body: message.body_object(bound.py()),
                    compressed: None,
                    encoded: message.encoded().clone(),
                    flag: message.flag_value(),
                    born_timestamp_ms: message.born_timestamp_ms(),
                }
            }
        };
        parts.into_owned()
    }
}

/// The messages of one call.
pub(crate) trait MessageBatch {
    /// Returns the bodies as given.
    fn bodies(&self) -> impl Iterator<Item = &[u8]> + Clone;

    /// Returns the borrowed forms for the store, with the bodies as given.
    fn messages<'a>(&'a self, topic: &'a str, queue_id: Option<i32>, durable: bool) -> Vec<NewMessage<'a>>;

    /// Converts the messages for another thread. Their bodies stay the caller's `bytes`.
    fn into_owned(self) -> Vec<OwnedMessage>;

    /// Like [`Self::into_owned`], with the bodies that are compressed already.
    fn into_stored(self, compressed: CompressedBodies) -> Vec<OwnedMessage>
    where
        Self: Sized,
    {
        let mut messages = self.into_owned();
        OwnedMessage::set_bodies(&mut messages, compressed);
        messages
    }
}

impl MessageBatch for Vec<InputMessage<'_>> {
    fn bodies(&self) -> impl Iterator<Item = &[u8]> + Clone {
        self.iter().map(InputMessage::body)
    }

    fn messages<'a>(&'a self, topic: &'a str, queue_id: Option<i32>, durable: bool) -> Vec<NewMessage<'a>> {
        self.iter().map(|message| message.message(topic, queue_id, durable)).collect()
    }

    fn into_owned(self) -> Vec<OwnedMessage> {
        self.into_iter().map(InputMessage::into_owned).collect()
    }
}

/// The arguments `compression` and `compress_over` of a call.
pub(crate) type CompressionArguments<'a, 'py> =
    (Option<&'a Bound<'py, PyAny>>, Option<&'a Bound<'py, PyAny>>);

/// Returns the form of a message for a work queue.
pub(crate) fn work<'a>(
    message: &NewMessage<'a>,
    delay: Option<Duration>,
    deliver_at_ms: Option<i64>,
) -> NewWork<'a> {
    NewWork {
        body: message.body,
        sys_flag: message.sys_flag,
        properties: message.properties,
        unique_key: message.unique_key,
        flag: message.flag,
        born_timestamp_ms: message.born_timestamp_ms,
        delay,
        deliver_at_ms,
        durable: message.durable,
    }
}

/// Returns the rule for messages that are appended together to `topic`. In a topic with batch queues they become one
/// record, whose messages cannot be compressed, as in RocketMQ.
pub(crate) fn rule_for_many(store: &Store, topic: &str, rule: BodyCompression) -> BodyCompression {
    if rule.kind.is_some() && store.has_batch_queues(topic) {
        return BodyCompression { kind: None, ..rule };
    }
    rule
}

/// Compresses the bodies that `rule` covers, with the interpreter released.
#[inline]
pub(crate) fn compress_all(
    py: Python<'_>,
    batch: &impl MessageBatch,
    rule: &BodyCompression,
) -> PyResult<CompressedBodies> {
    if rule.kind.is_none() || !batch.bodies().any(|body| rule.covers(body.len())) {
        return Ok(CompressedBodies::default());
    }
    let bodies: Vec<&[u8]> = batch.bodies().collect();
    detached(py, || Ok(rule.compress_all(bodies.into_iter())))
}

/// Like [`compress_all`], for the thread of an event loop. Returns also the rule if the bodies are so large that another
/// thread must compress them.
pub(crate) fn compress_in_loop(
    py: Python<'_>,
    batch: &impl MessageBatch,
    rule: BodyCompression,
) -> PyResult<(CompressedBodies, Option<BodyCompression>)> {
    let covered = batch.bodies().map(<[u8]>::len).filter(|bytes| rule.covers(*bytes));
    if rule.kind.is_some() && covered.fold(0, usize::saturating_add) > LOOP_BYTES {
        return Ok((CompressedBodies::default(), Some(rule)));
    }
    Ok((compress_all(py, batch, &rule)?, None))
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
