//! The frames between a master and its replica, in each protocol.
//!
//! ```text
//! default      replica -> master   end of its log (8)
//!              master -> replica   offset of the body (8), body bytes (4), body
//! autoswitch   replica -> master   1 (4), only the last file (2), learner (2), broker id (8)      handshake
//!                                  2 (4), end of its log (8)                                      report
//!              master -> replica   1 (4), body bytes (4), end of the log (8), last epoch (4)      handshake
//!                                  body: epoch (4), its start (8), for each epoch
//!                                  2 (4), body bytes (4), offset (8), epoch (4), its start (8), confirmed offset (8)
//! mqstore      replica -> master   3 (4), ...  as autoswitch                                      handshake
//!              master -> replica   3 (4), ...  as autoswitch, then segment bytes (8), durable acks (4)
//!                                  2 (4), ...  as autoswitch, then end of the log (8)
//!                                  4 (4), body bytes (4), log offset (8), last part (4)           metadata
//! ```
//!
//! All numbers are big-endian. A frame without a body is a heartbeat; its offset is the next one to be sent. A body is a
//! range of bytes of the log, which begins and ends anywhere, but in one segment; or a part of the metadata.
//! They have every change that came before the log had this end; without a body, those that were sent have.
//!
//! Source: `DefaultHAConnection`, `DefaultHAClient`, `AutoSwitchHAConnection`, `AutoSwitchHAClient`. The protocol mqstore
//! is one of our own.

use serde::{Deserialize, Serialize};

use crate::epochs::{Epoch, MAX_EPOCHS};

/// Maximum bytes of a body: a replica of RocketMQ has a buffer of 4 MiB.
const MAX_BODY_BYTES: u32 = 4 << 20;
/// Bytes of the handshake of a replica.
const HANDSHAKE_BYTES: usize = 16;
/// Bytes of an epoch in a handshake.
const EPOCH_BYTES: usize = 12;

const HANDSHAKE: i32 = 1;
const TRANSFER: i32 = 2;
const OWN_HANDSHAKE: i32 = 3;
const METADATA: i32 = 4;

/// Bytes before the body of a frame with metadata.
const METADATA_HEADER_BYTES: usize = 20;

/// The protocol that a replica and its master speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    /// `DefaultHAService`: a master and its slaves.
    Default,
    /// `AutoSwitchHAService`: a broker in controller mode.
    AutoSwitch,
    /// A store of ours and its standby.
    Own,
}

/// What a master of ours tells a standby about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MasterTerms {
    /// Length of its segments.
    pub segment_bytes: u64,
    /// Whether an acknowledgement must follow a sync.
    pub wants_durable_acks: bool,
}

/// The header of a frame from a master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Header {
    /// The answer to a handshake; its body has the epochs.
    Handshake {
        /// Bytes of the body.
        body_bytes: u32,
        /// End of the master's log.
        log_end: u64,
        /// Only a master of ours sends them.
        terms: Option<MasterTerms>,
    },
    /// A part of the metadata.
    Metadata {
        /// Bytes of the body.
        body_bytes: u32,
        /// They have every change that came before the log had this end.
        as_of: u64,
        /// Whether it is the last part.
        is_last: bool,
    },
    /// Bytes of the log, or a heartbeat.
    Transfer {
        /// Bytes of the body.
        body_bytes: u32,
        /// Log offset of the body.
        offset: u64,
        /// An epoch that the replica must note; the body need not belong to it.
        epoch: Option<Epoch>,
        /// The confirmed offset of the master.
        confirmed: Option<u64>,
        /// End of the master's log, as far as the protocol has it.
        log_end: Option<u64>,
    },
}

/// What the header of a frame with a part of the log says, besides the length of this part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    /// The log offset of the part.
    pub(crate) offset: u64,
    /// The epoch.
    pub(crate) epoch: Epoch,
    /// The confirmed offset.
    pub(crate) confirmed: u64,
    /// The end of the log.
    pub(crate) log_end: u64,
}

/// What a replica sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// The begin of a connection in controller mode.
    Handshake {
        /// Whether an empty replica begins with the last segment.
        only_last_file: bool,
        /// Whether no append waits for this replica.
        is_learner: bool,
        /// Its id.
        broker_id: u64,
    },
    /// The end of its log.
    Report(u64),
}

