//! The copy of messages to another store, in one or two passes, and its state, from which a later call resumes.
//!
//! ```text
//! NAME                   old and new position of each message, as JSON lines
//! NAME.partial.state     {"digest": "...", "position": 4711, "bytes": 99, "messages": 3, "reasons": {}, "target": 815,
//!                         "made": [], "renumbered": 0, "keeps": true, "waiting": false}
//! NAME.partial.rules     the rules of the copy: what it contains
//! ```
//!
//! - `position`: log offset of the source at which the copy resumes.
//! - `bytes`: length of the partial file for this position; a resumed copy truncates the rest.
//! - `target`: end of the target's log at this position. The messages after it in the target are those that were appended
//!   after the state was written, in their order, and those that the target delivered.
//! - `made`: topics that the copy created in the target.
//! - `keeps`: whether messages keep their queue offsets. Then there are two passes, because the delivery of a message
//!   that waits takes an offset: `waiting` says that the second one, of these messages, has begun.
//! - `renumbered`: number of messages so far with another queue offset than in the source.
//!
//! The target is durable up to `target` before the state is. So after a crash at any time, each message that is in the
//! target is either counted by the state or found after `target`. A copy that ended with an error cannot continue; the
//! next one resumes. A call at a time, with a lock of the caller.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mqstore_base::error::{IoContext, StoreError};
use mqstore_delivery::{Broker, BrokerError, ExportRules, ExportSelection, Omission};
use mqstore_engine::{ScanBatch, ScanRequest, Store};
use mqstore_format::Host;
use mqstore_io::{Vfs, switch};
use mqstore_results::partial::{PartialFile, stored_rules};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::pass::{CopyPart, CopyPass};
use crate::record_copy::{LogRecord, RawRecords};

/// Bytes and time between two writes of the state.
const STATE_BYTES: u64 = 64 << 20;
const STATE_TIME: Duration = Duration::from_secs(5);

/// Bytes of messages for each byte of their positions, roughly.
const BYTES_PER_POSITION_BYTE: u64 = 8;

const WRITING: &str = "writing the positions of a copy";

/// The two stores of a copy, as its caller has them open.
pub trait CopyStores {
    /// An error of one of them.
    type Error;

    /// Runs a step on the source and the target.
    fn run<T: Send>(
        &self,
        step: impl FnOnce(&Store, &Broker) -> Result<T, BrokerError> + Send,
    ) -> Result<T, Self::Error>;

    /// Begins to scan the source, instead of an earlier scan. Returns the log offsets of its begin and end.
    fn begin_scan(&mut self, request: &ScanRequest) -> Result<Range<u64>, Self::Error>;

    /// Returns the next records of the scan; `None` at its end.
    fn next_scanned(&mut self) -> Result<Option<ScanBatch<RawRecords>>, Self::Error>;

    /// Whether records were deleted from the log before the scan read them.
    fn has_deleted(&self) -> bool;

    /// Whether an archive has the records from before the log.
    fn has_older(&self) -> bool;

    /// Begins to read records of these topics from the archive, those of a range of the log.
    fn begin_older(&mut self, topics: &[String], range: Range<u64>) -> Result<(), Self::Error>;

    /// Returns the next records from the archive; `None` at their end.
    fn next_older(&mut self) -> Result<Option<Vec<LogRecord>>, Self::Error>;
}

/// What a copy contains, and how.
pub struct CopyOrder {
    /// The selection of messages, with the log offset at which the copy begins.
    pub request: ScanRequest,
    /// The rules of the copy. They say where it ends.
    pub rules: Arc<ExportRules>,
    /// Whether messages keep their queue offsets.
    pub keeps: bool,
    /// Topics that the copy has created in the target.
    pub made: Vec<String>,
    /// The host in message ids of the target.
    pub host: Host,
}

