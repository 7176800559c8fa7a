//! Converts arguments: bodies, keys, properties, numbers, times.
//!
//! Checks types only ("is it a str?"); the core checks the values. Borrows instead of copying if possible: a `bytes`
//! body goes to the core unchanged.

use std::ops::Range;
use std::time::Duration;

use mqstore::format::properties::UNIQ_KEY;
use mqstore::message::push_properties;
use mqstore::read::ReadBound;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyMapping, PyMemoryView, PyString, PyTuple};

use crate::error::{InvalidOptionError, invalid, to_py};

/// Returns a body as `bytes`: the caller's own object, or a copy of another bytes-like one.
pub(crate) fn body<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Ok(bytes.clone());
    }
    if value.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err(
            "body must be bytes-like, not str: encode it, for example body.encode()",
        ));
    }
    let Ok(view) = PyMemoryView::from(value) else {
        let kind = value.get_type().name()?;
        let advice = "convert it to bytes, for example with json or pickle";
        return Err(PyTypeError::new_err(format!("body must be bytes-like, not {kind}: {advice}")));
    };
    // The copy holds the interpreter, so that no thread changes a bytearray during it.
    Ok(view.call_method0(intern!(value.py(), "tobytes"))?.cast_into::<PyBytes>()?)
}

/// Returns the body of a message that is given as bytes or as a value for JSON.
pub(crate) fn body_or_json<'py>(
    py: Python<'py>,
    bytes: Option<&Bound<'py, PyAny>>,
    json: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyBytes>> {
    match (bytes, json) {
        (Some(bytes), None) => body(bytes),
        (None, Some(value)) => json_body(py, value),
        _ => Err(PyTypeError::new_err("give a bytes-like body or json, and not both")),
    }
}

/// Returns a value as JSON in UTF-8 without blanks.
fn json_body<'py>(py: Python<'py>, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    static ENCODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let encode = ENCODE.get_or_try_init(py, || {
        let options = PyDict::new(py);
        options.set_item("ensure_ascii", false)?;
        options.set_item("allow_nan", false)?;
        options.set_item("separators", (",", ":"))?;
        let encoder = py.import("json")?.getattr("JSONEncoder")?.call((), Some(&options))?;
        Ok::<_, PyErr>(encoder.getattr("encode")?.unbind())
    })?;
    let text = encode.bind(py).call1((value,))?.cast_into::<PyString>()?;
    Ok(PyBytes::new(py, text.to_str()?.as_bytes()))
}

/// The text form of keys, tags and properties, and the unique key if one was given.
#[derive(Clone, Default)]
pub(crate) struct EncodedProperties {
    pub(crate) properties: Vec<u8>,
    pub(crate) unique_key: Option<String>,
}

impl EncodedProperties {
    /// The text without any entry.
    pub(crate) const EMPTY: Self = Self { properties: Vec::new(), unique_key: None };

    /// Returns a reference to [`Self::EMPTY`].
    pub(crate) fn empty() -> &'static Self {
        static EMPTY: EncodedProperties = EncodedProperties::EMPTY;
        &EMPTY
    }
}

/// Encodes keys, tags and properties. If all are absent, it allocates nothing.
pub(crate) fn encode(
    keys: Option<&Bound<'_, PyAny>>,
    tags: Option<&Bound<'_, PyAny>>,
    properties: Option<&Bound<'_, PyAny>>,
) -> PyResult<EncodedProperties> {
    encode_with_id(keys, tags, properties, None)
}

/// Like [`encode`], with the id of a put that must not be repeated as the unique key.
pub(crate) fn encode_with_id(
    keys: Option<&Bound<'_, PyAny>>,
    tags: Option<&Bound<'_, PyAny>>,
    properties: Option<&Bound<'_, PyAny>>,
    dedup_id: Option<&Bound<'_, PyAny>>,
) -> PyResult<EncodedProperties> {
    let mut encoded = EncodedProperties::default();
    encoded.unique_key = push_encoded(&mut encoded.properties, keys, tags, properties, dedup_id)?;
    Ok(encoded)
}

