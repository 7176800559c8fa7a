//! `AppendResults`: the results of one call. Each object is created when it is read, because most programs read none or
//! few of them.

use mqstore::format::Host;
use mqstore::message::Appended;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PySlice, PyString, PyTuple, PyType};

use crate::convert::append_result::AppendResult;

/// The results of a call that appends several messages, in the order of the messages.
///
/// A sequence of `AppendResult`: frozen, picklable, equal to a list of equal results. `list(results)` makes a list.
#[pyclass(frozen, sequence, module = "mqstore")]
pub(crate) struct AppendResults {
    topic: Py<PyString>,
    host: Host,
    appended: Vec<Appended>,
}

impl AppendResults {
    /// Creates the results of appends to `topic` by a store that writes `host`.
    pub(crate) fn of<'py>(
        topic: &Bound<'py, PyString>,
        host: Host,
        appended: Vec<Appended>,
    ) -> PyResult<Bound<'py, Self>> {
        Bound::new(topic.py(), Self { topic: topic.clone().unbind(), host, appended })
    }

    fn result<'py>(&self, py: Python<'py>, appended: &Appended) -> PyResult<Bound<'py, AppendResult>> {
        Bound::new(py, AppendResult::from_core(self.topic.bind(py), self.host, appended.clone()))
    }

    fn list<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let all = self.appended.iter().map(|appended| self.result(py, appended));
        PyList::new(py, all.collect::<PyResult<Vec<_>>>()?)
    }
}

#[pymethods]
impl AppendResults {
    fn __len__(&self) -> usize {
        self.appended.len()
    }

    fn __getitem__<'py>(&self, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = index.py();
        if index.is_instance_of::<PySlice>() {
            return self.list(py)?.as_any().get_item(index);
        }
        let index: isize = index.extract()?;
        let at = if index < 0 { index.checked_add_unsigned(self.appended.len()) } else { Some(index) };
        let appended = at.and_then(|at| self.appended.get(usize::try_from(at).ok()?));
        let appended =
            appended.ok_or_else(|| PyIndexError::new_err(format!("there is no result {index}")))?;
        Ok(self.result(py, appended)?.into_any())
    }

    fn __add__<'py>(&self, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let all = self.list(other.py())?;
        all.call_method1("extend", (other,))?;
        Ok(all.into_any())
    }

    fn __radd__<'py>(&self, other: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyAny>> {
        other.as_any().add(self.list(other.py())?)
    }

    fn __eq__<'py>(&self, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = other.py();
        if let Ok(other) = other.cast::<Self>() {
            let other = other.get();
            let same = self.appended == other.appended
                && self.host == other.host
                && self.topic.bind(py).as_any().eq(other.topic.bind(py))?;
            return Ok(same.into_pyobject(py)?.to_owned().into_any());
        }
        if !other.is_instance_of::<PyList>() {
            return Ok(py.NotImplemented().into_bound(py));
        }
        self.list(py)?
            .as_any()
            .eq(other)?
            .into_pyobject(py)
            .map(|same| same.to_owned().into_any())
            .map_err(Into::into)
    }

    /// Returns the number of results that are equal to `value`.
    fn count<'py>(&self, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.list(value.py())?.call_method1("count", (value,))
    }

    /// Returns the first position of a result that is equal to `value`, between `start` and `stop`.
    ///
    /// Raises:
    ///     ValueError: no result is equal.
    #[pyo3(signature = (value, start = 0, stop = None))]
    fn index<'py>(
        &self,
        value: &Bound<'py, PyAny>,
        start: isize,
        stop: Option<isize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.list(value.py())?.call_method1("index", (value, start, stop.unwrap_or(isize::MAX)))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.list(py)?.repr()?.to_string())
    }

    /// Pickles as a list.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyType>, Bound<'py, PyTuple>)> {
        Ok((py.get_type::<PyList>(), (self.list(py)?,).into_pyobject(py)?))
    }
}
