//! Waits for messages in the writing process.
//!
//! A wait is a waker in the list of its queue ([`QueueWaiters`]), not a thread, so many thousands cost only memory. A
//! thread that waits registers a waker that wakes it. The append calls the wakers for its message. Dispatch calls the
//! others once readers can see the message. If a waiter exists, an append makes dispatch start at once; otherwise
//! dispatch collects records for a while.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::engine::Engine;
use crate::engine::topics::TopicState;
use mqstore_base::error::StoreError;
use mqstore_base::wake_signal::{Signal, Waker};
use mqstore_log::consume_queue::{BatchQueue, ConsumeQueue, QueueWaiters, WaitTicket};

/// Time between two checks of a wait for a queue that does not exist.
const NO_QUEUE_NAP: Duration = Duration::from_millis(10);

/// A wait for a message, from [`crate::Store::wait_with`]. Dropping it ends the wait.
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
    /// Whether the message existed already, so that the waker is not called.
    pub fn is_over(&self) -> bool {
        self.ticket.is_none()
    }

    /// Whether the message can be read by now, as far as [`crate::Store::catch_up`] has dispatched. The waker may be
    /// called later.
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

impl Engine {
    /// Calls `call` once a message at or after `offset` exists; `None` for a queue that does not exist.
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
        let queue = self.wait_target(topic, &state, queue_id)?;
        state.waiter_count(queue_id).fetch_add(1, Ordering::SeqCst);
        let mut waiter = Waiter { queue, topic: state, queue_id, offset, ticket: None };
        let over = || waiter.queue.max_offset() > offset || self.lifecycle.is_closed();
        waiter.ticket = waiter.queue.arrivals().wait(offset, call, over);
        // Dispatch the messages that were appended before the queue had a waiter.
        if waiter.ticket.is_some() {
            self.dispatch()?;
        }
        // A store that an error has stopped gets no more messages. Waiters that exist by then are woken.
        self.log.check()?;
        Ok(Some(waiter))
    }

    fn wait_target(&self, topic: &str, state: &TopicState, queue_id: i32) -> Result<WaitTarget, StoreError> {
        Ok(if state.batch {
            WaitTarget::Batch(self.queues.batch_or_create(topic, queue_id)?)
        } else {
            WaitTarget::Plain(self.queues.get_or_create(topic, queue_id)?)
        })
    }

    /// Blocks until one of `places` (queue and offset) may have a message, the store closes, or `timeout` has passed.
    pub(crate) fn wait_past(
        &self,
        topic: &str,
        places: &[(i32, i64)],
        timeout: Duration,
    ) -> Result<(), StoreError> {
        let signal = Arc::new(Signal::default());
        let seen = signal.ring_count();
        let mut waiters = Vec::with_capacity(places.len());
        for (queue_id, offset) in places {
            let call = Box::new({
                let signal = Arc::clone(&signal);
                move || signal.ring()
            });
            match self.wait_with(topic, *queue_id, *offset, call)? {
                Some(waiter) if waiter.is_over() => return Ok(()),
                waiter => waiters.extend(waiter),
            }
        }
        if waiters.is_empty() {
            // The creation of a topic wakes no waiter.
            let closed = || self.lifecycle.is_closed();
            self.signals.pause(timeout.min(NO_QUEUE_NAP), closed);
        } else {
            signal.sleep(seen, timeout);
        }
        Ok(())
    }

    /// Wakes the waiters of this queue, if any, after a message was appended at `queue_offset`.
    #[inline]
    pub(crate) fn notify_waiters(&self, topic: &str, state: &TopicState, queue_id: i32, queue_offset: i64) {
        // The thread that published the message has passed a fence.
        if state.waiter_count(queue_id).load(Ordering::SeqCst) > 0 {
            self.wake_reader_waits(topic, state, queue_id, queue_offset);
        }
    }

    /// Wakes them at once: the woken reader dispatches the missing records itself and need not wait for another thread.
    /// If the message is not yet visible, the thread that makes it visible wakes them.
    #[cold]
    fn wake_reader_waits(&self, topic: &str, state: &TopicState, queue_id: i32, queue_offset: i64) {
        self.signals.hurry();
        if self.options.durable_only() {
            return;
        }
        // There is a waiter, so the queue exists.
        if let Ok(queue) = self.wait_target(topic, state, queue_id) {
            queue.arrivals().reached(queue_offset.saturating_add(1));
        }
    }
}
