//! Expiry and the confirmed offset of an open store.

use std::sync::Arc;

use super::{OpenSide, Store};
use crate::retention::{ExpireReport, preview_of};
use crate::write::writer::Writer;
use mqstore_base::error::StoreError;
use mqstore_log::commit_log::{LogScanner, ScanChecks, ScanItem, SegmentList};

impl Store {
    /// Removes the segments that are due by the options `retention`, `retention_bytes` and `disk_force_ratio`, at any
    /// hour of the day. With `dry_run` it reports them and changes nothing; this also works for a store open for
    /// reading. Without a retention no segment is due.
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
                preview_of(&self.inner.files, reader.options(), end)
            }
            _ => {
                let writer = self.writer("expire")?;
                let report = writer.cleaner.expire(dry_run, carry_on);
                if !writer.cleaner.held_files().is_empty() {
                    writer.signals.want_expiry_round();
                }
                report
            }
        }
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
