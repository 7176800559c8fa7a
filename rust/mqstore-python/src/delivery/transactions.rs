//! `NativeTransaction` and `NativeChecks`: messages that become visible together, and the checks of pending
//! transactions.
//!
//! `mqstore.Transaction` is a subclass of the first. The check thread of `mqstore._delivery.transactions` uses the
//! second: it waits here with the interpreter released, and runs the check functions in Python.

use std::sync::Arc;
use std::time::Duration;

use mqstore::delivery::{CheckAnswer, CheckOptions, NewHalfMessage, PendingTransaction, Transactions};
use mqstore::format::Host;
use mqstore::format::topic::HALF_TOPIC;
use mqstore_server::share::{CheckedGroups, Transaction};
use mqstore_server::wire::response::Pending;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

use crate::convert::append_input::MessageParts;
use crate::convert::append_result::AppendResult;
use crate::convert::arguments::{body_or_json, count, duration, text};
use crate::error::log_notes;
use crate::runtime::{ForkGuarded, SharedStore, delivered};
use crate::store::NativeStore;

/// Pause of the check thread after an error of the store.
const AGAIN: Duration = Duration::from_secs(1);

/// A pending transaction as Python's `PendingTransaction` takes it: id, group, topics, messages, begun, checks, time of
/// the next check, whether a program has it open, queue offsets of its half messages.
type PendingRow = (String, String, Vec<String>, usize, i64, u32, Option<i64>, bool, Vec<i64>);

/// The native part of `mqstore.Transaction`.
#[pyclass(name = "Transaction", frozen, subclass, module = "mqstore._mqstore")]
pub(crate) struct NativeTransaction {
    transaction: ForkGuarded<Transaction>,
    /// Keeps the store alive while the transaction exists.
    owner: Py<NativeStore>,
    host: Host,
    durable: bool,
}

impl NativeTransaction {
    fn transaction(&self) -> PyResult<&Transaction> {
        self.transaction.get()
    }

    fn decide(&self, py: Python<'_>, commit: bool) -> PyResult<()> {
        let (transaction, durable) = (self.transaction()?, self.durable);
        delivered(py, || if commit { transaction.commit(durable) } else { transaction.rollback(durable) })
    }
}

#[pymethods]
impl NativeTransaction {
    #[new]
    #[pyo3(signature = (store, group, durable))]
    fn new(store: &Bound<'_, NativeStore>, group: &str, durable: bool) -> PyResult<Self> {
        let (core, shared) = (store.get().core()?, store.get().shared());
        let share = shared.share()?;
        let begun = delivered(store.py(), || match share {
            Some(share) => share.begin(group),
            None => core.transactions()?.begin(group).map(Transaction::Own),
        })?;
        let shared = store.get().shared();
        Ok(Self {
            transaction: ForkGuarded::new(shared, begun),
            owner: store.clone().unbind(),
            host: store.get().host(),
            durable,
        })
    }

    /// The id by which a check identifies the transaction.
    ///
    /// It is the unique id of the first message, unless you gave another one.
    #[getter]
    fn id(&self) -> PyResult<&str> {
        Ok(self.transaction()?.id())
    }

    /// The producer group.
    #[getter]
    fn group(&self) -> PyResult<&str> {
        Ok(self.transaction()?.group())
    }

