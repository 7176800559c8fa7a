//! Delayed messages: delivered at an exact time, or after the delay of a level.
//!
//! The files are RocketMQ's. A message with a time becomes a record of `rmq_sys_wheel_timer` and enters the timer
//! wheel and the timer log. A message with a level becomes a record of `SCHEDULE_TOPIC_XXXX`. When it is due, the
//! store appends it to the topic and queue that were chosen when it was accepted.
//!
//! `Delays` lists the promises: never early, delivered exactly once in the log, and cancelled for good.

mod engine;
mod files;
mod options;
mod pending;
mod stats;
mod timer_queue;
mod timer_record;
mod waiting;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use mqstore_base::error::StoreError;
use mqstore_base::message::{Appended, NewMessage};
use mqstore_base::wake_signal::Signal;
use mqstore_engine::{AppendMarks, BackgroundTask, MessageOrigin, Store};
use mqstore_format::delays::timer::{TIMER_PRECISION_MS, TIMER_TOPIC};
use mqstore_format::{DelayLevels, SCHEDULE_TOPIC};
use mqstore_io::sync::{AtomicI64, AtomicU64, Mutex, Ordering};

use engine::DelayEngine;
pub use options::DelayOptions;
pub use pending::{DueCounts, PendingDelays};
pub use stats::DelayCounts;
pub(crate) use timer_record::original_properties;
pub(crate) use waiting::WaitingDelays;

/// Maximum sleep of the background task while messages wait.
const LONGEST_SLEEP: Duration = Duration::from_secs(5);
/// The same for a manual clock, whose changes wake no thread.
const LONGEST_SLEEP_BY_HAND: Duration = Duration::from_millis(20);
/// The latest due time of a message, in epoch milliseconds: the end of the year 9999.
pub const LATEST_DUE_MS: i64 = 253_402_300_799_999;

/// The due time of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Now: the message does not wait.
    Now,
    /// At this time, in epoch milliseconds; immediately if it has passed.
    At(i64),
    /// After the delay of this level, from 1. A level above the highest counts as the highest.
    Level(i32),
}

/// The result for an accepted message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The position of its record.
    pub appended: Appended,
    /// The topic in which it waits; `None` if it was already due and is in its own topic.
    pub waits_in: Option<&'static str>,
}

/// The delayed messages of one store.
///
/// The promises:
///
/// * **Never early**, by the wall clock of the store. A message with `TIMER_DELIVER_MS` is due to the millisecond,
///   any other at the end of its slot of one second. Levels behave as in RocketMQ, with two exceptions to this
///   promise. They apply if the clock goes back by more than the delay, or if the level gets a shorter delay. The
///   shorter delay then also counts for waiting messages, from their store time.
/// * **Exactly once, in the log.** A delivered message names the record that it was made from
///   (`TIMER_ORIGIN_OFFSET`). The saved state of slots and offsets covers only durable deliveries. An open searches
///   the log for later ones, after the position that was saved with that state. So every message that survives a stop
///   is either delivered or waiting.
/// * **Cancelled is final**: a cancelled message is not delivered, and a delivered one cannot be cancelled. Both are
///   as durable as any append.
/// * **Any delay**: a message that waits for longer than RocketMQ's window is put back into the wheel, as in
///   RocketMQ. If the retention is shorter than two days, the record itself may be deleted before.
///
/// Across threads: one lock guards the state in memory; appends of delayed messages do not take it. One background
/// task of the store ([`BackgroundTask`]) delivers. It starts with the first delayed message and sleeps until one is
/// due.
pub(crate) struct Delays {
    store: Store,
    options: DelayOptions,
    engine: Mutex<DelayEngine>,
    signal: Signal,
    /// The time until which the task sleeps, in epoch milliseconds. An earlier due time wakes it.
    sleeps_until_ms: AtomicI64,
    /// Number of rings of the signal before the last step.
    heard: AtomicU64,
}

impl Delays {
    /// Opens the delayed messages and starts their background task.
    pub(crate) fn open(store: &Store, options: DelayOptions) -> Result<Arc<Self>, StoreError> {
        let engine = DelayEngine::open(store, &options)?;
        let delays = Arc::new(Self {
            store: store.clone(),
            options,
            engine: Mutex::new(engine),
            signal: Signal::default(),
            sleeps_until_ms: AtomicI64::new(i64::MAX),
            heard: 0.into(),
        });
        let task: Arc<dyn BackgroundTask> = Arc::<Self>::clone(&delays);
        store.run_in_background(&task)?;
        Ok(delays)
    }

