//! The frames between a master and its replica, in both protocols.
//!
//! ```text
//! default      replica -> master   end of its log (8)
//!              master -> replica   offset of the body (8), body bytes (4), body
//! autoswitch   replica -> master   1 (4), only the last file (2), learner (2), broker id (8)      handshake
//!                                  2 (4), end of its log (8)                                      report
//!              master -> replica   1 (4), body bytes (4), end of the log (8), last epoch (4)      handshake
//!                                  body: epoch (4), its start (8), for each epoch
//!                                  2 (4), body bytes (4), offset (8), epoch (4), its start (8), confirmed offset (8)
//! ```
//!
//! All numbers are big-endian. A frame without a body is a heartbeat; its offset is the next one to be sent. A body is a
//! range of bytes of the log, which begins and ends anywhere, but in one segment.
//!
//! Source: `DefaultHAConnection`, `DefaultHAClient`, `AutoSwitchHAConnection`, `AutoSwitchHAClient`.

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

/// The protocol that a master speaks. Its bytes do not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    /// `DefaultHAService`: a master and its slaves.
    Default,
    /// `AutoSwitchHAService`: a broker in controller mode.
    AutoSwitch,
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
    },
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
    /// A handshake begins with 1 and two flags, and comes as a whole. A report of the default protocol can look like it
    /// at four log offsets after 2^32; then the next report repeats it.
    pub(crate) fn of_replica(bytes: &[u8]) -> Option<Self> {
        let first = bytes.first_chunk::<8>()?;
        let looks_like_handshake =
            matches!(first, [0, 0, 0, 1, 0, only_last, 0, learner] if *only_last < 2 && *learner < 2);
        if !looks_like_handshake {
            return Some(Self::Default);
        }
        let both = bytes.get(..HANDSHAKE_BYTES)?;
        Some(if both.ends_with(first) { Self::Default } else { Self::AutoSwitch })
    }

    /// Decodes the request at the begin of `bytes`. Returns it and its length; `None` if bytes are missing.
    ///
    /// # Errors
    /// A reason if these bytes are no request of this protocol.
    pub(crate) fn request(self, bytes: &[u8]) -> Result<Option<(Request, usize)>, String> {
        let mut reader = Reader(bytes);
        let request = match self {
            Self::Default => reader.u64().map(Request::Report),
            Self::AutoSwitch => match reader.i32() {
                Some(HANDSHAKE) => reader.replica_handshake(),
                Some(TRANSFER) => reader.u64().map(Request::Report),
                Some(state) => return Err(format!("its request begins with {state}, not with 1 or 2")),
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
        }
    }

    /// Returns the header of a frame with `body_bytes` of the log from `offset` on.
    pub(crate) fn transfer_header(
        self,
        body_bytes: u32,
        offset: u64,
        epoch: Epoch,
        confirmed: u64,
    ) -> Vec<u8> {
        let mut header = Vec::with_capacity(self.transfer_header_bytes());
        match self {
            Self::Default => {
                header.extend_from_slice(&offset.to_be_bytes());
                header.extend_from_slice(&body_bytes.to_be_bytes());
            }
            Self::AutoSwitch => {
                header.extend_from_slice(&TRANSFER.to_be_bytes());
                header.extend_from_slice(&body_bytes.to_be_bytes());
                header.extend_from_slice(&offset.to_be_bytes());
                header.extend_from_slice(&epoch.number.to_be_bytes());
                header.extend_from_slice(&epoch.start.to_be_bytes());
                header.extend_from_slice(&confirmed.to_be_bytes());
            }
        }
        header
    }

    /// The name of the protocol.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::AutoSwitch => "autoswitch",
        }
    }

    /// Returns the protocol with this name.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Default, Self::AutoSwitch].into_iter().find(|protocol| protocol.name() == name)
    }

    /// Decodes the header at the begin of `bytes`. Returns it and its length; `None` if bytes are missing.
    ///
    /// # Errors
    /// A reason if these bytes are no header of this protocol.
    pub(crate) fn header(self, bytes: &[u8]) -> Result<Option<(Header, usize)>, String> {
        let mut reader = Reader(bytes);
        let parsed = match self {
            Self::Default => reader.default_header(),
            Self::AutoSwitch => match reader.i32() {
                Some(HANDSHAKE) => reader.handshake(),
                Some(TRANSFER) => reader.transfer(),
                Some(state) => return Err(format!("its frame begins with {state}, not with 1 or 2")),
                None => None,
            },
        };
        let Some(header) = parsed else { return Ok(None) };
        let (body_bytes, limit) = match header {
            Header::Handshake { body_bytes, .. } => (body_bytes, (MAX_EPOCHS * EPOCH_BYTES) as u32),
            Header::Transfer { body_bytes, .. } => (body_bytes, MAX_BODY_BYTES),
        };
        if body_bytes > limit {
            return Err(format!("its frame has {body_bytes} bytes; {limit} are the limit"));
        }
        Ok(Some((header, bytes.len() - reader.0.len())))
    }

    /// Appends a report of the end of the replica's log to `out`.
    pub(crate) fn report(self, end: u64, out: &mut Vec<u8>) {
        if self == Self::AutoSwitch {
            out.extend_from_slice(&TRANSFER.to_be_bytes());
        }
        out.extend_from_slice(&end.to_be_bytes());
    }
}

/// Appends the handshake of a replica, which the master must get in one read.
pub(crate) fn handshake(only_last_file: bool, is_learner: bool, broker_id: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&HANDSHAKE.to_be_bytes());
    out.extend_from_slice(&u16::from(only_last_file).to_be_bytes());
    // A learner never becomes a member of the set whose acknowledgements the master waits for.
    out.extend_from_slice(&u16::from(is_learner).to_be_bytes());
    out.extend_from_slice(&broker_id.to_be_bytes());
}