/// Adds the text form of keys, tags and properties to `encoded`, and returns the unique key if one was given.
pub(crate) fn push_encoded(
    encoded: &mut Vec<u8>,
    keys: Option<&Bound<'_, PyAny>>,
    tags: Option<&Bound<'_, PyAny>>,
    properties: Option<&Bound<'_, PyAny>>,
    dedup_id: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<String>> {
    let keys = keys.map(KeyList::of).transpose()?.unwrap_or_default();
    let tags = tags.filter(|tags| !tags.is_none()).map(|tags| text("tags", tags)).transpose()?;
    let pairs = properties.map(pairs).transpose()?.unwrap_or_default();
    if keys.as_slice().is_empty() && tags.is_none() && pairs.is_empty() && dedup_id.is_none() {
        return Ok(None);
    }
    let pair = |(name, value): &'_ (Bound<'_, PyString>, Bound<'_, PyString>)| -> PyResult<()> {
        name.to_str()?;
        value.to_str().map(drop)
    };
    pairs.iter().try_for_each(pair)?;
    let mut own: Vec<(&str, &str)> =
        pairs.iter().map(|(name, value)| (checked(name), checked(value))).collect();
    // The one reserved name that a caller may use: it replaces the generated id.
    let mut unique_key =
        own.iter().position(|(name, _)| *name == UNIQ_KEY).map(|at| own.swap_remove(at).1.to_owned());
    if let Some(id) = dedup_id {
        let id = text("dedup_id", id)?.to_str()?.to_owned();
        if unique_key.is_some() {
            return Err(invalid("give dedup_id or the property UNIQ_KEY, not both"));
        }
        if id.is_empty() || id.contains(['\u{1}', '\u{2}']) {
            return Err(invalid(format!("dedup_id {id:?} is empty or contains \\x01 or \\x02")));
        }
        unique_key = Some(id);
    }
    keys.as_slice().iter().try_for_each(|key| key.to_str().map(drop))?;
    let keys = keys.as_slice().iter().map(checked);
    let tags = tags.as_ref().map(|tags| tags.to_str()).transpose()?;
    push_properties(encoded, keys, tags, unique_key.as_deref(), own).map_err(to_py)?;
    Ok(unique_key)
}

/// Returns a text that `to_str` has already accepted.
fn checked<'a>(text: &'a Bound<'_, PyString>) -> &'a str {
    text.to_str().unwrap_or_default()
}

/// Keys with checked types.
#[derive(Default)]
enum KeyList<'py> {
    #[default]
    None,
    One(Bound<'py, PyString>),
    Several(Vec<Bound<'py, PyString>>),
}

impl<'py> KeyList<'py> {
    fn of(keys: &Bound<'py, PyAny>) -> PyResult<Self> {
        if keys.is_none() {
            return Ok(Self::None);
        }
        if let Ok(key) = keys.cast::<PyString>() {
            return Ok(Self::One(key.clone()));
        }
        let refuse = |what: &Bound<'py, PyAny>| -> PyErr {
            let kind = what.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
            PyTypeError::new_err(format!("keys must be a str or an iterable of str, not {kind}"))
        };
        if keys.is_instance_of::<PyBytes>() {
            return Err(refuse(keys));
        }
        let mut found = Vec::new();
        for key in keys.try_iter().map_err(|_| refuse(keys))? {
            let key = key?;
            found.push(key.cast_into::<PyString>().map_err(|error| refuse(&error.into_inner()))?);
        }
        Ok(Self::Several(found))
    }

    fn as_slice(&self) -> &[Bound<'py, PyString>] {
        match self {
            Self::None => &[],
            Self::One(key) => std::slice::from_ref(key),
            Self::Several(keys) => keys,
        }
    }
}

/// Checks keys, and returns what a message keeps of them: a `str`, a tuple of several, or nothing if there are none.
pub(crate) fn kept_keys(keys: &Bound<'_, PyAny>) -> PyResult<Option<Py<PyAny>>> {
    match KeyList::of(keys)? {
        KeyList::One(key) => Ok(Some(key.into_any().unbind())),
        KeyList::Several(found) if !found.is_empty() => {
            Ok(Some(PyTuple::new(keys.py(), found)?.into_any().unbind()))
        }
        KeyList::None | KeyList::Several(_) => Ok(None),
    }
}

