//! Deciding a transaction: one append of the op message and its final records.

use std::borrow::Cow;
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::message::{Appended, NewMessage, StoredRecord};
use mqstore_engine::{AppendMarks, TransactionMark};
use mqstore_format::SysFlag;
use mqstore_format::topic::{CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_TOPIC};
use mqstore_format::transaction::HalfRecord;
use mqstore_io::sync::Ordering;

use super::TransactionOutcome;
use super::engine::Transactions;
use super::entry::{HalfMessage, TransactionEntry, TransactionParts};
use super::half_records::{mark, op_body, op_properties, origin, own_properties};
use crate::error::{BrokerError, view};

/// A final record after an op message.
struct FinalRecord<'a> {
    topic: &'a str,
    queue_id: i32,
    body: &'a [u8],
    properties: Cow<'a, [u8]>,
    flag: i32,
    sys_flag: SysFlag,
    born_timestamp_ms: i64,
    mark: TransactionMark,
}

impl Transactions {
    /// Decides a transaction. A second call with the same outcome changes nothing. Returns the final messages that this
    /// call appended.
    pub(super) fn decide(
        &self,
        entry: &Arc<TransactionEntry>,
        outcome: TransactionOutcome,
        durable: bool,
    ) -> Result<Vec<Appended>, BrokerError> {
        let mut parts = entry.lock();
        match parts.outcome {
            Some(before) if before == outcome => return Ok(Vec::new()),
            Some(before) => return Err(entry.ended(before)),
            None => {}
        }
        let mut finals = Vec::new();
        if !parts.halves.is_empty() {
            let append = || self.append_decision(entry, &parts, outcome, durable);
            let appended = self.inner.store.system_appends().without_deletions(append)??;
            finals = appended.iter().map(|(_, one)| one.clone()).collect();
            if outcome == TransactionOutcome::Committed {
                parts.went = destinations(&parts, appended);
            }
        }
        parts.outcome = Some(outcome);
        // Only a commit needs the contents.
        parts.memory = Vec::new();
        drop(parts);
        self.forget(entry);
        if let Err(error) = self.record_progress_if_due() {
            // The transaction is decided all the same: the op message is in the log, where the next open finds it.
            self.inner.note(format!("cannot log decisions of transactions in the metadata log: {error}"));
        }
        Ok(finals)
    }

    fn append_decision(
        &self,
        entry: &TransactionEntry,
        parts: &TransactionParts,
        outcome: TransactionOutcome,
        durable: bool,
    ) -> Result<Vec<(usize, Appended)>, BrokerError> {
        let halves: Vec<_> = parts.halves.iter().map(|half| half.offset).collect();
        if outcome == TransactionOutcome::RolledBack {
            return self.append_op(&halves, outcome, &[], durable).map(|_| Vec::new());
        }
        // Messages that expired before the decision are lost, as they are for an open.
        let (first_half, _) = self.inner.store.bounds(HALF_TOPIC, 0)?;
        let is_there = |half: &&HalfMessage| half.content.is_some() || half.offset >= first_half;
        let gone = parts.halves.iter().filter(|half| !is_there(half)).count();
        let mut records = Vec::new();
        for half in parts.halves.iter().filter(|half| half.content.is_none() && is_there(half)) {
            records.push(self.inner.store.log().get_at(half.position)?);
        }
        let mut from_log = records.iter();
        let (mut finals, mut of_half, mut deleted) = (Vec::with_capacity(parts.halves.len()), Vec::new(), 0);
        for (index, half) in parts.halves.iter().enumerate().filter(|(_, half)| is_there(half)) {
            let of_memory = |range: &std::ops::Range<usize>| parts.memory.get(range.clone());
            let made = match &half.content {
                Some(content) => FinalRecord {
                    topic: parts.topics.get(content.topic).map_or("", |topic| topic),
                    queue_id: content.queue_id,
                    body: of_memory(&content.body).unwrap_or_default(),
                    properties: Cow::Borrowed(of_memory(&content.properties).unwrap_or_default()),
                    flag: content.flag,
                    sys_flag: content.sys_flag,
                    born_timestamp_ms: content.born_timestamp_ms,
                    mark: mark(outcome, half.position, None),
                },
                None => match from_log.next() {
                    Some(record) => final_of(record, outcome)?,
                    None => continue,
                },
            };
            let is_deleted = || self.inner.store.system_appends().is_deleted_since(made.topic, half.position);
            if outcome == TransactionOutcome::Committed && is_deleted()? {
                deleted += 1;
                continue;
            }
            finals.push(made);
            of_half.push(index);
        }
        let appended = self.append_op(&halves, outcome, &finals, durable)?;
        self.note_deleted(deleted, halves.len(), &entry.id);
        if gone > 0 {
            self.inner.note(format!(
                "{gone} of {} messages of transaction {} expired before the decision and are lost",
                halves.len(),
                entry.id
            ));
        }
        Ok(of_half.into_iter().zip(appended).collect())
    }

