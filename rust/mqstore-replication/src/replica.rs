//! The replica's end of a connection: bytes and times in, bytes out, without sockets, threads and clocks.
//!
//! ```text
//! connect ── default ─────────────────────────► report ─► bodies, each followed by a report
//!        └── autoswitch ─► handshake ─► truncate ─► report ─► ...
//! ```
//!
//! The protocol mqstore is autoswitch, and metadata between the bodies: they wait until the copy has the log for them.
//!
//! The first report is the place from which the master sends. A copy that has records reports the begin of its last
//! one: the master sends this record again, and a copy of another log is recognized by it. This needs no other request,
//! works in both protocols, and costs the bytes of one record.
//!
//! Source: `DefaultHAClient`, `AutoSwitchHAClient`.

use mqstore_base::options::StoreOptions;
use mqstore_format::{Peek, RecordView, peek};

use crate::epochs::Epoch;
use crate::log::{LogState, ReplicaError, ReplicaLog};
use crate::records::RecordStream;
use crate::standby::{MOST_BYTES, StandbyMetadata};
use crate::wire::{self, Header, MasterTerms, Protocol};

/// Maximum time between two reports: a master closes a connection that is silent for 20 seconds.
const REPORT_INTERVAL_MS: i64 = 5_000;
/// Time without a byte after which a connection counts as lost.
const SILENCE_MS: i64 = 20_000;
/// Time with heartbeats only after which the master is known to have no bytes at a place.
const NOTHING_MS: i64 = 12_000;

/// Where an empty copy begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// The oldest segment of the master, which begins at this log offset, if it is known.
    Oldest(Option<u64>),
    /// The last segment of the master.
    LastSegment,
}

/// The options of a replica.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaOptions {
    /// The protocol of the master.
    pub protocol: Protocol,
    /// The id of this broker, for a master that asks for it; `None` takes the number of the copy.
    pub broker_id: Option<u64>,
    /// Whether no append of a master waits for this copy, if the protocol has such copies.
    pub is_learner: bool,
    /// Where an empty copy begins.
    pub begin: Begin,
}

/// How far the copy is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaProgress {
    /// End of the copy.
    pub end: u64,
    /// End of the master's log, as far as the master has told it.
    pub master_end: u64,
    /// Whether the copy has been compared with the master's log, and continues it.
    pub is_following: bool,
    /// The last epoch.
    pub epoch: Option<i32>,
    /// The kept metadata have every change that came before the master's log had this end, if the protocol has them.
    pub metadata_end: Option<u64>,
}

/// The metadata that a master sends.
#[derive(Debug, Default)]
struct MetadataStream {
    /// Bytes of the current part that are missing, and whether it is the last part.
    left: usize,
    is_last: bool,
    received: Vec<u8>,
    /// Complete metadata, until the copy has the log for them.
    waiting: Option<StandbyMetadata>,
    /// The last ones have every change that came before the master's log had this end.
    as_of: u64,
    /// The same for those that are kept.
    kept: Option<u64>,
}

/// One connection to a master. See the header of this module.
#[derive(Debug)]
pub struct Replica {
    options: ReplicaOptions,
    /// The log when the connection began, or after a truncation, and its epochs until now.
    log: LogState,
    /// Bytes of an incomplete header or handshake.
    input: Vec<u8>,
    /// Bytes of the current body that are missing.
    body_left: usize,
    /// Log offset of the next byte from the master; `None` before its first frame.
    next: Option<u64>,
    /// The bytes of the master at the last record of the copy, until all of them are there.
    seen: Option<Vec<u8>>,
    records: Option<RecordStream>,
    confirmed: Option<u64>,
    metadata: MetadataStream,
    wants_durable_acks: bool,
    master_end: u64,
    reported: Option<u64>,
    /// Whether the master sends the log from offset 1 on, although offset 0 is the next one.
    skips_first: bool,
    is_greeted: bool,
    sent_ms: i64,
    heard_ms: i64,
    /// The last time at which a byte of the log arrived.
    grew_ms: i64,
    output: Vec<u8>,
}

