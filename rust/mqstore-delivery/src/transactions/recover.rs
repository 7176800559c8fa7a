//! Opening transactions after an earlier process or a broker: completes decisions, finds pending transactions.
//!
//! Reads the op messages that are not logged yet, and only the pending half messages. A broker may have used the store:
//! it decides half messages one by one, and it may have copied pending ones. Of copies with one unique key the newest
//! counts, and the others are rolled back.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use mqstore_base::message::StoredRecord;
use mqstore_format::TransactionType;
use mqstore_format::topic::{CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_TOPIC};
use mqstore_format::transaction::{HalfRecord, OpRecord};
use mqstore_io::sync::Ordering;
use mqstore_meta::{ProgressRecord, QueueKey};

use super::TransactionOutcome;
use super::engine::Transactions;
use super::entry::{HalfMessage, TransactionEntry, TransactionParts};
use super::half_records::decision_of_op;
use super::outcomes::OutcomeTracker;
use crate::error::{BrokerError, view};

/// Records in one read.
const AT_ONCE: usize = 256;

/// The decided half messages, and those of them without a final record.
#[derive(Default)]
struct DecidedHalves {
    halves: HashSet<i64>,
    owed: BTreeMap<i64, TransactionOutcome>,
}

/// A pending half message, as in the metadata log.
struct PendingHalf {
    offset: i64,
    checks: u32,
    due_ms: i64,
}

/// The pending transactions that recovery collects.
#[derive(Default)]
struct FoundTransactions {
    entries: HashMap<Arc<str>, Arc<TransactionEntry>>,
    /// The newest half message, by transaction and unique key.
    keys: HashMap<(Arc<str>, Box<str>), i64>,
    /// Half messages that have a newer copy.
    superseded: Vec<i64>,
    due: Vec<(Arc<TransactionEntry>, i64)>,
}

impl Transactions {
    /// Recovers the transactions; see the module's text. `known` says whether the metadata log has a progress of half
    /// messages.
    pub(super) fn recover(&self, half_queue: QueueKey, known: bool) -> Result<(), BrokerError> {
        let inner = &*self.inner;
        let (half_min, half_max) = inner.store.bounds(HALF_TOPIC, 0)?;
        let (op_min, op_max) = inner.store.bounds(OP_TOPIC, 0)?;
        if !known {
            let stored = inner.meta.offset(half_queue).filter(|offset| *offset >= 0);
            let to = stored.unwrap_or(half_min).clamp(half_min, half_max);
            inner.meta.append_progress(&inner.progress, &[ProgressRecord::Moved { to }])?;
        }
        inner.meta.clamp_progress(&inner.progress, half_min, half_max)?;
        inner.half_max.store(half_max, Ordering::Release);
        let first_op = inner.first_op(op_min, op_max);
        let next = inner.progress.lock().next();
        inner.state.lock().known = OutcomeTracker::starting_at(next, first_op);
        let decided = self.read_ops(first_op, op_max, half_max)?;
        let open = self.open_halves(&decided, half_max);
        self.complete(&decided.owed)?;
        let found = self.read_halves(&open)?;
        self.collect_halves(found)?;
        self.record_progress(true)
    }

    /// Reads op messages from `first_op` up to `op_max`. Ignores half messages from `half_max` on, which do not exist.
    /// Offsets without a record are gaps: their records expired or were lost.
    fn read_ops(&self, first_op: i64, op_max: i64, half_max: i64) -> Result<DecidedHalves, BrokerError> {
        let inner = &*self.inner;
        let mut decided = DecidedHalves::default();
        let mut next_op = first_op;
        let mut cursor = inner.store.read(OP_TOPIC, 0, Some(first_op), None, None)?;
        loop {
            let records = cursor.next_batch(AT_ONCE)?;
            if records.is_empty() {
                inner.state.lock().known.no_ops(next_op, op_max);
                return Ok(decided);
            }
            for record in &records {
                inner.state.lock().known.no_ops(next_op, record.queue_offset);
                next_op = record.queue_offset.saturating_add(1);
                let mut op = OpRecord::of(&view(record)?);
                op.half_offsets.retain(|half| (0..half_max).contains(half));
                self.find_missing_records(record, &op, &mut decided.owed)?;
                decided.halves.extend(&op.half_offsets);
                let progress = inner.progress.lock();
                let open: Vec<_> =
                    op.half_offsets.iter().copied().filter(|half| !progress.is_finished(*half)).collect();
                drop(progress);
                // An open finds only durable records.
                inner.state.lock().known.record_decision(open.into_iter(), record.queue_offset, 1);
            }
        }
    }

