//! A request in the form in which it is sent, and sent again after the death of an owner.

use serde::Serialize;

use crate::wire::frame::{HEADER_LENGTH, MAX_FRAME_BYTES, write_header};
use crate::wire::request::Request;

/// An encoded request.
#[derive(Debug)]
pub(crate) struct Encoded {
    bytes: Vec<u8>,
}

impl Encoded {
    /// Encodes a request.
    pub(crate) fn new(request: &impl Serialize) -> Self {
        // A vector takes any length, so this cannot fail.
        let bytes = postcard::to_allocvec(request).unwrap_or_default();
        Self { bytes }
    }

    /// Decodes the request again.
    pub(crate) fn decode(&self) -> Option<Request<'_>> {
        postcard::from_bytes(&self.bytes).ok()
    }

    /// Returns the header and the payload of the only frame; `None` if the request needs several.
    pub(crate) fn frame(&self, number: u64, flags: u16) -> Option<([u8; HEADER_LENGTH], &[u8])> {
        let payload = self.payload();
        if payload.len() > MAX_FRAME_BYTES {
            return None;
        }
        let mut header = [0; HEADER_LENGTH];
        write_header(&mut header, number, flags, payload.len());
        Some((header, payload))
    }

    /// The encoded request.
    pub(crate) fn payload(&self) -> &[u8] {
        &self.bytes
    }
}
