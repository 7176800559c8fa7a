//! Scans: many messages in the order of the log, for callers that build columns from them.
//!
//! A scan writes nothing and sees what is visible when it begins. Its result depends on the log alone: see `log_scan`, and
//! `continued` for the rows before the log. Several threads decode records, check their checksums and build batches
//! ([`ScanSink`]). Batches come out in the order of the log. The threads belong to the scan and end with it.
//!
//! [`ScanPlan::Messages`] differs: it yields the messages of queues as reads return them, compacted ones included.

mod continued;
mod damage;
mod log_scan;
mod merged_queues;
mod queue_parts;
mod queue_position;
mod record_source;
pub(crate) mod task;
mod workers;

pub use crate::read::scan_request::{RecordTest, ScanPlan, ScanRange, ScanRequest, ScanRow};
pub use continued::Scan;
pub(crate) use continued::scan;
pub use log_scan::ScanOutput;
pub(crate) use log_scan::scan_cuts;
pub use task::Passed;
pub use workers::{MakeSink, ScanBatch, ScanSink};
