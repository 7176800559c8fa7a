//! Waiting until producer groups must be asked. One thread of the upper layers waits here.
//!
//! The groups and their options are in memory only: the next process that opens the store sets them again. The thread
//! sleeps until the next transaction is due, until a new one may be due, or until it must end. No lock is held
//! meanwhile, nor while a group is asked.

use std::sync::Arc;
use std::time::Duration;

use mqstore_format::validate_group;
use mqstore_io::sync::Ordering;

use super::check_timer::CheckOptions;
use super::engine::Transactions;
use super::entry::PendingTransaction;
use crate::error::{BrokerError, invalid};

/// Maximum number of transactions of one group in one call.
pub(super) const TAKEN_AT_ONCE: usize = 32;
/// Maximum sleep while a check is due later: the wall clock may be set meanwhile.
const LONGEST_SLEEP: Duration = Duration::from_secs(5);
/// The same with a manual clock.
const LONGEST_SLEEP_BY_HAND: Duration = Duration::from_millis(20);
/// Maximum sleep while no check is due.
const IDLE: Duration = Duration::from_secs(3600);

impl Transactions {
    /// Makes [`Self::wait_due`] return due transactions of `group` from now on. Call it again to change the options.
    ///
    /// # Errors
    /// `InvalidOption` for an invalid group name and for options out of bounds.
    pub fn check_group(&self, group: &str, options: CheckOptions) -> Result<(), BrokerError> {
        validate_group(group).map_err(|error| invalid("group", error.to_string()))?;
        options.check()?;
        self.inner.checker.groups.lock().insert(group.into(), options);
        self.inner.checker.signal.ring();
        Ok(())
    }

    /// Waits until checks are due, as in `take_due`, or there is a new note about transactions; then the list may be
    /// empty. Returns `None` once the store is closed or [`Self::end_checks`] was called.
    ///
    /// # Errors
    /// Those of `take_due`. A transaction that was taken together with an error stays pending and is due
    /// again later.
    pub fn wait_due(&self) -> Result<Option<Vec<PendingTransaction>>, BrokerError> {
        let (checker, clock) = (&self.inner.checker, self.inner.store.clock());
        loop {
            // A change from here on rings the signal.
            let rings = checker.signal.ring_count();
            if checker.over.load(Ordering::SeqCst) || self.inner.store.is_closed() {
                return Ok(None);
            }
            let groups: Vec<_> =
                checker.groups.lock().iter().map(|(group, o)| (Arc::clone(group), *o)).collect();
            let now_ms = clock.now_ms();
            let (mut due, mut next_ms) = (Vec::new(), None);
            for (group, options) in &groups {
                match self.take_due(group, options, now_ms, TAKEN_AT_ONCE) {
                    Ok(found) => due.extend(found),
                    Err(error) if due.is_empty() => return Err(error),
                    // The taken transactions count as asked. The next call meets the error again.
                    Err(_) => break,
                }
                next_ms = next_ms.into_iter().chain(self.next_check_ms(group)).min();
            }
            // A discarded transaction leaves a note, which the caller is to log now and not after the next check.
            if std::mem::take(&mut self.inner.state.lock().has_note) || !due.is_empty() {
                return Ok(Some(due));
            }
            let longest = if clock.is_set_by_hand() { LONGEST_SLEEP_BY_HAND } else { LONGEST_SLEEP };
            let until_next = next_ms.map_or(IDLE, |next_ms| {
                let left = u64::try_from(next_ms.saturating_sub(clock.now_ms())).unwrap_or(0);
                Duration::from_millis(left).min(longest)
            });
            checker.signal.sleep(rings, until_next);
        }
    }

    /// Sleeps after an error of [`Self::wait_due`], for `longest` or until [`Self::end_checks`].
    pub fn wait_after_error(&self, longest: Duration) {
        let signal = &self.inner.checker.signal;
        let rings = signal.ring_count();
        if !self.inner.checker.over.load(Ordering::SeqCst) {
            signal.sleep(rings, longest);
        }
    }

    /// Makes current and later calls of [`Self::wait_due`] return.
    pub fn end_checks(&self) {
        self.inner.checker.over.store(true, Ordering::SeqCst);
        self.inner.checker.signal.ring();
    }

    /// Returns the time of the next check of a transaction, in epoch milliseconds. `None` while a handle has the
    /// transaction open, or if this process does not check its group.
    pub fn next_check_of(&self, pending: &PendingTransaction) -> Option<i64> {
        let options = self.inner.checker.groups.lock().get(pending.group.as_str()).copied()?;
        let first_ms = pending.stored_timestamp_ms.saturating_add(options.after.as_millis() as i64);
        let due_ms = if pending.checks == 0 { pending.due_ms.max(first_ms) } else { pending.due_ms };
        (!pending.open).then_some(due_ms)
    }
}