/// Converts one text or several, for example the names of light queues.
pub(crate) fn text_list(option: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    if let Ok(name) = value.cast::<PyString>() {
        return Ok(vec![name.to_str()?.to_owned()]);
    }
    let refuse = || PyTypeError::new_err(format!("{option} must be a str or an iterable of str"));
    let names = value.try_iter().map_err(|_| refuse())?;
    names.map(|name| Ok(name?.cast::<PyString>().map_err(|_| refuse())?.to_str()?.to_owned())).collect()
}

/// Properties with checked types.
type PropertyPairs<'py> = Vec<(Bound<'py, PyString>, Bound<'py, PyString>)>;

fn pairs<'py>(properties: &Bound<'py, PyAny>) -> PyResult<PropertyPairs<'py>> {
    if properties.is_none() {
        return Ok(Vec::new());
    }
    let pair = |(name, value): (Bound<'py, PyAny>, Bound<'py, PyAny>)| {
        Ok((text("a property name", &name)?, text("a property value", &value)?))
    };
    if let Ok(dict) = properties.cast::<PyDict>() {
        return dict.iter().map(pair).collect();
    }
    let Ok(mapping) = properties.cast::<PyMapping>() else {
        let kind = properties.get_type().name()?;
        return Err(PyTypeError::new_err(format!("properties must be a mapping of str to str, not {kind}")));
    };
    mapping.items()?.iter().map(|item| pair(item.extract()?)).collect()
}

/// Checks properties and returns a copy of them; None if there are none.
pub(crate) fn copied_properties<'py>(properties: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyDict>>> {
    let pairs = pairs(properties)?;
    if pairs.is_empty() {
        return Ok(None);
    }
    let copy = PyDict::new(properties.py());
    for (name, value) in pairs {
        copy.set_item(name, value)?;
    }
    Ok(Some(copy))
}

/// Checks a `str` argument.
pub(crate) fn text<'py>(name: &str, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyString>> {
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(text.clone());
    }
    let kind = value.get_type().name()?;
    Err(PyTypeError::new_err(format!("{name} must be a str, not {kind}")))
}

/// Converts an integer that fits an `i64`; a `bool` is refused.
pub(crate) fn number(name: &str, value: &Bound<'_, PyAny>) -> PyResult<i64> {
    if !value.is_instance_of::<PyInt>() || value.is_instance_of::<PyBool>() {
        let kind = value.get_type().name()?;
        return Err(PyTypeError::new_err(format!("{name} must be an int, not {kind}")));
    }
    value.extract().map_err(|_| PyValueError::new_err(format!("{name} {value} does not fit 64 bits")))
}

/// Converts an option that is a count. A value that does not fit, or is negative, is out of bounds.
pub(crate) fn count<T: TryFrom<i64>>(name: &'static str, value: &Bound<'_, PyAny>) -> PyResult<T> {
    let fits = match number(name, value) {
        Err(error) if error.is_instance_of::<PyTypeError>(value.py()) => return Err(error),
        number => number.ok().and_then(|number| T::try_from(number).ok()),
    };
    fits.ok_or_else(|| {
        let reason = if value.lt(0).unwrap_or(false) { "negative" } else { "too large" };
        InvalidOptionError::new_err((name, format!("{value} is {reason}")))
    })
}

/// Converts a message's flag: 32 bits, signed as in Java.
pub(crate) fn flag(value: &Bound<'_, PyAny>) -> PyResult<i32> {
    let value = number("flag", value)?;
    i32::try_from(value).map_err(|_| invalid(format!("flag {value} does not fit 32 bits")))
}

/// Converts the queue of an append, which is not negative.
pub(crate) fn queue_id(value: &Bound<'_, PyAny>) -> PyResult<i32> {
    let value = number("queue_id", value)?;
    match i32::try_from(value) {
        Ok(id) if id >= 0 => Ok(id),
        _ => Err(invalid(format!("queue_id {value} is not between 0 and {}", i32::MAX))),
    }
}