    /// The outcome: `"committed"` or `"rolled back"`; None while the transaction is open.
    #[getter]
    fn outcome(&self) -> PyResult<Option<&'static str>> {
        Ok(self.transaction()?.outcome().map(mqstore::delivery::TransactionOutcome::name))
    }

    /// The positions of the messages, in the order of the appends; empty until the commit.
    #[getter]
    fn results<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, AppendResult>>> {
        let went = self.transaction()?.went().into_iter();
        let result = |topic: Arc<str>, appended| {
            let topic = PyString::intern(py, &topic);
            Bound::new(py, AppendResult::from_core(&topic, self.host, appended))
        };
        went.map(|(topic, appended)| result(topic, appended)).collect()
    }

    /// Stores a message that becomes visible when the transaction is committed, and returns its unique id.
    ///
    /// It survives a crash like any append to the store. Topic and queue are checked and fixed now.
    ///
    /// Args:
    ///     topic: created with `default_queues` queues if it does not exist.
    ///     body: any bytes-like object.
    ///     json: a value whose JSON is the body, as for `Store.append`.
    ///     keys: one key or several, as for `Store.append`.
    ///     tags: the tag that tag filters compare.
    ///     properties: the message's own properties, as for `Store.append`.
    ///     queue_id: the queue; None takes the topic's queues in turn.
    ///     flag: a 32-bit number for the application.
    ///     born_timestamp: time at which the message was created; None is now.
    ///     compression: as for `Store.append`.
    ///     compress_over: as for `Store.append`.
    ///
    /// Raises:
    ///     RefusedError: the transaction has ended.
    ///     InvalidMessageError: as for `Store.append`, and if the topic has batch queues.
    ///     MessageTooLargeError: as for `Store.append`, and if the records of the commit do not fit in one segment.
    #[pyo3(
        signature = (topic, body = None, *, json = None, keys = None, tags = None, properties = None,
                     queue_id = None, flag = None, born_timestamp = None, compression = None, compress_over = None, **others),
        text_signature = "($self, topic, body=None, *, json=None, keys=(), tags=None, properties=None, \
                          queue_id=None, flag=0, born_timestamp=None, compression=None, compress_over=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "a message has this many parts")]
    fn append(
        &self,
        py: Python<'_>,
        topic: &Bound<'_, PyAny>,
        body: Option<&Bound<'_, PyAny>>,
        json: Option<&Bound<'_, PyAny>>,
        keys: Option<&Bound<'_, PyAny>>,
        tags: Option<&Bound<'_, PyAny>>,
        properties: Option<&Bound<'_, PyAny>>,
        queue_id: Option<&Bound<'_, PyAny>>,
        flag: Option<&Bound<'_, PyAny>>,
        born_timestamp: Option<&Bound<'_, PyAny>>,
        compression: Option<&Bound<'_, PyAny>>,
        compress_over: Option<&Bound<'_, PyAny>>,
        others: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<String> {
        if let Some(others) = others {
            return Err(refused(others));
        }
        let transaction = self.transaction()?;
        let topic = text("topic", topic)?;
        let mut part =
            MessageParts::of(body_or_json(py, body, json)?, keys, tags, properties, flag, born_timestamp)?;
        let queue_id = queue_id.map(crate::convert::arguments::queue_id).transpose()?;
        part.compress(&self.owner.get().compression(compression, compress_over)?)?;
        let message = part.message(topic.to_str()?, queue_id, false);
        let half = NewHalfMessage {
            topic: message.topic,
            body: message.body,
            sys_flag: message.sys_flag,
            properties: message.properties,
            unique_key: message.unique_key,
            queue_id: message.queue_id,
            flag: message.flag,
            born_timestamp_ms: message.born_timestamp_ms,
        };
        let key = delivered(py, || transaction.append(&half))?;
        Ok(key.as_str().to_owned())
    }

    /// Makes all messages visible in one step, and returns their positions. A second commit changes nothing.
    ///
    /// Raises:
    ///     RefusedError: the transaction was rolled back.
    fn commit<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.decide(py, true)?;
        PyList::new(py, self.results(py)?)
    }

    /// Discards the messages for ever. A second rollback changes nothing.
    ///
    /// Raises:
    ///     RefusedError: the transaction was committed.
    fn rollback(&self, py: Python<'_>) -> PyResult<()> {
        self.decide(py, false)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        if self.transaction()?.outcome().is_none() {
            self.decide(py, kind.is_none())?;
        }
        Ok(())
    }
}

/// Returns the error for arguments that `Transaction.append` does not take.
fn refused(others: &Bound<'_, PyDict>) -> PyErr {
    let names: Vec<_> = others.keys().iter().map(|name| name.to_string()).collect();
    let name = names.first().map_or("", String::as_str);
    if ["delay", "deliver_at", "delay_level"].contains(&name) {
        return PyTypeError::new_err(format!(
            "a message of a transaction cannot wait: {name} is for Store.append, after the commit"
        ));
    }
    if name == "durable" {
        return PyTypeError::new_err(
            "durable applies to the whole transaction: Store.transaction(durable=True)",
        );
    }
    PyTypeError::new_err(format!("append() got an unexpected keyword argument '{name}'"))
}

/// The store's state for the check thread. It does not keep the store alive.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct NativeChecks {
    checks: ForkGuarded<Checks>,
    shared: Arc<SharedStore>,
}

/// Where due transactions come from.
enum Checks {
    Own(Transactions),
    /// The owner of a shared store, which is asked from time to time.
    Shared(CheckedGroups, mqstore::io::sync::Mutex<bool>, mqstore::io::sync::Condvar),
}

/// Pause between two questions to the owner of a shared store.
const ASK: Duration = Duration::from_secs(1);

impl Checks {
    /// Sleeps for at most `longest`; false once checks have ended.
    fn sleep(&self, longest: Duration) -> bool {
        let Self::Shared(_, ended, changed) = self else { return true };
        let mut ended = ended.lock();
        if !*ended {
            let _ = changed.wait_for(&mut ended, longest);
        }
        !*ended
    }
}

