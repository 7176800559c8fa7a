//! Compressed bodies: zlib, LZ4 frames, Zstandard.
//!
//! The record's flag names the compression ([`crate::SysFlag::compression`]). Every decompression has a limit on its
//! output. Memory grows with the output, not with the size that a header claims. Each thread keeps its zlib and
//! Zstandard decoder (some 200 KiB) and encoder (up to some MiB for large bodies) for the next body, because a new one
//! takes longer than a small body. Source: `ZlibCompressor`, `Lz4Compressor` (lz4-java's `LZ4FrameOutputStream`),
//! `ZstdCompressor`.

mod lz4_frame;

use std::cell::Cell;
use std::thread::LocalKey;

use flate2::{Compress, Decompress, FlushCompress, FlushDecompress, Status};
use zstd::zstd_safe::{self, CCtx, DCtx};

use crate::error::FormatError;
use crate::sys_flag::Compression;

/// Maximum size of a body that [`unpack_limit`] allows.
const UNPACKED_LIMIT_BYTES: usize = 1 << 30;

/// Size to which every body may decompress.
const UNPACKED_FLOOR_BYTES: usize = 64 << 20;

/// Returns the maximum size to which a reader of any store decompresses a stored body of `stored_bytes`: 1,032 times
/// its length, which is the maximum of deflate, but at least 64 MiB and at most 1 GiB.
pub fn unpack_limit(stored_bytes: usize) -> usize {
    stored_bytes.saturating_mul(1032).clamp(UNPACKED_FLOOR_BYTES, UNPACKED_LIMIT_BYTES)
}

/// The default level of RocketMQ's client (`compressLevel`).
pub const DEFAULT_COMPRESSION_LEVEL: i32 = 5;

/// Decompresses a body to at most `limit_bytes`; a longer one is [`FormatError::TooLarge`].
///
/// As in the reference, bytes after a zlib stream are ignored, and LZ4 and Zstandard frames can follow each other. For
/// zlib and Zstandard, no bytes are an empty body.
pub fn decompress(kind: Compression, bytes: &[u8], limit_bytes: usize) -> Result<Vec<u8>, FormatError> {
    match kind {
        Compression::Zlib => inflate(bytes, limit_bytes),
        Compression::Lz4 => lz4_frame::decompress(bytes, limit_bytes),
        Compression::Zstd => unzstd(bytes, limit_bytes),
    }
}

/// Compresses a body. `level` is 0 to 9 for zlib and 1 to 22 for Zstandard (other levels are clamped); LZ4 has none.
///
/// The bytes differ from those of a Java writer, but every reader understands them.
pub fn compress(kind: Compression, bytes: &[u8], level: i32) -> Result<Vec<u8>, FormatError> {
    match kind {
        Compression::Zlib => deflate(bytes, level.clamp(0, 9).unsigned_abs()),
        Compression::Lz4 => lz4_frame::compress(bytes),
        Compression::Zstd => pack_zstd(bytes, level.clamp(1, 22)),
    }
}

/// Returns a first guess at the size of the output.
fn first_capacity(compressed: usize, limit_bytes: usize) -> usize {
    compressed.saturating_mul(4).clamp(512, 1 << 20).min(limit_bytes)
}

thread_local! {
    static ZLIB: Cell<Option<Decompress>> = const { Cell::new(None) };
    static ZSTD: Cell<Option<DCtx<'static>>> = const { Cell::new(None) };
    static ZLIB_ENCODER: Cell<Option<(u32, Compress)>> = const { Cell::new(None) };
    static ZSTD_ENCODER: Cell<Option<CCtx<'static>>> = const { Cell::new(None) };
}

/// Runs `work` with this thread's coder, or with a new one if the thread has none (at the first call, and while the
/// thread ends).
fn with_coder<T, R>(
    kept: &'static LocalKey<Cell<Option<T>>>,
    make: impl FnOnce() -> Option<T>,
    work: impl FnOnce(&mut T) -> R,
) -> Option<R> {
    let mut coder = kept.try_with(Cell::take).ok().flatten().or_else(make)?;
    let result = work(&mut coder);
    // If the thread ends, its slot no longer exists, and the coder is dropped.
    let _ = kept.try_with(|kept| kept.set(Some(coder)));
    Some(result)
}

fn deflate(bytes: &[u8], level: u32) -> Result<Vec<u8>, FormatError> {
    let new = || (level, Compress::new(flate2::Compression::new(level), true));
    let packed = with_coder(
        &ZLIB_ENCODER,
        || Some(new()),
        |(of_level, stream)| {
            if *of_level == level {
                stream.reset();
            } else {
                (*of_level, *stream) = new();
            }
            deflate_with(stream, bytes)
        },
    );
    packed.unwrap_or_else(|| Err(FormatError::compression("zlib", "no memory")))
}

