//! `Message`: an element for `append_many` that has more than a body.
//!
//! Keeps the checked arguments as Python objects. Keys, tag and properties become RocketMQ's text once, at the first
//! append. Only then does the core check their values, so that the error can name the place in the batch.

use std::sync::OnceLock;

use mqstore::format::properties::{KEYS, TAGS};
use mqstore::format::{BatchItem, Properties};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyFrozenSet, PyMappingProxy, PyString, PyTuple};

use crate::convert::arguments::{
    EncodedProperties, LIKE_SECONDS, body_or_json, copied_properties, encode, kept_keys, text, time,
};
use crate::convert::shown::{datetime, shown_body};

/// A message to append: frozen, equal by value, picklable.
///
/// Args:
///     body: any bytes-like object; its bytes are copied.
///     json: a value whose JSON is the body, in UTF-8 without blanks; give it instead of `body`.
///     keys: one key or several; a key contains no space.
///     tags: tag for filters.
///     properties: your own properties. `append` refuses RocketMQ's reserved names, except `UNIQ_KEY`, which replaces
///         the generated unique id.
///     flag: number of your application, 32 bits.
///     born_timestamp: time of creation; None is the time of the append.
///
/// Raises:
///     TypeError: an argument has the wrong type, for example a `str` as body.
#[pyclass(frozen, subclass, module = "mqstore")]
pub(crate) struct Message {
    body: Py<PyBytes>,
    /// None, one `str`, or a tuple of them.
    keys: Option<Py<PyAny>>,
    tags: Option<Py<PyString>>,
    /// A copy of the caller's mapping; None if that is empty.
    properties: Option<Py<PyDict>>,
    flag: i32,
    born_timestamp_ms: Option<i64>,
    encoded: OnceLock<EncodedProperties>,
}

impl Message {
    /// Converts one message of an inner batch.
    pub(crate) fn from_batch_item(py: Python<'_>, item: &BatchItem<'_>) -> PyResult<Self> {
        let all = Properties::new(item.properties);
        let own = PyDict::new(py);
        for (name, value) in all.iter().filter(|(name, _)| ![KEYS, TAGS].contains(name)) {
            own.set_item(name, value)?;
        }
        let keys = all.get(KEYS).unwrap_or_default().split(' ').filter(|key| !key.is_empty());
        let keys = PyTuple::new(py, keys.collect::<Vec<_>>())?;
        Ok(Self {
            body: PyBytes::new(py, item.body).unbind(),
            keys: (!keys.is_empty()).then(|| keys.into_any().unbind()),
            tags: all.get(TAGS).map(|tags| PyString::new(py, tags).unbind()),
            properties: (!own.is_empty()).then(|| own.unbind()),
            flag: item.flag,
            born_timestamp_ms: None,
            encoded: OnceLock::new(),
        })
    }

    /// The body, for the core.
    pub(crate) fn body_bytes<'a>(&'a self, py: Python<'_>) -> &'a [u8] {
        self.body.as_bytes(py)
    }

    /// The body as the object that Python sees.
    pub(crate) fn body_object<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        self.body.bind(py).clone()
    }

    /// Encodes keys, tag and properties, unless an earlier call did.
    pub(crate) fn encode(&self, py: Python<'_>) -> PyResult<()> {
        if self.encoded.get().is_none() {
            let keys = self.keys.as_ref().map(|keys| keys.bind(py));
            let tags = self.tags.as_ref().map(|tags| tags.bind(py).as_any());
            let properties = self.properties.as_ref().map(|properties| properties.bind(py).as_any());
            // If another thread was faster, its text is the same.
            let _ = self.encoded.set(encode(keys, tags, properties)?);
        }
        Ok(())
    }

    /// Returns the text after [`Self::encode`]; before it, an empty text.
    pub(crate) fn encoded(&self) -> &EncodedProperties {
        self.encoded.get().unwrap_or(EncodedProperties::empty())
    }

    /// The number of the application.
    pub(crate) fn flag_value(&self) -> i32 {
        self.flag
    }

    /// When the message was made, in epoch milliseconds; `None` is the time of the append.
    pub(crate) fn born_timestamp_ms(&self) -> Option<i64> {
        self.born_timestamp_ms
    }

    /// Returns the property `name` as it would be stored.
    pub(crate) fn property(&self, py: Python<'_>, name: &str) -> PyResult<Option<String>> {
        let owned = |text: &Bound<'_, PyString>| text.to_str().map(str::to_owned);
        match name {
            TAGS => self.tags.as_ref().map(|tags| owned(tags.bind(py))).transpose(),
            KEYS => {
                let keys: Vec<String> = self.keys(py)?.extract()?;
                Ok((!keys.is_empty()).then(|| keys.join(" ")))
            }
            _ => {
                let Some(properties) = &self.properties else { return Ok(None) };
                let value = properties.bind(py).get_item(name)?;
                value.map(|value| owned(value.cast::<PyString>()?)).transpose()
            }
        }
    }

    fn dict<'py>(&self, py: Python<'py>) -> Bound<'py, PyDict> {
        match &self.properties {
            Some(properties) => properties.bind(py).clone(),
            None => PyDict::new(py),
        }
    }

    /// Returns the arguments after the body that differ from their defaults, so that a call with them makes an equal
    /// message.
    fn arguments<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = PyDict::new(py);
        if self.keys.is_some() {
            found.set_item(intern!(py, "keys"), self.keys(py)?)?;
        }
        if let Some(tags) = &self.tags {
            found.set_item(intern!(py, "tags"), tags)?;
        }
        if let Some(properties) = &self.properties {
            found.set_item(intern!(py, "properties"), properties)?;
        }
        if self.flag != 0 {
            found.set_item(intern!(py, "flag"), self.flag)?;
        }
        match self.born_timestamp_ms {
            None => {}
            // As a number it would be refused, because it looks like seconds.
            Some(when) if LIKE_SECONDS.contains(&when) => {
                found.set_item(intern!(py, "born_timestamp"), datetime(py, when)?)?;
            }
            Some(when) => found.set_item(intern!(py, "born_timestamp"), when)?,
        }
        Ok(found)
    }
}

