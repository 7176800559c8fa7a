//! The master's end of a connection: bytes and times in, bytes out, without sockets, threads and clocks.
//!
//! ```text
//! default      first report ─────────────────────────────► bodies of the log, heartbeats
//! autoswitch   handshake ─► end and epochs ─► first report ─► bodies of the log, heartbeats
//! mqstore      handshake ─► end and epochs ─► first report ─► bodies of the log, metadata, heartbeats
//! ```
//!
//! The first bytes tell the protocol, so one port serves both. The first report is the place from which the replica
//! wants the log, and each later one acknowledges the log up to there. A replica cannot acknowledge what it was not
//! sent. A body is in one segment and in one epoch.
//!
//! Source: `DefaultHAConnection`, `AutoSwitchHAConnection`.

use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_engine::LogFeed;

use crate::epochs::{Epoch, EpochTable};
use crate::standby::{NewestMetadata, StandbyMetadata};
use crate::wire::{self, MasterTerms, Protocol, Request, Transfer};

/// Maximum time between two frames: a replica closes a connection that is silent for 20 seconds.
const HEARTBEAT_MS: i64 = 5_000;
/// Time without a report after which a connection counts as lost.
const SILENCE_MS: i64 = 20_000;
/// Bytes of requests that are kept until they are complete. A request has 16.
const MOST_INPUT_BYTES: usize = 64 << 10;

/// Why a connection to a replica ends.
#[derive(Debug, thiserror::Error)]
pub enum MasterError {
    /// The replica does not keep the protocol, or asks for a part of the log that is not there.
    #[error("{0}")]
    Replica(String),
    /// The log cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What a replica has said about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaFacts {
    /// Its protocol, once it is known.
    pub protocol: Option<Protocol>,
    /// Its broker id, if the protocol has one.
    pub broker_id: Option<u64>,
    /// Whether no append waits for it.
    pub is_learner: bool,
    /// The place from which it wanted the log.
    pub begin: Option<u64>,
    /// The end of its log, once it has acknowledged something.
    pub acked: Option<u64>,
}

/// What a master sends now.
pub struct Sent<'a> {
    /// The log.
    pub log: &'a LogFeed,
    /// Its epochs.
    pub epochs: &'a EpochTable,
    /// The log offset up to which readers may see it.
    pub confirmed: u64,
    /// The newest metadata, for a standby.
    pub metadata: Option<NewestMetadata>,
}

/// Metadata that a standby has, or gets in parts.
#[derive(Debug)]
struct SentMetadata {
    metadata: Arc<StandbyMetadata>,
    /// Sent bytes.
    at: usize,
    /// The standby knows that they have every change that came before the log had this end.
    told: u64,
}

impl SentMetadata {
    fn is_complete(&self) -> bool {
        self.at == self.metadata.bytes().len()
    }
}

/// One connection to a replica. See the header of this module.
#[derive(Debug)]
pub struct MasterSession {
    asks_durable_acks: bool,
    /// The last metadata that the standby gets, or got.
    metadata: Option<SentMetadata>,
    facts: ReplicaFacts,
    input: Vec<u8>,
    is_greeted: bool,
    only_last_file: bool,
    /// Log offset of the next byte to send; `None` before the first report.
    next: Option<u64>,
    /// The confirmed offset that the replica knows.
    told_confirmed: u64,
    sent_ms: i64,
    heard_ms: i64,
}

impl MasterSession {
    /// Begins a connection. `asks_durable_acks` asks a standby to sync before it acknowledges.
    pub fn new(asks_durable_acks: bool, now_ms: i64) -> Self {
        Self {
            asks_durable_acks,
            metadata: None,
            facts: ReplicaFacts::default(),
            input: Vec::new(),
            is_greeted: false,
            only_last_file: false,
            next: None,
            told_confirmed: 0,
            sent_ms: now_ms,
            heard_ms: now_ms,
        }
    }

    /// Returns what is known of the replica.
    pub fn facts(&self) -> ReplicaFacts {
        self.facts
    }

