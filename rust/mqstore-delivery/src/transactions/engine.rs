//! The transactions of one store: the pending ones, and the rounds that log decisions.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mqstore_base::error::StoreError;
use mqstore_engine::Store;
use mqstore_format::topic::{HALF_TOPIC, OP_TOPIC};
use mqstore_io::sync::{AtomicI64, Mutex, Ordering};
use mqstore_meta::{MetaLog, OffsetChange, QueueKey, QueueProgress};

use super::check_timer::CheckTimer;
use super::entry::{PendingTransaction, TransactionEntry};
use super::outcomes::OutcomeTracker;
use crate::error::BrokerError;

/// The group under which a broker stores the offset of its checks (`MixAll#CID_SYS_RMQ_TRANS`).
pub(super) const CHECK_GROUP: &str = "CID_RMQ_SYS_TRANS";
/// The group under which mqstore stores the first op message that an open must read.
pub(super) const NOTED_GROUP: &str = "CID_RMQ_SYS_TRANS|noted";

/// Time between two rounds that log decisions.
const ROUND: Duration = Duration::from_millis(200);
/// Minimum time until the check of a pending half message that is logged for the first time, in milliseconds.
pub(super) const CHECK_AFTER_MS: i64 = 6000;

/// The transactions of one store. Cheap to clone; all clones share one state.
///
/// ```text
/// half topic   h12  h13  h14          one half message per append: invisible to readers of the real topics
/// log          ... h12 h13 h14 ... op{12,13,14, commit} f12 f13 f14 ...
///                                  └ one append, in one segment, published in one step
/// ```
///
/// The op message names all half messages of the transaction and is before the final records. If a crash truncates
/// the append, the log has either no part of it, and the transaction is pending, or the op message. In the second
/// case the next open appends the missing final records, exactly once: a final record stores the log offset of its
/// half message and comes after the op message that names it.
///
/// The state of half messages is the progress of RocketMQ's group `CID_RMQ_SYS_TRANS` in the metadata log.
/// `committed` is the offset that a broker finds in `consumerOffset.json`. A pending half message is leased until its
/// next check, and its attempt is the number of checks. This state is derived from the log. A decision is logged
/// there only once the store's log is durable up to the decision's end, so a power loss never forgets a half message
/// whose decision was logged. An open reads the later decisions, from the op message at the offset of `NOTED_GROUP`
/// on, and no earlier half message except the pending ones.
///
/// Across threads: each transaction has a lock, which is held while it changes. One more lock guards the state of all
/// transactions. Neither is held while a callback runs.
#[derive(Clone)]
pub struct Transactions {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) store: Store,
    pub(super) meta: Arc<MetaLog>,
    pub(super) progress: Arc<QueueProgress>,
    op_queue: QueueKey,
    noted_queue: QueueKey,
    /// One past the largest offset of a half message that this process knows.
    pub(super) half_max: AtomicI64,
    pub(super) state: Mutex<TransactionState>,
    pub(super) checker: CheckTimer,
}

pub(super) struct TransactionState {
    pub(super) known: OutcomeTracker,
    pub(super) pending: HashMap<Arc<str>, Arc<TransactionEntry>>,
    /// For each group, the transactions without a handle, by the time of their next check.
    pub(super) due: BTreeMap<Arc<str>, BTreeSet<(i64, Arc<str>)>>,
    last_round: Duration,
    /// Whether there is a note since the last look of [`Transactions::wait_due`].
    pub(super) has_note: bool,
}

impl Transactions {
    /// Opens the transactions of `store`. Completes the decisions of an earlier process; its other transactions are
    /// pending.
    pub(crate) fn open(store: &Store) -> Result<Self, BrokerError> {
        for topic in [HALF_TOPIC, OP_TOPIC] {
            if store.queue_ids(topic)?.is_empty() {
                store.create_topic(topic, 1, &[])?;
            }
        }
        let meta = store.meta()?;
        let half_queue = meta.queue_key(CHECK_GROUP, HALF_TOPIC, 0)?;
        let known = meta.known_progress(half_queue).is_some();
        let inner = Inner {
            store: store.clone(),
            progress: meta.progress(half_queue),
            op_queue: meta.queue_key(CHECK_GROUP, OP_TOPIC, 0)?,
            noted_queue: meta.queue_key(NOTED_GROUP, OP_TOPIC, 0)?,
            half_max: AtomicI64::new(0),
            state: Mutex::new(TransactionState {
                known: OutcomeTracker::default(),
                pending: HashMap::new(),
                due: BTreeMap::new(),
                last_round: store.clock().monotonic(),
                has_note: false,
            }),
            checker: CheckTimer::default(),
            meta,
        };
        let first_time = inner.meta.offset(inner.noted_queue).is_none();
        let engine = Self { inner: Arc::new(inner) };
        engine.recover(half_queue, known)?;
        if first_time {
            // After the first decision, every later open must know that there may be transactions.
            engine.inner.meta.sync(engine.inner.meta.place())?;
        }
        Ok(engine)
    }

