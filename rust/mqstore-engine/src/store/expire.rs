//! Expiry and the confirmed offset of an open store.

use std::sync::Arc;

use super::group_offsets::{current_offsets, saved_offsets};
use super::{FindDeliveriesIn, OpenSide, Store};
use crate::read::view::View;
use crate::retention::{ExpireReport, SegmentHolder, UnfinishedMessages, holding_groups, preview_of};
use crate::write::writer::Writer;
use mqstore_base::error::StoreError;
use mqstore_base::options::Durability;
use mqstore_log::commit_log::{LogScanner, ScanChecks, ScanItem, SegmentList};
use mqstore_meta::read_state;

impl Store {
    /// Removes the segments that are due by the options `retention`, `retention_bytes` and `disk_force_ratio`, at any
    /// hour of the day. With `dry_run` it reports them and changes nothing; this also works for a store open for
    /// reading. Without a retention no segment is due. Then it applies the limits of topics
    /// ([`Self::set_retention`]). A segment that is due by age stays for unfinished messages, as
    /// `retention_policy` and `group_timeout` say; the report names them.
    ///
    /// `carry_on` is called between two files. If it returns an error, the work ends with that error.
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`]; [`StoreError::Busy`] inside a hook; errors of the file system. Files that are removed
    /// before an error stay removed.
    pub fn expire(
        &self,
        dry_run: bool,
        carry_on: &mut dyn FnMut() -> Result<(), StoreError>,
    ) -> Result<ExpireReport, StoreError> {
        self.check()?;
        match &self.inner.side {
            OpenSide::Reader(reader) if dry_run => {
                let end = self.view().catch_up()?;
                let lookup = || self.unfinished_of_files(end);
                let mut report = preview_of(&self.inner.files, reader.options(), end, &lookup)?;
                report.topics = self.due_messages()?;
                Ok(report)
            }
            _ => {
                let writer = self.writer("expire")?;
                let options = &writer.options;
                // Otherwise groups could not see the records yet.
                if !dry_run && options.durable_only() && options.durability == Durability::Manual {
                    writer.flush()?;
                }
                let report = writer.cleaner.expire(dry_run, &|| writer.unfinished(), carry_on);
                if !writer.cleaner.held_files().is_empty() {
                    writer.signals.want_expiry_round();
                }
                let mut report = report?;
                if dry_run {
                    report.topics = self.due_messages()?;
                } else {
                    writer.expire_topics(&mut report, carry_on)?;
                }
                Ok(report)
            }
        }
    }

    /// Sets the function that finds the delayed messages and half messages that wait in this store, unless there is
    /// one: the retention by age keeps their segments. The crate that delivers messages sets it.
    pub fn find_deliveries_with(&self, find: FindDeliveriesIn) {
        if self.inner.find_deliveries.set(find).is_ok()
            && let OpenSide::Writer(writer, _) = &self.inner.side
        {
            // Weakly: the writer is a part of the store.
            let store = Arc::downgrade(&self.inner);
            writer.lifecycle.find_deliveries(Box::new(move || match store.upgrade() {
                Some(inner) => find(&Self { inner }),
                None => Ok(Vec::new()),
            }));
        }
    }

    /// Returns the messages that keep segments before the active one from a deletion by age, by log offset: of each
    /// group in each topic the first unfinished one, and the first delayed message and half message that wait.
    ///
    /// # Errors
    /// Errors of reading the queues, the metadata log and the files of delayed messages.
    pub fn segment_holders(&self) -> Result<Vec<SegmentHolder>, StoreError> {
        self.check()?;
        let found = match &self.inner.side {
            OpenSide::Writer(writer, _) => writer.unfinished()?,
            OpenSide::Reader(_) => self.unfinished_of_files(self.view().catch_up()?)?,
        };
        let active = self.view().list().segments().last().map_or(0, |segment| segment.base_offset());
        let groups = found.groups.into_iter().map(|group| group.holder);
        let mut holders: Vec<_> =
            groups.chain(found.deliveries).filter(|holder| holder.log_offset < active).collect();
        holders.sort_by_key(|holder| holder.log_offset);
        Ok(holders)
    }

    /// Returns the unfinished messages of a store that is open for reading, whose log ends at `end`.
    fn unfinished_of_files(&self, end: u64) -> Result<UnfinishedMessages, StoreError> {
        let files = &self.inner.files;
        let state = read_state(files, &mut Vec::new())?;
        let saved = saved_offsets(files, &mut Vec::new());
        let progress_of = |group: &str, topic: &str, queue_id| state.known_of(group, topic, queue_id);
        let find = self.inner.find_deliveries.get();
        Ok(UnfinishedMessages {
            groups: holding_groups(&*self.view(), &saved, &progress_of)?,
            deliveries: find.map_or_else(|| Ok(Vec::new()), |find| find(self))?,
            known_to: end,
        })
    }

    /// Hides everything from log offset `offset` on from readers and dispatch; `None` removes the limit. For
    /// replication, where a record counts only after other machines have it. The limit is not stored: after a close,
    /// the log has everything it contains.
    ///
    /// # Errors
    /// [`StoreError::InvalidOption`] if no record starts or ends at `offset`, or if readers may have seen bytes after
    /// it; [`StoreError::ReadOnly`].
    pub fn set_confirm_offset(&self, offset: Option<u64>) -> Result<(), StoreError> {
        let writer = self.writer("set the confirmed offset")?;
        writer.check_open()?;
        if let Some(offset) = offset {
            writer.check_record_border(offset)?;
        }
        writer.set_visible_limit(offset.unwrap_or(u64::MAX))
    }

    /// Returns the log offset that [`Self::set_confirm_offset`] set; `None` without a limit, and for a store open for
    /// reading.
    pub fn confirm_offset(&self) -> Result<Option<u64>, StoreError> {
        self.check()?;
        Ok(match &self.inner.side {
            OpenSide::Writer(writer, _) => Some(writer.dispatcher.limit()).filter(|limit| *limit != u64::MAX),
            OpenSide::Reader(_) => None,
        })
    }
}

impl Writer {
    /// Returns the unfinished messages. Messages that are appended meanwhile may be missing.
    pub(crate) fn unfinished(&self) -> Result<UnfinishedMessages, StoreError> {
        match View::catch_up(self) {
            // Segments whose records are in the queues can still be removed, which frees space.
            Ok(_) | Err(StoreError::DiskFull { .. }) => {}
            Err(error) => return Err(error),
        }
        let known_to = self.dispatcher.position();
        let progress_of = |group: &str, topic: &str, queue_id| self.meta.known_of(group, topic, queue_id);
        let deliveries = self.lifecycle.deliveries()?;
        let saved = current_offsets(self);
        Ok(UnfinishedMessages { groups: holding_groups(self, &saved, &progress_of)?, deliveries, known_to })
    }

    fn check_open(&self) -> Result<(), StoreError> {
        if self.lifecycle.is_closed() {
            return Err(StoreError::Closed { path: self.files.root.clone() });
        }
        Ok(())
    }

    /// Moves the confirmed offset; `u64::MAX` removes it.
    pub(crate) fn set_visible_limit(&self, limit: u64) -> Result<(), StoreError> {
        self.dispatcher.set_limit(limit).map_err(|reached| {
            bad_offset(format!(
                "readers can already see the log up to {reached}, so the limit cannot be {limit}"
            ))
        })?;
        self.signals.log_grew();
        Ok(())
    }

    /// Checks that a record, a filler or a segment starts at log offset `offset`, or that the log ends there.
    fn check_record_border(&self, offset: u64) -> Result<(), StoreError> {
        let end = self.log.make_readable()?;
        let list = self.log.list();
        if offset == end || (offset < end && starts_something(&list, offset, end)) {
            return Ok(());
        }
        if offset > end {
            return Err(bad_offset(format!("{offset} is after the end of the log at {end}")));
        }
        Err(bad_offset(format!("no record starts at log offset {offset}")))
    }
}

fn bad_offset(reason: String) -> StoreError {
    StoreError::InvalidOption { option: "confirm_offset", reason }
}

fn starts_something(list: &Arc<SegmentList>, offset: u64, end: u64) -> bool {
    if list.find(offset).is_some_and(|segment| segment.base_offset() == offset) {
        return true;
    }
    let mut scanner = LogScanner::new(Arc::clone(list), offset, end, ScanChecks { crc: true });
    matches!(scanner.next_item(), Ok(ScanItem::Record(_) | ScanItem::Filler { .. }))
}