/// Converts the queue of a read. The core checks that it exists.
pub(crate) fn queue(value: &Bound<'_, PyAny>) -> PyResult<i32> {
    let value = number("queue_id", value)?;
    i32::try_from(value).map_err(|_| PyValueError::new_err(format!("queue_id {value} does not fit 32 bits")))
}

/// Converts a queue offset. The core checks that the queue contains it.
pub(crate) fn offset(value: &Bound<'_, PyAny>) -> PyResult<i64> {
    number("offset", value)
}

/// Converts queue offsets of any iterable.
pub(crate) fn offsets(value: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    value.try_iter()?.map(|each| offset(&each?)).collect()
}

/// Converts the start or the end of a read: an int is an offset of the queue `queue_id`, everything else a store time by
/// the rules of `mqstore._times`.
pub(crate) fn read_bound(
    name: &'static str,
    value: Option<&Bound<'_, PyAny>>,
    queue_id: Option<i32>,
) -> PyResult<Option<ReadBound>> {
    static CONVERT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let Some(value) = value else { return Ok(None) };
    if value.is_instance_of::<PyInt>() && !value.is_instance_of::<PyBool>() {
        let offset = number(name, value)?;
        if queue_id.is_none() {
            return Err(InvalidOptionError::new_err((name, needs_queue(offset))));
        }
        return Ok(Some(ReadBound::Offset(offset)));
    }
    let convert = CONVERT.import(value.py(), "mqstore._times", "store_time_of")?;
    number(name, &convert.call1((name, value))?).map(|time| Some(ReadBound::TimeMs(time)))
}

/// Returns the reason why a queue offset without a queue is refused.
pub(crate) fn needs_queue(offset: i64) -> String {
    format!("{offset} is an offset of one queue, and each queue counts for itself: give queue_id, or a time")
}

/// Numbers that can only be seconds, and that `mqstore._times` refuses as milliseconds.
pub(crate) const LIKE_SECONDS: Range<i64> = 100_000_000..10_000_000_000;

/// Converts a time to epoch milliseconds, by the rules of `mqstore._times`.
pub(crate) fn time(name: &str, value: &Bound<'_, PyAny>) -> PyResult<i64> {
    static CONVERT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if value.is_exact_instance_of::<PyInt>() {
        let when_ms = number(name, value)?;
        if !LIKE_SECONDS.contains(&when_ms) {
            return Ok(when_ms);
        }
    }
    let py = value.py();
    let convert = CONVERT.import(py, "mqstore._times", "milliseconds_of")?;
    number(name, &convert.call1((name, value))?)
}

/// Converts a duration: seconds, a `timedelta` or text. A negative one is refused, because no caller means 0 by it.
pub(crate) fn duration(name: &'static str, value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    let seconds = seconds(name, value)?;
    if seconds < 0.0 {
        let reason = format!("{seconds} s is no duration; a duration is at least 0");
        return Err(InvalidOptionError::new_err((name, reason)));
    }
    Ok(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

/// Converts the longest time of a wait: seconds, a `timedelta` or text. A negative one is 0: the deadline of the caller
/// has passed.
pub(crate) fn wait(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    Ok(Duration::try_from_secs_f64(seconds(name, value)?.max(0.0)).unwrap_or(Duration::MAX))
}

fn seconds(name: &str, value: &Bound<'_, PyAny>) -> PyResult<f64> {
    static CONVERT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let is_number = value.is_exact_instance_of::<PyFloat>() || value.is_exact_instance_of::<PyInt>();
    let seconds = if is_number {
        value.extract::<f64>()?
    } else {
        let convert = CONVERT.import(value.py(), "mqstore._times", "seconds_from")?;
        convert.call1((name, value))?.extract::<f64>()?
    };
    if seconds.is_nan() {
        return Err(PyValueError::new_err(format!("{name} is not a number")));
    }
    Ok(seconds)
}

/// Converts a topic's attributes: a mapping of str to str.
pub(crate) fn attributes(value: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<(String, String)>> {
    let pairs = value.map(pairs).transpose()?.unwrap_or_default();
    pairs.iter().map(|(name, value)| Ok((name.to_str()?.to_owned(), value.to_str()?.to_owned()))).collect()
}