impl Protocol {
    /// Returns the protocol of a replica that begins with `bytes`; `None` if more are needed.
    ///
    /// A handshake begins with 1 or 3 and two flags, and comes as a whole. A report of the default protocol can look like
    /// it at eight log offsets; then the next report repeats it.
    pub(crate) fn of_replica(bytes: &[u8]) -> Option<Self> {
        let first = bytes.first_chunk::<8>()?;
        let looks_like = match first {
            [0, 0, 0, 1, 0, 0 | 1, 0, 0 | 1] => Self::AutoSwitch,
            [0, 0, 0, 3, 0, 0 | 1, 0, 0 | 1] => Self::Own,
            _ => return Some(Self::Default),
        };
        let both = bytes.get(..HANDSHAKE_BYTES)?;
        Some(if both.ends_with(first) { Self::Default } else { looks_like })
    }

    /// Whether it begins with a handshake, which compares the epochs of both logs.
    pub(crate) const fn has_epochs(self) -> bool {
        !matches!(self, Self::Default)
    }

    const fn handshake_state(self) -> i32 {
        if matches!(self, Self::Own) { OWN_HANDSHAKE } else { HANDSHAKE }
    }

    /// Decodes the request at the begin of `bytes`. Returns it and its length; `None` if bytes are missing.
    ///
    /// # Errors
    /// A reason if these bytes are no request of this protocol.
    pub(crate) fn request(self, bytes: &[u8]) -> Result<Option<(Request, usize)>, String> {
        let mut reader = Reader(bytes);
        let request = match self {
            Self::Default => reader.u64().map(Request::Report),
            Self::AutoSwitch | Self::Own => match reader.i32() {
                Some(state) if state == self.handshake_state() => reader.replica_handshake(),
                Some(TRANSFER) => reader.u64().map(Request::Report),
                Some(state) => return Err(format!("its request begins with {state}")),
                None => None,
            },
        };
        Ok(request.map(|request| (request, bytes.len() - reader.0.len())))
    }

    /// Bytes of the header of a frame with a part of the log.
    pub(crate) const fn transfer_header_bytes(self) -> usize {
        match self {
            Self::Default => 12,
            Self::AutoSwitch => 36,
            Self::Own => 44,
        }
    }

    /// Returns the header of a frame with `body_bytes` of the log.
    pub(crate) fn transfer_header(self, body_bytes: u32, transfer: &Transfer) -> Vec<u8> {
        let Transfer { offset, epoch, confirmed, log_end } = transfer;
        let mut header = Vec::with_capacity(self.transfer_header_bytes());
        if self == Self::Default {
            header.extend_from_slice(&offset.to_be_bytes());
            header.extend_from_slice(&body_bytes.to_be_bytes());
            return header;
        }
        header.extend_from_slice(&TRANSFER.to_be_bytes());
        header.extend_from_slice(&body_bytes.to_be_bytes());
        header.extend_from_slice(&offset.to_be_bytes());
        header.extend_from_slice(&epoch.number.to_be_bytes());
        header.extend_from_slice(&epoch.start.to_be_bytes());
        header.extend_from_slice(&confirmed.to_be_bytes());
        if self == Self::Own {
            header.extend_from_slice(&log_end.to_be_bytes());
        }
        header
    }

