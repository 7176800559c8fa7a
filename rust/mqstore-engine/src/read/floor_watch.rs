//! The floors at the time at which messages were read ahead.
//!
//! A deletion or the retention of a topic can hide messages that were read and not handed out. A reader of messages asks
//! before each one whether the floors changed, which compares one number. Owns nothing on disk.

use std::sync::Arc;

use super::view::View;
use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_base::topic_floors::FloorTable;

/// The floors as of one moment; see the module's text.
#[derive(Clone, Debug)]
pub struct FloorWatch {
    changes: u64,
    floors: Arc<FloorTable>,
}

/// A change of the floors.
#[derive(Clone, Debug)]
pub(crate) struct FloorChange {
    before: Arc<FloorTable>,
    now: Arc<FloorTable>,
}

impl FloorWatch {
    /// Begins to watch; everything that is read after it respects the floors of now.
    pub(crate) fn new(view: &dyn View) -> Self {
        // The number first: a change after it is found.
        Self { changes: view.floor_changes(), floors: view.floors() }
    }

    #[inline]
    pub(crate) fn is_current(&self, view: &dyn View) -> bool {
        view.floor_changes() == self.changes && !view.has_unread_floors()
    }

    /// Returns the change since the last call, if there is one.
    #[inline]
    pub(crate) fn follow(&mut self, view: &dyn View) -> Result<Option<FloorChange>, StoreError> {
        if self.is_current(view) {
            return Ok(None);
        }
        // A reader learns the new floors here.
        view.catch_up()?;
        let before = std::mem::replace(self, Self::new(view)).floors;
        Ok(Some(FloorChange { before, now: Arc::clone(&self.floors) }))
    }
}

impl FloorChange {
    /// Whether the topic was deleted meanwhile.
    pub(super) fn deletes(&self, topic: &str) -> bool {
        self.before.deleted(topic) != self.now.deleted(topic)
    }

    /// Whether a record that was read before is hidden now.
    pub(crate) fn hides(&self, view: &dyn View, record: &StoredRecord) -> bool {
        let Ok(found) = record.view() else { return false };
        // Compacted records have no log offset, and only a deletion hides them.
        if view.keeps_newest(found.topic) {
            return self.deletes(found.topic);
        }
        self.now.hides(found.topic, record.commit_log_offset)
    }
}