#[pymethods]
impl NativeChecks {
    #[new]
    fn new(store: &Bound<'_, NativeStore>) -> PyResult<Self> {
        let (core, shared) = (store.get().core()?, store.get().shared());
        let checks = match shared.share()? {
            Some(share) => Checks::Shared(
                CheckedGroups::new(share),
                mqstore::io::sync::Mutex::default(),
                mqstore::io::sync::Condvar::new(),
            ),
            None => Checks::Own(delivered(store.py(), || core.transactions())?),
        };
        Ok(Self { checks: ForkGuarded::new(Arc::clone(&shared), checks), shared })
    }

    /// Registers `group` for checks from now on.
    fn set(
        &self,
        py: Python<'_>,
        group: &str,
        check_after: &Bound<'_, PyAny>,
        check_interval: &Bound<'_, PyAny>,
        check_max: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let checks = self.checks.get()?;
        let options = CheckOptions {
            after: duration("check_after", check_after)?,
            interval: duration("check_interval", check_interval)?,
            max: count("check_max", check_max)?,
        };
        delivered(py, || match checks {
            Checks::Own(transactions) => transactions.check_group(group, options),
            Checks::Shared(groups, ..) => groups.set(group, options),
        })
    }

    /// Waits until checks are due, and returns their transactions; None once checks have ended.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Vec<PendingRow>>> {
        match self.checks.get()? {
            Checks::Own(transactions) => {
                let due = delivered(py, || transactions.wait_due());
                self.shared.log_notes(py)?;
                Ok(due?.map(|due| due.into_iter().map(|pending| row(transactions, pending)).collect()))
            }
            checks @ Checks::Shared(groups, ..) => {
                if !py.detach(|| checks.sleep(ASK)) {
                    return Ok(None);
                }
                let due = delivered(py, || groups.due())?;
                Ok(Some(due.into_iter().map(shared_row).collect()))
            }
        }
    }

    /// Applies the answer of a check function.
    fn answer(&self, py: Python<'_>, id: &str, commit: bool) -> PyResult<()> {
        let checks = self.checks.get()?;
        let answer = if commit { CheckAnswer::Commit } else { CheckAnswer::Rollback };
        delivered(py, || match checks {
            Checks::Own(transactions) => transactions.answer(id, answer),
            Checks::Shared(groups, ..) => groups.answer(id, answer),
        })
    }

    /// Pauses after an error of `next`.
    fn rest(&self, py: Python<'_>) -> PyResult<()> {
        let checks = self.checks.get()?;
        delivered(py, || {
            match checks {
                Checks::Own(transactions) => transactions.wait_after_error(AGAIN),
                checks @ Checks::Shared(..) => drop(checks.sleep(AGAIN)),
            }
            Ok(())
        })
    }

    /// Makes `next` return None, now and later.
    fn end(&self) {
        match self.checks.get() {
            Ok(Checks::Own(transactions)) => transactions.end_checks(),
            Ok(Checks::Shared(_, ended, changed)) => {
                *ended.lock() = true;
                changed.notify_all();
            }
            Err(_) => {}
        }
    }

    /// Whether the store is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.shared.is_closed()
    }
}

fn row(transactions: &Transactions, pending: PendingTransaction) -> PendingRow {
    let next_check = transactions.next_check_of(&pending);
    (
        pending.id,
        pending.group,
        pending.topics,
        pending.messages,
        pending.born_timestamp_ms,
        pending.checks,
        next_check,
        pending.open,
        pending.half_offsets,
    )
}

fn shared_row(pending: Pending) -> PendingRow {
    let (id, group, topics) = pending.names;
    let (messages, begun, checks, next_check) = pending.numbers;
    (id, group, topics, messages as usize, begun, checks, next_check, pending.open, pending.half_offsets)
}

/// Returns the pending transactions, oldest first; `Store.pending_transactions`.
#[pyfunction]
pub(crate) fn pending_transactions(store: &Bound<'_, NativeStore>) -> PyResult<Vec<PendingRow>> {
    let (py, core) = (store.py(), store.get().core()?);
    if store.get().shared().share()?.is_some() {
        let verbs = store.get().verbs()?;
        let pending = delivered(py, || verbs.pending_transactions())?;
        return Ok(pending.into_iter().map(shared_row).collect());
    }
    let rows = delivered(py, || {
        // A reader gets an error here.
        core.meta()?;
        if core.queue_ids(HALF_TOPIC)?.is_empty() {
            return Ok(Vec::new());
        }
        let transactions = core.transactions()?;
        Ok(transactions.pending().into_iter().map(|pending| row(&transactions, pending)).collect())
    })?;
    log_notes(py, core.user_notes())?;
    Ok(rows)
}

/// Adds the classes and the function to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<NativeChecks>()?;
    module.add_function(wrap_pyfunction!(pending_transactions, module)?)
}