fn deflate_with(stream: &mut Compress, bytes: &[u8]) -> Result<Vec<u8>, FormatError> {
    let mut out = Vec::with_capacity(bytes.len() / 2 + 64);
    loop {
        if out.len() == out.capacity() {
            out.reserve(out.len());
        }
        let consumed = usize::try_from(stream.total_in()).unwrap_or(usize::MAX);
        let rest = bytes.get(consumed..).unwrap_or_default();
        let status = stream.compress_vec(rest, &mut out, FlushCompress::Finish);
        if status.map_err(|error| FormatError::compression("zlib", error))? == Status::StreamEnd {
            return Ok(out);
        }
    }
}

fn pack_zstd(bytes: &[u8], level: i32) -> Result<Vec<u8>, FormatError> {
    let packed = with_coder(&ZSTD_ENCODER, CCtx::try_create, |encoder| {
        let mut out = Vec::with_capacity(zstd_safe::compress_bound(bytes.len()));
        encoder.compress(&mut out, bytes, level).map(|_| out)
    });
    match packed {
        Some(packed) => {
            packed.map_err(|code| FormatError::compression("zstd", zstd_safe::get_error_name(code)))
        }
        None => Err(FormatError::compression("zstd", "no memory")),
    }
}

fn inflate(bytes: &[u8], limit_bytes: usize) -> Result<Vec<u8>, FormatError> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let opened = with_coder(
        &ZLIB,
        || Some(Decompress::new(true)),
        |stream| {
            stream.reset(true);
            inflate_with(stream, bytes, limit_bytes)
        },
    );
    opened.unwrap_or_else(|| Err(FormatError::compression("zlib", "no memory")))
}

fn inflate_with(stream: &mut Decompress, bytes: &[u8], limit_bytes: usize) -> Result<Vec<u8>, FormatError> {
    let failed = |reason: &dyn std::fmt::Display| FormatError::compression("zlib", reason);
    let mut out = Vec::with_capacity(first_capacity(bytes.len(), limit_bytes));
    loop {
        if out.len() == out.capacity() {
            // One byte over the limit shows that the output is too long.
            let more = out.len().max(512).min(limit_bytes.saturating_add(1).saturating_sub(out.len()));
            out.reserve_exact(more);
        }
        let consumed = stream.total_in();
        let produced = out.len();
        let rest = usize::try_from(consumed).ok().and_then(|at| bytes.get(at..)).unwrap_or_default();
        let status = stream.decompress_vec(rest, &mut out, FlushDecompress::None).map_err(|e| failed(&e))?;
        if out.len() > limit_bytes {
            return Err(FormatError::decompressed_too_large(limit_bytes));
        }
        if status == Status::StreamEnd {
            return Ok(out);
        }
        let moved = stream.total_in() != consumed || out.len() != produced;
        if !moved && out.len() < out.capacity() {
            return Err(failed(&"the stream ends early"));
        }
    }
}

/// libzstd's return code for an output buffer that is too small.
const ZSTD_DESTINATION_TOO_SMALL: usize = 70usize.wrapping_neg();

fn unzstd(bytes: &[u8], limit_bytes: usize) -> Result<Vec<u8>, FormatError> {
    let opened = with_coder(&ZSTD, DCtx::try_create, |decoder| unzstd_with(decoder, bytes, limit_bytes));
    opened.unwrap_or_else(|| Err(FormatError::compression("zstd", "no memory")))
}

fn unzstd_with(decoder: &mut DCtx<'_>, bytes: &[u8], limit_bytes: usize) -> Result<Vec<u8>, FormatError> {
    let claimed = zstd_safe::get_frame_content_size(bytes).ok().flatten();
    if claimed.is_some_and(|size| size > limit_bytes as u64) {
        return Err(FormatError::decompressed_too_large(limit_bytes));
    }
    // A claimed size is only a hint for the first buffer. Decompression into a whole buffer needs no window, whatever
    // the frame's header asks for, so the limit alone bounds the memory.
    let hint = claimed.map_or(0, |size| (size as usize).min(1 << 22));
    let mut capacity = first_capacity(bytes.len(), limit_bytes).max(hint);
    let mut out = Vec::new();
    loop {
        out.reserve_exact(capacity);
        match decoder.decompress(&mut out, bytes) {
            Ok(_) if out.len() <= limit_bytes => return Ok(out),
            Ok(_) => return Err(FormatError::decompressed_too_large(limit_bytes)),
            Err(ZSTD_DESTINATION_TOO_SMALL) if capacity >= limit_bytes => {
                return Err(FormatError::decompressed_too_large(limit_bytes));
            }
            Err(ZSTD_DESTINATION_TOO_SMALL) => capacity = capacity.saturating_mul(4).min(limit_bytes),
            Err(code) => return Err(FormatError::compression("zstd", zstd_safe::get_error_name(code))),
        }
    }
}

#[cfg(test)]
mod tests;