/// The state of a copy, as it is stored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct CopyState {
    position: Option<u64>,
    messages: u64,
    reasons: BTreeMap<String, u64>,
    target: u64,
    made: Vec<String>,
    #[serde(default)]
    renumbered: u64,
    #[serde(default)]
    keeps: bool,
    #[serde(default)]
    waiting: bool,
}

/// What the next step of a copy does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing: [`StoreCopy::begin`] comes first, or a step has failed.
    Idle,
    /// Begins a scan.
    Scan,
    /// Copies records of the archive from before the log.
    Older,
    /// Copies records of the log.
    Log,
    /// Nothing: all is copied.
    Done,
}

/// The log offset up to which a pass is done, and its end, both counted from the begin of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyProgress {
    /// Bytes of the log that are done.
    pub done: u64,
    /// All bytes of the pass.
    pub total: u64,
}

/// A copy in progress; see the header of this module.
pub struct StoreCopy {
    mapping: PathBuf,
    file: PartialFile,
    state: CopyState,
    /// The rules of an interrupted call, if this one resumes it.
    resumed: Option<Arc<ExportRules>>,
    order: Option<CopyOrder>,
    phase: Phase,
    part: CopyPart,
    pass: CopyPass,
    refused: BTreeSet<String>,
    /// The log offset of the source up to which this pass is done; `None` at its begin.
    position: Option<u64>,
    /// Log offsets at which the scan begins and ends.
    range: Range<u64>,
    /// Bytes of the mapping since the last write of the state, and its time.
    fresh: u64,
    saved: Duration,
}

impl StoreCopy {
    /// Opens the file of positions, which gets the name `mapping` at the end. The digest is that of the arguments:
    /// an interrupted call with the same ones is resumed. `selection` is that of its rules.
    ///
    /// # Errors
    /// Those of the system; [`StoreError::Unsupported`] for a state of another version.
    pub fn open(
        vfs: &Arc<dyn Vfs>,
        mapping: &Path,
        digest: &str,
        selection: ExportSelection,
    ) -> Result<Self, StoreError> {
        let mut file = PartialFile::open(Arc::clone(vfs), mapping, digest).at(mapping, WRITING)?;
        let rules = file.left().and_then(|left| Some((left, load_rules(&**vfs, mapping, selection)?)));
        let (mut state, mut bytes, mut resumed) = (CopyState::default(), 0, None);
        if let Some((left, rules)) = rules {
            bytes = left.get("bytes").and_then(Value::as_u64).unwrap_or(0);
            let bad = |error: serde_json::Error| StoreError::Unsupported {
                path: mapping.to_path_buf(),
                reason: format!("the state of an interrupted copy to it cannot be used: {error}"),
            };
            state = serde_json::from_value(Value::Object(left)).map_err(bad)?;
            resumed = Some(Arc::new(rules));
        }
        file.resume(bytes).at(mapping, WRITING)?;
        Ok(Self {
            mapping: mapping.to_path_buf(),
            file,
            state,
            resumed,
            order: None,
            phase: Phase::Idle,
            part: CopyPart::All,
            pass: CopyPass::default(),
            refused: BTreeSet::new(),
            position: None,
            range: 0..0,
            fresh: 0,
            saved: Duration::ZERO,
        })
    }

    /// Returns the rules of the interrupted call that this one resumes.
    pub fn resumed(&self) -> Option<&Arc<ExportRules>> {
        self.resumed.as_ref()
    }

    /// Whether messages keep their queue offsets.
    pub fn keeps(&self) -> bool {
        self.state.keeps
    }

    /// Returns the topics that the copy has created in the target.
    pub fn made(&self) -> &[String] {
        &self.state.made
    }

    /// Returns the number of copied messages.
    pub fn messages(&self) -> u64 {
        self.state.messages
    }

    /// Returns the number of messages with another queue offset than in the source.
    pub fn renumbered(&self) -> u64 {
        self.state.renumbered
    }

    /// Returns the numbers of records that are left out, by reason.
    pub fn left_out(&self) -> &BTreeMap<String, u64> {
        &self.state.reasons
    }