impl Replica {
    /// Begins a connection; [`Self::take_output`] has its first bytes.
    ///
    /// # Errors
    /// Those of [`ReplicaLog::state`].
    pub fn new(options: ReplicaOptions, log: &dyn ReplicaLog, now_ms: i64) -> Result<Self, ReplicaError> {
        let state = log.state()?;
        let mut replica = Self {
            options,
            log: state,
            input: Vec::new(),
            body_left: 0,
            next: None,
            seen: None,
            records: None,
            confirmed: None,
            metadata: MetadataStream::default(),
            wants_durable_acks: false,
            master_end: 0,
            reported: None,
            skips_first: false,
            is_greeted: options.protocol == Protocol::Default,
            sent_ms: now_ms,
            heard_ms: now_ms,
            grew_ms: now_ms,
            output: Vec::new(),
        };
        match options.protocol {
            Protocol::Default => replica.request(now_ms),
            Protocol::AutoSwitch | Protocol::Own => {
                let only_last = replica.log.is_empty && options.begin == Begin::LastSegment;
                let id = options.broker_id.unwrap_or(replica.log.copy_id);
                options.protocol.handshake(only_last, options.is_learner, id, &mut replica.output);
            }
        }
        Ok(replica)
    }

    /// Returns the bytes to send.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Returns how far the copy is.
    pub fn progress(&self) -> ReplicaProgress {
        let end = self.records.as_ref().map_or(self.log.end, RecordStream::position);
        ReplicaProgress {
            end,
            master_end: self.master_end.max(self.next.unwrap_or(0)).max(end),
            is_following: self.is_following(),
            epoch: self.log.epochs.epochs().last().map(|epoch| epoch.number),
            metadata_end: self.metadata.kept,
        }
    }

    /// Whether the master counts only what is on the disk of this copy.
    pub fn wants_durable_acks(&self) -> bool {
        self.wants_durable_acks
    }

    /// Handles bytes from the master.
    ///
    /// # Errors
    /// See [`ReplicaError`]. The connection is over then.
    pub fn receive(
        &mut self,
        mut bytes: &[u8],
        log: &mut dyn ReplicaLog,
        now_ms: i64,
    ) -> Result<(), ReplicaError> {
        self.heard_ms = now_ms;
        while !bytes.is_empty() {
            if self.body_left > 0 {
                let (body, rest) = bytes.split_at(self.body_left.min(bytes.len()));
                self.body_left -= body.len();
                self.grew_ms = now_ms;
                self.take_body(body)?;
                bytes = rest;
                continue;
            }
            if self.metadata.left > 0 {
                let (part, rest) = bytes.split_at(self.metadata.left.min(bytes.len()));
                self.metadata.take(part)?;
                bytes = rest;
                continue;
            }
            // A header is short: byte by byte, so that nothing after it is copied.
            let (first, rest) = bytes.split_at(1);
            self.input.extend_from_slice(first);
            bytes = rest;
            self.take_header(log, now_ms)?;
        }
        self.append_records(log)?;
        self.keep_metadata(log)
    }

    /// Reports the end of the copy, if it is another one than the last time, or if it is time for a sign of life.
    ///
    /// # Errors
    /// The master is silent, or has nothing at the end of the copy.
    pub fn report(&mut self, now_ms: i64) -> Result<(), ReplicaError> {
        if now_ms.saturating_sub(self.heard_ms) >= SILENCE_MS {
            return Err(ReplicaError::Protocol(format!("it sent nothing for {} s", SILENCE_MS / 1000)));
        }
        if self.is_sure_of_bytes() && now_ms.saturating_sub(self.grew_ms) >= NOTHING_MS {
            return Err(self.nothing_there());
        }
        let end = self.progress().end;
        let is_new = self.is_following() && self.reported != Some(end);
        if self.is_greeted && (is_new || now_ms.saturating_sub(self.sent_ms) >= REPORT_INTERVAL_MS) {
            // Before the master's bytes are compared, nothing of this log counts as its copy.
            let end = if self.is_following() { end } else { self.reported.unwrap_or(0) };
            self.say(end, now_ms);
        }
        Ok(())
    }

