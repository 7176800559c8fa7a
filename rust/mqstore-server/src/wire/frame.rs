//! Frames: the pieces in which requests and responses cross a connection.
//!
//! ```text
//! length (4, big-endian) | number (8) | flags (2) | payload (length - 10 bytes)
//! ```
//!
//! A request and its response have the same number; number 0 is the greeting. A payload that does not fit in one frame
//! continues in the next frames with its number, all but the last with the flag [`MORE`]. [`FrameReader`] is a state
//! machine: bytes in, whole payloads out. It reserves at most 2 MiB for bytes that have not arrived.

use std::collections::{HashMap, VecDeque};

/// Maximum payload of one frame.
pub const MAX_FRAME_BYTES: usize = 16 << 20;
/// Maximum payload of one request or response, in all its frames.
pub const MAX_PAYLOAD_BYTES: usize = 1 << 30;
/// The payload continues in another frame.
pub const MORE: u16 = 1;
/// The request may have been received before, by this owner or an earlier one.
pub const AGAIN: u16 = 2;

const LENGTH_BYTES: usize = 4;
const HEADER_BYTES: usize = 10;
/// Bytes before the payload of a frame.
pub const HEADER_LENGTH: usize = LENGTH_BYTES + HEADER_BYTES;

/// Bytes for which a payload gets space before they arrive.
const FIRST_BYTES: usize = 2 << 20;

/// A request or response that has arrived completely.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    /// The number that a response shares with its request.
    pub number: u64,
    /// [`AGAIN`], or nothing.
    pub flags: u16,
    /// The encoded request or response.
    pub payload: Vec<u8>,
}

/// Why the peer sends no frames of this protocol. The connection must be closed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length is impossible.
    #[error(
        "a frame of {bytes} bytes: the limit is {MAX_FRAME_BYTES}, and the header alone has {HEADER_BYTES}"
    )]
    Length {
        /// The length in the frame.
        bytes: usize,
    },
    /// Too many bytes for one request.
    #[error("a request of more than {MAX_PAYLOAD_BYTES} bytes")]
    Payload,
}

/// Appends a payload to `out`, in as many frames as it needs.
pub fn push_frames(out: &mut Vec<u8>, number: u64, flags: u16, payload: &[u8]) {
    let mut pieces = payload.chunks(MAX_FRAME_BYTES).peekable();
    if pieces.peek().is_none() {
        push_frame(out, number, flags, &[]);
    }
    while let Some(piece) = pieces.next() {
        let more = if pieces.peek().is_some() { MORE } else { 0 };
        push_frame(out, number, flags | more, piece);
    }
}

fn push_frame(out: &mut Vec<u8>, number: u64, flags: u16, piece: &[u8]) {
    let mut header = [0; HEADER_LENGTH];
    write_header(&mut header, number, flags, piece.len());
    out.reserve(HEADER_LENGTH + piece.len());
    out.extend_from_slice(&header);
    out.extend_from_slice(piece);
}

/// Writes the header of a frame with `bytes` bytes of payload.
pub fn write_header(header: &mut [u8; HEADER_LENGTH], number: u64, flags: u16, bytes: usize) {
    let length = ((HEADER_BYTES + bytes) as u32).to_be_bytes();
    let [l0, l1, l2, l3] = length;
    let [n0, n1, n2, n3, n4, n5, n6, n7] = number.to_be_bytes();
    let [f0, f1] = flags.to_be_bytes();
    *header = [l0, l1, l2, l3, n0, n1, n2, n3, n4, n5, n6, n7, f0, f1];
}

/// The header of a frame.
#[derive(Clone, Copy, Debug)]
struct Header {
    number: u64,
    flags: u16,
    /// Bytes of its payload.
    bytes: usize,
}

/// Makes payloads of the bytes that arrive.
#[derive(Debug, Default)]
pub struct FrameReader {
    /// Bytes of a header that has not arrived completely.
    begun: Vec<u8>,
    /// The frame that arrives, and its payload so far.
    current: Option<(Header, Vec<u8>)>,
    /// Payloads that arrived completely.
    whole: VecDeque<Frame>,
    /// Payloads that continue.
    parts: HashMap<u64, Vec<u8>>,
    /// The bytes of all `parts`.
    part_bytes: usize,
    failed: Option<FrameError>,
}