    /// Whether a store has or had delayed messages.
    pub(crate) fn are_there(store: &Store) -> Result<bool, StoreError> {
        Ok(!store.queue_ids(TIMER_TOPIC)?.is_empty() || !store.queue_ids(SCHEDULE_TOPIC)?.is_empty())
    }

    /// Appends messages that are delivered later, each at its own time; one lock, one sync.
    pub(crate) fn append(&self, messages: &[(NewMessage<'_>, Due)]) -> Result<Vec<Accepted>, StoreError> {
        self.append_from(messages, None)
    }

    /// Like [`Self::append`], for messages from elsewhere; see [`mqstore_engine::SystemAppends::append_marked`].
    pub(crate) fn append_copies(
        &self,
        messages: &[(NewMessage<'_>, Due)],
        origins: &[MessageOrigin],
    ) -> Result<Vec<Accepted>, StoreError> {
        self.append_from(messages, Some(origins))
    }

    fn append_from(
        &self,
        messages: &[(NewMessage<'_>, Due)],
        origins: Option<&[MessageOrigin]>,
    ) -> Result<Vec<Accepted>, StoreError> {
        let now_ms = self.store.clock().now_ms();
        let levels = self.store.delay_tables().latest();
        let mut made = Vec::with_capacity(messages.len());
        for (message, due) in messages {
            if *due == Due::Now {
                made.push((None, message.queue_id, None));
                continue;
            }
            let queue_id = self.store.system_appends().target_queue(message)?;
            let (topic, waits_in, due_ms) = match *due {
                Due::Now => (None, queue_id, None),
                Due::At(due_ms) if due_ms <= now_ms => (None, queue_id, None),
                Due::At(due_ms) if due_ms > LATEST_DUE_MS => {
                    let reason = format!("{due_ms} is later than the end of the year 9999");
                    return Err(StoreError::InvalidOption { option: "deliver_at", reason });
                }
                Due::At(due_ms) => (Some(TIMER_TOPIC), 0, Some(Ok(due_ms))),
                Due::Level(level) if level < 1 => {
                    let reason = format!("{level} is not a delay level; levels start at 1");
                    return Err(StoreError::InvalidOption { option: "delay_level", reason });
                }
                Due::Level(level) => {
                    let level = level.min(levels.max_level());
                    (Some(SCHEDULE_TOPIC), DelayLevels::queue_id(level), Some(Err(level)))
                }
            };
            topic.map_or(Ok(()), |topic| self.make_topic(topic))?;
            let properties = due_ms.map(|due| timer_record::timer_properties(message, queue_id, due));
            made.push((topic, Some(waits_in), properties));
        }
        let waiting: Vec<_> = messages
            .iter()
            .zip(&made)
            .map(|((message, _), (topic, queue_id, properties))| NewMessage {
                topic: topic.unwrap_or(message.topic),
                queue_id: *queue_id,
                properties: properties.as_deref().unwrap_or(message.properties),
                ..*message
            })
            .collect();
        let appends = self.store.system_appends();
        let done = match (waiting.as_slice(), origins) {
            (all, Some(origins)) => appends.append_marked(all, AppendMarks::Origins(origins))?,
            ([one], None) => vec![appends.append_first(one)?],
            (all, None) => appends.append_many_first(all)?,
        };
        let due = |(_, due): &(NewMessage<'_>, Due)| match *due {
            Due::Now => i64::MAX,
            Due::At(due_ms) => due_ms,
            Due::Level(level) => levels.delivery_time(level.min(levels.max_level()), now_ms),
        };
        if let Some(first) = messages.iter().map(due).min() {
            self.wake_for(first);
        }
        if origins.is_none() {
            appends.replicated(&done)?;
        }
        let accepted = done.into_iter().zip(&made);
        Ok(accepted.map(|(appended, (waits_in, ..))| Accepted { appended, waits_in: *waits_in }).collect())
    }

    /// Creates the topic in which messages wait, even if the store does not create unknown topics.
    fn make_topic(&self, topic: &str) -> Result<(), StoreError> {
        let queues = match topic {
            TIMER_TOPIC => 1,
            SCHEDULE_TOPIC => {
                self.store.delay_tables().latest().max_level().clamp(1, DelayLevels::MOST) as u32
            }
            _ => return Ok(()),
        };
        if (self.store.queue_ids(topic)?.len() as u32) < queues {
            self.store.create_topic(topic, queues, &[])?;
        }
        Ok(())
    }

    /// Wakes the task if it would sleep too long.
    fn wake_for(&self, due_ms: i64) {
        // A slot is loaded into memory before its time.
        let near = due_ms.saturating_sub(2 * TIMER_PRECISION_MS);
        if near <= self.sleeps_until_ms.load(Ordering::SeqCst) {
            self.signal.ring();
        }
    }

    /// Cancels the message with this message id or unique id. Returns whether it was waiting.
    pub(crate) fn cancel(&self, id: &str) -> Result<bool, StoreError> {
        let mut engine = self.engine.lock();
        let Some(record) = engine.find_pending(id)? else { return Ok(false) };
        engine.cancel(&record)?;
        drop(engine);
        self.signal.ring();
        Ok(true)
    }

    /// Replaces the waiting message with this id by a new record with another due time. Returns the new record, or
    /// `None` if no such message waits.
    pub(crate) fn reschedule(&self, id: &str, due_ms: i64) -> Result<Option<Accepted>, StoreError> {
        let mut engine = self.engine.lock();
        // The new record would be after a deletion of the topic.
        let appended = self.store.system_appends().without_deletions(|| {
            let Some(record) = engine.find_pending(id)? else { return Ok::<_, StoreError>(None) };
            let again = timer_record::ReappendedMessage::of(&record)?;
            // A message that cannot be cancelled is not appended again; it would be delivered twice.
            timer_record::cancel_records(&record)?;
            let appended = self.append(&[(again.message(), Due::At(due_ms))])?;
            engine.cancel(&record)?;
            Ok(appended.into_iter().next())
        })??;
        drop(engine);
        self.signal.ring();
        Ok(appended)
    }

    pub(crate) fn counts(&self) -> Result<DelayCounts, StoreError> {
        self.engine.lock().counts()
    }

    /// Delivers all due messages. Returns the time of the next work, in epoch milliseconds.
    fn run(&self) -> Result<i64, StoreError> {
        loop {
            let mut engine = self.engine.lock();
            // The rest of the queue may have messages that are due before those read so far.
            if !engine.is_swamped(self.store.clock().now_ms()) && engine.read_timer_records()? {
                engine.save_early()?;
                continue;
            }
            // Read after the records: one of them may be due already, if the clock changed meanwhile.
            let now_ms = self.store.clock().now_ms();
            engine.load(now_ms)?;
            let more = engine.deliver(now_ms)?;
            engine.pass(now_ms);
            if more {
                continue;
            }
            let next_level = engine.deliver_levels(now_ms)?;
            engine.save(false, self.options.save_interval)?;
            return engine.next_work_ms(next_level, now_ms, self.options.save_interval);
        }
    }
}

impl BackgroundTask for Delays {
    fn name(&self) -> &'static str {
        "mq-delay"
    }

    fn step(&self) -> Result<Duration, StoreError> {
        self.heard.store(self.signal.ring_count(), Ordering::SeqCst);
        // Messages that arrive from here on ring the signal.
        self.sleeps_until_ms.store(i64::MAX, Ordering::SeqCst);
        let until_ms = self.run()?;
        self.sleeps_until_ms.store(until_ms, Ordering::SeqCst);
        let clock = self.store.clock();
        let left = until_ms.saturating_sub(clock.now_ms());
        let longest = if clock.is_set_by_hand() { LONGEST_SLEEP_BY_HAND } else { LONGEST_SLEEP };
        Ok(Duration::from_millis(u64::try_from(left).unwrap_or(0)).min(longest))
    }

    fn rest(&self, longest: Duration) {
        self.signal.sleep(self.heard.load(Ordering::SeqCst), longest);
    }

    fn wake(&self) {
        self.signal.ring();
    }

    fn end(&self) -> Result<(), StoreError> {
        let mut engine = self.engine.lock();
        engine.read_timer_queue()?;
        engine.pass(self.store.clock().now_ms());
        engine.save(true, Duration::ZERO)
    }
}