    /// Whether the master must have bytes at the place from which it sends, and has sent none of them.
    fn is_sure_of_bytes(&self) -> bool {
        let is_guess = self.skips_first && self.options.begin == Begin::Oldest(None);
        self.is_greeted && !self.is_following() && (self.seen.is_some() || is_guess)
    }

    fn is_following(&self) -> bool {
        // Only a master of ours tells that its log has nothing, too.
        let has_nothing = self.options.protocol == Protocol::Own && self.is_greeted && self.log.is_empty;
        self.seen.is_none() && (self.records.is_some() || has_nothing)
    }

    fn say(&mut self, end: u64, now_ms: i64) {
        self.options.protocol.report(end, &mut self.output);
        (self.reported, self.sent_ms) = (Some(end), now_ms);
    }

    /// Sends the first report, which is a request for the log from there on.
    fn request(&mut self, now_ms: i64) {
        let is_default = self.options.protocol == Protocol::Default;
        let (request, next) = match (&self.log, self.options.begin) {
            (LogState { is_empty: false, end, last, .. }, _) => {
                let from = last.as_ref().map_or(*end, |(offset, _)| *offset);
                (from, Some(from))
            }
            (_, Begin::Oldest(min)) if is_default => (min.unwrap_or(0), Some(min.unwrap_or(0))),
            // 0 asks a master in controller mode for its oldest segment, or for the last one after such a handshake, and
            // another one for its last segment.
            _ => (0, None),
        };
        if let Some(next) = next {
            self.seen = self.log.last.as_ref().map(|_| Vec::new());
            if !self.log.is_empty {
                self.records = Some(RecordStream::new(self.log.end, self.log.segment_bytes));
            }
            self.next = Some(next);
        }
        // The default protocol cannot ask for offset 0. The first byte of a log is that of a length below 16 MiB.
        self.skips_first = is_default && next == Some(0);
        self.say(if self.skips_first { 1 } else { request }, now_ms);
    }

    fn take_header(&mut self, log: &mut dyn ReplicaLog, now_ms: i64) -> Result<(), ReplicaError> {
        let parsed = self.options.protocol.header(&self.input).map_err(ReplicaError::Protocol)?;
        let Some((header, header_bytes)) = parsed else { return Ok(()) };
        match header {
            Header::Handshake { body_bytes, log_end, terms } => {
                let Some(body) = self.input.get(header_bytes..header_bytes + body_bytes as usize) else {
                    return Ok(());
                };
                let epochs = wire::epochs(body);
                self.input.clear();
                self.greet(&epochs, log_end, log)?;
                if let Some(terms) = terms {
                    self.accept(terms, log)?;
                }
                self.request(now_ms);
                Ok(())
            }
            _ if !self.is_greeted => {
                Err(ReplicaError::Protocol("it sent the log before its epochs".to_owned()))
            }
            Header::Metadata { body_bytes, as_of, is_last } => {
                self.input.clear();
                self.metadata.begin(body_bytes as usize, as_of, is_last)
            }
            Header::Transfer { body_bytes, offset, epoch, confirmed, log_end } => {
                self.input.clear();
                self.begin_body(body_bytes as usize, offset, log)?;
                self.confirmed = confirmed;
                self.master_end = self.master_end.max(log_end.unwrap_or(0));
                match epoch {
                    Some(epoch) => self.note_epoch(epoch, log),
                    None => Ok(()),
                }
            }
        }
    }

