//! Waits for messages, in slices, so that Ctrl-C ends the call.

use std::collections::BTreeMap;
use std::time::Duration;

use mqstore::Store;
use mqstore::io::Clock;
use pyo3::prelude::*;

use super::NativeStore;
use crate::convert::arguments::needs_queue;
use crate::error::{InvalidOptionError, RemoteStoreError, to_py};
use crate::runtime::{SLICE, clock, detached, reading};

impl NativeStore {
    /// Refuses to wait for messages of a store at a URL: its files never change after the open.
    pub(super) fn can_follow(&self, store: &Store) -> PyResult<()> {
        store.files().refuse_following().map_err(to_py)?;
        if store.files().vfs.is_remote() {
            return Err(RemoteStoreError::new_err((self.shared.path().to_owned(), "follow it")));
        }
        Ok(())
    }

    /// Waits until an offset of a queue can be read, or for the next message; returns false after `timeout`.
    pub(super) fn wait_for_message(
        &self,
        py: Python<'_>,
        store: &Store,
        topic: &str,
        queue_id: Option<i32>,
        offset: Option<i64>,
        timeout: Option<Duration>,
    ) -> PyResult<bool> {
        if timeout.is_none_or(|timeout| !timeout.is_zero()) {
            self.can_follow(store)?;
        }
        let next = match (queue_id, offset) {
            (Some(queue_id), Some(offset)) => BTreeMap::from([(queue_id, offset)]),
            (None, Some(offset)) => {
                return Err(InvalidOptionError::new_err(("offset", needs_queue(offset))));
            }
            (_, None) => reading(py, store, || store.ends(topic))?,
        };
        let started = clock().monotonic();
        loop {
            let waited = clock().monotonic().saturating_sub(started);
            let left = timeout.map_or(Duration::MAX, |timeout| timeout.saturating_sub(waited));
            let has_come = detached(py, || match (queue_id, offset) {
                (Some(queue_id), Some(offset)) => store.wait(topic, queue_id, offset, left.min(SLICE)),
                _ => store.wait_for_topic(topic, queue_id, &next, left.min(SLICE)),
            });
            if has_come? {
                return Ok(true);
            }
            py.check_signals()?;
            if left <= SLICE {
                return Ok(false);
            }
        }
    }
}