    /// Finds missing final records of an op message. Each final record is made from a half message that the op
    /// message names. Some of these half messages may have expired.
    fn find_missing_records(
        &self,
        record: &StoredRecord,
        op: &OpRecord,
        owed: &mut BTreeMap<i64, TransactionOutcome>,
    ) -> Result<(), BrokerError> {
        let Some(outcome) = decision_of_op(op) else { return Ok(()) };
        let (mut made, mut is_replaced) = (HashSet::new(), false);
        let mut position = record.commit_log_offset + record.bytes().len() as u64;
        for _ in &op.half_offsets {
            let Some(follows) = self.inner.store.log().record_at(position)? else { break };
            // A reclaim has replaced final records, because a retention or a deletion hides them. Each of them was
            // there: after a crash that lost some, the next open appended an op message here before anything else.
            is_replaced = view(&follows)?.replaces_hidden();
            let Some(from) = half_of_record(&follows, outcome).filter(|_| !is_replaced) else { break };
            made.insert(from);
            position += follows.bytes().len() as u64;
        }
        for (half, from) in self.halves_at(&op.half_offsets)? {
            if is_replaced || made.contains(&from.commit_log_offset) {
                owed.remove(&half);
            } else {
                owed.insert(half, outcome);
            }
        }
        Ok(())
    }

    /// Returns the half messages at `offsets` that still exist.
    fn halves_at(&self, offsets: &[i64]) -> Result<Vec<(i64, StoredRecord)>, BrokerError> {
        let (min, max) = self.inner.store.bounds(HALF_TOPIC, 0)?;
        let there: Vec<_> = offsets.iter().copied().filter(|offset| (min..max).contains(offset)).collect();
        let records = self.inner.store.messages_at(HALF_TOPIC, 0, &there)?;
        Ok(there.into_iter().zip(records).filter_map(|(offset, record)| Some((offset, record?))).collect())
    }

    /// Appends the missing final records of decisions durably, all records of one outcome together.
    fn complete(&self, owed: &BTreeMap<i64, TransactionOutcome>) -> Result<(), BrokerError> {
        for outcome in [TransactionOutcome::Committed, TransactionOutcome::Discarded] {
            let halves: Vec<_> =
                owed.iter().filter(|(_, what)| **what == outcome).map(|(half, _)| *half).collect();
            let mut records = self.halves_at(&halves)?;
            self.inner.store.system_appends().without_deletions(|| {
                if outcome == TransactionOutcome::Committed {
                    self.drop_deleted(&mut records)?;
                }
                if records.is_empty() { Ok(()) } else { self.append_missing_records(&records, outcome) }
            })??;
        }
        Ok(())
    }

    /// Drops half messages whose topic was deleted since.
    fn drop_deleted(&self, halves: &mut Vec<(i64, StoredRecord)>) -> Result<(), BrokerError> {
        for (offset, record) in std::mem::take(halves) {
            let facts = view(&record)?;
            let topic = HalfRecord::of(&facts).map(|facts| facts.topic.to_owned());
            let appends = self.inner.store.system_appends();
            match topic {
                Some(topic) if appends.is_deleted_since(&topic, record.commit_log_offset)? => {
                    self.inner.note(format!(
                        "a message of a committed transaction is dropped, because its topic {topic} was deleted"
                    ));
                }
                _ => halves.push((offset, record)),
            }
        }
        Ok(())
    }

    /// Returns the half messages that no op message names: those logged as pending, and later ones.
    fn open_halves(&self, decided: &DecidedHalves, half_max: i64) -> Vec<PendingHalf> {
        let progress = self.inner.progress.lock();
        let noted = progress.leases().map(|(offset, lease)| PendingHalf {
            offset,
            checks: lease.attempt,
            due_ms: lease.invisible_until_ms,
        });
        let since =
            (progress.next()..half_max).map(|offset| PendingHalf { offset, checks: 0, due_ms: i64::MIN });
        noted.chain(since).filter(|open| !decided.halves.contains(&open.offset)).collect()
    }

