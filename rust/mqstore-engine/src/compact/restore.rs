//! Restores compaction files from another open store, see [`mqstore_compaction`].
//!
//! The other store is read like any store: first the messages that its compactions kept, then its commit log. Each
//! message is checked. That store can be in use; its files do not change.

use std::path::Path;
use std::sync::Arc;

use mqstore_format::RecordView;

use super::compaction_state::Compactions;
use crate::read::query::read;
use crate::read::view::StoreView;
use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_compaction::{
    CompactionOptions, JobControl, RestoreReport, RestoreRun, RestoreSource, StoreLockHeld, compacted_end,
    restore,
};

/// Number of messages that one step reads.
const BATCH: usize = 256;

impl Compactions {
    /// See [`crate::Store::restore_compaction`].
    pub(crate) fn restore(
        &self,
        source: &StoreView,
        topics: Option<&[String]>,
        options: &CompactionOptions,
        threads: usize,
        control: &Arc<JobControl>,
    ) -> Result<RestoreReport, StoreError> {
        let options = &self.with_own_lengths(options);
        let run = RestoreRun { topics, options, threads, control, log: Some(&self.engine.log) };
        let restore =
            |held: &StoreLockHeld<'_>| restore(&self.engine.files, held, &SourceStore { view: source }, &run);
        self.with_compaction_lock(control, || self.with_lock_held(restore))
    }
}

/// The store from which messages are copied.
pub(crate) struct SourceStore<'a> {
    pub(crate) view: &'a StoreView,
}

impl RestoreSource for SourceStore<'_> {
    fn root(&self) -> &Path {
        &self.view.files().root
    }

    fn generation(
        &self,
        topic: &str,
        queue_id: i32,
        until: i64,
    ) -> Result<Result<String, String>, StoreError> {
        let view = self.view;
        view.check()?;
        view.catch_up()?;
        let at = self.root().display();
        let Some((first, max)) = view.bounds(topic, queue_id)? else {
            return Ok(Err(format!("{at} has no such queue")));
        };
        let (taken, generation) = compacted_end(view.files(), topic, queue_id)?;
        let taken = if view.keeps_newest(topic) { taken } else { 0 };
        if first > taken {
            return Ok(Err(format!("{at} itself lacks the messages from offset {taken} to {first}")));
        }
        if max < until {
            return Ok(Err(format!("{at} ends at offset {max}, and the log here begins at {until}")));
        }
        Ok(Ok(generation))
    }

    fn message_at(
        &self,
        topic: &str,
        queue_id: i32,
        offset: i64,
    ) -> Result<Option<StoredRecord>, StoreError> {
        let found = read(self.view, topic, queue_id, Some(offset), Some(offset.saturating_add(1)), None);
        let mut cursor = match found {
            Err(StoreError::OffsetOutOfRange { .. } | StoreError::TopicNotFound { .. }) => return Ok(None),
            cursor => cursor?,
        };
        Ok(cursor.next_batch(1)?.into_iter().find(|record| record.queue_offset == offset))
    }

    fn pull(
        &self,
        topic: &str,
        queue_id: i32,
        from: i64,
        until: i64,
        visit: &mut dyn FnMut(&RecordView<'_>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut cursor = read(self.view, topic, queue_id, Some(from), Some(until), None)?;
        loop {
            let batch = cursor.next_batch(BATCH)?;
            if batch.is_empty() {
                return Ok(());
            }
            for record in &batch {
                let view = record.view().map_err(|error| {
                    StoreError::format(&self.view.files().root, record.commit_log_offset, &error)
                })?;
                visit(&view)?;
            }
        }
    }
}
