//! Messages at single offsets, next to a writer that runs.
//!
//! Owns nothing. Such a read needs one look at the live page, one read of the queue file and one of the log. It does
//! not follow the log first: the writer vouches for the units of the messages before the dispatched position.

use mqstore_format::CqUnit;

use super::super::cursor::place;
use super::super::random_read::message_of;
use super::super::view::View;
use super::{Reader, topics_version};
use crate::read::units::read_units;
use mqstore_base::message::StoredRecord;
use mqstore_log::commit_log::RecordReader;

impl Reader {
    /// Returns the messages at `offsets` that the files of a plain queue have. `None` stands for any other message,
    /// which needs a normal read; so does an error.
    pub(in crate::read) fn messages_in_files(
        &self,
        topic: &str,
        queue_id: i32,
        offsets: &[i64],
    ) -> Option<Vec<Option<StoredRecord>>> {
        if self.keeps_newest(topic) || self.listed().removed.contains(topic) || !self.has_looked() {
            return None;
        }
        let (page, live) = self.live.look(&self.files);
        let live = live?;
        let (queue, list) = {
            let state = self.state.lock();
            // Otherwise the reader has to follow a restart, a deleted topic or an expiry first.
            let is_current = state.is_complete
                && state.writer == Some(live.token)
                && state.topics_version == topics_version(page, Some(live))
                && state.list.min_offset() == live.log_min;
            (Self::file_queue(&state, topic, queue_id).filter(|_| is_current)?, state.list.clone())
        };
        let (mut units, known) = (Vec::new(), queue.min_offset()..queue.max_offset());
        let places: Vec<_> = offsets
            .iter()
            .map(|offset| {
                units.clear();
                known.contains(offset).then_some(())?;
                read_units(&queue, *offset, offset + 1, 1, &mut units).ok()?;
                let (position, size) = units.first().and_then(|(_, unit): &(i64, CqUnit)| place(unit))?;
                let is_whole = position.checked_add(u64::from(size))? <= live.visible.min(live.dispatched);
                is_whole.then_some((*offset, position, size))
            })
            .collect();
        let mut reader = RecordReader::new(None, list, live.visible);
        if offsets.len() > 1 {
            reader.prefetch(places.iter().flatten().map(|(_, position, size)| (*position, *size)));
        }
        let mut message = |(offset, position, size)| {
            let bytes = reader.record(&self.files, position, size).ok()?;
            message_of(self, bytes, (position, size), (topic, queue_id, offset))
        };
        Some(places.into_iter().map(|place| place.and_then(&mut message)).collect())
    }
}
