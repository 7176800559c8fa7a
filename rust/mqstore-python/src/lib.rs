//! Python bindings of mqstore: conversion only, no rules. The module is `mqstore._mqstore`.
//!
//! Only `python/mqstore/_native.py` imports it. The bindings promise:
//! * Every call that copies much, locks, waits or does I/O releases the interpreter. A thread that holds a lock of the
//!   store takes the interpreter only for a request to the URL of a store: see `store/folder.rs`.
//! * A panic in the core becomes an exception, never an abort. The import starts no thread and opens no file.
//! * After a fork, the child's copy of a store raises an error and is never torn down.
//!
//! The bindings check the shape of arguments. The core validates everything that needs no Python object.

#![allow(clippy::needless_pass_by_value, reason = "PyO3 passes arguments by value")]
#![allow(clippy::doc_markdown, reason = "the comments on exported items are Python docstrings")]

mod archive;
mod arrow;
mod backup;
mod commits;
pub(crate) mod convert;
pub(crate) mod delivery;
mod error;
pub(crate) mod event_loop;
mod follow;
mod results;
mod runtime;
mod scan;
mod store;
mod target;
mod testing;

use pyo3::prelude::*;

/// The native part of `mqstore`. Import the package, not this module.
// Free-threaded CPython turns its lock on again at the import: no test of this package has run without the lock yet.
#[pymodule(gil_used = true)]
fn _mqstore(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    error::import_all(py)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    // Python's errors name the class of a method, so these classes have the names of their public subclasses.
    module.add("NativeStore", py.get_type::<store::NativeStore>())?;
    module.add("NativeConsumer", py.get_type::<delivery::consumer::NativeConsumer>())?;
    module.add("NativeWorkQueue", py.get_type::<delivery::work_queue::NativeWorkQueue>())?;
    module.add("NativeTransaction", py.get_type::<delivery::transactions::NativeTransaction>())?;
    module.add_class::<convert::message::Message>()?;
    module.add_class::<convert::stored_message::StoredMessage>()?;
    module.add_class::<delivery::leased_message::LeasedMessage>()?;
    module.add_class::<convert::append_result::AppendResult>()?;
    module.add_class::<convert::append_results::AppendResults>()?;
    module.add_class::<convert::filter::SqlFilter>()?;
    module.add_class::<store::iterators::MessageIterator>()?;
    module.add_class::<event_loop::loop_link::LoopLink>()?;
    module.add_class::<event_loop::loop_link::LoopWait>()?;
    event_loop::loop_delivery::register(module)?;
    module.add_class::<testing::TestClock>()?;
    module.add_class::<testing::TestFaults>()?;
    module.add_function(wrap_pyfunction!(testing::is_reserved, module)?)?;
    module.add_class::<store::folder::RemoteDirectory>()?;
    store::shared::register(module)?;
    module.add_class::<store::table::TableLoad>()?;
    module.add_class::<store::table::TableRows>()?;
    module.add_function(wrap_pyfunction!(convert::stored_message::restore_message, module)?)?;
    module.add_function(wrap_pyfunction!(convert::options::check_options, module)?)?;
    module.add_function(wrap_pyfunction!(runtime::after_fork_in_child, module)?)?;
    module.add_function(wrap_pyfunction!(store::directory::rebuild, module)?)?;
    module.add_function(wrap_pyfunction!(store::directory::repair, module)?)?;
    module.add_function(wrap_pyfunction!(store::directory::copy_store, module)?)?;
    module.add_function(wrap_pyfunction!(store::directory::info, module)?)?;
    module.add_function(wrap_pyfunction!(store::directory::check_division, module)?)?;
    module.add_function(wrap_pyfunction!(store::directory::writer_pid, module)?)?;
    module.add_function(wrap_pyfunction!(delivery::consumer::groups, module)?)?;
    module.add_function(wrap_pyfunction!(delivery::consumer::group_lags, module)?)?;
    module.add_function(wrap_pyfunction!(delivery::consumer::work_counts, module)?)?;
    module.add_function(wrap_pyfunction!(delivery::consumer::jobs, module)?)?;
    module.add_function(wrap_pyfunction!(delivery::consumer::dead_letters, module)?)?;
    module.add_function(wrap_pyfunction!(delivery::work_queue::check_block, module)?)?;
    module.add_function(wrap_pyfunction!(delivery::consumer::offset_history, module)?)?;
    module.add_function(wrap_pyfunction!(store::pop::pop_record, module)?)?;
    module.add_function(wrap_pyfunction!(store::pending::waiting_record, module)?)?;
    store::archive::register(module)?;
    archive::register(module)?;
    backup::register(module)?;
    follow::register(module)?;
    commits::register(module)?;
    results::register(module)?;
    store::compaction::register(module)?;
    store::delay::register(module)?;
    scan::register(module)?;
    store::settings::register(module)?;
    store::topics::register(module)?;
    store::retention::register(module)?;
    delivery::transactions::register(module)?;
    store::verify::register(module)?;
    Ok(())
}