#[pymethods]
impl Message {
    #[new]
    #[pyo3(
        signature = (body = None, *, json = None, keys = None, tags = None, properties = None, flag = None,
                     born_timestamp = None),
        text_signature = "(body=None, *, json=None, keys=(), tags=None, properties=None, flag=0, born_timestamp=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "a message has this many parts")]
    fn new(
        py: Python<'_>,
        body: Option<&Bound<'_, PyAny>>,
        json: Option<&Bound<'_, PyAny>>,
        keys: Option<&Bound<'_, PyAny>>,
        tags: Option<&Bound<'_, PyAny>>,
        properties: Option<&Bound<'_, PyAny>>,
        flag: Option<&Bound<'_, PyAny>>,
        born_timestamp: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        Ok(Self {
            body: body_or_json(py, body, json)?.unbind(),
            keys: keys.map(kept_keys).transpose()?.flatten(),
            tags: tags.map(|tags| text("tags", tags).map(Bound::unbind)).transpose()?,
            properties: properties.map(copied_properties).transpose()?.flatten().map(Bound::unbind),
            flag: flag.map(crate::convert::arguments::flag).transpose()?.unwrap_or_default(),
            born_timestamp_ms: born_timestamp.map(|when| time("born_timestamp", when)).transpose()?,
            encoded: OnceLock::new(),
        })
    }

    #[classattr]
    fn __match_args__() -> (&'static str, &'static str, &'static str, &'static str, &'static str, &'static str)
    {
        ("body", "keys", "tags", "properties", "flag", "born_timestamp")
    }

    /// The body.
    #[getter]
    fn body(&self, py: Python<'_>) -> Py<PyBytes> {
        self.body.clone_ref(py)
    }

    /// The keys, in the order given.
    #[getter]
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        match self.keys.as_ref().map(|keys| keys.bind(py)) {
            None => Ok(PyTuple::empty(py)),
            Some(keys) => match keys.cast::<PyTuple>() {
                Ok(several) => Ok(several.clone()),
                Err(_) => PyTuple::new(py, [keys]),
            },
        }
    }

    /// Tag, or None.
    #[getter]
    fn tags(&self, py: Python<'_>) -> Option<Py<PyString>> {
        self.tags.as_ref().map(|tags| tags.clone_ref(py))
    }

    /// The message's own properties, read-only.
    #[getter]
    fn properties<'py>(&self, py: Python<'py>) -> Bound<'py, PyMappingProxy> {
        PyMappingProxy::new(py, self.dict(py).as_mapping())
    }

    /// The application's 32-bit number.
    #[getter]
    fn flag(&self) -> i32 {
        self.flag
    }

    /// The time of creation in epoch milliseconds; None is the time of the append.
    #[getter]
    fn born_timestamp(&self) -> Option<i64> {
        self.born_timestamp_ms
    }

    fn __eq__(&self, py: Python<'_>, other: &Self) -> PyResult<bool> {
        Ok(self.flag == other.flag
            && self.born_timestamp_ms == other.born_timestamp_ms
            && self.body.as_bytes(py) == other.body.as_bytes(py)
            && self.tags(py).into_pyobject(py)?.eq(other.tags(py))?
            && self.keys(py)?.eq(other.keys(py)?)?
            && self.dict(py).eq(other.dict(py))?)
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        let pairs = PyFrozenSet::new(py, self.dict(py).items())?;
        (self.body(py), self.keys(py)?, self.tags(py), pairs, self.flag, self.born_timestamp_ms)
            .into_pyobject(py)?
            .hash()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let mut shown = shown_body(py, self.body.as_bytes(py))?;
        let mut add = |name: &str, value: &str| {
            shown.push_str(", ");
            shown.push_str(name);
            shown.push('=');
            shown.push_str(value);
        };
        if self.keys.is_some() {
            add("keys", &self.keys(py)?.repr()?.to_string());
        }
        if let Some(tags) = &self.tags {
            add("tags", &tags.bind(py).repr()?.to_string());
        }
        if let Some(properties) = &self.properties {
            add("properties", &properties.bind(py).repr()?.to_string());
        }
        if self.flag != 0 {
            add("flag", &self.flag.to_string());
        }
        if let Some(when) = self.born_timestamp_ms {
            add("born_timestamp", &when.to_string());
        }
        Ok(format!("Message({shown})"))
    }

    /// Returns a copy with some arguments replaced; `copy.replace` calls it.
    #[pyo3(signature = (**changes))]
    fn __replace__<'py>(
        slf: &Bound<'py, Self>,
        changes: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, message) = (slf.py(), slf.get());
        let arguments = message.arguments(py)?;
        arguments.set_item(intern!(py, "body"), &message.body)?;
        if let Some(changes) = changes {
            arguments.update(changes.as_mapping())?;
        }
        slf.get_type().call((), Some(&arguments))
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        static NEW: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let (py, message) = (slf.py(), slf.get());
        let new = NEW.import(py, "copyreg", "__newobj_ex__")?.clone();
        let state = (slf.get_type(), (message.body_object(py),), message.arguments(py)?).into_pyobject(py)?;
        Ok((new, state))
    }
}
