//! Waiting for messages in the process that writes them.
//!
//! A wait is a call in the table of its queue ([`QueueWaiters`]) and no thread, so that many thousand cost
//! nothing but their memory; a thread that waits leaves a call that wakes it. The append makes the calls
//! that wait for its message, and dispatch those that are left once readers see the message. An append to
//! a queue that somebody waits for lets dispatch begin at once, where it would let records come together
//! otherwise.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::writer::Writer;
use crate::store::topics::TopicState;
use mqstore_base::error::StoreError;
use mqstore_base::wake_signal::{Signal, Waker};
use mqstore_log::consume_queue::{BatchQueue, ConsumeQueue, QueueWaiters, WaitTicket};

/// How long who waits for a queue that does not exist sleeps before another look.
const NO_QUEUE_NAP: Duration = Duration::from_millis(10);

/// A wait for a message, from [`crate::Store::wait_with`]; dropping it takes the wait back.
pub struct Waiter {
    queue: WaitTarget,
    topic: Arc<TopicState>,
    queue_id: i32,
    offset: i64,
    ticket: Option<WaitTicket>,
}

enum WaitTarget {
    Plain(Arc<ConsumeQueue>),
    Batch(Arc<BatchQueue>),
}

impl WaitTarget {
    fn arrivals(&self) -> &QueueWaiters {
        match self {
            Self::Plain(queue) => queue.arrivals(),
            Self::Batch(queue) => queue.arrivals(),
        }
    }

    fn max_offset(&self) -> i64 {
        match self {
            Self::Plain(queue) => queue.max_offset(),
            Self::Batch(queue) => queue.max_offset(),
        }
    }
}

impl Waiter {
    /// Whether the message was there already, and no call will be made.
    pub fn is_over(&self) -> bool {
        self.ticket.is_none()
    }

    /// Whether the message can be read by now, of those that [`crate::Store::catch_up`] has brought in; the call may
    /// still be to come then.
    pub fn has_come(&self) -> bool {
        self.queue.max_offset() > self.offset
    }
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiter").field("queue_id", &self.queue_id).finish_non_exhaustive()
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.queue.arrivals().give_up(ticket);
        }
        self.topic.waiter_count(self.queue_id).fetch_sub(1, Ordering::SeqCst);
    }
}

impl Writer {
    /// Has `call` made once a message at or behind `offset` is there; `None` for a queue that nobody made.
    pub(crate) fn wait_with(
        &self,
        topic: &str,
        queue_id: i32,
        offset: i64,
        call: Waker,
    ) -> Result<Option<Waiter>, StoreError> {
        let Some(state) = self.topics.get(topic).filter(|_| self.has_queue(topic, queue_id)) else {
            return Ok(None);
        };
        let queue = self.waited(topic, &state, queue_id)?;
        state.waiter_count(queue_id).fetch_add(1, Ordering::SeqCst);
        let mut waiter = Waiter { queue, topic: state, queue_id, offset, ticket: None };
        let over = || waiter.queue.max_offset() > offset || self.lifecycle.is_closed();
        waiter.ticket = waiter.queue.arrivals().wait(offset, call, over);
        // What was appended before the queue had somebody who waits is brought in here.
        if waiter.ticket.is_some() {
            self.dispatch()?;
        }
        // A store that an error has stopped gets no more messages. Who is there by then is woken.
        self.log.check()?;
        Ok(Some(waiter))
    }

    fn waited(&self, topic: &str, state: &TopicState, queue_id: i32) -> Result<WaitTarget, StoreError> {
        Ok(if state.batch {
            WaitTarget::Batch(self.queues.batch_or_create(topic, queue_id)?)
        } else {
            WaitTarget::Plain(self.queues.get_or_create(topic, queue_id)?)
        })
    }

    /// Blocks until a message at `offset` may be there, the store closes, or `timeout` has passed.
    pub(crate) fn wait_past(
        &self,
        topic: &str,
        queue_id: i32,
        offset: i64,
        timeout: Duration,
    ) -> Result<(), StoreError> {
        let signal = Arc::new(Signal::default());
        let seen = signal.ring_count();
        let call = Box::new({
            let signal = Arc::clone(&signal);
            move || signal.ring()
        });
        match self.wait_with(topic, queue_id, offset, call)? {
            Some(waiter) if waiter.is_over() => {}
            Some(_waiter) => signal.sleep(seen, timeout),
            // Who makes the topic raises nothing.
            None => {
                let closed = || self.lifecycle.is_closed();
                self.signals.pause(timeout.min(NO_QUEUE_NAP), closed);
            }
        }
        Ok(())
    }

    /// Takes care of those who wait for messages of this queue, which got one at `queue_offset`.
    #[inline]
    pub(crate) fn told_of(&self, topic: &str, state: &TopicState, queue_id: i32, queue_offset: i64) {
        // Whoever published the message passed a fence.
        if state.waiter_count(queue_id).load(Ordering::SeqCst) > 0 {
            self.wake_reader_waits(topic, state, queue_id, queue_offset);
        }
    }

    /// Wakes them at once: a reader dispatches what it is missing, and has not to wait for another thread to be
    /// woken and do it. What is not visible yet is left to those who make it so.
    #[cold]
    fn wake_reader_waits(&self, topic: &str, state: &TopicState, queue_id: i32, queue_offset: i64) {
        self.signals.hurry();
        if self.options.durable_only() {
            return;
        }
        // Somebody waits, so that the queue is there.
        if let Ok(queue) = self.waited(topic, state, queue_id) {
            queue.arrivals().reached(queue_offset.saturating_add(1));
        }
    }
}
