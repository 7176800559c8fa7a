//! The LZ4 frame format, around the block functions of `lz4_flex`.
//!
//! ```text
//! 04 22 4D 18 | FLG BD [content size 8] HC | block... | 00 00 00 00 | [content checksum 4]
//! block: length (4, top bit: stored uncompressed), data, [checksum 4]
//! ```
//!
//! All integers are little-endian, unlike in the rest of this crate. The decoder accepts the same as lz4-java's
//! `LZ4FrameInputStream`: independent blocks, consecutive frames, and skippable frames between them. It verifies all
//! checksums. This crate has its own decoder, because a frame announces a block size of up to 4 MiB, and other decoders
//! allocate that much for a body of a hundred bytes. The encoder writes frames like RocketMQ's: 4 MiB blocks, no
//! checksums.
#![expect(clippy::little_endian_bytes, reason = "the LZ4 frame format is little-endian")]

use lz4_flex::block::{DecompressError, compress as compress_block, decompress_into};

use crate::bytes::Reader;
use crate::error::FormatError;

const MAGIC: u32 = 0x184D_2204;
/// The first of the sixteen magics of skippable frames.
const SKIPPABLE_MAGIC: u32 = 0x184D_2A50;
const BLOCK_STORED: u32 = 1 << 31;
/// Bits of FLG.
const VERSION_MASK: u8 = 0xc0;
const VERSION_1: u8 = 0x40;
const INDEPENDENT_BLOCKS: u8 = 0x20;
const BLOCK_CHECKSUM: u8 = 0x10;
const CONTENT_SIZE: u8 = 0x08;
const CONTENT_CHECKSUM: u8 = 0x04;
const UNSUPPORTED: u8 = 0x03;
/// RocketMQ's descriptor: version 1, independent blocks of at most 4 MiB.
const DESCRIPTOR: [u8; 2] = [VERSION_1 | INDEPENDENT_BLOCKS, 0x70];
const BLOCK_BYTES: usize = 4 << 20;

fn failed(reason: impl std::fmt::Display) -> FormatError {
    FormatError::compression("lz4", reason)
}

fn read_u32(reader: &mut Reader<'_>) -> Result<u32, FormatError> {
    reader.array().map(u32::from_le_bytes).map_err(|_| failed("the frame ends early"))
}

fn read_bytes<'a>(reader: &mut Reader<'a>, len: usize) -> Result<&'a [u8], FormatError> {
    reader.take(len).map_err(|_| failed("the frame ends early"))
}

pub(super) fn decompress(bytes: &[u8], limit_bytes: usize) -> Result<Vec<u8>, FormatError> {
    let mut reader = Reader::new(bytes, "LZ4 frame");
    let mut out = Vec::new();
    let mut frames = 0u32;
    while !reader.rest().is_empty() || frames == 0 {
        match read_u32(&mut reader)? {
            MAGIC => decompress_frame(&mut reader, limit_bytes, &mut out)?,
            magic if magic & !0xf == SKIPPABLE_MAGIC => {
                let len = read_u32(&mut reader)?;
                read_bytes(&mut reader, len as usize)?;
            }
            _ => return Err(failed("the bytes are not a frame")),
        }
        frames = frames.saturating_add(1);
    }
    Ok(out)
}

struct FrameHeader {
    flags: u8,
    max_block_bytes: usize,
    content_bytes: Option<u64>,
}

fn read_header(reader: &mut Reader<'_>) -> Result<FrameHeader, FormatError> {
    let header = reader.rest();
    let early = |_| failed("the frame ends early");
    let [flags, block] = reader.array().map_err(early)?;
    if flags & VERSION_MASK != VERSION_1 || flags & UNSUPPORTED != 0 || block & 0x8f != 0 || block < 0x40 {
        return Err(failed("the frame descriptor is not supported"));
    }
    if flags & INDEPENDENT_BLOCKS == 0 {
        return Err(failed("blocks that depend on each other are not supported"));
    }
    let content_bytes = match flags & CONTENT_SIZE {
        0 => None,
        _ => Some(reader.array().map(u64::from_le_bytes).map_err(early)?),
    };
    let descriptor = header.get(..header.len() - reader.rest().len()).unwrap_or_default();
    let [checksum] = reader.array().map_err(early)?;
    if checksum != (xxh32(descriptor) >> 8) as u8 {
        return Err(failed("header checksum"));
    }
    // 4..=7 mean 64 KiB, 256 KiB, 1 MiB, 4 MiB.
    let max_block_bytes = 1usize << (8 + 2 * (block >> 4));
    Ok(FrameHeader { flags, max_block_bytes, content_bytes })
}

