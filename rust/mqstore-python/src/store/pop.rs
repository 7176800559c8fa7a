//! The pop state of a broker, and the fields of its records.

use mqstore::format::json::{PopCheckpoint, PopRecord};
use mqstore::read::PoppedQueue;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::convert::stored_message::StoredMessage;

/// Returns the pop state in a message that is a record of the revive topic, or that waits for delivery there.
#[pyfunction]
pub(crate) fn pop_record<'py>(
    py: Python<'py>,
    message: &StoredMessage,
) -> PyResult<Option<Bound<'py, PyDict>>> {
    let Some(record) = PopRecord::of(&message.view()?) else { return Ok(None) };
    let handle = record.handle();
    let (kind, offsets, checkpoint) = match &record {
        PopRecord::Checkpoint(checkpoint) => ("checkpoint", &checkpoint.offsets, Some(checkpoint)),
        PopRecord::Ack(ack) => ("ack", &ack.offsets, None),
    };
    let acked = checkpoint.map(|checkpoint| {
        let unacked: Vec<i64> = checkpoint.unacked().collect();
        offsets.iter().copied().filter(|offset| !unacked.contains(offset)).collect::<Vec<_>>()
    });
    let found = PyDict::new(py);
    found.set_item("kind", kind)?;
    found.set_item("group", &handle.group)?;
    found.set_item("topic", &handle.topic)?;
    found.set_item("queue_id", handle.queue_id)?;
    found.set_item("start_offset", handle.start_offset)?;
    found.set_item("offsets", offsets)?;
    found.set_item("acked_offsets", acked)?;
    found.set_item("pop_timestamp", handle.pop_time_ms)?;
    found.set_item("revive_timestamp", checkpoint.map(PopCheckpoint::revive_time_ms))?;
    found.set_item("broker_name", &handle.broker_name)?;
    Ok(Some(found))
}

/// Group, topic, queue, number of leased messages, and when the first and the last of them are redelivered.
pub(crate) type PoppedRow = (String, String, i32, usize, i64, i64);

/// Converts a queue from which a broker popped messages.
pub(crate) fn popped_row(queue: PoppedQueue) -> PoppedRow {
    let times = || queue.messages.iter().map(|message| message.until_ms);
    let (first, last) = (times().min().unwrap_or(0), times().max().unwrap_or(0));
    let count = queue.messages.len();
    (queue.group, queue.topic, queue.queue_id, count, first, last)
}