    /// Takes the epochs of the master: truncates the copy to the part that both have.
    fn greet(
        &mut self,
        epochs: &[Epoch],
        log_end: u64,
        log: &mut dyn ReplicaLog,
    ) -> Result<(), ReplicaError> {
        if self.is_greeted {
            return Err(ReplicaError::Protocol("it sent its epochs twice".to_owned()));
        }
        self.master_end = log_end;
        let end = self.log.end;
        // A log without a record is equal to each.
        if self.log.last.is_some() && !self.log.epochs.epochs().is_empty() {
            let common = self.log.epochs.consistent_end(end, epochs, log_end).ok_or_else(|| {
                let reason = "no epoch of the master begins where one of this log begins: copy the log again, with \
                              full_copy=True (--full-copy)";
                ReplicaError::Diverged { at: end, reason: reason.to_owned() }
            })?;
            if common < self.log.start {
                let reason = "both logs agree only before the first segment of the copy: copy the log again, with \
                              full_copy=True (--full-copy)";
                return Err(ReplicaError::Diverged { at: common, reason: reason.to_owned() });
            }
            if common < end {
                log.truncate(common)?;
                self.log = log.state()?;
            }
        }
        if self.log.epochs.truncate(self.log.end) {
            log.save_epochs(&self.log.epochs)?;
        }
        self.is_greeted = true;
        Ok(())
    }

    /// Takes what a master of ours says about itself.
    fn accept(&mut self, terms: MasterTerms, log: &mut dyn ReplicaLog) -> Result<(), ReplicaError> {
        self.wants_durable_acks = terms.wants_durable_acks;
        let (own, segment_bytes) = (self.log.segment_bytes, terms.segment_bytes);
        if own == segment_bytes {
            return Ok(());
        }
        if !StoreOptions::SEGMENT_BYTES.contains(&segment_bytes) {
            return Err(ReplicaError::Protocol(format!("its segments have {segment_bytes} bytes")));
        }
        if !self.log.is_empty {
            let reason =
                format!("the segments of the copy have {own} bytes, those of the master {segment_bytes}");
            return Err(ReplicaError::Diverged { at: self.log.end, reason });
        }
        log.use_segments(segment_bytes)?;
        self.log = log.state()?;
        Ok(())
    }

    /// Keeps the metadata for which the copy has the log.
    fn keep_metadata(&mut self, log: &mut dyn ReplicaLog) -> Result<(), ReplicaError> {
        let end = self.progress().end;
        let is_ready = |metadata: &mut StandbyMetadata| metadata.log_end() <= end;
        if self.seen.is_none()
            && let Some(metadata) = self.metadata.waiting.take_if(is_ready)
        {
            log.keep_metadata(&metadata)?;
            self.metadata.kept = Some(0);
        }
        // Newer ones can be on their way.
        let is_newest = self.metadata.left == 0 && self.metadata.received.is_empty();
        if is_newest && self.metadata.waiting.is_none() {
            let as_of = self.metadata.as_of.min(end);
            self.metadata.kept = self.metadata.kept.map(|kept| kept.max(as_of));
        }
        Ok(())
    }

    /// Checks the place of a body, and begins an empty log there.
    fn begin_body(
        &mut self,
        bytes: usize,
        offset: u64,
        log: &mut dyn ReplicaLog,
    ) -> Result<(), ReplicaError> {
        let next = if self.skips_first { Some(1) } else { self.next };
        if next.is_some_and(|next| next != offset) {
            let next = next.unwrap_or(0);
            return Err(ReplicaError::Protocol(format!("it sent log offset {offset}, not {next}")));
        }
        if bytes == 0 {
            return Ok(());
        }
        if self.records.is_none() {
            let base = if self.skips_first { 0 } else { offset };
            if base % self.log.segment_bytes != 0 {
                let segment_bytes = self.log.segment_bytes;
                let reason = format!(
                    "no segment of {segment_bytes} bytes begins there: give segment_size the value of the \
                     master's mappedFileSizeCommitLog"
                );
                return Err(ReplicaError::Diverged { at: base, reason });
            }
            log.begin(base)?;
            self.log.is_empty = false;
            self.records = Some(RecordStream::new(base, self.log.segment_bytes));
        }
        if std::mem::take(&mut self.skips_first) {
            self.take_body(&[0])?;
        }
        self.next = Some(offset);
        self.body_left = bytes;
        Ok(())
    }

    fn note_epoch(&mut self, epoch: Epoch, log: &mut dyn ReplicaLog) -> Result<(), ReplicaError> {
        if self.log.epochs.note(epoch) {
            log.save_epochs(&self.log.epochs)?;
        }
        Ok(())
    }

