//! Waits for messages: in the calling thread, and without a thread.

use std::collections::BTreeMap;
use std::time::Duration;

use mqstore_base::error::StoreError;
use mqstore_base::message::{Appended, NewMessage};

use super::Store;
use crate::read::view::{View, wanted_queue_ids};
use crate::read::wait::Waiter;
use crate::write::append::ReturnPoint;

/// Longest time between two checks of a wait: an error that stops the store may wake no waiter.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

impl Store {
    /// Waits for at most `timeout` until a message at `offset` can be read; returns whether it can.
    pub fn wait(
        &self,
        topic: &str,
        queue_id: i32,
        offset: i64,
        timeout: Duration,
    ) -> Result<bool, StoreError> {
        wait_at(self, topic, timeout, |_, places| {
            places.push((queue_id, offset));
            Ok(())
        })
    }

    /// Waits for at most `timeout` until a queue of `topic`, or only `queue_id`, has a message at or after its offset in
    /// `next`; returns whether one has. A queue without an offset there counts from its first message.
    pub fn wait_for_topic(
        &self,
        topic: &str,
        queue_id: Option<i32>,
        next: &BTreeMap<i32, i64>,
        timeout: Duration,
    ) -> Result<bool, StoreError> {
        wait_at(self, topic, timeout, |view, places| {
            for id in wanted_queue_ids(view, topic, queue_id)? {
                let offset = match next.get(&id) {
                    Some(offset) => *offset,
                    None => view.bounds(topic, id)?.map_or(0, |(min, _)| min),
                };
                places.push((id, offset));
            }
            Ok(())
        })
    }

    /// Registers `call` for a message at or after queue offset `offset`: a wait without a thread, so that hundreds of
    /// thousands of waits are possible.
    ///
    /// If such a message can be read already, [`Waiter::is_over`] is true and `call` is dropped. Otherwise the store
    /// calls it once, also if it closes or an error stops it, so the caller must check again. The thread that builds
    /// the queues makes the call: it must be short and must not panic. It is not called after the waiter is dropped.
    ///
    /// # Errors
    /// `ReadOnly` (another process writes and does not notify this one), `TopicNotFound`, `Closed`, `Poisoned`, and
    /// errors of the dispatch of earlier messages.
    pub fn wait_with(
        &self,
        topic: &str,
        queue_id: i32,
        offset: i64,
        call: impl FnOnce() + Send + 'static,
    ) -> Result<Waiter, StoreError> {
        let engine = self.engine("wait without a thread")?;
        engine
            .wait_with(topic, queue_id, offset, Box::new(call))?
            .ok_or_else(|| StoreError::TopicNotFound { topic: topic.to_owned(), queue_id: Some(queue_id) })
    }

    /// Returns the operations for a thread that must not wait.
    pub fn nonblocking(&self) -> NonBlocking<'_> {
        NonBlocking(self)
    }
}

/// Operations for a thread that must not wait, for example one that runs an event loop; from [`Store::nonblocking`].
#[derive(Clone, Copy)]
pub struct NonBlocking<'a>(pub(super) &'a Store);

impl NonBlocking<'_> {
    /// Appends one message if the append need not wait; otherwise appends nothing and returns `None`.
    ///
    /// A message that must be durable always waits.
    pub fn try_append(&self, message: &NewMessage<'_>) -> Result<Option<Appended>, StoreError> {
        let engine = self.0.engine("append")?;
        if !engine.can_append_now(std::slice::from_ref(message)) {
            return Ok(None);
        }
        engine.append_one(message, ReturnPoint::Synced).map(Some)
    }

    /// Like [`Self::try_append`], for [`Store::append_many`].
    pub fn try_append_many(&self, messages: &[NewMessage<'_>]) -> Result<Option<Vec<Appended>>, StoreError> {
        let engine = self.0.engine("append")?;
        if engine.can_append_now(messages) { engine.append_many(messages).map(Some) } else { Ok(None) }
    }

    /// Whether a read of a queue has little work to do first: all but the newest records are dispatched. False for a
    /// store open for reading, which must check its files in any case.
    pub fn is_caught_up(&self) -> bool {
        self.0.writing_engine().is_some_and(|engine| engine.is_caught_up())
    }

    /// Returns which of `waits` are over: a message at or after this offset of this queue can be read. Checks all of
    /// them at once, and waits only for dispatch.
    ///
    /// # Errors
    /// Those of [`Store::wait`].
    pub fn arrived(&self, waits: &[(String, i32, i64)]) -> Result<Vec<bool>, StoreError> {
        let view = self.0.usable_view()?;
        view.catch_up()?;
        let over = |(topic, queue_id, offset): &(String, i32, i64)| {
            Ok(view.bounds(topic, *queue_id)?.is_some_and(|(_, max)| max > *offset))
        };
        waits.iter().map(over).collect()
    }
}

/// Waits until one of the places (queue and offset) that `find` adds has a message.
fn wait_at(
    store: &Store,
    topic: &str,
    timeout: Duration,
    find: impl Fn(&dyn View, &mut Vec<(i32, i64)>) -> Result<(), StoreError>,
) -> Result<bool, StoreError> {
    let mut places = Vec::new();
    let clock = &store.inner.files.clock;
    let deadline = clock.monotonic().saturating_add(timeout);
    for round in 0_u32.. {
        let view = store.usable_view()?;
        view.catch_up()?;
        places.clear();
        find(&*view, &mut places)?;
        for (queue_id, offset) in &places {
            if view.bounds(topic, *queue_id)?.is_some_and(|(_, max)| max > *offset) {
                return Ok(true);
            }
        }
        let now = clock.monotonic();
        if now >= deadline {
            return Ok(false);
        }
        let left = deadline.saturating_sub(now).min(LONGEST_WAIT);
        view.wait_for(topic, &places, left, round)?;
    }
    Ok(false)
}