    /// The name of the protocol.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::AutoSwitch => "autoswitch",
            Self::Own => "mqstore",
        }
    }

    /// Returns the protocol with this name.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Default, Self::AutoSwitch, Self::Own].into_iter().find(|protocol| protocol.name() == name)
    }

    /// Decodes the header at the begin of `bytes`. Returns it and its length; `None` if bytes are missing.
    ///
    /// # Errors
    /// A reason if these bytes are no header of this protocol.
    pub(crate) fn header(self, bytes: &[u8]) -> Result<Option<(Header, usize)>, String> {
        let mut reader = Reader(bytes);
        let parsed = match self {
            Self::Default => reader.default_header(),
            Self::AutoSwitch | Self::Own => match reader.i32() {
                Some(state) if state == self.handshake_state() => reader.handshake(self),
                Some(TRANSFER) => reader.transfer(self),
                Some(METADATA) if self == Self::Own => reader.metadata(),
                Some(state) => return Err(format!("its frame begins with {state}")),
                None => None,
            },
        };
        let Some(header) = parsed else { return Ok(None) };
        let (body_bytes, limit) = match header {
            Header::Handshake { body_bytes, .. } => (body_bytes, (MAX_EPOCHS * EPOCH_BYTES) as u32),
            Header::Transfer { body_bytes, .. } | Header::Metadata { body_bytes, .. } => {
                (body_bytes, MAX_BODY_BYTES)
            }
        };
        if body_bytes > limit {
            return Err(format!("its frame has {body_bytes} bytes; {limit} are the limit"));
        }
        Ok(Some((header, bytes.len() - reader.0.len())))
    }

    /// Appends a report of the end of the replica's log to `out`.
    pub(crate) fn report(self, end: u64, out: &mut Vec<u8>) {
        if self.has_epochs() {
            out.extend_from_slice(&TRANSFER.to_be_bytes());
        }
        out.extend_from_slice(&end.to_be_bytes());
    }

    /// Appends the handshake of a replica, which the master must get in one read.
    pub(crate) fn handshake(self, only_last_file: bool, is_learner: bool, broker_id: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.handshake_state().to_be_bytes());
        out.extend_from_slice(&u16::from(only_last_file).to_be_bytes());
        // A learner never becomes a member of the set whose acknowledgements the master waits for.
        out.extend_from_slice(&u16::from(is_learner).to_be_bytes());
        out.extend_from_slice(&broker_id.to_be_bytes());
    }

    /// Appends the answer to a handshake: the end of the master's log, and its epochs.
    pub(crate) fn answer(self, log_end: u64, epochs: &[Epoch], terms: MasterTerms, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.handshake_state().to_be_bytes());
        out.extend_from_slice(&((epochs.len() * EPOCH_BYTES) as u32).to_be_bytes());
        out.extend_from_slice(&log_end.to_be_bytes());
        out.extend_from_slice(&epochs.last().map_or(0, |last| last.number).to_be_bytes());
        if self == Self::Own {
            out.extend_from_slice(&terms.segment_bytes.to_be_bytes());
            out.extend_from_slice(&i32::from(terms.wants_durable_acks).to_be_bytes());
        }
        for epoch in epochs {
            out.extend_from_slice(&epoch.number.to_be_bytes());
            out.extend_from_slice(&epoch.start.to_be_bytes());
        }
    }
}

/// Appends a frame with a part of the metadata: as many bytes of `rest` as `most` allows. Returns their number.
pub(crate) fn metadata(rest: &[u8], as_of: u64, most: usize, out: &mut Vec<u8>) -> usize {
    let count = rest.len().min(most).min(MAX_BODY_BYTES as usize);
    out.reserve(METADATA_HEADER_BYTES + count);
    out.extend_from_slice(&METADATA.to_be_bytes());
    out.extend_from_slice(&(count as u32).to_be_bytes());
    out.extend_from_slice(&as_of.to_be_bytes());
    out.extend_from_slice(&i32::from(count == rest.len()).to_be_bytes());
    out.extend_from_slice(rest.get(..count).unwrap_or_default());
    count
}

