//! Asking producer groups about transactions that nobody decided, as a broker does; a step on a plain struct.
//!
//! ```text
//! stored      + check_after    + check_interval   + check_interval ...        check_max times
//! |           ask              ask                ask                         to TRANS_CHECK_MAX_TIME_TOPIC
//! ```
//!
//! That a group is asked is noted before it is: after a stop it is asked as often as is left, and not at once again. A
//! half message is never copied for it, as a broker does. A clock that was set back makes nobody wait longer than one
//! interval; a transaction from the future is asked about at once.
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
use crate::error::BrokerError;

/// Records in one frame of the metadata log.
const MOST_RECORDS: usize = 4096;

/// What a producer group says of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckAnswer {
    /// Its messages are to appear.
    Commit,
    /// They are to be hidden.
    Rollback,
    /// It does not know yet.
    Unknown,
}

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// What is to be done about a transaction that may be due.
enum DueAction {
    Later(i64),
    Discard,
    Ask(PendingTransaction),
    Nothing,
}

impl Transactions {
    /// Those transactions of `group` that nobody has open and about which it is to be asked now, at most `most`; each
    /// counts as asked. Those that were asked about often enough are moved to `TRANS_CHECK_MAX_TIME_TOPIC`.
    ///
    /// # Errors
    /// `InvalidOption`; what keeps one from being moved or a count from being noted.
    pub fn take_due(
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
                    // Tried again later if it fails now.
                    self.wait_until(&entry, now_ms.saturating_add(millis(options.interval)));
                    if let Err(error) = self.decide(&entry, TransactionOutcome::Discarded, false) {
                        if asked.is_empty() {
                            return Err(error);
                        }
                        // Those count as asked; the error comes again, with the next call.
                        self.wait_until(&entry, now_ms);
                        break;
                    }
                    let note = format!(
                        "transaction {} of group {group} was asked about {} times and not decided: its messages are in \
                         TRANS_CHECK_MAX_TIME_TOPIC",
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

    /// Does what a group answered about a transaction; one that was decided meanwhile is left as it is.
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
        match entry.map_or(Ok(()), |entry| self.decide(&entry, outcome, false)) {
            Err(BrokerError::TransactionEnded { .. }) => Ok(()),
            decided => decided,
        }
    }

    /// Asks `check` about what is due now, at most about `most`, and does what it says; how many those were.
    ///
    /// # Errors
    /// Those of [`Self::take_due`] and [`Self::answer`].
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

    /// When somebody should look whether `group` is to be asked, in epoch milliseconds; `None` as long as nothing of it
    /// is undecided that nobody has open.
    pub fn next_check_ms(&self, group: &str) -> Option<i64> {
        let state = self.inner.state.lock();
        state.due.get(group).and_then(|due| due.first()).map(|(ms, _)| *ms)
    }

    /// Takes the first of those that may be due out of the row.
    fn first_due(&self, group: &str, options: &CheckOptions, now_ms: i64) -> Option<Arc<TransactionEntry>> {
        let mut state = self.inner.state.lock();
        let state = &mut *state;
        let row = state.due.get_mut(group)?;
        let furthest = now_ms.saturating_add(millis(options.interval.max(options.after)));
        while let Some((due_ms, id)) = row.last().cloned().filter(|(due_ms, _)| *due_ms > furthest) {
            // Somebody set the clock back, or asked with longer intervals.
            row.remove(&(due_ms, Arc::clone(&id)));
            if let Some(entry) = state.pending.get(&id) {
                entry.due_ms.store(furthest, Ordering::Relaxed);
                row.insert((furthest, id));
            }
        }
        loop {
            let (_, id) = row.first().filter(|(due_ms, _)| *due_ms <= now_ms).cloned()?;
            row.pop_first();
            if let Some(entry) = state.pending.get(&id) {
                return Some(Arc::clone(entry));
            }
        }
    }

    /// Puts an undecided transaction into the row of its group.
    pub(super) fn wait_until(&self, entry: &TransactionEntry, due_ms: i64) {
        let mut state = self.inner.state.lock();
        let row = state.due.entry(Arc::clone(&entry.group)).or_default();
        row.remove(&(entry.due_ms.swap(due_ms, Ordering::Relaxed), Arc::clone(&entry.id)));
        row.insert((due_ms, Arc::clone(&entry.id)));
    }

    /// Notes how often was asked about half messages; those decided meanwhile are left out.
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
                wanted.extend(open);
            })?;
        }
        Ok(())
    }
}

/// What is to be done about `entry`; asking is added to `records`.
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
    let (attempt, until_ms) = (parts.checks, now_ms.saturating_add(millis(options.interval)));
    records.extend(parts.halves.iter().map(|half| ProgressRecord::Leased {
        offset: half.offset,
        until_ms,
        attempt,
    }));
    drop(parts);
    entry.describe().map_or(DueAction::Nothing, DueAction::Ask)
}
