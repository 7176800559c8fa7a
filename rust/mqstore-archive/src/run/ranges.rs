//! The records of the log, range by range.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;
use mqstore_arrow::BufferPool;
use mqstore_base::error::StoreError;
use mqstore_base::options::DamagePolicy;
use mqstore_engine::{MakeSink, Scan, ScanOutput, ScanPlan, ScanRequest, Store};

use crate::records::{ArchiveBuilder, LogRange};

/// The longest time between two calls of the function that can end the work.
pub(super) const SLICE: Duration = Duration::from_millis(50);

/// Returns the request for the records of the log between two log offsets, with those of deleted topics. Bytes that are
/// in no row are fillers, placeholders of a repair, damaged records, and records with an invalid topic.
pub fn records_of_log(start: u64, end: u64, threads: u32) -> ScanRequest {
    ScanRequest {
        from: Some(start),
        to: Some(end),
        on_damage: DamagePolicy::Skip,
        with_deleted: true,
        threads,
        plan: ScanPlan::Log,
        ..ScanRequest::default()
    }
}

/// One pass over a part of the log.
pub(super) struct LogRanges<'a> {
    scan: Scan<ArchiveBuilder>,
    /// Only records of these topics; `None` is all.
    topics: Option<&'a [String]>,
    /// Log offset after the last batch.
    position: u64,
    end: u64,
    /// The first batch of the next range, and the log offset after it.
    waiting: Option<(RecordBatch, u64)>,
    is_over: bool,
}

impl<'a> LogRanges<'a> {
    pub(super) fn new(
        store: &Store,
        (start, end): (u64, u64),
        topics: Option<&'a [String]>,
    ) -> Result<Self, StoreError> {
        let pool = Arc::<BufferPool>::default();
        let make: MakeSink<ArchiveBuilder> = Arc::new(move || ArchiveBuilder::new(&pool));
        let scan = store.scan(&records_of_log(start, end, 1), make)?;
        Ok(Self { scan, topics, position: start, end, waiting: None, is_over: false })
    }

    /// Returns the records of the next range, which ends after about `range_bytes` of columns; `None` at the end. Only a
    /// single range has no records.
    pub(super) fn next(
        &mut self,
        range_bytes: usize,
        carry_on: &mut dyn FnMut() -> Result<(), StoreError>,
    ) -> Result<Option<LogRange>, StoreError> {
        if self.is_over {
            return Ok(None);
        }
        let mut range = LogRange::new(self.position);
        let mut held = 0;
        let topics = self.topics;
        let is_wanted = |topic: &str| topics.is_none_or(|topics| topics.iter().any(|one| one == topic));
        loop {
            let Some((rows, end)) = self.next_batch(carry_on)? else {
                self.is_over = true;
                range.finish(self.end);
                return Ok(Some(range));
            };
            let has_wanted = LogRange::has_wanted(&rows, is_wanted);
            if held >= range_bytes && has_wanted {
                self.waiting = Some((rows, end));
                range.finish(self.position);
                return Ok(Some(range));
            }
            self.position = end;
            if has_wanted {
                held += rows.get_array_memory_size();
                range.add(rows, is_wanted).map_err(|error| bug(&error))?;
            }
        }
    }

    fn next_batch(
        &mut self,
        carry_on: &mut dyn FnMut() -> Result<(), StoreError>,
    ) -> Result<Option<(RecordBatch, u64)>, StoreError> {
        if let Some(waiting) = self.waiting.take() {
            return Ok(Some(waiting));
        }
        loop {
            match self.scan.next(SLICE)? {
                ScanOutput::Batch(batch) => {
                    let rows = batch.rows.map_err(|error| bug(&error))?;
                    return Ok(Some((rows, batch.end)));
                }
                ScanOutput::Later => carry_on()?,
                ScanOutput::End => return Ok(None),
            }
        }
    }
}

fn bug(error: &dyn std::fmt::Display) -> StoreError {
    StoreError::corrupt("commitlog".as_ref(), 0, error.to_string())
}
