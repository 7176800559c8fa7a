//! Delayed messages and pending transactions, and the fields of their records.

use mqstore::delivery::{DueCounts, PendingDeliveries, PendingGroup};
use mqstore::format::DelayLevels;
use mqstore::format::delays::pending::{LevelRecord, TimerRecord, TimerTurn, WaitingRecord};
use mqstore::format::transaction::{Decision, HalfRecord, OpRecord};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::convert::stored_message::StoredMessage;
use crate::runtime::detached;
use crate::store::NativeStore;

/// A record for Python; a field that its kind does not have stays `None`.
#[derive(Default)]
struct PendingMessageInfo<'a> {
    kind: &'static str,
    topic: Option<&'a str>,
    queue_id: Option<i32>,
    due_ms: Option<i64>,
    level: Option<i32>,
    cancels: Option<&'a str>,
    cancels_log_offset: Option<u64>,
    half: Option<HalfRecord<'a>>,
    op: Option<OpRecord>,
}

impl<'a> From<WaitingRecord<'a>> for PendingMessageInfo<'a> {
    fn from(record: WaitingRecord<'a>) -> Self {
        match record {
            WaitingRecord::Timer(TimerRecord { topic, queue_id, due_ms, turn, .. }) => {
                let (kind, cancels, cancels_log_offset) = match turn {
                    TimerTurn::Deliver => ("deliver", None, None),
                    TimerTurn::PutBack => ("put_back", None, None),
                    TimerTurn::Cancel { key, record } => ("cancel", Some(key), record),
                };
                let due_ms = Some(due_ms);
                Self { kind, topic, queue_id, due_ms, cancels, cancels_log_offset, ..Self::default() }
            }
            WaitingRecord::Level(LevelRecord { topic, queue_id, level, due_ms }) => Self {
                kind: "delay_level",
                topic: Some(topic),
                queue_id: Some(queue_id),
                due_ms: Some(due_ms),
                level: Some(level),
                ..Self::default()
            },
            WaitingRecord::Half(half) => Self::of_half("half", half),
            WaitingRecord::Discarded(half) => Self::of_half("discarded", half),
            WaitingRecord::Op(op) => Self { kind: "decision", op: Some(op), ..Self::default() },
        }
    }
}

impl<'a> PendingMessageInfo<'a> {
    fn of_half(kind: &'static str, half: HalfRecord<'a>) -> Self {
        let (topic, queue_id) = (Some(half.topic), Some(half.queue_id));
        Self { kind, topic, queue_id, half: Some(half), ..Self::default() }
    }
}

/// Returns the meaning of a message that is a record of the system topics for delays and transactions. Without the
/// message's store, the delay levels are RocketMQ's defaults.
#[pyfunction]
#[pyo3(signature = (message, store = None))]
pub(crate) fn waiting_record<'py>(
    py: Python<'py>,
    message: &StoredMessage,
    store: Option<&Bound<'py, NativeStore>>,
) -> PyResult<Option<Bound<'py, PyDict>>> {
    let view = message.view()?;
    let Some(mut record) = WaitingRecord::of(&view, &DelayLevels::default()) else { return Ok(None) };
    if let (WaitingRecord::Level(level), Some(store)) = (&mut record, store) {
        let core = store.get().core()?;
        let due_ms = detached(py, || core.level_times()?.due_of(message.record()))?;
        level.due_ms = due_ms.unwrap_or(level.due_ms);
    }
    let shown = PendingMessageInfo::from(record);
    let found = PyDict::new(py);
    found.set_item("kind", shown.kind)?;
    found.set_item("topic", shown.topic)?;
    found.set_item("queue_id", shown.queue_id)?;
    found.set_item("due_timestamp", shown.due_ms)?;
    found.set_item("level", shown.level)?;
    found.set_item("cancels", shown.cancels)?;
    found.set_item("cancels_log_offset", shown.cancels_log_offset)?;
    found.set_item("producer_group", shown.half.map(|half| half.group))?;
    found.set_item("transaction_id", shown.half.map(|half| half.transaction))?;
    found.set_item("checks", shown.half.map(|half| half.checks))?;
    found.set_item("half_offsets", shown.op.as_ref().map(|op| &op.half_offsets))?;
    found.set_item("decision", shown.op.as_ref().and_then(|op| op.decision).map(Decision::name))?;
    Ok(Some(found))
}

/// The mechanism, the number of messages, when the first is due, and how many are due within each of six times.
type DelayedRow = (&'static str, u64, Option<i64>, [u64; 6]);

/// Producer group, transactions, half messages, store time of the first, number of checks.
type UndecidedRow = (String, u64, u64, i64, u32);

/// Adds delayed messages and pending transactions to the result of `info`.
pub(crate) fn add_waiting(found: &Bound<'_, PyDict>, waiting: PendingDeliveries) -> PyResult<()> {
    let delays = [("timer", waiting.delays.timer), ("levels", waiting.delays.levels)];
    let row = |(name, counts): (&'static str, DueCounts)| {
        (name, counts.messages, counts.first_due_ms, counts.by_due)
    };
    let delayed: Vec<DelayedRow> =
        delays.into_iter().filter(|(_, counts)| counts.messages > 0).map(row).collect();
    found.set_item("delayed", delayed)?;
    let row = |one: PendingGroup| {
        let PendingGroup { group, transactions, messages, oldest_ms, checks } = one;
        (group, transactions, messages, oldest_ms, checks)
    };
    let undecided: Vec<UndecidedRow> = waiting.undecided.into_iter().map(row).collect();
    found.set_item("undecided", undecided)
}