    /// Handles bytes from the replica. Appends an answer to `out`, if they need one.
    ///
    /// # Errors
    /// See [`MasterError`]. The connection is over then.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        log: &LogFeed,
        epochs: &EpochTable,
        now_ms: i64,
        out: &mut Vec<u8>,
    ) -> Result<(), MasterError> {
        self.heard_ms = now_ms;
        self.input.extend_from_slice(bytes);
        if self.facts.protocol.is_none() {
            self.facts.protocol = Protocol::of_replica(&self.input);
        }
        let Some(protocol) = self.facts.protocol else { return Ok(()) };
        let mut used = 0;
        while let Some((request, length)) =
            protocol.request(self.input.get(used..).unwrap_or_default()).map_err(MasterError::Replica)?
        {
            used += length;
            match request {
                Request::Handshake { only_last_file, is_learner, broker_id } => {
                    // A replica repeats its handshake until the answer is there.
                    if !std::mem::replace(&mut self.is_greeted, true) {
                        self.only_last_file = only_last_file;
                        (self.facts.is_learner, self.facts.broker_id) = (is_learner, Some(broker_id));
                        let terms = MasterTerms {
                            segment_bytes: log.segment_bytes(),
                            wants_durable_acks: self.asks_durable_acks,
                        };
                        protocol.answer(log.end(), epochs.epochs(), terms, out);
                        self.sent_ms = now_ms;
                    }
                }
                Request::Report(end) => self.take_report(end, protocol, log, epochs)?,
            }
        }
        self.input.drain(..used);
        if self.input.len() > MOST_INPUT_BYTES {
            return Err(MasterError::Replica("its request does not end".to_owned()));
        }
        Ok(())
    }

    fn take_report(
        &mut self,
        end: u64,
        protocol: Protocol,
        log: &LogFeed,
        epochs: &EpochTable,
    ) -> Result<(), MasterError> {
        if protocol.has_epochs() && !self.is_greeted {
            return Err(MasterError::Replica("it reported before its handshake".to_owned()));
        }
        let Some(next) = self.next else {
            let begin = self.begin_at(end, protocol, log, epochs)?;
            (self.next, self.facts.begin) = (Some(begin), Some(begin));
            // The epochs of both logs were compared, so this is no mere claim. Only a report of something that was sent
            // is one in the other protocol.
            if protocol.has_epochs() && end > 0 {
                self.facts.acked = Some(end);
            }
            return Ok(());
        };
        if end > next {
            let reason = format!("it acknowledged log offset {end}, but was sent the log up to {next} only");
            return Err(MasterError::Replica(reason));
        }
        if Some(end) > self.facts.begin {
            self.facts.acked = self.facts.acked.max(Some(end));
        }
        Ok(())
    }

    /// Returns the place from which the replica gets the log. It names the end of its own log, or 0 if it has none.
    fn begin_at(
        &self,
        end: u64,
        protocol: Protocol,
        log: &LogFeed,
        epochs: &EpochTable,
    ) -> Result<u64, MasterError> {
        let (first, log_end) = log.bounds();
        if end == 0 {
            let is_last = protocol == Protocol::Default || self.only_last_file;
            let last = log_end - log_end % log.segment_bytes();
            return Ok(if is_last { last.max(first) } else { first });
        }
        // A copy that begins at offset 0 asks for offset 1, also of an empty log.
        if end > log_end.max(1) {
            return Err(MasterError::Replica(format!(
                "its log ends at {end}, after the end of this one at {log_end}: it is a copy of another log, or this log \
                 has lost its end; copy the log again there"
            )));
        }
        if end < first {
            return Err(MasterError::Replica(format!(
                "it wants the log from {end} on, but the segments before {first} are deleted; copy the log again there"
            )));
        }
        if protocol.has_epochs() && epochs.at(end).0.is_none() {
            return Err(MasterError::Replica(format!("no epoch of this log contains its end at {end}")));
        }
        Ok(end)
    }

    /// Appends the next frames to `out`: at most `most` bytes of the log, or a heartbeat if one is due, and for a standby
    /// as many bytes of metadata.
    ///
    /// # Errors
    /// The replica is silent, or its next segment is deleted; errors of the read.
    pub fn next_frame(
        &mut self,
        sent: &Sent<'_>,
        most: usize,
        now_ms: i64,
        out: &mut Vec<u8>,
    ) -> Result<(), MasterError> {
        if now_ms.saturating_sub(self.heard_ms) >= SILENCE_MS {
            return Err(MasterError::Replica(format!("it reported nothing for {} s", SILENCE_MS / 1000)));
        }
        if let (Some(next), Some(protocol)) = (self.next, self.facts.protocol) {
            self.add_log(next, protocol, sent, most, now_ms, out)?;
            self.add_metadata(sent.metadata.as_ref(), most, out);
        }
        Ok(())
    }

    /// Appends a frame with the log from `next` on, or a heartbeat.
    fn add_log(
        &mut self,
        next: u64,
        protocol: Protocol,
        sent: &Sent<'_>,
        most: usize,
        now_ms: i64,
        out: &mut Vec<u8>,
    ) -> Result<(), MasterError> {
        let (log, confirmed) = (sent.log, sent.confirmed);
        let (epoch, next_epoch) = sent.epochs.at(next);
        let log_end = log.end();
        let end = log_end.min(next_epoch.unwrap_or(u64::MAX));
        let is_due = now_ms.saturating_sub(self.sent_ms) >= HEARTBEAT_MS || self.has_news(confirmed);
        if next >= end && !is_due {
            return Ok(());
        }
        let (begin, header_bytes) = (out.len(), protocol.transfer_header_bytes());
        out.resize(begin + header_bytes + most.min(usize::try_from(end - next.min(end)).unwrap_or(most)), 0);
        let body = out.get_mut(begin + header_bytes..).unwrap_or_default();
        let count = if next < end { log.read(next, end, body)? } else { 0 };
        if next < end && count == 0 {
            let reason = "the next segment was deleted before it was sent; copy the log again there";
            return Err(MasterError::Replica(reason.to_owned()));
        }
        out.truncate(begin + header_bytes + count);
        let epoch = epoch.unwrap_or(Epoch { number: 0, start: 0 });
        let transfer = Transfer { offset: next, epoch, confirmed, log_end };
        let header = protocol.transfer_header(count as u32, &transfer);
        for (place, byte) in out.iter_mut().skip(begin).zip(header) {
            *place = byte;
        }
        (self.next, self.sent_ms, self.told_confirmed) = (Some(next + count as u64), now_ms, confirmed);
        Ok(())
    }

    /// Appends the next part of the metadata. Parts of the log come between two of them.
    fn add_metadata(&mut self, newest: Option<&NewestMetadata>, most: usize, out: &mut Vec<u8>) {
        let Some(newest) = newest.filter(|newest| self.has_new_metadata(newest)) else { return };
        let is_done =
            |sent: &SentMetadata| sent.is_complete() && !Arc::ptr_eq(&sent.metadata, &newest.metadata);
        if self.metadata.as_ref().is_none_or(is_done) {
            let metadata = Arc::clone(&newest.metadata);
            self.metadata = Some(SentMetadata { told: newest.as_of, metadata, at: 0 });
        }
        let Some(sent) = &mut self.metadata else { return };
        let rest = sent.metadata.bytes().get(sent.at..).unwrap_or_default();
        if rest.is_empty() {
            sent.told = newest.as_of;
        }
        sent.at += wire::metadata(rest, sent.told, most, out);
    }

    /// Whether a standby gets something of the newest metadata: a part of those that are not complete there, or, if it has
    /// all of the last ones and the log for them, newer ones. So one that is always a little behind gets some, too.
    fn has_new_metadata(&self, newest: &NewestMetadata) -> bool {
        if self.facts.protocol != Some(Protocol::Own) || self.next.is_none() {
            return false;
        }
        let Some(sent) = &self.metadata else { return true };
        let has_log = self.facts.acked.unwrap_or(0) >= sent.told.max(sent.metadata.log_end());
        !sent.is_complete()
            || (has_log && (!Arc::ptr_eq(&sent.metadata, &newest.metadata) || newest.as_of > sent.told))
    }

    /// Returns the bytes of a log that ends at `log_end` that were not sent.
    pub fn backlog(&self, log_end: u64) -> u64 {
        self.next.map_or(0, |next| log_end.saturating_sub(next))
    }

    /// Whether there is something to send: a part of the log, a confirmed offset, or metadata.
    pub fn has_more(&self, sent: &Sent<'_>) -> bool {
        self.backlog(sent.log.end()) > 0
            || self.has_news(sent.confirmed)
            || sent.metadata.as_ref().is_some_and(|newest| self.has_new_metadata(newest))
    }

    /// Only a replica in controller mode hides what is not confirmed. It waits for nothing else.
    fn has_news(&self, confirmed: u64) -> bool {
        self.facts.protocol.is_some_and(Protocol::has_epochs)
            && self.next.is_some_and(|next| next >= confirmed && confirmed > self.told_confirmed)
    }
}
