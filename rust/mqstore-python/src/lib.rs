//! Python bindings of mqstore: conversion only, no rules.
//!
//! The module is `mqstore._mqstore`; `python/mqstore/_native.py` alone imports it. What it promises:
//!
//! * The interpreter is released around every call that copies much, locks, waits or does I/O, and is
//!   never asked for again while a lock of the store is held.
//! * A panic in the core arrives as an exception, never as an abort.
//! * Importing starts no thread and opens nothing.
//! * After a fork the child's copy of a store answers with an error and is never torn down.
//!
//! Validation that needs no Python object is the core's; the shape of arguments is checked here, before
//! anything is written.

#![allow(clippy::needless_pass_by_value, reason = "PyO3 hands arguments over by value")]
#![allow(clippy::doc_markdown, reason = "the comments on exported items are Python docstrings")]

mod admin;
mod batch;
mod buffer;
mod compaction;
mod consumer;
mod delay;
mod error;
mod events;
mod filter;
mod input;
mod iterators;
mod leased;
mod link;
mod loop_delivery;
mod message;
mod options;
mod pop;
mod results;
mod runtime;
mod scan;
mod store;
mod table;
mod testing;
mod topics;
mod transactions;
mod verify;
mod waiting;
mod work_queue;

use pyo3::prelude::*;

/// The native part of `mqstore`; use the package, not this module.
#[pymodule]
fn _mqstore(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<store::NativeStore>()?;
    module.add_class::<message::StoredMessage>()?;
    module.add_class::<leased::LeasedMessage>()?;
    module.add_class::<results::AppendResult>()?;
    module.add_class::<filter::SqlFilter>()?;
    module.add_class::<iterators::MessageIterator>()?;
    module.add_class::<consumer::NativeConsumer>()?;
    module.add_class::<work_queue::NativeWorkQueue>()?;
    module.add_class::<link::LoopLink>()?;
    module.add_class::<link::LoopWait>()?;
    module.add_class::<link::QueuedAppend>()?;
    loop_delivery::register(module)?;
    module.add_class::<testing::TestClock>()?;
    module.add_class::<testing::TestFaults>()?;
    module.add_function(wrap_pyfunction!(testing::is_reserved, module)?)?;
    module.add_class::<table::TableLoad>()?;
    module.add_class::<table::TableRows>()?;
    module.add_function(wrap_pyfunction!(message::restore_message, module)?)?;
    module.add_function(wrap_pyfunction!(runtime::after_fork_in_child, module)?)?;
    module.add_function(wrap_pyfunction!(admin::rebuild, module)?)?;
    module.add_function(wrap_pyfunction!(admin::repair, module)?)?;
    module.add_function(wrap_pyfunction!(admin::copy_store, module)?)?;
    module.add_function(wrap_pyfunction!(admin::info, module)?)?;
    module.add_function(wrap_pyfunction!(consumer::groups, module)?)?;
    module.add_function(wrap_pyfunction!(consumer::offset_history, module)?)?;
    module.add_function(wrap_pyfunction!(pop::pop_record, module)?)?;
    module.add_function(wrap_pyfunction!(waiting::waiting_record, module)?)?;
    compaction::register(module)?;
    delay::register(module)?;
    scan::register(module)?;
    topics::register(module)?;
    transactions::register(module)?;
    verify::register(module)?;
    Ok(())
}
