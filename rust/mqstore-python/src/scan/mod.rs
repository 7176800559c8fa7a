//! Scans as Arrow streams.
//!
//! A [`ScanStream`] is one pass over the messages. Python reads it batch by batch, or passes it as a whole through
//! Arrow's C stream interface to any library and thread. The workers of the core's scan build the columns, and the
//! consumer gets them without a copy.
//!
//! A consumer of the C stream needs no interpreter. Between two batches the stream takes the interpreter for a moment
//! if there is a warning to emit, or to check for Ctrl-C.

mod arrow_input;
pub(crate) mod column_builder;
mod export_rules;
mod expressions;
mod json_lines;
pub(crate) mod request;
pub(crate) mod running_scan;
pub(crate) mod scan_rows;
mod staged_rows;
mod staged_write;
mod store_copy;
mod transfer;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use mqstore::read::{MakeSink, Passed, ScanOutput};
use pyo3::exceptions::{PyKeyboardInterrupt, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use crate::arrow::schema::Layout;
use crate::runtime::{bug, detached};
use crate::store::NativeStore;
use column_builder::BatchBuilder;
use mqstore::arrow::BufferPool;
use request::{layout, scan_request};
use running_scan::{RunningScan, ScanHandle};
use scan_rows::{ScanRows, arrow_bug, schema_capsule};

/// One pass over the messages; created by `scan_open`.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct ScanStream {
    pass: ScanHandle<BatchBuilder>,
    layout: Arc<Layout>,
}

#[pymethods]
impl ScanStream {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<ScanRows>> {
        let Some(batch) = self.pass.next(py)? else { return Ok(None) };
        let rows = batch.rows.map_err(|error| arrow_bug(&error))?;
        Ok(Some(ScanRows { rows, end: batch.end }))
    }

    /// The log offset at which the scan began.
    #[getter]
    fn start(&self) -> u64 {
        self.pass.start
    }

    /// The log offset at which the scan ends.
    #[getter]
    fn limit(&self) -> u64 {
        self.pass.limit
    }

    /// Whether the scan follows queue entries; otherwise it walks the log.
    #[getter]
    fn follows_entries(&self) -> bool {
        self.pass.follows_entries
    }

    /// The log offset before which the scan has returned all rows.
    #[getter]
    fn position(&self, py: Python<'_>) -> u64 {
        self.pass.position(py)
    }

    /// Returns the records skipped so far, each as a kind and a text with position and reason.
    ///
    /// The kind is `"damaged"`, or `"deleted"` if the record was deleted before the scan read it.
    fn passed(&self, py: Python<'_>) -> Vec<(&'static str, String)> {
        let passed = self.pass.passed(py).into_iter();
        let named = passed.filter_map(|(what, text)| match what {
            Passed::Damaged => Some(("damaged", text)),
            Passed::Deleted => Some(("deleted", text)),
            Passed::Misled => None,
        });
        named.collect()
    }

    /// Ends the scan. Its threads have stopped when this returns.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.pass.take()));
    }

    /// Returns the rest of the pass as a capsule of Arrow's C stream interface.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = requested_schema;
        let running = py
            .detach(|| self.pass.take())
            .ok_or_else(|| PyValueError::new_err("the scan is over; start a new one"))?;
        let batches = BatchReader { running: Some(running), schema: Arc::clone(&self.layout.schema) };
        let stream = FFI_ArrowArrayStream::new(Box::new(batches));
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
    }
}

/// The reader of a C stream.
struct BatchReader {
    running: Option<RunningScan<BatchBuilder>>,
    schema: SchemaRef,
}

impl BatchReader {
    fn step(
        running: &mut RunningScan<BatchBuilder>,
    ) -> Result<ScanOutput<Result<RecordBatch, ArrowError>>, ArrowError> {
        match catch_unwind(AssertUnwindSafe(|| running.next())) {
            Ok(step) => step.map_err(|error| ArrowError::ExternalError(Box::new(error))),
            Err(panic) => Err(ArrowError::ExternalError(bug(panic.as_ref()).to_string().into())),
        }
    }

    /// Emits new warnings in Python, and checks for Ctrl-C.
    fn look(running: &RunningScan<BatchBuilder>, waited: bool) -> Result<(), ArrowError> {
        if !waited && !running.shared.has_new_notes() {
            return Ok(());
        }
        Python::attach(|py| {
            let signals = running.shared.say_notes(py).and_then(|()| py.check_signals());
            signals.map_err(|error| {
                if error.is_instance_of::<PyKeyboardInterrupt>(py) {
                    // The consumer cannot take the signal: the interpreter raises it when it continues.
                    let again = py.import("_thread").and_then(|module| module.call_method0("interrupt_main"));
                    drop(again);
                }
                ArrowError::ExternalError(error.to_string().into())
            })
        })
    }
}

impl Iterator for BatchReader {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let running = self.running.as_mut()?;
            let step = Self::step(running);
            let waited = matches!(step, Ok(ScanOutput::Later));
            let looked = Self::look(running, waited);
            match (step, looked) {
                (Ok(ScanOutput::Later), Ok(())) => {}
                (Ok(ScanOutput::Batch(batch)), Ok(())) => return Some(batch.rows),
                (Ok(ScanOutput::End), Ok(())) => self.running = None,
                (Err(error), _) | (_, Err(error)) => {
                    self.running = None;
                    return Some(Err(error));
                }
            }
        }
    }
}

impl RecordBatchReader for BatchReader {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

/// Starts a pass over an open store, or over the directory with this path.
#[pyfunction]
pub(crate) fn scan_open(source: &Bound<'_, PyAny>, request: &Bound<'_, PyDict>) -> PyResult<ScanStream> {
    let layout = Arc::new(layout(request)?);
    let request = scan_request(request)?;
    let make: MakeSink<BatchBuilder> = {
        let (layout, pool) = (Arc::clone(&layout), Arc::<BufferPool>::default());
        Arc::new(move || BatchBuilder::new(Arc::clone(&layout), &pool))
    };
    Ok(ScanStream { pass: ScanHandle::begin(source, &request, make)?, layout })
}

/// Returns the schema of a pass as a capsule of Arrow's C data interface.
#[pyfunction]
pub(crate) fn scan_schema<'py>(request: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyCapsule>> {
    schema_capsule(request.py(), &layout(request)?.schema)
}

/// Returns the offsets at which scans of a part of a queue may begin; see the core's `LogReads::scan_cuts`.
#[pyfunction]
#[pyo3(signature = (store, topic, queue_id, range, positions))]
fn scan_cuts(
    store: &Bound<'_, NativeStore>,
    topic: &str,
    queue_id: i32,
    range: (i64, i64),
    positions: Vec<u64>,
) -> PyResult<Vec<u64>> {
    let shared = store.get().shared();
    let open = shared.store()?;
    detached(store.py(), || open.log().scan_cuts(topic, queue_id, range, &positions))
}

/// Adds the classes and functions of scans to the native module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ScanStream>()?;
    module.add_class::<ScanRows>()?;
    module.add_class::<export_rules::ExportRules>()?;
    module.add_class::<export_rules::ExportStream>()?;
    transfer::register(module)?;
    store_copy::register(module)?;
    staged_rows::register(module)?;
    staged_write::register(module)?;
    expressions::register(module)?;
    module.add_function(wrap_pyfunction!(scan_cuts, module)?)?;
    module.add_function(wrap_pyfunction!(scan_open, module)?)?;
    module.add_function(wrap_pyfunction!(export_rules::scan_export, module)?)?;
    module.add_function(wrap_pyfunction!(scan_schema, module)?)?;
    Ok(())
}
