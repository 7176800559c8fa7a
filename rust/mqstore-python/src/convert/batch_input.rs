//! Converts the columns that `append_batch` takes. The property text of all messages is in one buffer.

use mqstore::append::OwnedMessage;
use mqstore::format::SysFlag;
use mqstore::message::NewMessage;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyByteArray, PyBytes, PyIterator, PyMapping, PyMemoryView, PyString};

use crate::convert::append_input::MessageBatch;
use crate::convert::arguments::{body, push_encoded};
use crate::error::{invalid, of_message};

/// The messages of one batch.
pub(crate) struct BatchInput<'py> {
    bodies: Vec<Bound<'py, PyBytes>>,
    /// The property text of all messages, one after the other.
    text: Vec<u8>,
    /// For each message the end of its text, and the unique key that it gives; empty if no message has a text.
    ends: Vec<(usize, Option<String>)>,
}

/// One argument for all messages: nothing, one value for all, or one value each.
enum Column<'py> {
    Absent,
    Same(Bound<'py, PyAny>),
    Each(&'static str, Bound<'py, PyIterator>),
}

impl<'py> Column<'py> {
    /// Converts an argument; `is_shared` tells whether it is one value for all messages.
    fn of(
        name: &'static str,
        value: Option<&Bound<'py, PyAny>>,
        is_shared: impl FnOnce(&Bound<'py, PyAny>) -> bool,
    ) -> PyResult<Self> {
        let Some(value) = value else { return Ok(Self::Absent) };
        if is_shared(value) {
            return Ok(Self::Same(value.clone()));
        }
        let kind = value.get_type().name()?;
        let refuse =
            |_| PyTypeError::new_err(format!("{name} must have one entry for each body, not be a {kind}"));
        Ok(Self::Each(name, value.try_iter().map_err(refuse)?))
    }

    /// Returns the value of the message `index` of `bodies`.
    fn next(&mut self, index: usize, bodies: usize) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self {
            Self::Absent => Ok(None),
            Self::Same(value) => Ok(Some(value.clone())),
            Self::Each(name, values) => match values.next() {
                Some(value) => value.map(|value| Some(value).filter(|value| !value.is_none())),
                None => Err(invalid(format!("{name} has {index} entries for {bodies} bodies"))),
            },
        }
    }

    /// Checks that no value is left.
    fn end(&mut self, bodies: usize) -> PyResult<()> {
        let Self::Each(name, values) = self else { return Ok(()) };
        match values.next().transpose()? {
            Some(_) => Err(invalid(format!("{name} has more entries than the {bodies} bodies"))),
            None => Ok(()),
        }
    }

    fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }
}

impl<'py> BatchInput<'py> {
    /// Converts the arguments of `append_batch`.
    pub(crate) fn of(
        bodies: &Bound<'py, PyAny>,
        keys: Option<&Bound<'py, PyAny>>,
        tags: Option<&Bound<'py, PyAny>>,
        properties: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        let py = bodies.py();
        let one_body = bodies.is_instance_of::<PyBytes>()
            || bodies.is_instance_of::<PyByteArray>()
            || bodies.is_instance_of::<PyMemoryView>()
            || bodies.is_instance_of::<PyString>();
        if one_body {
            let kind = bodies.get_type().name()?;
            return Err(PyTypeError::new_err(format!("bodies must be a sequence of bodies, not {kind}")));
        }
        if keys.is_some_and(|keys| keys.is_instance_of::<PyString>() || keys.is_instance_of::<PyBytes>()) {
            return Err(PyTypeError::new_err(
                "keys must have one entry for each body; for one key in all messages, pass [key] * len(bodies)",
            ));
        }
        let mut keys = Column::of("keys", keys, |_| false)?;
        let mut tags = Column::of("tags", tags, PyAnyMethods::is_instance_of::<PyString>)?;
        let mut properties =
            Column::of("properties", properties, |properties| properties.cast::<PyMapping>().is_ok())?;
        let mut found = Vec::with_capacity(bodies.len().unwrap_or_default());
        for each in bodies.try_iter()? {
            found.push(body(&each?)?);
        }
        let mut batch = Self { bodies: found, text: Vec::new(), ends: Vec::new() };
        if keys.is_absent() && tags.is_absent() && properties.is_absent() {
            return Ok(batch);
        }
        let count = batch.bodies.len();
        batch.ends.reserve(count);
        for index in 0..count {
            let (keys, tags) = (keys.next(index, count)?, tags.next(index, count)?);
            let properties = properties.next(index, count)?;
            let unique_key =
                push_encoded(&mut batch.text, keys.as_ref(), tags.as_ref(), properties.as_ref(), None)
                    .map_err(|error| of_message(py, index, error))?;
            batch.ends.push((batch.text.len(), unique_key));
        }
        for column in [&mut keys, &mut tags, &mut properties] {
            column.end(count)?;
        }
        Ok(batch)
    }

    /// Returns each message's property text and unique key.
    fn encoded(&self) -> impl Iterator<Item = (&[u8], Option<&str>)> {
        let mut start = 0;
        let given = self.ends.iter().map(move |(end, unique_key)| {
            let text = self.text.get(start..*end).unwrap_or_default();
            start = *end;
            (text, unique_key.as_deref())
        });
        given.chain(std::iter::repeat((&[][..], None)))
    }
}

impl MessageBatch for BatchInput<'_> {
    fn bodies(&self) -> impl Iterator<Item = &[u8]> + Clone {
        self.bodies.iter().map(PyBytesMethods::as_bytes)
    }

    fn messages<'a>(&'a self, topic: &'a str, queue_id: Option<i32>, durable: bool) -> Vec<NewMessage<'a>> {
        let message =
            |(body, (properties, unique_key)): (&'a Bound<'_, PyBytes>, (&'a [u8], Option<&'a str>))| {
                NewMessage {
                    topic,
                    body: body.as_bytes(),
                    sys_flag: SysFlag(0),
                    properties,
                    unique_key,
                    queue_id,
                    flag: 0,
                    born_timestamp_ms: None,
                    durable,
                }
            };
        self.bodies.iter().zip(self.encoded()).map(message).collect()
    }

    fn into_owned(self) -> Vec<OwnedMessage> {
        let message =
            |(body, (properties, unique_key)): (&Bound<'_, PyBytes>, (&[u8], Option<&str>))| OwnedMessage {
                body: Box::new(PyBackedBytes::from(body.clone())),
                sys_flag: SysFlag(0),
                properties: properties.to_vec(),
                unique_key: unique_key.map(str::to_owned),
                flag: 0,
                born_timestamp_ms: None,
            };
        self.bodies.iter().zip(self.encoded()).map(message).collect()
    }
}
