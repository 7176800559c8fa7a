//! Delivery: appends due messages to their topics, many records under one lock.
//!
//! A message whose topic was deleted since is dropped, also if the topic exists again. Nothing of it is in its topic
//! then, so a drop has a durable trace of its own: a cancellation in the timer queue, or the saved position of its
//! level. Otherwise, after a kill, the message would wait again.

use mqstore_base::error::StoreError;
use mqstore_base::message::{Appended, StoredRecord};
use mqstore_engine::AppendMarks;

use super::DelayEngine;
use super::due_messages::PendingMessage;
use crate::delay::timer_record::{OutgoingRecord, ReappendReason, is_message_error};

/// Maximum messages, and approximate maximum bytes, of one append.
const TOGETHER: usize = 512;
const TOGETHER_BYTES: u64 = 1 << 20;
/// Pause before the next attempt for a message that its topic refused, in milliseconds.
pub(super) const AGAIN_MS: i64 = 1_000;

/// The outcome for one message.
enum DeliveryOutcome {
    Done,
    /// The topic refuses it, for this reason.
    Refused(String),
    /// There is nothing to deliver.
    Gone,
}

impl DelayEngine {
    /// Delivers some of the due messages. Returns whether there may be more.
    ///
    /// A slot is passed only when all its messages are gone, and the wheel reaches only two weeks past the first slot
    /// that is not passed. So a message that its topic refuses for long is appended again to the timer topic, to be
    /// due a moment later.
    pub(crate) fn deliver(&mut self, now_ms: i64) -> Result<bool, StoreError> {
        let due = self.due.take_due(now_ms, TOGETHER, TOGETHER_BYTES);
        if due.is_empty() {
            return Ok(false);
        }
        let outcomes = self.put(&due, now_ms).inspect_err(|_| self.due.put_back(&due))?;
        let done_ms = self.store.clock().now_ms();
        let dropped = self.accounts.dropped();
        for ((offset, message), outcome) in due.iter().zip(outcomes) {
            match outcome {
                DeliveryOutcome::Done => {
                    self.remove(*offset);
                    if !message.rolls && !message.held {
                        self.accounts.add_delivered_late(done_ms.saturating_sub(message.due_ms));
                    }
                }
                DeliveryOutcome::Gone => {
                    self.remove(*offset);
                    self.accounts.add_dropped(1);
                }
                DeliveryOutcome::Refused(reason) => {
                    self.note(format!("cannot deliver a delayed message yet: {reason}; mqstore retries"));
                    self.due.retry(*offset, now_ms, now_ms.saturating_add(AGAIN_MS));
                }
            }
        }
        if self.accounts.dropped() > dropped {
            // The cancellations of dropped messages must be read before their slot is passed.
            self.read_timer_queue()?;
        }
        Ok(true)
    }

    fn put(
        &mut self,
        due: &[(u64, PendingMessage)],
        now_ms: i64,
    ) -> Result<Vec<DeliveryOutcome>, StoreError> {
        let places: Vec<_> = due.iter().map(|(offset, message)| (*offset, message.size)).collect();
        let records = self.store.log().records_at(&places)?;
        let outgoing: Vec<_> = due
            .iter()
            .zip(&records)
            .map(|((_, message), record)| {
                let reason = match message {
                    PendingMessage { rolls: true, .. } => ReappendReason::Roll,
                    PendingMessage { held: true, .. } => ReappendReason::Hold,
                    _ => ReappendReason::Due,
                };
                OutgoingRecord::of(record.as_ref()?, reason, message.write_ms, now_ms)
            })
            .collect();
        match self.append(&outgoing.iter().flatten().collect::<Vec<_>>()) {
            Ok(()) => {
                let outcome = |record: &Option<_>| {
                    record.as_ref().map_or(DeliveryOutcome::Gone, |_| DeliveryOutcome::Done)
                };
                Ok(outgoing.iter().map(outcome).collect())
            }
            // Deliver those that can be delivered, and keep the reasons of the others.
            Err(error) if is_message_error(&error) => {
                Ok(outgoing.iter().map(|record| self.append_alone(record.as_ref())).collect())
            }
            Err(error) => Err(error),
        }
    }

    fn append_alone(&mut self, record: Option<&OutgoingRecord<'_>>) -> DeliveryOutcome {
        let Some(record) = record else { return DeliveryOutcome::Gone };
        match self.append(&[record]) {
            Ok(()) => DeliveryOutcome::Done,
            Err(StoreError::TopicNotFound { .. })
                if let Ok(Some(topic)) = record.deleted_topic(&self.store) =>
            {
                self.drop_message(record, topic)
            }
            // Earlier messages must not be delivered twice. So this one is retried even if the store caused the error.
            Err(error) => DeliveryOutcome::Refused(error.to_string()),
        }
    }

    /// Drops a message because its topic was deleted. The caller saves the position of a level.
    fn drop_message(&mut self, record: &OutgoingRecord<'_>, topic: &str) -> DeliveryOutcome {
        self.note(format!("delayed messages of topic {topic} are dropped, because the topic was deleted"));
        match record.cancel_properties().map(|properties| self.append_cancel(&properties)) {
            Some(Err(error)) => DeliveryOutcome::Refused(error.to_string()),
            Some(Ok(())) | None => DeliveryOutcome::Gone,
        }
    }

    fn append(&mut self, outgoing: &[&OutgoingRecord<'_>]) -> Result<(), StoreError> {
        let messages: Vec<_> = outgoing.iter().map(|record| record.message()).collect();
        let origins: Vec<_> = outgoing.iter().map(|record| record.origin()).collect();
        let done = self.store.system_appends().without_deletions(|| {
            for record in outgoing {
                if let Some(topic) = record.deleted_topic(&self.store)? {
                    return Err(StoreError::TopicNotFound { topic: topic.to_owned(), queue_id: None });
                }
            }
            self.store.system_appends().append_marked(&messages, AppendMarks::Deliveries(&origins))
        })??;
        self.track_log_end(&done);
        Ok(())
    }

    /// Appends the due records of a level. Stops at the first that is refused. Returns how many are done.
    pub(super) fn deliver_level(
        &mut self,
        records: &[StoredRecord],
        now_ms: i64,
    ) -> Result<usize, StoreError> {
        let mut done = 0;
        for some in records.chunks(TOGETHER) {
            let outgoing: Vec<_> = some
                .iter()
                .map(|record| OutgoingRecord::of(record, ReappendReason::Level, 0, now_ms))
                .collect();
            match self.append(&outgoing.iter().flatten().collect::<Vec<_>>()) {
                Ok(()) => {
                    done += some.len();
                    let gone = outgoing.iter().filter(|record| record.is_none()).count() as u64;
                    self.accounts.add_dropped(gone);
                    self.accounts.add_delivered(some.len() as u64 - gone);
                }
                Err(error) if is_message_error(&error) => {
                    for record in &outgoing {
                        match self.append_alone(record.as_ref()) {
                            DeliveryOutcome::Done => self.accounts.add_delivered(1),
                            DeliveryOutcome::Gone => self.accounts.add_dropped(1),
                            DeliveryOutcome::Refused(reason) => {
                                self.note(format!(
                                    "cannot deliver a delay level yet: {reason}; mqstore retries"
                                ));
                                return Ok(done);
                            }
                        }
                        done += 1;
                    }
                }
                Err(error) if done == 0 => return Err(error),
                // The records before the error are delivered.
                Err(_) => return Ok(done),
            }
        }
        Ok(done)
    }

    fn track_log_end(&mut self, done: &[Appended]) {
        for one in done {
            self.queue.note_log_end(one.log_end());
        }
    }
}