    fn take_body(&mut self, body: &[u8]) -> Result<(), ReplicaError> {
        let at = self.next.unwrap_or(0);
        self.next = Some(at + body.len() as u64);
        let body = self.compare(at, body)?;
        if let Some(records) = self.records.as_mut().filter(|_| self.seen.is_none()) {
            records.push(body);
        }
        Ok(())
    }

    /// Appends the records that have arrived, and shows readers those that the master has confirmed.
    fn append_records(&mut self, log: &mut dyn ReplicaLog) -> Result<(), ReplicaError> {
        let Some(records) = self.records.as_mut().filter(|_| self.seen.is_none()) else { return Ok(()) };
        records.append_to(log)?;
        if let Some(confirmed) = self.confirmed {
            log.confirm(confirmed.min(records.position()))?;
        }
        Ok(())
    }

    /// Compares the master's bytes from the last record of the copy on with this record. Returns those after the copy.
    fn compare<'a>(&mut self, at: u64, body: &'a [u8]) -> Result<&'a [u8], ReplicaError> {
        let (Some(seen), Some((offset, own))) = (&mut self.seen, &self.log.last) else { return Ok(body) };
        let end = self.log.end;
        let known = usize::try_from(end - at).unwrap_or(usize::MAX).min(body.len());
        let (old, new) = body.split_at(known);
        // A filler can follow the record.
        seen.extend_from_slice(
            old.get(..own.len().saturating_sub(seen.len()).min(old.len())).unwrap_or_default(),
        );
        if seen.len() == own.len() {
            differs(seen, own).map_or(Ok(()), |reason| {
                Err(ReplicaError::Diverged { at: *offset, reason: reason.to_owned() })
            })?;
        }
        if at + known as u64 == end {
            self.seen = None;
        }
        Ok(new)
    }

    /// The master has nothing where the copy ends, or where it is to begin.
    fn nothing_there(&self) -> ReplicaError {
        let at = self.next.unwrap_or(0);
        let reason = if self.log.is_empty {
            "the master sends nothing from its begin on: its oldest segments are deleted, or its log is empty; \
             give metadata= (--metadata HOST:PORT), so that its first offset is known"
        } else {
            "the master sends nothing from there on: its log ends before, or it has deleted this part"
        };
        ReplicaError::Diverged { at, reason: reason.to_owned() }
    }
}

impl MetadataStream {
    fn begin(&mut self, bytes: usize, as_of: u64, is_last: bool) -> Result<(), ReplicaError> {
        self.as_of = as_of;
        if bytes == 0 && self.received.is_empty() {
            return Ok(());
        }
        if self.received.len() + bytes > 2 * MOST_BYTES {
            return Err(ReplicaError::Protocol(format!("its metadata have more than {MOST_BYTES} bytes")));
        }
        (self.left, self.is_last) = (bytes, is_last);
        self.take(&[])
    }

    fn take(&mut self, part: &[u8]) -> Result<(), ReplicaError> {
        self.received.extend_from_slice(part);
        self.left -= part.len();
        if self.left == 0 && self.is_last {
            let received = std::mem::take(&mut self.received);
            self.is_last = false;
            self.waiting = Some(StandbyMetadata::parse(received).map_err(ReplicaError::Protocol)?);
        }
        Ok(())
    }
}

/// Returns what is different at the master, if its record is another one. A record that a reclaim has hidden is none.
fn differs(seen: &[u8], own: &[u8]) -> Option<&'static str> {
    let reclaimed = "a reclaim of the master has replaced the records around it while the copy was behind: copy the \
                     log again, with full_copy=True (--full-copy)";
    if seen == own {
        return None;
    }
    match peek(seen) {
        Ok(Peek::Record { size, .. }) if size as usize == own.len() => match RecordView::decode(seen) {
            Ok(record) if record.replaces_hidden() => None,
            _ => Some("the master has another record there"),
        },
        Ok(Peek::Record { size, .. }) if size as usize > own.len() => Some(reclaimed),
        // The inside of a placeholder.
        Ok(Peek::Zero) if seen.iter().all(|byte| *byte == 0) => Some(reclaimed),
        _ => Some("the master has another record there"),
    }
}