    fn read_halves(&self, open: &[PendingHalf]) -> Result<FoundTransactions, BrokerError> {
        let mut found = FoundTransactions::default();
        for some in open.chunks(AT_ONCE) {
            let offsets: Vec<_> = some.iter().map(|open| open.offset).collect();
            let records = self.inner.store.messages_at(HALF_TOPIC, 0, &offsets)?;
            for (open, record) in some.iter().zip(records) {
                let added = match &record {
                    Some(record) => found.add(open, record)?,
                    None => false,
                };
                if !added {
                    self.inner.state.lock().known.lost(open.offset);
                    if record.is_some() {
                        let offset = open.offset;
                        self.inner.note(format!(
                            "cannot use message {offset} of {HALF_TOPIC}: it names no topic or queue; it is skipped"
                        ));
                    }
                }
            }
        }
        Ok(found)
    }

    fn collect_halves(&self, found: FoundTransactions) -> Result<(), BrokerError> {
        let FoundTransactions { entries, superseded, due, .. } = found;
        {
            let mut state = self.inner.state.lock();
            for (entry, due_ms) in due {
                entry.due_ms.store(due_ms, Ordering::Relaxed);
                let times = state.due.entry(Arc::clone(&entry.group)).or_default();
                times.insert((due_ms, Arc::clone(&entry.id)));
            }
            state.pending.extend(entries);
        }
        for some in superseded.chunks(AT_ONCE) {
            self.append_rollback(some)?;
        }
        Ok(())
    }
}

impl FoundTransactions {
    /// Adds a half message to its transaction. Returns whether it names one.
    fn add(&mut self, open: &PendingHalf, record: &StoredRecord) -> Result<bool, BrokerError> {
        let view = view(record)?;
        let Some(facts) = HalfRecord::of(&view) else { return Ok(false) };
        let id: Arc<str> = facts.transaction.into();
        let entry = self
            .entries
            .entry(Arc::clone(&id))
            .or_insert_with(|| TransactionEntry::new(Arc::clone(&id), facts.group.into(), false));
        let mut parts = entry.lock();
        // A broker stores its number of checks in each copy. Messages of one of our own transactions may share a key.
        let may_be_copy = facts.checks > 0 || facts.transaction == facts.unique_key;
        let before = self.keys.insert((id, facts.unique_key.into()), open.offset);
        if let Some(before) = before.filter(|_| may_be_copy) {
            parts.halves.retain(|half| half.offset != before);
            self.superseded.push(before);
        }
        let checks = open.checks.max(facts.checks);
        if parts.topics.is_empty() {
            parts.born_timestamp_ms = view.born_timestamp;
            parts.stored_timestamp_ms = view.store_timestamp;
            parts.checks = checks;
            let due_ms = if open.checks > 0 { open.due_ms } else { view.store_timestamp };
            self.due.push((Arc::clone(entry), due_ms));
        }
        add_half(&mut parts, open.offset, record.commit_log_offset, facts.topic, checks);
        Ok(true)
    }
}

/// Returns the log offset of the half message from which `record` was made, if it is a final record of `outcome`.
fn half_of_record(record: &StoredRecord, outcome: TransactionOutcome) -> Option<u64> {
    let view = record.view().ok()?;
    let is = match outcome {
        TransactionOutcome::Committed => view.sys_flag.transaction() == TransactionType::Commit,
        TransactionOutcome::Discarded => view.topic == CHECK_MAX_TIME_TOPIC,
        TransactionOutcome::RolledBack => false,
    };
    u64::try_from(view.prepared_transaction_offset).ok().filter(|_| is)
}

fn add_half(parts: &mut TransactionParts, offset: i64, position: u64, topic: &str, checks: u32) {
    parts.topic(topic);
    parts.checks = parts.checks.max(checks);
    parts.halves.push(HalfMessage { offset, position, content: None });
}