    /// Whether mqstore had transactions in this store, so that a decision may lack final records. A broker's own
    /// decisions never lack any; its transactions are opened only on request.
    pub(crate) fn has_transaction_history(store: &Store) -> Result<bool, StoreError> {
        if store.queue_ids(HALF_TOPIC)?.is_empty() {
            return Ok(false);
        }
        let meta = store.meta()?;
        let noted = meta.queue_key(NOTED_GROUP, OP_TOPIC, 0)?;
        Ok(meta.offset(noted).is_some())
    }

    /// Returns the pending transactions, oldest first.
    pub fn pending(&self) -> Vec<PendingTransaction> {
        let entries: Vec<_> = self.inner.state.lock().pending.values().cloned().collect();
        let mut pending: Vec<_> = entries.iter().filter_map(|entry| entry.describe()).collect();
        pending.sort_by(|one, other| one.half_offsets.cmp(&other.half_offsets));
        pending
    }

    /// Logs durable decisions, and the transactions that have been pending for longer. Works in parts, so that other
    /// threads wait only briefly. Decisions call it from time to time.
    ///
    /// # Errors
    /// Errors of writing the metadata log.
    pub fn record_progress(&self, all: bool) -> Result<(), BrokerError> {
        let inner = &*self.inner;
        let invisible_until_ms = inner.store.clock().now_ms().saturating_add(CHECK_AFTER_MS);
        let half_max = inner.half_max.load(Ordering::Acquire);
        loop {
            let mut state = inner.state.lock();
            let durable = inner.store.system_appends().durable_position()?;
            let notes = state.known.notes(durable, half_max, invisible_until_ms, all);
            let is_last = notes.records.is_empty();
            if !is_last {
                inner.meta.append_progress(&inner.progress, &notes.records)?;
            }
            state.known.noted(notes, durable);
            if is_last {
                state.known.finish_round(half_max);
                state.last_round = inner.store.clock().monotonic();
                return inner.advance_op_offsets(&mut state.known);
            }
        }
    }

    /// Runs a round if one is due.
    pub(super) fn record_progress_if_due(&self) -> Result<(), BrokerError> {
        {
            let mut state = self.inner.state.lock();
            let now = self.inner.store.clock().monotonic();
            if now.saturating_sub(state.last_round) < ROUND {
                return Ok(());
            }
            state.last_round = now;
        }
        self.record_progress(false)
    }
}

impl Inner {
    /// Advances the two offsets of op messages.
    fn advance_op_offsets(&self, known: &mut OutcomeTracker) -> Result<(), BrokerError> {
        let mut changes = Vec::new();
        if self.meta.offset(self.noted_queue) != Some(known.next_op) {
            changes.push(OffsetChange { queue: self.noted_queue, offset: known.next_op });
        }
        let committed = self.progress.lock().committed();
        if let Some(offset) = known.broker_op(committed) {
            changes.push(OffsetChange { queue: self.op_queue, offset });
        }
        if !changes.is_empty() {
            self.meta.commit(&changes)?;
        }
        Ok(())
    }

    /// Returns the first op message that an open reads, within the bounds of the queue.
    pub(super) fn first_op(&self, min: i64, max: i64) -> i64 {
        let stored = self.meta.offset(self.noted_queue).or_else(|| self.meta.offset(self.op_queue));
        stored.filter(|offset| *offset >= 0).unwrap_or(min).clamp(min, max)
    }

    pub(super) fn note(&self, note: String) {
        self.store.user_notes().log(note);
        self.state.lock().has_note = true;
    }
}

impl fmt::Debug for Transactions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transactions").field("path", &self.inner.store.path()).finish_non_exhaustive()
    }
}
