//! `SqlFilter`, and the values of `filter=`.
//!
//! A filter is compiled once, when the Python object is created. Reads and scans share it.

use std::borrow::Cow;
use std::sync::Arc;

use mqstore::format::SqlFilter as Sql;
use mqstore::message::MessageFilter;
use pyo3::exceptions::{PyKeyError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping, PyString, PyTuple, PyType};

use crate::convert::arguments::text;
use crate::convert::message::Message;
use crate::convert::stored_message::StoredMessage;
use crate::error::{InvalidFilterError, to_py};

/// A condition on the properties of messages, in RocketMQ's SQL92; created by `mqstore.sql`.
///
/// Frozen, equal by its text, picklable.
#[pyclass(frozen, module = "mqstore")]
pub(crate) struct SqlFilter {
    sql: Arc<Sql>,
}

#[pymethods]
impl SqlFilter {
    #[new]
    #[pyo3(signature = (expression, /))]
    fn new(expression: &Bound<'_, PyAny>) -> PyResult<Self> {
        let expression = text("expression", expression)?;
        let expression = expression.to_str()?;
        let sql = Sql::parse(expression).map_err(|error| {
            InvalidFilterError::new_err((expression.to_owned(), error.position, error.reason))
        })?;
        Ok(Self { sql: Arc::new(sql) })
    }

    /// The text of the condition.
    #[getter]
    fn expression(&self) -> &str {
        self.sql.expression()
    }

    /// The names of the properties that the condition reads, sorted.
    #[getter]
    fn properties<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.sql.properties())
    }

    /// The text after the condition, which is ignored as in RocketMQ; None if there is none.
    #[getter]
    fn ignored(&self) -> Option<&str> {
        self.sql.ignored().map(|(_, rest)| rest)
    }

    /// Explains the condition in words.
    ///
    /// One line for each comparison, with the type that its properties are read as.
    fn explain(&self) -> String {
        self.sql.explain()
    }

    /// Returns whether a message matches.
    ///
    /// Args:
    ///     properties: a mapping of str to str, or a `StoredMessage` or `Message`. The keys and tags of a message count
    ///         as the properties `KEYS` and `TAGS`.
    fn matches(&self, properties: &Bound<'_, PyAny>) -> PyResult<bool> {
        if let Ok(message) = properties.cast::<StoredMessage>() {
            return Ok(self.sql.matches(message.get().view()?.properties));
        }
        let values = self.values(properties)?;
        Ok(matches!(self.sql.evaluate_with(taker(values)), Ok(Some(true))))
    }

    /// Evaluates the condition for a message: True, False, or None if the result is unknown. Only True matches.
    ///
    /// Args:
    ///     properties: as for `matches`.
    ///
    /// Raises:
    ///     ValueError: a property cannot be read as the type that it is compared with; such a message does not match.
    fn evaluate(&self, properties: &Bound<'_, PyAny>) -> PyResult<Option<bool>> {
        let result = if let Ok(message) = properties.cast::<StoredMessage>() {
            self.sql.evaluate(message.get().view()?.properties)
        } else {
            let values = self.values(properties)?;
            self.sql.evaluate_with(taker(values))
        };
        result.map_err(|unreadable| PyValueError::new_err(unreadable.to_string()))
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.sql == other.sql
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        ("mqstore.SqlFilter", self.sql.expression()).into_pyobject(py)?.hash()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("mqstore.sql({})", PyString::new(py, self.sql.expression()).repr()?))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, (&str,)) {
        (py.get_type::<Self>(), (self.sql.expression(),))
    }
}

impl SqlFilter {
    /// Returns the values of the properties that the condition reads, in their order.
    fn values(&self, given: &Bound<'_, PyAny>) -> PyResult<Vec<Option<String>>> {
        let names = self.sql.properties();
        if let Ok(message) = given.cast::<Message>() {
            return names.map(|name| message.get().property(given.py(), name)).collect();
        }
        if let Ok(dict) = given.cast::<PyDict>() {
            return names
                .map(|name| dict.get_item(name)?.map(|value| owned(name, &value)).transpose())
                .collect();
        }
        let Ok(mapping) = given.cast::<PyMapping>() else {
            let kind = given.get_type().name()?;
            let wanted = "a mapping of str to str, a StoredMessage or a Message";
            return Err(PyTypeError::new_err(format!("properties must be {wanted}, not {kind}")));
        };
        names.map(|name| of_mapping(mapping, name)).collect()
    }
}

fn of_mapping(mapping: &Bound<'_, PyMapping>, name: &str) -> PyResult<Option<String>> {
    match mapping.get_item(name) {
        Ok(value) => owned(name, &value).map(Some),
        Err(error) if error.is_instance_of::<PyKeyError>(mapping.py()) => Ok(None),
        Err(error) => Err(error),
    }
}

fn owned(name: &str, value: &Bound<'_, PyAny>) -> PyResult<String> {
    Ok(text(&format!("property {name}"), value)?.to_str()?.to_owned())
}

/// Returns a function that returns the values one by one.
fn taker(values: Vec<Option<String>>) -> impl FnMut(&str) -> Option<Cow<'static, str>> {
    let mut values = values.into_iter();
    move |_| values.next().flatten().map(Cow::Owned)
}

/// Converts `filter=`: tags or a condition; None if every message matches.
pub(crate) fn message_filter(filter: Option<&Bound<'_, PyAny>>) -> PyResult<Option<MessageFilter>> {
    let Some(filter) = filter else { return Ok(None) };
    if let Ok(filter) = filter.cast::<SqlFilter>() {
        return Ok(Some(MessageFilter::Sql(Arc::clone(&filter.get().sql))));
    }
    let Ok(tags) = filter.cast::<PyString>() else {
        let kind = filter.get_type().name()?;
        let wanted = "a str of tags as \"a || b\", or mqstore.sql(\"price > 5\")";
        return Err(PyTypeError::new_err(format!("filter must be {wanted}, not {kind}")));
    };
    MessageFilter::written_tags(tags.to_str()?).map_err(to_py)
}
