//! Division of a file into pieces, and their bytes in objects.
//!
//! ```text
//! file    |  16 MiB  |  16 MiB  | 1 MiB | 1 MiB | 64 KiB | rest |
//! ```
//!
//! The borders depend on the length alone. So a file that grew has mostly the same pieces as before, a large file has few,
//! and a byte of a slow log is uploaded a few times, until its piece is large. A piece of zero bytes has no object.

use std::ops::Range;

use mqstore_io::target::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::layout::digest_of;

/// Level of zstd. The disk or the network should be the limit, not the processor.
const LEVEL: i32 = 1;

/// Maximum bytes of a piece.
pub const MOST_PIECE: u64 = 16 << 20;

/// Lengths of pieces, the largest first. Each is a multiple of the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceSizes(pub [u64; 3]);

impl Default for PieceSizes {
    fn default() -> Self {
        Self([MOST_PIECE, 1 << 20, 64 << 10])
    }
}

impl PieceSizes {
    /// Returns the pieces of a file with `length` bytes, in order.
    pub fn borders(self, length: u64) -> impl Iterator<Item = Range<u64>> {
        let mut at = 0_u64;
        std::iter::from_fn(move || {
            let start = at;
            let fits = |size: &&u64| start.is_multiple_of(**size) && length - start >= **size;
            at += self.0.iter().find(fits).copied().unwrap_or(length - start);
            (start < length).then_some(start..at)
        })
    }
}

/// A part of a file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Piece {
    /// Its length.
    pub bytes: u64,
    /// Its object; `None` if all bytes are zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<PieceObject>,
}

/// The object of a piece.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PieceObject {
    /// Its name: the SHA-256 of the bytes, and a random number.
    pub name: String,
    /// Its length.
    pub bytes: u64,
}

impl Piece {
    /// Whether the piece has these bytes.
    pub(crate) fn is_of(&self, content: &[u8]) -> bool {
        let digest = self.object.as_ref().and_then(|object| digest_of(&object.name));
        content.len() as u64 == self.bytes
            && match digest {
                Some(digest) => hex(&Sha256::digest(content)) == digest,
                None => is_zero(content),
            }
    }

    /// Whether the lengths and the name can be those of a piece.
    pub(crate) fn is_valid(&self) -> bool {
        let is_named = |object: &PieceObject| digest_of(&object.name).is_some() && object.bytes > 0;
        match &self.object {
            Some(object) => (1..=MOST_PIECE).contains(&self.bytes) && is_named(object),
            None => true,
        }
    }
}

/// Whether all bytes are zero.
pub(crate) fn is_zero(content: &[u8]) -> bool {
    content.iter().fold(0, |all, byte| all | byte) == 0
}

/// Returns the content of an object for the bytes of a piece, and its name.
///
/// # Errors
/// zstd failed, for lack of memory.
pub(crate) fn packed(content: &[u8], number: u32) -> std::io::Result<(String, Vec<u8>)> {
    let name = format!("{}-{number:08x}", hex(&Sha256::digest(content)));
    Ok((name, zstd::bulk::compress(content, LEVEL)?))
}

/// Returns the bytes of a piece; `None` if the object has others.
pub(crate) fn unpacked(piece: &Piece, content: &[u8]) -> Option<Vec<u8>> {
    let length = usize::try_from(piece.bytes).ok().filter(|length| *length as u64 <= MOST_PIECE)?;
    let found = zstd::bulk::decompress(content, length).ok()?;
    piece.is_of(&found).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(sizes: PieceSizes, length: u64) -> Vec<u64> {
        sizes.borders(length).map(|range| range.end - range.start).collect()
    }

    #[test]
    fn borders_depend_on_the_length_alone_and_stay_where_they_were() {
        let sizes = PieceSizes([64, 16, 4]);
        assert_eq!(lengths(sizes, 0), [0; 0]);
        assert_eq!(lengths(sizes, 3), [3]);
        assert_eq!(lengths(sizes, 64), [64]);
        assert_eq!(lengths(sizes, 64 + 16 + 16 + 4 + 4 + 1), [64, 16, 16, 4, 4, 1]);
        for length in 0..300 {
            let now: Vec<_> = sizes.borders(length).collect();
            assert_eq!(now.iter().map(|range| range.end - range.start).sum::<u64>(), length);
            // At most 3 of each smaller size, and the rest.
            assert!(now.len() as u64 <= length / 64 + 7, "{length}");
            let later: Vec<_> = sizes.borders(length + 1).collect();
            assert!(now.iter().filter(|range| !later.contains(range)).count() <= 7, "{length}");
        }
    }

    #[test]
    fn only_the_same_bytes_come_back() {
        let content: Vec<u8> = (0..5000_u32).map(|number| (number % 251) as u8).collect();
        let (name, object) = packed(&content, 7).unwrap();
        let piece = Piece { bytes: 5000, object: Some(PieceObject { name, bytes: object.len() as u64 }) };
        assert!(piece.is_valid() && piece.is_of(&content));
        assert_eq!(unpacked(&piece, &object).as_deref(), Some(&*content));
        for at in 0..object.len() {
            let mut damaged = object.clone();
            damaged[at] ^= 0x10;
            if let Some(found) = unpacked(&piece, &damaged) {
                assert_eq!(found, content);
            }
            assert_eq!(unpacked(&piece, &object[..at]), None);
        }
        let short = Piece { bytes: 4999, ..piece.clone() };
        assert_eq!(unpacked(&short, &object), None);
        let lying = Piece { bytes: u64::MAX, ..piece };
        assert!(!lying.is_valid() && unpacked(&lying, &object).is_none());
    }
}
