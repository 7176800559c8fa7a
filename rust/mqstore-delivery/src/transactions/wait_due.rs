//! Waiting for the moment at which producer groups are to be asked; for one thread of the floors above.
//!
//! Which groups are asked here, and when, is kept in memory: whoever opens the store next says it again. The thread
//! sleeps until the next transaction is due, until one more may be, or until it is to end; no lock is held meanwhile, nor
//! while somebody is asked.

use std::sync::Arc;
use std::time::Duration;

use mqstore_format::validate_group;
use mqstore_io::sync::Ordering;

use super::check_timer::CheckOptions;
use super::engine::Transactions;
use super::entry::PendingTransaction;
use crate::error::{BrokerError, invalid};

/// Transactions of one group that are asked about in one turn.
const AT_ONCE: usize = 32;
/// The longest sleep when something is due later: the wall clock may be set meanwhile.
const LONGEST_REST: Duration = Duration::from_secs(5);
/// As long with a clock that a test sets.
const LONGEST_REST_BY_HAND: Duration = Duration::from_millis(20);
/// The longest sleep when nothing will be due.
const IDLE: Duration = Duration::from_secs(3600);

impl Transactions {
    /// Has `group` asked from now on by whoever calls [`Self::wait_due`]; again to change the options.
    ///
    /// # Errors
    /// `InvalidOption` for a group that cannot be one, and for options out of bounds.
    pub fn check_group(&self, group: &str, options: CheckOptions) -> Result<(), BrokerError> {
        validate_group(group).map_err(|error| invalid("group", error.to_string()))?;
        options.check()?;
        self.inner.checker.groups.lock().insert(group.into(), options);
        self.inner.checker.signal.ring();
        Ok(())
    }

    /// Waits until groups are to be asked about transactions, as [`Self::take_due`] has them; `None` once the store is
    /// closed or [`Self::end_checks`] was called.
    ///
    /// # Errors
    /// Those of [`Self::take_due`]; what was taken with one stays undecided and is due again later.
    pub fn wait_due(&self) -> Result<Option<Vec<PendingTransaction>>, BrokerError> {
        let (checker, clock) = (&self.inner.checker, self.inner.store.clock());
        loop {
            // What comes in from here on rings.
            let rings = checker.signal.ring_count();
            if checker.over.load(Ordering::SeqCst) || self.inner.store.is_closed() {
                return Ok(None);
            }
            let groups: Vec<_> =
                checker.groups.lock().iter().map(|(group, o)| (Arc::clone(group), *o)).collect();
            let now_ms = clock.now_ms();
            let (mut due, mut next_ms) = (Vec::new(), None);
            for (group, options) in &groups {
                match self.take_due(group, options, now_ms, AT_ONCE) {
                    Ok(found) => due.extend(found),
                    Err(error) if due.is_empty() => return Err(error),
                    // Those count as asked; the error comes again.
                    Err(_) => break,
                }
                next_ms = next_ms.into_iter().chain(self.next_check_ms(group)).min();
            }
            if !due.is_empty() {
                return Ok(Some(due));
            }
            let longest = if clock.is_set_by_hand() { LONGEST_REST_BY_HAND } else { LONGEST_REST };
            let rest = next_ms.map_or(IDLE, |next_ms| {
                let left = u64::try_from(next_ms.saturating_sub(clock.now_ms())).unwrap_or(0);
                Duration::from_millis(left).min(longest)
            });
            checker.signal.sleep(rings, rest);
        }
    }

    /// Sleeps after an error of [`Self::wait_due`], for `longest` or until that has to end.
    pub fn wait_after_error(&self, longest: Duration) {
        let signal = &self.inner.checker.signal;
        let rings = signal.ring_count();
        if !self.inner.checker.over.load(Ordering::SeqCst) {
            signal.sleep(rings, longest);
        }
    }

    /// Has [`Self::wait_due`] return, now and later.
    pub fn end_checks(&self) {
        self.inner.checker.over.store(true, Ordering::SeqCst);
        self.inner.checker.signal.ring();
    }

    /// When the group of a transaction is asked next, in epoch milliseconds; `None` while somebody has the transaction open
    /// and where nobody asks its group.
    pub fn next_check_of(&self, pending: &PendingTransaction) -> Option<i64> {
        let options = self.inner.checker.groups.lock().get(pending.group.as_str()).copied()?;
        let first_ms = pending.stored_timestamp_ms.saturating_add(options.after.as_millis() as i64);
        let due_ms = if pending.checks == 0 { pending.due_ms.max(first_ms) } else { pending.due_ms };
        (!pending.open).then_some(due_ms)
    }
}
