//! Scans as Arrow streams.
//!
//! A [`ScanStream`] is one pass over the messages: read either batch by batch from Python, or handed over as
//! a whole through Arrow's C stream interface, whose consumer may be any library and any thread. Columns are
//! made by the workers of the core's scan; nothing is copied on the way to the consumer.
//!
//! A consumer of the C stream need not hold the interpreter. Between two batches it is taken for a moment
//! when something has to be said to Python: a warning, or whether Ctrl-C came.

mod arrow_input;
mod buffer_pool;
mod column_builder;
mod expressions;
mod json_lines;
mod request;
mod running_scan;
mod scan_rows;
mod schema;
mod staged_rows;
mod text_columns;
mod transfer;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use mqstore_engine::{MakeSink, Passed, ScanOutput};
use pyo3::exceptions::{PyKeyboardInterrupt, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use crate::runtime::{bug, detached};
use crate::store::NativeStore;
use buffer_pool::BufferPool;
use column_builder::BatchBuilder;
use request::{layout, scan_request};
use running_scan::{RunningScan, ScanHandle};
use scan_rows::{ScanRows, arrow_bug, schema_capsule};
use schema::Layout;

/// One pass over the messages; made by `scan_open`.
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

    /// Where in the log the scan began.
    #[getter]
    fn start(&self) -> u64 {
        self.pass.start
    }

    /// Where in the log it ends.
    #[getter]
    fn limit(&self) -> u64 {
        self.pass.limit
    }

    /// Whether it follows entries of queues; else it walks the log.
    #[getter]
    fn follows_entries(&self) -> bool {
        self.pass.follows_entries
    }

    /// Where in the log it stands: all rows before were given.
    #[getter]
    fn position(&self, py: Python<'_>) -> u64 {
        self.pass.position(py)
    }

    /// What was passed over until now: `"damaged"`, or `"deleted"` before it was read; and where and why.
    fn passed(&self, py: Python<'_>) -> Vec<(&'static str, String)> {
        let passed = self.pass.passed(py).into_iter();
        let named = passed.filter_map(|(what, text)| match what {
            Passed::Damaged => Some(("damaged", text)),
            Passed::Deleted => Some(("deleted", text)),
            Passed::Misled => None,
        });
        named.collect()
    }

    /// Ends the scan; its threads are gone when this returns.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.pass.take()));
    }

    /// What is left of the pass, as a capsule of Arrow's C stream interface.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = requested_schema;
        let running = py
            .detach(|| self.pass.take())
            .ok_or_else(|| PyValueError::new_err("this pass over the messages is over"))?;
        let batches =
            BatchReader { running: Some(running), schema: Arc::clone(&self.layout.schema), said: 0 };
        let stream = FFI_ArrowArrayStream::new(Box::new(batches));
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
    }
}

/// What a C stream reads.
struct BatchReader {
    running: Option<RunningScan<BatchBuilder>>,
    schema: SchemaRef,
    said: usize,
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

    /// Says what there is to say to Python, and asks whether Ctrl-C came.
    fn look(running: &RunningScan<BatchBuilder>, said: &mut usize, waited: bool) -> Result<(), ArrowError> {
        let notes = running.shared.store().map_or(0, |store| store.notes().len());
        if notes == *said && !waited {
            return Ok(());
        }
        *said = notes;
        Python::attach(|py| {
            let signals = running.shared.say_notes(py, 1).and_then(|()| py.check_signals());
            signals.map_err(|error| {
                if error.is_instance_of::<PyKeyboardInterrupt>(py) {
                    // The consumer knows nothing of it: it is raised once the interpreter goes on.
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
            let looked = Self::look(running, &mut self.said, waited);
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

/// Begins a pass over an open store, or over the directory with this path.
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

/// The schema of a pass, as a capsule of Arrow's C data interface.
#[pyfunction]
pub(crate) fn scan_schema<'py>(request: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyCapsule>> {
    schema_capsule(request.py(), &layout(request)?.schema)
}

/// Where scans of a part of a queue may begin; see the core's `Store::scan_cuts`.
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
    detached(store.py(), || open.scan_cuts(topic, queue_id, range, &positions))
}

/// Adds what scans need to the native module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ScanStream>()?;
    module.add_class::<ScanRows>()?;
    transfer::register(module)?;
    staged_rows::register(module)?;
    expressions::register(module)?;
    module.add_function(wrap_pyfunction!(scan_cuts, module)?)?;
    module.add_function(wrap_pyfunction!(scan_open, module)?)?;
    module.add_function(wrap_pyfunction!(scan_schema, module)?)?;
    Ok(())
}
