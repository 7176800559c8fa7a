//! The unfinished messages of a store, open for writing or for reading.

use mqstore_base::error::StoreError;
use mqstore_meta::read_state;

use super::cleaner::{Cleaner, FindDeliveries};
use super::holders::{SegmentHolder, UnfinishedMessages, holding_groups, keeping_backups};
use crate::read::group_offsets::{current_offsets, saved_offsets};
use crate::read::view::View;

impl Cleaner {
    /// Sets the function that finds waiting messages, unless there is one.
    pub(crate) fn find_deliveries_with(&self, find: FindDeliveries) {
        let _ = self.deliveries.set(find);
    }

    /// Returns the unfinished messages. Messages that are appended meanwhile may be missing.
    pub(crate) fn unfinished(&self) -> Result<UnfinishedMessages, StoreError> {
        match self.engine.catch_up() {
            // Segments whose records are in the queues can still be removed, which frees space.
            Ok(_) | Err(StoreError::DiskFull { .. }) => {}
            Err(error) => return Err(error),
        }
        let known_to = self.engine.dispatcher.position();
        let progress_of =
            |group: &str, topic: &str, queue_id| self.engine.meta.known_of(group, topic, queue_id);
        let mut deliveries = self.deliveries.get().map_or_else(|| Ok(Vec::new()), |find| find())?;
        deliveries.extend(self.copies()?);
        let saved = current_offsets(&self.engine);
        Ok(UnfinishedMessages {
            groups: holding_groups(&*self.engine, &saved, &progress_of)?,
            deliveries,
            known_to,
        })
    }
}

/// Returns the unfinished messages of a store that is open for reading, whose log ends at `end`. `deliveries` are its
/// first waiting delayed messages and half messages.
pub(crate) fn unfinished_of_files(
    view: &dyn View,
    end: u64,
    mut deliveries: Vec<SegmentHolder>,
) -> Result<UnfinishedMessages, StoreError> {
    let files = view.files();
    deliveries.extend(keeping_backups(files)?);
    let state = read_state(files, &mut Vec::new())?;
    let saved = saved_offsets(files, &mut Vec::new());
    let progress_of = |group: &str, topic: &str, queue_id| state.known_of(group, topic, queue_id);
    Ok(UnfinishedMessages { groups: holding_groups(view, &saved, &progress_of)?, deliveries, known_to: end })
}