    /// Returns the topics whose messages are left out, because the target cannot have a topic of this name.
    pub fn refused(&self) -> &BTreeSet<String> {
        &self.refused
    }

    /// Begins to copy. A resumed copy goes by its own rules, and keeps what its state says.
    ///
    /// # Errors
    /// Those of a flush of the target, and of the system.
    pub fn begin(&mut self, target: &Store, order: CopyOrder) -> Result<(), StoreError> {
        self.saved = target.clock().monotonic();
        let CopyOrder { rules, keeps, made, .. } = &order;
        if let Some(rules) = &self.resumed {
            self.position = self.state.position;
            self.order = Some(CopyOrder { rules: Arc::clone(rules), ..order });
        } else {
            (self.state.keeps, self.state.made) = (*keeps, made.clone());
            let encoded = rules.encode();
            self.order = Some(order);
            self.save(target, None, Some(&encoded))?;
        }
        self.part = match (self.state.keeps, self.state.waiting) {
            (false, _) => CopyPart::All,
            (true, false) => CopyPart::Delivered,
            (true, true) => CopyPart::Waiting,
        };
        let done = self.resumed.is_some().then_some(self.state.target);
        self.pass = CopyPass::new(self.part, target, done)?;
        self.phase = Phase::Scan;
        Ok(())
    }

    /// Copies some messages; `None` if all are copied.
    ///
    /// # Errors
    /// Those of an append, of reading the source, and of the system; [`StoreError::InvalidMessage`] if another program has
    /// appended to the target of an interrupted copy. The copy is over then.
    pub fn step<S: CopyStores>(&mut self, stores: &mut S) -> Result<Option<CopyProgress>, S::Error> {
        loop {
            // An error leaves the copy idle.
            self.phase = match mem::replace(&mut self.phase, Phase::Idle) {
                Phase::Scan => {
                    self.begin_scan(stores)?;
                    Phase::Older
                }
                Phase::Older => match stores.next_older()? {
                    Some(records) => {
                        let end = records.last().map_or(self.range.start, |(offset, _)| offset + 1);
                        stores.run(|source, target| {
                            self.copy(source, target, &RawRecords::of(&records)?, end)
                        })?;
                        self.phase = Phase::Older;
                        return Ok(Some(self.progress(end)));
                    }
                    None => Phase::Log,
                },
                Phase::Log => {
                    let scanned = stores.next_scanned()?;
                    if stores.has_older() && stores.has_deleted() {
                        // Retention deleted the next records meanwhile: the archive has them.
                        Phase::Scan
                    } else if let Some(ScanBatch { rows, end }) = scanned {
                        stores.run(|source, target| self.copy(source, target, &rows, end))?;
                        self.phase = Phase::Log;
                        return Ok(Some(self.progress(end)));
                    } else {
                        stores.run(|_, target| Ok(self.end_pass(target.store())?))?
                    }
                }
                over => {
                    self.phase = over;
                    return Ok(None);
                }
            };
        }
    }

    /// Makes the target durable, and gives the file of positions its name. Returns the length of the file.
    ///
    /// # Errors
    /// Those of a flush, and of the system; [`StoreError::Refused`] before all is copied.
    pub fn publish(&mut self, target: &Store) -> Result<u64, StoreError> {
        if self.phase != Phase::Done {
            let reason = format!("cannot publish {}: the copy is not complete", self.mapping.display());
            return Err(StoreError::Refused { reason });
        }
        switch::step("transfer.sync_target", || target.flush())?;
        self.file.publish().at(&self.mapping, WRITING)
    }