/// Decodes the body of a handshake.
pub(crate) fn epochs(body: &[u8]) -> Vec<Epoch> {
    let mut reader = Reader(body);
    let mut epochs = Vec::new();
    while let (Some(number), Some(start)) = (reader.i32(), reader.u64()) {
        epochs.push(Epoch { number, start });
    }
    epochs
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn i32(&mut self) -> Option<i32> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(i32::from_be_bytes(*bytes))
    }

    fn u64(&mut self) -> Option<u64> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_be_bytes(*bytes))
    }

    /// A negative length is larger than each limit.
    fn len(&mut self) -> Option<u32> {
        self.i32().map(|bytes| bytes as u32)
    }

    fn u16(&mut self) -> Option<u16> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u16::from_be_bytes(*bytes))
    }

    fn replica_handshake(&mut self) -> Option<Request> {
        let (only_last_file, is_learner) = (self.u16()? == 1, self.u16()? == 1);
        Some(Request::Handshake { only_last_file, is_learner, broker_id: self.u64()? })
    }

    fn default_header(&mut self) -> Option<Header> {
        let (offset, body_bytes) = (self.u64()?, self.len()?);
        Some(Header::Transfer { body_bytes, offset, epoch: None, confirmed: None, log_end: None })
    }

    fn handshake(&mut self, protocol: Protocol) -> Option<Header> {
        let (body_bytes, log_end) = (self.len()?, self.u64()?);
        self.i32()?;
        let terms = match protocol {
            Protocol::Own => {
                Some(MasterTerms { segment_bytes: self.u64()?, wants_durable_acks: self.i32()? != 0 })
            }
            _ => None,
        };
        Some(Header::Handshake { body_bytes, log_end, terms })
    }

    fn transfer(&mut self, protocol: Protocol) -> Option<Header> {
        let (body_bytes, offset) = (self.len()?, self.u64()?);
        let epoch = Some(Epoch { number: self.i32()?, start: self.u64()? });
        let confirmed = Some(self.u64()?);
        let log_end = if protocol == Protocol::Own { Some(self.u64()?) } else { None };
        Some(Header::Transfer { body_bytes, offset, epoch, confirmed, log_end })
    }

    fn metadata(&mut self) -> Option<Header> {
        let (body_bytes, as_of) = (self.len()?, self.u64()?);
        Some(Header::Metadata { body_bytes, as_of, is_last: self.i32()? != 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: MasterTerms = MasterTerms { segment_bytes: 1 << 30, wants_durable_acks: true };

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(|byte| *byte != b' ').collect();
        let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(pair).collect()
    }

    /// The bytes are from real masters and slaves.
    #[test]
    fn frames_of_the_default_protocol() {
        let mut out = Vec::new();
        Protocol::Default.report(500, &mut out);
        assert_eq!(out, bytes("00000000000001f4"));
        let frame = bytes("000000000020000000008000");
        let header = Header::Transfer {
            body_bytes: 32_768,
            offset: 2_097_152,
            epoch: None,
            confirmed: None,
            log_end: None,
        };
        assert_eq!(Protocol::Default.header(&frame), Ok(Some((header, 12))));
        assert_eq!(Protocol::Default.header(&frame[..11]), Ok(None));
        let heartbeat = bytes("00000000002625a000000000");
        let header = Header::Transfer {
            body_bytes: 0,
            offset: 2_500_000,
            epoch: None,
            confirmed: None,
            log_end: None,
        };
        assert_eq!(Protocol::Default.header(&heartbeat), Ok(Some((header, 12))));
    }

    #[test]
    fn frames_of_the_autoswitch_protocol() {
        let mut out = Vec::new();
        Protocol::AutoSwitch.handshake(false, false, 7, &mut out);
        assert_eq!(out, bytes("00000001 0000 0000 0000000000000007"));
        out.clear();
        Protocol::AutoSwitch.report(1500, &mut out);
        assert_eq!(out, bytes("00000002 00000000000005dc"));
        let answer = bytes(
            "00000001 00000030 00000000000186a0 00000004 00000001 0000000000000000 00000002 0000000000009c40 \
            00000003 0000000000011170 00000004 00000000000186a0",
        );
        let header = Header::Handshake { body_bytes: 48, log_end: 100_000, terms: None };
        assert_eq!(Protocol::AutoSwitch.header(&answer), Ok(Some((header, 20))));
        let starts: Vec<_> = epochs(&answer[20..]).iter().map(|epoch| (epoch.number, epoch.start)).collect();
        assert_eq!(starts, [(1, 0), (2, 40_000), (3, 70_000), (4, 100_000)]);
        let frame = bytes("00000002 00001c40 0000000000008000 00000002 0000000000009c40 00000000000186a0");
        let header = Header::Transfer {
            body_bytes: 7232,
            offset: 32_768,
            epoch: Some(Epoch { number: 2, start: 40_000 }),
            confirmed: Some(100_000),
            log_end: None,
        };
        assert_eq!(Protocol::AutoSwitch.header(&frame), Ok(Some((header, 36))));
    }

    /// The bytes that a master sends are those of real masters.
    #[test]
    fn frames_of_a_master() {
        let epochs =
            [(1, 0), (2, 40_000), (3, 70_000), (4, 100_000)].map(|(number, start)| Epoch { number, start });
        let mut out = Vec::new();
        Protocol::AutoSwitch.answer(100_000, &epochs, TERMS, &mut out);
        let real = bytes(
            "00000001 00000030 00000000000186a0 00000004 00000001 0000000000000000 00000002 0000000000009c40 \
            00000003 0000000000011170 00000004 00000000000186a0",
        );
        assert_eq!(out, real);
        let transfer = Transfer { offset: 32_768, epoch: epochs[1], confirmed: 100_000, log_end: 200_000 };
        let frame = Protocol::AutoSwitch.transfer_header(7232, &transfer);
        assert_eq!(
            frame,
            bytes("00000002 00001c40 0000000000008000 00000002 0000000000009c40 00000000000186a0")
        );
        let transfer = Transfer { offset: 2_097_152, ..transfer };
        let frame = Protocol::Default.transfer_header(32_768, &transfer);
        assert_eq!(frame, bytes("000000000020000000008000"));
    }

    #[test]
    fn frames_of_our_own_protocol() {
        let epochs = [Epoch { number: 1, start: 0 }, Epoch { number: 5, start: 40_000 }];
        let mut out = Vec::new();
        Protocol::Own.answer(100_000, &epochs, TERMS, &mut out);
        let header = Header::Handshake { body_bytes: 24, log_end: 100_000, terms: Some(TERMS) };
        assert_eq!(Protocol::Own.header(&out), Ok(Some((header, 32))));
        assert_eq!(super::epochs(&out[32..]), epochs);
        let transfer = Transfer { offset: 32_768, epoch: epochs[1], confirmed: 99_000, log_end: 100_000 };
        let frame = Protocol::Own.transfer_header(7232, &transfer);
        let header = Header::Transfer {
            body_bytes: 7232,
            offset: 32_768,
            epoch: Some(epochs[1]),
            confirmed: Some(99_000),
            log_end: Some(100_000),
        };
        assert_eq!(frame.len(), Protocol::Own.transfer_header_bytes());
        assert_eq!(Protocol::Own.header(&frame), Ok(Some((header, frame.len()))));
        out.clear();
        assert_eq!(metadata(b"abcdef", 500, 4, &mut out), 4);
        let header = Header::Metadata { body_bytes: 4, as_of: 500, is_last: false };
        assert_eq!(Protocol::Own.header(&out), Ok(Some((header, METADATA_HEADER_BYTES))));
        assert_eq!(&out[METADATA_HEADER_BYTES..], b"abcd");
        assert!(Protocol::AutoSwitch.header(&out).unwrap_err().contains("begins with 4"));
        out.clear();
        assert_eq!(metadata(b"ef", 500, 4, &mut out), 2);
        let header = Header::Metadata { body_bytes: 2, as_of: 500, is_last: true };
        assert_eq!(Protocol::Own.header(&out), Ok(Some((header, METADATA_HEADER_BYTES))));
    }

    #[test]
    fn the_first_bytes_of_a_replica_tell_its_protocol() {
        let handshake = bytes("00000001 0000 0001 0000000000000007");
        for known in 0..16 {
            assert_eq!(Protocol::of_replica(&handshake[..known]), None);
        }
        assert_eq!(Protocol::of_replica(&handshake), Some(Protocol::AutoSwitch));
        let mut own = Vec::new();
        Protocol::Own.handshake(true, false, 7, &mut own);
        assert_eq!(Protocol::of_replica(&own), Some(Protocol::Own));
        let request = Request::Handshake { only_last_file: true, is_learner: false, broker_id: 7 };
        assert_eq!(Protocol::Own.request(&own), Ok(Some((request, 16))));
        assert!(Protocol::AutoSwitch.request(&own).is_err());
        let request = Request::Handshake { only_last_file: false, is_learner: true, broker_id: 7 };
        assert_eq!(Protocol::AutoSwitch.request(&handshake), Ok(Some((request, 16))));
        let report = bytes("00000002 00000000000005dc");
        assert_eq!(Protocol::AutoSwitch.request(&report), Ok(Some((Request::Report(1500), 12))));
        assert!(Protocol::AutoSwitch.request(&bytes("00000003 00000000")).is_err());
        for offset in [0, 1, 500, (1 << 32) - 1, (1 << 32) + 2, 1 << 33, u64::MAX] {
            assert_eq!(Protocol::of_replica(&offset.to_be_bytes()), Some(Protocol::Default), "{offset}");
        }
        for offset in [1_u64 << 32, (1 << 32) + 1, (1 << 32) + 65_536, (1 << 32) + 65_537, 3 << 32] {
            let one = offset.to_be_bytes();
            assert_eq!(Protocol::of_replica(&one), None, "{offset}");
            assert_eq!(Protocol::of_replica(&[one, one].concat()), Some(Protocol::Default), "{offset}");
        }
    }

    #[test]
    fn no_frame_is_larger_than_its_limit() {
        let negative = bytes("0000000000000000 ffffffff");
        assert!(Protocol::Default.header(&negative).unwrap_err().contains("4194304 are the limit"));
        let large = bytes("0000000000000000 00400001");
        assert!(Protocol::Default.header(&large).is_err());
        let epochs = bytes("00000001 00002ee1 0000000000000000 00000001");
        assert!(Protocol::AutoSwitch.header(&epochs).is_err());
        let other = bytes("00000003 00000000 0000000000000000");
        assert!(Protocol::AutoSwitch.header(&other).unwrap_err().contains("begins with 3"));
    }
}
