//! A scan that begins before the log, and continues in it.
//!
//! If retention deletes a part of the log before the scan reads it, the scan gets it from before the log, without the rows
//! that it has returned.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::log_scan::{LogScan, ScanOutput, scan_log};
use super::task::Passed;
use super::workers::{MakeSink, ScanBatch, ScanSink};
use crate::read::older::OlderRows;
use crate::read::scan_request::ScanRequest;
use crate::read::view::StoreView;
use mqstore_base::error::StoreError;

/// A running scan; see the header of this module, and [`ScanRequest::with_older`].
pub struct Scan<S: ScanSink> {
    view: StoreView,
    request: ScanRequest,
    make: MakeSink<S>,
    older: Option<OlderPart<S::Batch>>,
    /// The scan of the log, if it has begun.
    log: Option<LogScan<S>>,
    /// Whether the scan continues before the log if a part of the log is deleted.
    continues: bool,
    start: u64,
    position: u64,
    limit: u64,
}

/// The rows before the log.
struct OlderPart<B> {
    rows: Box<dyn OlderRows>,
    /// The log offset at which they end.
    end: u64,
    ready: VecDeque<B>,
}

/// Starts a scan; `make` returns the sink that builds batches of rows.
///
/// # Errors
/// [`StoreError::TopicNotFound`]; the messages before the log cannot be read.
pub(crate) fn scan<S: ScanSink>(
    view: &StoreView,
    request: &ScanRequest,
    make: MakeSink<S>,
) -> Result<Scan<S>, StoreError> {
    let names_compacted = || request.topics.iter().flatten().any(|topic| view.keeps_newest(topic));
    let continues = request.with_older && view.continues() && !names_compacted();
    let mut request = request.clone();
    request.expects_deletion |= continues;
    let position = request.from.unwrap_or(0);
    let mut scan = Scan {
        view: view.clone(),
        request,
        make,
        older: None,
        log: None,
        continues,
        start: 0,
        position,
        limit: 0,
    };
    if continues {
        // Later rows are appended after the begin of the scan.
        let end = view.catch_up()?;
        scan.request.to = Some(scan.request.to.map_or(end, |to| to.min(end)));
        scan.limit = end;
        scan.begin_older()?;
    }
    if scan.older.is_none() {
        scan.begin_log()?;
    }
    if let Some(log) = &scan.log {
        (scan.start, scan.position, scan.limit) = (log.start(), log.position(), log.limit());
    }
    Ok(scan)
}

impl<S: ScanSink> Scan<S> {
    /// Returns the log offset at which the scan began.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns the position of the scan: all rows before this log offset are returned.
    pub fn position(&self) -> u64 {
        self.log.as_ref().map_or(self.position, LogScan::position)
    }

    /// Returns the log offset at which the scan ends.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Whether the scan follows queue units; else it walks the log.
    pub fn follows_entries(&self) -> bool {
        self.log.as_ref().is_some_and(LogScan::follows_entries)
    }

    /// Returns the skipped ranges so far, and each unit that pointed to a wrong record.
    pub fn passed(&self) -> Vec<(Passed, String)> {
        self.log.as_ref().map(LogScan::passed).unwrap_or_default()
    }

    /// Returns the next result; waits for it for about `timeout`, or until a file before the log is read.
    ///
    /// # Errors
    /// [`StoreError::Closed`] if the store was closed meanwhile; I/O errors.
    pub fn next(&mut self, timeout: Duration) -> Result<ScanOutput<S::Batch>, StoreError> {
        loop {
            if let Some(rows) = self.next_older()? {
                return Ok(ScanOutput::Batch(ScanBatch { rows, end: self.position }));
            }
            if self.log.is_none() {
                self.begin_log()?;
            }
            let Some(log) = &mut self.log else { continue };
            let found = log.next(timeout)?;
            if self.continues && log.has_lost() && self.begin_older()? {
                // Rows before these were deleted before they were read.
                self.log = None;
                continue;
            }
            if let ScanOutput::Batch(batch) = &found {
                self.position = self.position.max(batch.end);
            }
            return Ok(found);
        }
    }

    /// Begins to scan the log at the position of the scan; or what is before the log, if the log begins later.
    fn begin_log(&mut self) -> Result<(), StoreError> {
        let from = Some(self.position).filter(|position| *position > 0);
        let request = ScanRequest { from: from.or(self.request.from), ..self.request.clone() };
        let log = scan_log(&self.view, &request, Arc::clone(&self.make))?;
        let starts = log.start().max(self.view.log_start());
        if !(self.continues && starts > self.position && self.begin_older()?) {
            self.log = Some(log);
        }
        Ok(())
    }

    /// Begins to scan what is before the log and after the position of the scan. Returns whether there is any.
    fn begin_older(&mut self) -> Result<bool, StoreError> {
        let Some(older) = self.view.older()? else { return Ok(false) };
        let end = older.log_start;
        let range = self.position..end.min(self.request.to.unwrap_or(end));
        if range.is_empty() {
            return Ok(false);
        }
        let rows = older.messages.scan(&older.floors, &self.request, range)?;
        self.older = Some(OlderPart { rows, end, ready: VecDeque::new() });
        Ok(true)
    }

    /// Returns the next rows from before the log; `None` if there are no more.
    fn next_older(&mut self) -> Result<Option<S::Batch>, StoreError> {
        while let Some(part) = &mut self.older {
            if let Some(rows) = part.ready.pop_front() {
                return Ok(Some(rows));
            }
            self.view.check()?;
            let (mut sink, ready) = ((self.make)(), &mut part.ready);
            let goes_on = part.rows.next_rows(&mut |row| {
                if !sink.has_room(row) {
                    ready.extend(sink.take().map(|(rows, _)| rows));
                }
                sink.add(row);
            });
            for text in part.rows.take_warnings() {
                self.view.note(text);
            }
            if goes_on? {
                part.ready.extend(sink.take().map(|(rows, _)| rows));
                continue;
            }
            self.position = part.end;
            self.older = None;
            // Retention can have deleted the next segments of the log meanwhile.
            self.view.catch_up()?;
            self.begin_older()?;
        }
        Ok(None)
    }
}
