//! A wait of a consumer or a work queue for the next message of one queue.

use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_engine::{Store, Waiter};
use mqstore_io::sync::{AtomicBool, Ordering};

/// A wait for more messages; it is over once `came` is set.
pub(crate) struct QueueWait {
    waiter: Waiter,
    came: Arc<AtomicBool>,
}

impl QueueWait {
    /// Whether there may be more messages now.
    pub(crate) fn is_over(&self) -> bool {
        self.came.load(Ordering::Acquire) || self.waiter.has_come()
    }

    /// Has `wake` called once the queue has a message at or after `offset`, unless `slot` holds a wait already. Returns
    /// whether there is such a message now.
    pub(crate) fn arm(
        slot: &mut Option<Self>,
        store: &Store,
        (topic, queue_id): (&str, i32),
        offset: i64,
        wake: impl FnOnce() + Send + 'static,
    ) -> Result<bool, StoreError> {
        if let Some(wait) = slot {
            return Ok(wait.is_over());
        }
        let came = Arc::new(AtomicBool::new(false));
        let call = {
            let came = Arc::clone(&came);
            move || {
                came.store(true, Ordering::Release);
                wake();
            }
        };
        let waiter = store.wait_with(topic, queue_id, offset, call)?;
        if waiter.is_over() {
            return Ok(true);
        }
        *slot = Some(Self { waiter, came });
        Ok(false)
    }
}
