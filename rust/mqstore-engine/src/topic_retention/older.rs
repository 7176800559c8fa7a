//! The messages of topics from before the log, for limits that are longer than the log. An archive has them; the
//! Python package reads it.

use std::collections::BTreeMap;
use std::fmt::Debug;

use mqstore_base::error::StoreError;
use mqstore_io::sync::{Arc, RwLock};

/// What the log leaves of the limits of a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OlderLimits {
    /// Smallest store time that stays, in epoch milliseconds.
    pub since_ms: Option<i64>,
    /// Maximum bytes of records.
    pub max_bytes: Option<u64>,
    /// Maximum number of messages.
    pub max_messages: Option<u64>,
}

/// The floor that limits demand before the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OlderFloor {
    /// The records of the topic before this log offset are due.
    pub log_offset: u64,
    /// Number of messages before it.
    pub messages: u64,
}

/// Messages of topics from before the log.
pub trait OlderTopics: Debug + Send + Sync {
    /// Returns the floor that `limits` demand for the messages of `topic` before log offset `log_start`; `None` if all
    /// of them stay. `lows` are the first offsets of its queues in the log.
    ///
    /// # Errors
    /// The messages cannot be read.
    fn due_floor(
        &self,
        topic: &str,
        log_start: u64,
        lows: &BTreeMap<i32, i64>,
        limits: OlderLimits,
    ) -> Result<Option<OlderFloor>, StoreError>;
}

/// The older messages of an open store. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct OlderSlot(Arc<RwLock<Option<Arc<dyn OlderTopics>>>>);

impl OlderSlot {
    pub(crate) fn set(&self, older: Option<Arc<dyn OlderTopics>>) {
        *self.0.write() = older;
    }

    pub(super) fn get(&self) -> Option<Arc<dyn OlderTopics>> {
        self.0.read().clone()
    }
}