/// Appends the answer to a handshake: the end of the master's log, and its epochs.
pub(crate) fn answer(log_end: u64, epochs: &[Epoch], out: &mut Vec<u8>) {
    out.extend_from_slice(&HANDSHAKE.to_be_bytes());
    out.extend_from_slice(&((epochs.len() * EPOCH_BYTES) as u32).to_be_bytes());
    out.extend_from_slice(&log_end.to_be_bytes());
    out.extend_from_slice(&epochs.last().map_or(0, |last| last.number).to_be_bytes());
    for epoch in epochs {
        out.extend_from_slice(&epoch.number.to_be_bytes());
        out.extend_from_slice(&epoch.start.to_be_bytes());
    }
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
        Some(Header::Transfer { body_bytes, offset, epoch: None, confirmed: None })
    }

    fn handshake(&mut self) -> Option<Header> {
        let (body_bytes, log_end) = (self.len()?, self.u64()?);
        self.i32()?;
        Some(Header::Handshake { body_bytes, log_end })
    }

    fn transfer(&mut self) -> Option<Header> {
        let (body_bytes, offset) = (self.len()?, self.u64()?);
        let epoch = Epoch { number: self.i32()?, start: self.u64()? };
        let confirmed = self.u64()?;
        Some(Header::Transfer { body_bytes, offset, epoch: Some(epoch), confirmed: Some(confirmed) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let header = Header::Transfer { body_bytes: 32_768, offset: 2_097_152, epoch: None, confirmed: None };
        assert_eq!(Protocol::Default.header(&frame), Ok(Some((header, 12))));
        assert_eq!(Protocol::Default.header(&frame[..11]), Ok(None));
        let heartbeat = bytes("00000000002625a000000000");
        let header = Header::Transfer { body_bytes: 0, offset: 2_500_000, epoch: None, confirmed: None };
        assert_eq!(Protocol::Default.header(&heartbeat), Ok(Some((header, 12))));
    }

    #[test]
    fn frames_of_the_autoswitch_protocol() {
        let mut out = Vec::new();
        handshake(false, false, 7, &mut out);
        assert_eq!(out, bytes("00000001 0000 0000 0000000000000007"));
        out.clear();
        Protocol::AutoSwitch.report(1500, &mut out);
        assert_eq!(out, bytes("00000002 00000000000005dc"));
        let answer = bytes(
            "00000001 00000030 00000000000186a0 00000004 00000001 0000000000000000 00000002 0000000000009c40 \
            00000003 0000000000011170 00000004 00000000000186a0",
        );
        let header = Header::Handshake { body_bytes: 48, log_end: 100_000 };
        assert_eq!(Protocol::AutoSwitch.header(&answer), Ok(Some((header, 20))));
        let starts: Vec<_> = epochs(&answer[20..]).iter().map(|epoch| (epoch.number, epoch.start)).collect();
        assert_eq!(starts, [(1, 0), (2, 40_000), (3, 70_000), (4, 100_000)]);
        let frame = bytes("00000002 00001c40 0000000000008000 00000002 0000000000009c40 00000000000186a0");
        let header = Header::Transfer {
            body_bytes: 7232,
            offset: 32_768,
            epoch: Some(Epoch { number: 2, start: 40_000 }),
            confirmed: Some(100_000),
        };
        assert_eq!(Protocol::AutoSwitch.header(&frame), Ok(Some((header, 36))));
    }

    /// The bytes that a master sends are those of real masters.
    #[test]
    fn frames_of_a_master() {
        let epochs =
            [(1, 0), (2, 40_000), (3, 70_000), (4, 100_000)].map(|(number, start)| Epoch { number, start });
        let mut out = Vec::new();
        answer(100_000, &epochs, &mut out);
        let real = bytes(
            "00000001 00000030 00000000000186a0 00000004 00000001 0000000000000000 00000002 0000000000009c40 \
            00000003 0000000000011170 00000004 00000000000186a0",
        );
        assert_eq!(out, real);
        let frame = Protocol::AutoSwitch.transfer_header(7232, 32_768, epochs[1], 100_000);
        assert_eq!(
            frame,
            bytes("00000002 00001c40 0000000000008000 00000002 0000000000009c40 00000000000186a0")
        );
        let frame = Protocol::Default.transfer_header(32_768, 2_097_152, epochs[0], 0);
        assert_eq!(frame, bytes("000000000020000000008000"));
    }

    #[test]
    fn the_first_bytes_of_a_replica_tell_its_protocol() {
        let handshake = bytes("00000001 0000 0001 0000000000000007");
        for known in 0..16 {
            assert_eq!(Protocol::of_replica(&handshake[..known]), None);
        }
        assert_eq!(Protocol::of_replica(&handshake), Some(Protocol::AutoSwitch));
        let request = Request::Handshake { only_last_file: false, is_learner: true, broker_id: 7 };
        assert_eq!(Protocol::AutoSwitch.request(&handshake), Ok(Some((request, 16))));
        let report = bytes("00000002 00000000000005dc");
        assert_eq!(Protocol::AutoSwitch.request(&report), Ok(Some((Request::Report(1500), 12))));
        assert!(Protocol::AutoSwitch.request(&bytes("00000003 00000000")).is_err());
        for offset in [0, 1, 500, (1 << 32) - 1, (1 << 32) + 2, 1 << 33, u64::MAX] {
            assert_eq!(Protocol::of_replica(&offset.to_be_bytes()), Some(Protocol::Default), "{offset}");
        }
        for offset in [1_u64 << 32, (1 << 32) + 1, (1 << 32) + 65_536, (1 << 32) + 65_537] {
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
