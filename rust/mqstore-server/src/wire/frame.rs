//! Frames: the pieces in which requests and responses cross a connection.
//!
//! ```text
//! length (4, big-endian) | number (8) | flags (2) | payload (length - 10 bytes)
//! ```
//!
//! A request and its response have the same number; number 0 is the greeting. A payload that does not fit in one frame
//! continues in the next frames with its number, all but the last with the flag [`MORE`]. [`FrameReader`] is a state
//! machine: bytes in, whole payloads out. It allocates only for bytes that have arrived.

use std::collections::HashMap;

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

/// Makes payloads of the bytes that arrive.
#[derive(Debug, Default)]
pub struct FrameReader {
    /// Bytes that are not yet a frame. Those before `start` are done.
    waiting: Vec<u8>,
    start: usize,
    /// Payloads that continue.
    parts: HashMap<u64, Vec<u8>>,
    /// The bytes of all `parts`.
    part_bytes: usize,
}

impl FrameReader {
    /// Takes bytes of the connection.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 && self.start == self.waiting.len() {
            self.waiting.clear();
            self.start = 0;
        }
        self.waiting.extend_from_slice(bytes);
    }

    /// Returns the next whole payload; `None` if more bytes must come first.
    ///
    /// # Errors
    /// [`FrameError`] if the bytes are no frames. The reader is useless then.
    pub fn take(&mut self) -> Result<Option<Frame>, FrameError> {
        loop {
            let Some(frame) = self.next_frame()? else {
                self.forget_done();
                return Ok(None);
            };
            let Frame { number, flags, payload } = frame;
            if self.parts.is_empty() && flags & MORE == 0 {
                return Ok(Some(Frame { number, flags, payload }));
            }
            self.part_bytes += payload.len();
            if self.part_bytes > MAX_PAYLOAD_BYTES {
                return Err(FrameError::Payload);
            }
            let part = self.parts.entry(number).or_default();
            part.extend_from_slice(&payload);
            if flags & MORE == 0 {
                let payload = self.parts.remove(&number).unwrap_or_default();
                self.part_bytes -= payload.len();
                return Ok(Some(Frame { number, flags, payload }));
            }
        }
    }

    fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let left = self.waiting.get(self.start..).unwrap_or_default();
        let Some((length, rest)) = left.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = u32::from_be_bytes(*length) as usize;
        if !(HEADER_BYTES..=HEADER_BYTES + MAX_FRAME_BYTES).contains(&length) {
            return Err(FrameError::Length { bytes: length });
        }
        let Some(frame) = rest.get(..length) else { return Ok(None) };
        let Some((number, frame)) = frame.split_first_chunk::<8>() else { return Ok(None) };
        let Some((flags, payload)) = frame.split_first_chunk::<2>() else { return Ok(None) };
        let number = u64::from_be_bytes(*number);
        let frame = Frame { number, flags: u16::from_be_bytes(*flags), payload: payload.to_vec() };
        self.start += LENGTH_BYTES + length;
        Ok(Some(frame))
    }

    fn forget_done(&mut self) {
        self.waiting.drain(..self.start);
        self.start = 0;
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
