//! Checks: asking producer groups about pending transactions, as a broker does. A step on a plain struct.
//!
//! ```text
//! stored      + check_after    + check_interval   + check_interval ...        check_max times
//! |           ask              ask                ask                         to TRANS_CHECK_MAX_TIME_TOPIC
//! ```
//!
//! A check is logged before the group is asked. So after a stop the group is asked only the remaining number of times,
//! and not immediately again. Unlike a broker, mqstore never copies a half message for a check. If the clock was set
//! back, the next check is at most `check_interval` or `check_after` away, whichever is longer. A transaction with a
//! store time in the future is checked at once.
//!
//! Source: `TransactionalMessageServiceImpl#check`, `BrokerConfig#transactionTimeOut`, `#transactionCheckInterval`,
//! `#transactionCheckMax`.

use std::sync::Arc;
use std::time::Duration;

use mqstore_io::sync::Ordering;
use mqstore_meta::ProgressRecord;

use super::TransactionOutcome;
use super::check_timer::CheckOptions;
use super::engine::Transactions;
use super::entry::{PendingTransaction, TransactionEntry};
use super::wait_due::TAKEN_AT_ONCE;
use crate::error::BrokerError;

/// Records in one frame of the metadata log.
const MOST_RECORDS: usize = 4096;

/// The answer of a producer group about a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckAnswer {
    /// Make its messages visible.
    Commit,
    /// Hide its messages for ever.
    Rollback,
    /// The group does not know the outcome yet.
    Unknown,
}

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// The action for a transaction that may be due.
enum DueAction {
    Later(i64),
    Discard,
    Ask(PendingTransaction),
    Nothing,
}

impl Transactions {
    /// Returns transactions of `group` that must be checked now, for a program that asks from time to time.
    ///
    /// # Errors
    /// Those of `take_due`.
    pub fn take_due_now(
        &self,
        group: &str,
        options: &CheckOptions,
    ) -> Result<Vec<PendingTransaction>, BrokerError> {
        self.take_due(group, options, self.inner.store.clock().now_ms(), TAKEN_AT_ONCE)
    }

    /// Returns up to `most` transactions of `group` that must be checked now and have no handle, and counts a check
    /// for each. Moves transactions that used up their checks to `TRANS_CHECK_MAX_TIME_TOPIC`.
    ///
    /// # Errors
    /// `InvalidOption`; errors of moving a transaction or of logging a check.
    pub(super) fn take_due(
        &self,
        group: &str,
        options: &CheckOptions,
        now_ms: i64,
        most: usize,
    ) -> Result<Vec<PendingTransaction>, BrokerError> {
        options.check()?;
        let mut asked = Vec::new();
        let mut records = Vec::new();
        while asked.len() < most {
            let Some(entry) = self.first_due(group, options, now_ms) else { break };
            match due_action(&entry, options, now_ms, &mut records) {
                DueAction::Later(due_ms) => self.wait_until(&entry, due_ms),
                DueAction::Discard => {
                    // If the move fails, it is retried after an interval.
                    self.wait_until(&entry, now_ms.saturating_add(millis(options.interval)));
                    if let Err(error) = self.decide(&entry, TransactionOutcome::Discarded, false) {
                        if asked.is_empty() {
                            return Err(error);
                        }
                        // The taken transactions count as asked. The next call meets the error again.
                        self.wait_until(&entry, now_ms);
                        break;
                    }
                    let note = format!(
                        "transaction {} of group {group} was asked about {} times without a decision; its messages are \
                         in TRANS_CHECK_MAX_TIME_TOPIC",
                        entry.id, options.max
                    );
                    self.inner.note(note);
                }
                DueAction::Ask(pending) => {
                    self.wait_until(&entry, now_ms.saturating_add(millis(options.interval)));
                    asked.push(pending);
                }
                DueAction::Nothing => {}
            }
        }
        self.record_checks(&records)?;
        Ok(asked)
    }

    /// Applies the answer of a group. A transaction that was decided meanwhile does not change.
    ///
    /// # Errors
    /// Those of a commit.
    pub fn answer(&self, id: &str, answer: CheckAnswer) -> Result<(), BrokerError> {
        let outcome = match answer {
            CheckAnswer::Commit => TransactionOutcome::Committed,
            CheckAnswer::Rollback => TransactionOutcome::RolledBack,
            CheckAnswer::Unknown => return Ok(()),
        };
        let entry = self.inner.state.lock().pending.get(id).cloned();
        match entry.map_or(Ok(()), |entry| self.decide(&entry, outcome, false).map(drop)) {
            Err(BrokerError::TransactionEnded { .. }) => Ok(()),
            decided => decided,
        }
    }

