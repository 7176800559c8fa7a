//! Delivery: appends due messages to their topics, many records under one lock.
//!
//! A message whose topic was deleted since is dropped, also if the topic exists again. Nothing of it is in its topic
//! then, so a drop has a durable trace of its own: a cancellation in the timer queue, or the saved position of its level.
//! Otherwise, after a kill, the message would wait again.

use std::cmp::Reverse;

use mqstore_base::error::StoreError;
use mqstore_base::message::{Appended, StoredRecord};
use mqstore_format::delays::timer::ROLL_WINDOW_SLOTS;

use super::engine::{DelayEngine, PendingMessage, slot_of};
use super::timer_record::{OutgoingRecord, ReappendReason, is_message_error};

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
    pub(super) fn deliver(&mut self, now_ms: i64) -> Result<bool, StoreError> {
        let mut due: Vec<(u64, PendingMessage)> = Vec::new();
        let mut bytes = 0;
        while due.len() < TOGETHER && bytes < TOGETHER_BYTES {
            let Some(Reverse((at_ms, offset))) = self.heap.peek().copied().filter(|next| next.0.0 <= now_ms)
            else {
                break;
            };
            self.heap.pop();
            // A cancelled message is still in the heap.
            if let Some(live) = self.live.get(&offset).filter(|live| live.at_ms == at_ms) {
                bytes += u64::from(live.size);
                due.push((offset, *live));
            }
        }
        if due.is_empty() {
            return Ok(false);
        }
        let outcomes = self.put(&due, now_ms).inspect_err(|_| {
            self.heap.extend(due.iter().map(|(offset, live)| Reverse((live.at_ms, *offset))));
        })?;
        let done_ms = self.store.clock().now_ms();
        let dropped = self.counts.dropped;
        for ((offset, live), outcome) in due.iter().zip(outcomes) {
            match outcome {
                DeliveryOutcome::Done => {
                    self.detach(*offset);
                    if !live.rolls && !live.held {
                        self.counts.delivered += 1;
                        self.lateness.add(done_ms.saturating_sub(live.due_ms));
                    }
                }
                DeliveryOutcome::Gone => {
                    self.detach(*offset);
                    self.counts.dropped += 1;
                }
                DeliveryOutcome::Refused(reason) => {
                    self.note(format!("cannot deliver a delayed message yet: {reason}; mqstore retries"));
                    let at_ms = now_ms.saturating_add(AGAIN_MS);
                    if let Some(live) = self.live.get_mut(offset) {
                        live.at_ms = at_ms;
                        live.held = slot_of(now_ms).saturating_sub(live.slot) > ROLL_WINDOW_SLOTS;
                    }
                    self.heap.push(Reverse((at_ms, *offset)));
                }
            }
        }
        if self.counts.dropped > dropped {
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
        let places: Vec<_> = due.iter().map(|(offset, live)| (*offset, live.size)).collect();
        let records = self.store.log().records_at(&places)?;
        let parcels: Vec<_> = due
            .iter()
            .zip(&records)
            .map(|((_, live), record)| {
                let turn = match live {
                    PendingMessage { rolls: true, .. } => ReappendReason::Roll,
                    PendingMessage { held: true, .. } => ReappendReason::Hold,
                    _ => ReappendReason::Due,
                };
                OutgoingRecord::of(record.as_ref()?, turn, live.write_ms, now_ms)
            })
            .collect();
        match self.append(&parcels.iter().flatten().collect::<Vec<_>>()) {
            Ok(()) => {
                let outcome = |parcel: &Option<_>| {
                    parcel.as_ref().map_or(DeliveryOutcome::Gone, |_| DeliveryOutcome::Done)
                };
                Ok(parcels.iter().map(outcome).collect())
            }
            // Deliver those that can be delivered, and keep the reasons of the others.
            Err(error) if is_message_error(&error) => {
                Ok(parcels.iter().map(|parcel| self.append_alone(parcel.as_ref())).collect())
            }
            Err(error) => Err(error),
        }
    }

    fn append_alone(&mut self, parcel: Option<&OutgoingRecord<'_>>) -> DeliveryOutcome {
        let Some(parcel) = parcel else { return DeliveryOutcome::Gone };
        match self.append(&[parcel]) {
            Ok(()) => DeliveryOutcome::Done,
            Err(StoreError::TopicNotFound { .. })
                if let Ok(Some(topic)) = parcel.deleted_topic(&self.store) =>
            {
                self.drop_message(parcel, topic)
            }
            // Earlier messages must not be delivered twice. So this one is retried even if the store caused the error.
            Err(error) => DeliveryOutcome::Refused(error.to_string()),
        }
    }

    /// Drops a message because its topic was deleted. The caller saves the position of a level.
    fn drop_message(&mut self, parcel: &OutgoingRecord<'_>, topic: &str) -> DeliveryOutcome {
        self.note(format!("delayed messages of topic {topic} are dropped, because the topic was deleted"));
        match parcel.cancel_properties().map(|properties| self.append_cancel(&properties)) {
            Some(Err(error)) => DeliveryOutcome::Refused(error.to_string()),
            Some(Ok(())) | None => DeliveryOutcome::Gone,
        }
    }

    fn append(&mut self, parcels: &[&OutgoingRecord<'_>]) -> Result<(), StoreError> {
        let messages: Vec<_> = parcels.iter().map(|parcel| parcel.message()).collect();
        let origins: Vec<_> = parcels.iter().map(|parcel| parcel.origin()).collect();
        let done = self.store.system_appends().without_deletions(|| {
            for parcel in parcels {
                if let Some(topic) = parcel.deleted_topic(&self.store)? {
                    return Err(StoreError::TopicNotFound { topic: topic.to_owned(), queue_id: None });
                }
            }
            self.store.system_appends().append_deliveries(&messages, &origins)
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
            let parcels: Vec<_> = some
                .iter()
                .map(|record| OutgoingRecord::of(record, ReappendReason::Level, 0, now_ms))
                .collect();
            match self.append(&parcels.iter().flatten().collect::<Vec<_>>()) {
                Ok(()) => {
                    done += some.len();
                    let gone = parcels.iter().filter(|parcel| parcel.is_none()).count() as u64;
                    self.counts.dropped += gone;
                    self.counts.delivered += some.len() as u64 - gone;
                }
                Err(error) if is_message_error(&error) => {
                    for parcel in &parcels {
                        match self.append_alone(parcel.as_ref()) {
                            DeliveryOutcome::Done => self.counts.delivered += 1,
                            DeliveryOutcome::Gone => self.counts.dropped += 1,
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
            self.log_seen = self.log_seen.max(one.commit_log_offset + u64::from(one.size));
        }
    }
}