    fn begin_scan<S: CopyStores>(&mut self, stores: &mut S) -> Result<(), S::Error> {
        let Some(CopyOrder { request, rules, .. }) = &self.order else { return Ok(()) };
        let topics = match self.part {
            CopyPart::Waiting => Some(rules.waiting_topics()),
            _ => rules.topics_to_read(),
        };
        let request = ScanRequest {
            topics,
            from: self.position.or(request.from),
            to: Some(rules.limit()),
            expects_deletion: stores.has_older(),
            ..request.clone()
        };
        self.range = stores.begin_scan(&request)?;
        self.position = Some(request.from.unwrap_or(0));
        let older = request.from.unwrap_or(0)..self.range.start.min(self.range.end);
        if stores.has_older() && !older.is_empty() {
            let named = self.order.as_ref().and_then(|order| order.request.topics.as_deref());
            stores.begin_older(named.unwrap_or_default(), older)?;
        }
        Ok(())
    }

    /// Copies records, which are before log offset `end` of the source.
    fn copy(
        &mut self,
        source: &Store,
        target: &Broker,
        records: &RawRecords,
        end: u64,
    ) -> Result<(), BrokerError> {
        let Some(CopyOrder { host, rules, .. }) = &self.order else { return Ok(()) };
        let copied = self.pass.copy(source, target, (*host, rules), records)?;
        self.file.write(&copied.mapping).at(&self.mapping, WRITING)?;
        self.position = Some(end);
        self.state.messages += copied.messages;
        self.state.renumbered += if self.part == CopyPart::Waiting { 0 } else { copied.renumbered };
        for (reason, count) in Omission::ALL.iter().zip(copied.left_out.counts) {
            if count > 0 {
                *self.state.reasons.entry(reason.name().to_owned()).or_default() += count;
            }
        }
        self.fresh += copied.mapping.len() as u64;
        let is_late = target.store().clock().monotonic().saturating_sub(self.saved) >= STATE_TIME;
        if is_late || self.fresh * BYTES_PER_POSITION_BYTE >= STATE_BYTES {
            self.save(target.store(), Some(end), None)?;
        }
        Ok(())
    }

    /// Ends a pass. Returns the next phase.
    fn end_pass(&mut self, target: &Store) -> Result<Phase, StoreError> {
        self.refused.extend(self.pass.refused().iter().cloned());
        let waits = self.order.as_ref().is_some_and(|order| !order.rules.waiting_topics().is_empty());
        if self.part != CopyPart::Delivered || !waits {
            return Ok(Phase::Done);
        }
        // From here on, the target delivers messages, so that a resumed copy must not repeat the first pass.
        self.state.waiting = true;
        self.save(target, None, None)?;
        self.part = CopyPart::Waiting;
        self.pass = CopyPass::new(self.part, target, None)?;
        self.position = None;
        Ok(Phase::Scan)
    }

    /// Stores the state for a log offset of the source; `rules` are for the first state of a copy.
    fn save(
        &mut self,
        target: &Store,
        position: Option<u64>,
        rules: Option<&[u8]>,
    ) -> Result<(), StoreError> {
        switch::step("transfer.sync_copied", || target.flush())?;
        self.state.position = position;
        (_, self.state.target) = target.log().bounds()?;
        let members = serde_json::to_value(&self.state).and_then(serde_json::from_value);
        let saved = members.map_err(io::Error::from).and_then(|members| self.file.save(members, rules));
        saved.at(&self.mapping, WRITING)?;
        self.fresh = 0;
        self.saved = target.clock().monotonic();
        Ok(())
    }

    fn progress(&self, position: u64) -> CopyProgress {
        let Range { start, end } = self.range;
        // The records of the second pass are all before its end. Records of an archive are before the begin.
        let position = if self.part == CopyPart::Waiting { end } else { position };
        CopyProgress { done: position.saturating_sub(start), total: end.saturating_sub(start) }
    }
}

/// Loads the rules of an interrupted copy to `mapping`; `None` if they are not complete.
pub fn load_rules(vfs: &dyn Vfs, mapping: &Path, selection: ExportSelection) -> Option<ExportRules> {
    ExportRules::decode(&stored_rules(vfs, mapping)?, selection)
}