    /// Adds a note about messages whose topic was deleted before the decision.
    fn note_deleted(&self, deleted: usize, of: usize, transaction: &str) {
        if deleted > 0 {
            self.inner.note(format!(
                "{deleted} of {of} messages of transaction {transaction} are dropped, because their topic was deleted"
            ));
        }
    }

    /// Appends an op message and its final records, and records the decision. Returns the final records.
    fn append_op(
        &self,
        halves: &[i64],
        outcome: TransactionOutcome,
        finals: &[FinalRecord<'_>],
        durable: bool,
    ) -> Result<Vec<Appended>, BrokerError> {
        let store = &self.inner.store;
        if outcome == TransactionOutcome::Discarded && store.queue_ids(CHECK_MAX_TIME_TOPIC)?.is_empty() {
            store.create_topic(CHECK_MAX_TIME_TOPIC, 1, &[])?;
        }
        let (body, properties) = (op_body(halves.iter().copied()), op_properties(outcome));
        let op = NewMessage {
            topic: OP_TOPIC,
            body: &body,
            properties: &properties,
            unique_key: Some(""),
            queue_id: Some(0),
            flag: 0,
            born_timestamp_ms: None,
            durable,
            ..NewMessage::default()
        };
        let (mut messages, mut marks) = (vec![op], vec![TransactionMark::default()]);
        for one in finals {
            let discarded = outcome == TransactionOutcome::Discarded;
            messages.push(NewMessage {
                topic: if discarded { CHECK_MAX_TIME_TOPIC } else { one.topic },
                body: one.body,
                properties: &one.properties,
                unique_key: Some(""),
                queue_id: Some(if discarded { 0 } else { one.queue_id }),
                flag: one.flag,
                born_timestamp_ms: Some(one.born_timestamp_ms),
                durable,
                sys_flag: one.sys_flag,
            });
            marks.push(one.mark);
        }
        let mut appended = store.system_appends().append_marked(&messages, AppendMarks::Together(&marks))?;
        if let (Some(op), Some(last)) = (appended.first(), appended.last()) {
            let mut state = self.inner.state.lock();
            state.known.record_decision(halves.iter().copied(), op.queue_offset, last.log_end());
            drop(state);
            appended.remove(0);
        }
        Ok(appended)
    }

    /// Appends missing final records of `halves`, after an op message that names the half messages again.
    pub(super) fn append_missing_records(
        &self,
        halves: &[(i64, StoredRecord)],
        outcome: TransactionOutcome,
    ) -> Result<(), BrokerError> {
        let offsets: Vec<_> = halves.iter().map(|(offset, _)| *offset).collect();
        let finals =
            halves.iter().map(|(_, record)| final_of(record, outcome)).collect::<Result<Vec<_>, _>>()?;
        self.append_op(&offsets, outcome, &finals, true).map(drop)
    }

    /// Rolls back half messages that have no message of their own.
    pub(super) fn append_rollback(&self, halves: &[i64]) -> Result<(), BrokerError> {
        self.append_op(halves, TransactionOutcome::RolledBack, &[], false).map(drop)
    }

    fn forget(&self, entry: &TransactionEntry) {
        let mut state = self.inner.state.lock();
        state.pending.remove(&entry.id);
        let due = (entry.due_ms.load(Ordering::Relaxed), Arc::clone(&entry.id));
        if state.due.get_mut(&entry.group).is_some_and(|times| times.remove(&due) && times.is_empty()) {
            state.due.remove(&entry.group);
        }
    }

    /// Records that the handle of the transaction was dropped.
    pub(super) fn give_up(&self, entry: &Arc<TransactionEntry>) {
        let mut parts = entry.lock();
        parts.open = false;
        if parts.outcome.is_some() || parts.halves.is_empty() {
            return;
        }
        let due_ms = parts.stored_timestamp_ms;
        drop(parts);
        self.wait_until(entry, due_ms);
        self.inner.checker.ring();
    }
}

/// Returns the final records of messages that this process appended, with their own keys. `appended` has the index of
/// the half message of each record.
fn destinations(parts: &TransactionParts, appended: Vec<(usize, Appended)>) -> Vec<(usize, Appended)> {
    let own = appended.into_iter().filter_map(|(index, appended)| {
        let content = parts.halves.get(index)?.content.as_ref()?;
        Some((content.topic, Appended { unique_id: content.key.clone(), ..appended }))
    });
    own.collect()
}

/// Makes the final record of a half message.
fn final_of(record: &StoredRecord, outcome: TransactionOutcome) -> Result<FinalRecord<'_>, BrokerError> {
    let view = view(record)?;
    let facts = HalfRecord::of(&view).ok_or_else(|| StoreError::InvalidMessage {
        reason: format!("half message at log offset {}: no topic or queue", record.commit_log_offset),
    })?;
    Ok(FinalRecord {
        topic: facts.topic,
        queue_id: facts.queue_id,
        body: view.body,
        properties: own_properties(&view),
        flag: view.flag,
        sys_flag: view.sys_flag,
        born_timestamp_ms: view.born_timestamp,
        mark: mark(outcome, record.commit_log_offset, Some(origin(&view))),
    })
}