    /// Calls `check` for up to `most` due transactions and applies the answers. Returns the number of transactions.
    ///
    /// # Errors
    /// Those of `take_due` and [`Self::answer`].
    pub fn step(
        &self,
        group: &str,
        options: &CheckOptions,
        now_ms: i64,
        most: usize,
        check: &mut dyn FnMut(&PendingTransaction) -> CheckAnswer,
    ) -> Result<usize, BrokerError> {
        let due = self.take_due(group, options, now_ms, most)?;
        for pending in &due {
            self.answer(&pending.id, check(pending))?;
        }
        self.record_progress(false)?;
        Ok(due.len())
    }

    /// Returns the next time to call [`Self::take_due`] for `group`, in epoch milliseconds. `None` if the group has
    /// no pending transaction without a handle.
    pub(super) fn next_check_ms(&self, group: &str) -> Option<i64> {
        let state = self.inner.state.lock();
        state.due.get(group).and_then(|due| due.first()).map(|(ms, _)| *ms)
    }

    /// Removes and returns the first transaction that may be due.
    fn first_due(&self, group: &str, options: &CheckOptions, now_ms: i64) -> Option<Arc<TransactionEntry>> {
        let mut state = self.inner.state.lock();
        let state = &mut *state;
        let times = state.due.get_mut(group)?;
        let furthest = now_ms.saturating_add(millis(options.interval.max(options.after)));
        while let Some((due_ms, id)) = times.last().cloned().filter(|(due_ms, _)| *due_ms > furthest) {
            // The clock was set back, or an earlier call used longer intervals.
            times.remove(&(due_ms, Arc::clone(&id)));
            if let Some(entry) = state.pending.get(&id) {
                entry.due_ms.store(furthest, Ordering::Relaxed);
                times.insert((furthest, id));
            }
        }
        loop {
            let (_, id) = times.first().filter(|(due_ms, _)| *due_ms <= now_ms).cloned()?;
            times.pop_first();
            if let Some(entry) = state.pending.get(&id) {
                return Some(Arc::clone(entry));
            }
        }
    }

    /// Adds a pending transaction to the due times of its group.
    pub(super) fn wait_until(&self, entry: &TransactionEntry, due_ms: i64) {
        let mut state = self.inner.state.lock();
        let times = state.due.entry(Arc::clone(&entry.group)).or_default();
        times.remove(&(entry.due_ms.swap(due_ms, Ordering::Relaxed), Arc::clone(&entry.id)));
        times.insert((due_ms, Arc::clone(&entry.id)));
    }

    /// Logs the number of checks of half messages. Half messages that were decided meanwhile are left out.
    fn record_checks(&self, records: &[ProgressRecord]) -> Result<(), BrokerError> {
        if records.is_empty() {
            return Ok(());
        }
        self.record_progress(true)?;
        for some in records.chunks(MOST_RECORDS) {
            self.inner.meta.change_progress(&self.inner.progress, |progress, wanted| {
                let open = some.iter().filter(|record| match record {
                    ProgressRecord::Leased { offset, .. } => {
                        *offset < progress.next() && !progress.is_finished(*offset)
                    }
                    _ => false,
                });
                wanted.extend(open.cloned());
            })?;
        }
        Ok(())
    }
}

/// Returns the action for `entry`, and adds the records of a check to `records`.
fn due_action(
    entry: &TransactionEntry,
    options: &CheckOptions,
    now_ms: i64,
    records: &mut Vec<ProgressRecord>,
) -> DueAction {
    let mut parts = entry.lock();
    if parts.outcome.is_some() || parts.open {
        return DueAction::Nothing;
    }
    let first_ms = parts.stored_timestamp_ms.saturating_add(millis(options.after));
    if parts.checks == 0 && now_ms >= parts.stored_timestamp_ms && now_ms < first_ms {
        return DueAction::Later(first_ms);
    }
    if parts.checks >= options.max {
        return DueAction::Discard;
    }
    parts.checks += 1;
    let (attempt, invisible_until_ms) = (parts.checks, now_ms.saturating_add(millis(options.interval)));
    records.extend(parts.halves.iter().map(|half| ProgressRecord::Leased {
        offset: half.offset,
        invisible_until_ms,
        attempt,
    }));
    drop(parts);
    entry.describe().map_or(DueAction::Nothing, DueAction::Ask)
}
