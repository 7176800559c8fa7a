//! Acknowledging, returning and extending a leased message.

use std::sync::Arc;
use std::time::Duration;

use mqstore_meta::{MetaPosition, Progress, ProgressRecord};

use super::dead_letters::stored_reason;
use super::get::millis;
use super::leased_message::Lease;
use super::options::{LONGEST, check_visibility_timeout};
use crate::error::{BrokerError, invalid};

/// The state of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaseStatus {
    /// The caller still has the message, even if the lease has ended.
    Own,
    /// The message is finished.
    Finished,
    /// It was returned, another worker has it, or it is a dead letter.
    Lost,
}

fn lease_status(progress: &Progress, lease: &Lease) -> LeaseStatus {
    match progress.lease(lease.offset) {
        Some(now) if now.token == lease.token => LeaseStatus::Own,
        None if progress.is_finished(lease.offset) => LeaseStatus::Finished,
        _ => LeaseStatus::Lost,
    }
}

impl Lease {
    fn lost(&self) -> BrokerError {
        BrokerError::LeaseLost {
            topic: self.place.topic.to_string(),
            queue_id: self.place.queue_id,
            queue_offset: self.offset,
            attempt: self.attempt,
        }
    }

    /// Whether the caller still has the message; false once it is finished.
    pub fn is_held(&self) -> bool {
        lease_status(&self.place.progress.lock(), self) == LeaseStatus::Own
    }

    /// Acknowledges the message: it is never delivered again. Durable within the store's interval for metadata or,
    /// with `durable`, when this returns. A second call changes nothing.
    ///
    /// # Errors
    /// [`BrokerError::LeaseLost`] if another worker got the message meanwhile, or if it was returned.
    pub fn ack(&self, durable: bool) -> Result<(), BrokerError> {
        let finished = ProgressRecord::finished(self.offset);
        let (status, position) = self.change([finished])?;
        if status == LeaseStatus::Lost {
            return Err(self.lost());
        }
        self.set_settled();
        self.core.done.ring();
        if durable {
            self.core.meta().sync(position)?;
        }
        Ok(())
    }

    /// Returns the message. It is redelivered after `delay`, or after the back-off. A message that used up its
    /// attempts goes to the dead letters.
    ///
    /// # Errors
    /// [`BrokerError::LeaseLost`]; errors of moving a dead letter, which is retried later.
    pub fn nack(&self, delay: Option<Duration>) -> Result<(), BrokerError> {
        self.nack_with(delay, None)
    }

    /// Like [`Self::nack`], with the reason for a dead letter. The message keeps the last reason until it is finished.
    /// Separators of properties in the reason become blanks, and a long reason is truncated.
    ///
    /// # Errors
    /// Those of [`Self::nack`].
    pub fn nack_with(&self, delay: Option<Duration>, reason: Option<&str>) -> Result<(), BrokerError> {
        let offset = self.offset;
        let reason = reason.and_then(stored_reason).map(|reason| ProgressRecord::Reason { offset, reason });
        if self.is_last() {
            let dlq_offset = self.core.dead_letters_end()?;
            let intent = ProgressRecord::DeadLetter { offset, dlq_offset };
            let (status, _) = self.change(reason.into_iter().chain([intent]))?;
            return match status {
                LeaseStatus::Own => {
                    self.set_settled();
                    self.core.move_to_dead_letters(&vec![(Arc::clone(&self.place), self.offset)], false)
                }
                _ => Err(self.lost()),
            };
        }
        let delay = match delay {
            Some(delay) if delay > LONGEST => {
                return Err(invalid("delay", format!("the maximum is {} s", LONGEST.as_secs())).into());
            }
            Some(delay) => delay,
            None => {
                let tables = self.core.store().delay_tables();
                self.core.options.backoff.delay(self.attempt, tables.latest()).min(LONGEST)
            }
        };
        let visible_ms = self.core.store().clock().now_ms().saturating_add(millis(delay));
        let returned = ProgressRecord::Returned { offset, visible_ms, attempt: self.attempt };
        let (status, _) = self.change(reason.into_iter().chain([returned]))?;
        if status != LeaseStatus::Own {
            return Err(self.lost());
        }
        self.set_settled();
        // A caller that sleeps until the next due time must compute it again.
        self.core.ready.wake_one();
        // After an immediate shutdown, `join` waits only for leased messages.
        self.core.done.ring();
        Ok(())
    }

    /// Whether this is the last attempt. Then [`Self::nack`] moves the message to the dead letters, which takes syncs.
    pub fn is_last(&self) -> bool {
        self.core.options.max_attempts.is_some_and(|most| self.attempt >= most)
    }

    /// Extends the lease to `time` from now.
    ///
    /// # Errors
    /// [`BrokerError::LeaseLost`]; `InvalidOption` for a time that is no valid visibility timeout.
    pub fn extend(&self, time: Duration) -> Result<(), BrokerError> {
        check_visibility_timeout(time)?;
        let invisible_until_ms = self.core.store().clock().now_ms().saturating_add(millis(time));
        let extended = ProgressRecord::Extended { offset: self.offset, invisible_until_ms };
        let (status, _) = self.change([extended])?;
        if status != LeaseStatus::Own {
            return Err(self.lost());
        }
        self.set_invisible_until(invisible_until_ms);
        // The lease may end earlier than a sleeping caller expects.
        if self.core.ready.has_wakers() {
            self.core.ready.wake_one();
        }
        Ok(())
    }

    /// Logs `changes` if the caller still has the message. Returns the state of the lease before.
    fn change(
        &self,
        changes: impl IntoIterator<Item = ProgressRecord>,
    ) -> Result<(LeaseStatus, MetaPosition), BrokerError> {
        let changed = self.core.meta().change_progress(&self.place.progress, |progress, records| {
            let status = lease_status(progress, self);
            if status == LeaseStatus::Own {
                records.extend(self.core.clock_record(progress));
                records.extend(changes);
            }
            status
        })?;
        Ok(changed)
    }
}
