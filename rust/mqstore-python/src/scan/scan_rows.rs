//! Rows and schemas in Arrow's C data interface for Python.

use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow_array::{Array, RecordBatch, StructArray};
use arrow_schema::{ArrowError, SchemaRef};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::error::MQStoreError;

/// Rows of a scan, for any consumer of Arrow data.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct ScanRows {
    pub(crate) rows: RecordBatch,
    /// The log offset from which a scan returns the following rows.
    #[pyo3(get)]
    pub(crate) end: u64,
}

#[pymethods]
impl ScanRows {
    fn __len__(&self) -> usize {
        self.rows.num_rows()
    }

    /// Returns schema and data as capsules of Arrow's C data interface.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        let _ = requested_schema;
        let data = StructArray::from(self.rows.clone()).into_data();
        let array = PyCapsule::new_with_value(py, FFI_ArrowArray::new(&data), c"arrow_array")?;
        Ok((schema_capsule(py, &self.rows.schema())?, array))
    }
}

/// Returns a schema as a capsule of Arrow's C data interface.
pub(super) fn schema_capsule<'py>(py: Python<'py>, schema: &SchemaRef) -> PyResult<Bound<'py, PyCapsule>> {
    let schema = FFI_ArrowSchema::try_from(schema.as_ref()).map_err(|error| arrow_bug(&error))?;
    PyCapsule::new_with_value(py, schema, c"arrow_schema")
}

/// Returns the error for data that Arrow itself refuses.
pub(crate) fn arrow_bug(error: &ArrowError) -> PyErr {
    MQStoreError::new_err((format!("internal error: {error}; this is a bug of mqstore, please report it"),))
}