impl FrameReader {
    /// Takes bytes of the connection.
    pub fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.failed.is_none() {
            bytes = self.push_some(bytes);
        }
    }

    /// Takes bytes of one frame, and returns the others.
    fn push_some<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let Some((header, payload)) = &mut self.current else { return self.push_header(bytes) };
        let missing = header.bytes - payload.len();
        let (now, later) = bytes.split_at(missing.min(bytes.len()));
        payload.extend_from_slice(now);
        if payload.len() == header.bytes {
            self.end_frame();
        }
        later
    }

    fn push_header<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let (now, later) = bytes.split_at((HEADER_LENGTH - self.begun.len()).min(bytes.len()));
        self.begun.extend_from_slice(now);
        // A wrong length is an error before the rest of the header comes.
        if let Some(length) = self.begun.first_chunk::<LENGTH_BYTES>() {
            let length = u32::from_be_bytes(*length) as usize;
            if !(HEADER_BYTES..=HEADER_BYTES + MAX_FRAME_BYTES).contains(&length) {
                self.failed = Some(FrameError::Length { bytes: length });
                return later;
            }
            if let [_, _, _, _, number @ .., f0, f1] = self.begun.as_slice()
                && let Ok(number) = number.try_into()
            {
                let bytes = length - HEADER_BYTES;
                let header = Header {
                    number: u64::from_be_bytes(number),
                    flags: u16::from_be_bytes([*f0, *f1]),
                    bytes,
                };
                self.begun.clear();
                // Grows with the bytes that arrive.
                self.current = Some((header, Vec::with_capacity(bytes.min(FIRST_BYTES))));
                if bytes == 0 {
                    self.end_frame();
                }
            }
        }
        later
    }

    fn end_frame(&mut self) {
        let Some((Header { number, flags, .. }, payload)) = self.current.take() else { return };
        let continues = flags & MORE != 0;
        if !continues && !self.parts.contains_key(&number) {
            self.whole.push_back(Frame { number, flags, payload });
            return;
        }
        self.part_bytes += payload.len();
        if self.part_bytes > MAX_PAYLOAD_BYTES {
            self.failed = Some(FrameError::Payload);
            return;
        }
        let part = self.parts.entry(number).or_default();
        part.extend_from_slice(&payload);
        if !continues {
            let payload = self.parts.remove(&number).unwrap_or_default();
            self.part_bytes -= payload.len();
            self.whole.push_back(Frame { number, flags, payload });
        }
    }

    /// Returns the next whole payload; `None` if more bytes must come first.
    ///
    /// # Errors
    /// [`FrameError`] if the bytes are no frames. The reader is useless then.
    pub fn take(&mut self) -> Result<Option<Frame>, FrameError> {
        match (self.whole.pop_front(), &self.failed) {
            (None, Some(FrameError::Length { bytes })) => Err(FrameError::Length { bytes: *bytes }),
            (None, Some(FrameError::Payload)) => Err(FrameError::Payload),
            (frame, _) => Ok(frame),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(reader: &mut FrameReader) -> Vec<Frame> {
        std::iter::from_fn(|| reader.take().unwrap()).collect()
    }

    proptest! {
        #[test]
        fn payloads_come_whole_and_in_order_however_they_are_cut(
            payloads in prop::collection::vec((any::<u64>(), prop::collection::vec(any::<u8>(), 0..200)), 0..20),
            cuts in prop::collection::vec(1_usize..40, 1..20),
        ) {
            let mut bytes = Vec::new();
            for (number, payload) in &payloads {
                push_frames(&mut bytes, *number, AGAIN, payload);
            }
            let (mut reader, mut found) = (FrameReader::default(), Vec::new());
            let (mut rest, mut cuts) = (bytes.as_slice(), cuts.iter().cycle());
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
                reader.push(now);
                found.extend(all(&mut reader));
                rest = later;
            }
            let wanted: Vec<_> =
                payloads.into_iter().map(|(number, payload)| Frame { number, flags: AGAIN, payload }).collect();
            prop_assert_eq!(found, wanted);
        }

        #[test]
        fn random_bytes_are_frames_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut reader = FrameReader::default();
            reader.push(&bytes);
            while let Ok(Some(_)) = reader.take() {}
        }
    }

    #[test]
    fn a_large_payload_continues_in_more_frames() {
        let payload = vec![7; MAX_FRAME_BYTES + 1];
        let mut bytes = Vec::new();
        push_frames(&mut bytes, 9, 0, &payload);
        assert_eq!(bytes.len(), payload.len() + 2 * (LENGTH_BYTES + HEADER_BYTES));
        let mut reader = FrameReader::default();
        reader.push(&bytes);
        assert_eq!(all(&mut reader), [Frame { number: 9, flags: 0, payload }]);
    }

    #[test]
    fn impossible_lengths_end_the_connection() {
        for length in [0, 9, HEADER_BYTES + MAX_FRAME_BYTES + 1] {
            let mut reader = FrameReader::default();
            reader.push(&(length as u32).to_be_bytes());
            assert_eq!(reader.take(), Err(FrameError::Length { bytes: length }));
        }
    }
}