fn decompress_frame(reader: &mut Reader<'_>, limit: usize, out: &mut Vec<u8>) -> Result<(), FormatError> {
    let header = read_header(reader)?;
    if header.content_bytes.is_some_and(|size| size > limit as u64) {
        return Err(FormatError::decompressed_too_large(limit));
    }
    let start = out.len();
    loop {
        let length = read_u32(reader)?;
        if length == 0 {
            break;
        }
        let stored_bytes = (length & !BLOCK_STORED) as usize;
        if stored_bytes > header.max_block_bytes {
            return Err(failed("a block is longer than the frame allows"));
        }
        let block = read_bytes(reader, stored_bytes)?;
        if header.flags & BLOCK_CHECKSUM != 0 && read_u32(reader)? != xxh32(block) {
            return Err(failed("block checksum"));
        }
        if length & BLOCK_STORED == 0 {
            decompress_block(block, header.max_block_bytes, limit, out)?;
        } else if block.len() > limit.saturating_sub(out.len()) {
            return Err(FormatError::decompressed_too_large(limit));
        } else {
            out.extend_from_slice(block);
        }
    }
    let content = out.get(start..).unwrap_or_default();
    if header.flags & CONTENT_CHECKSUM != 0 && read_u32(reader)? != xxh32(content) {
        return Err(failed("content checksum"));
    }
    if header.content_bytes.is_some_and(|size| size != content.len() as u64) {
        return Err(failed("the content does not have the length in the frame header"));
    }
    Ok(())
}

fn decompress_block(
    block: &[u8],
    max_block: usize,
    limit: usize,
    out: &mut Vec<u8>,
) -> Result<(), FormatError> {
    // One byte of a block gives at most 255 bytes of output.
    let possible = max_block.min(block.len().saturating_mul(255).saturating_add(16));
    let allowed = limit.saturating_sub(out.len());
    let start = out.len();
    out.resize(start + possible.min(allowed), 0);
    let target = out.get_mut(start..).unwrap_or_default();
    match decompress_into(block, target) {
        Ok(written) => {
            out.truncate(start + written);
            Ok(())
        }
        Err(DecompressError::OutputTooSmall { .. }) if allowed < possible => {
            Err(FormatError::decompressed_too_large(limit))
        }
        Err(error) => Err(failed(error)),
    }
}

pub(super) fn compress(bytes: &[u8]) -> Result<Vec<u8>, FormatError> {
    let mut out = Vec::with_capacity(bytes.len() / 2 + 32);
    out.extend_from_slice(&MAGIC.to_le_bytes());
    out.extend_from_slice(&DESCRIPTOR);
    out.push((xxh32(&DESCRIPTOR) >> 8) as u8);
    for chunk in bytes.chunks(BLOCK_BYTES) {
        let block = compress_block(chunk);
        let (flag, data) =
            if block.len() < chunk.len() { (0, block.as_slice()) } else { (BLOCK_STORED, chunk) };
        let length = u32::try_from(data.len()).map_err(failed)?;
        out.extend_from_slice(&(length | flag).to_le_bytes());
        out.extend_from_slice(data);
    }
    out.extend_from_slice(&0u32.to_le_bytes());
    Ok(out)
}

/// Returns XXH32 with seed 0, the checksum of the frame format.
pub(super) fn xxh32(bytes: &[u8]) -> u32 {
    const P1: u32 = 0x9E37_79B1;
    const P2: u32 = 0x85EB_CA77;
    const P3: u32 = 0xC2B2_AE3D;
    const P4: u32 = 0x27D4_EB2F;
    const P5: u32 = 0x1656_67B1;
    let (stripes, rest) = bytes.as_chunks::<16>();
    let mut hash = if stripes.is_empty() {
        P5
    } else {
        let mut lanes = [P1.wrapping_add(P2), P2, 0, 0u32.wrapping_sub(P1)];
        for stripe in stripes {
            let (words, _) = stripe.as_chunks::<4>();
            for (lane, word) in lanes.iter_mut().zip(words) {
                let mixed = lane.wrapping_add(u32::from_le_bytes(*word).wrapping_mul(P2));
                *lane = mixed.rotate_left(13).wrapping_mul(P1);
            }
        }
        let [a, b, c, d] = lanes;
        let sum = a.rotate_left(1).wrapping_add(b.rotate_left(7));
        sum.wrapping_add(c.rotate_left(12)).wrapping_add(d.rotate_left(18))
    };
    hash = hash.wrapping_add(bytes.len() as u32);
    let (words, rest) = rest.as_chunks::<4>();
    for word in words {
        let mixed = hash.wrapping_add(u32::from_le_bytes(*word).wrapping_mul(P3));
        hash = mixed.rotate_left(17).wrapping_mul(P4);
    }
    for byte in rest {
        hash = hash.wrapping_add(u32::from(*byte).wrapping_mul(P5)).rotate_left(11).wrapping_mul(P1);
    }
    hash = (hash ^ hash >> 15).wrapping_mul(P2);
    hash = (hash ^ hash >> 13).wrapping_mul(P3);
    hash ^ hash >> 16
}
