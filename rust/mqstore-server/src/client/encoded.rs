//! A request in the form in which it is sent, and sent again after the death of an owner.

use serde::Serialize;

use crate::wire::frame::{HEADER_LENGTH, MAX_FRAME_BYTES, push_frames, write_header};
use crate::wire::request::Request;

/// An encoded request.
#[derive(Debug)]
pub(crate) struct Encoded {
    /// Room for the header of a frame, then the payload.
    bytes: Vec<u8>,
}

impl Encoded {
    /// Encodes a request.
    pub(crate) fn new(request: &impl Serialize) -> Self {
        // A vector takes any length, so this cannot fail.
        let bytes = postcard::to_extend(request, vec![0; HEADER_LENGTH]).unwrap_or_default();
        Self { bytes }
    }

    /// Decodes the request again.
    pub(crate) fn decode(&self) -> Option<Request<'_>> {
        postcard::from_bytes(self.bytes.get(HEADER_LENGTH..)?).ok()
    }

    /// Adds the frames of the request to `out`.
    pub(crate) fn push(&self, out: &mut Vec<u8>, number: u64, flags: u16) {
        let payload = self.bytes.get(HEADER_LENGTH..).unwrap_or_default();
        if payload.len() > MAX_FRAME_BYTES {
            push_frames(out, number, flags, payload);
            return;
        }
        let at = out.len();
        out.extend_from_slice(&self.bytes);
        if let Some(header) = out.get_mut(at..).and_then(|frame| frame.first_chunk_mut()) {
            write_header(header, number, flags, payload.len());
        }
    }
}
