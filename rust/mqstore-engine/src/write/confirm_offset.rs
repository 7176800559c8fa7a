//! The confirmed offset: the log offset from which on records are hidden until another machine has them.

use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::options::Visibility;
use mqstore_log::commit_log::{LogScanner, ScanChecks, ScanItem, SegmentList};

use crate::engine::Engine;
use crate::read::view::View;

impl Engine {
    /// See [`crate::Store::set_confirm_offset`].
    pub(crate) fn set_confirm_offset(&self, offset: Option<u64>) -> Result<(), StoreError> {
        self.check()?;
        if self.options.visibility == Visibility::Confirmed {
            let reason = "with visibility=\"confirmed\", the replicas move it".to_owned();
            return Err(StoreError::Refused { reason });
        }
        if let Some(offset) = offset {
            self.check_record_border(offset)?;
        }
        self.set_visible_limit(offset.unwrap_or(u64::MAX))
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
