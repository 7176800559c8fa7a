//! The log file and its frames.
//!
//! Owns the head of the file and the eight bytes before the records of each frame. All integers are big-endian:
//!
//! ```text
//! head     0  8  "MQSTMETA"         8  4  version 1        12  4  zero
//!         16  8  generation        24  8  where the tail starts: a position in the file
//!         32  8  the metadata position of the tail's first byte
//!         40  4  zero              44  4  CRC-32 of the bytes before
//! frame    0  4  CRC-32 of all following bytes of the frame
//!          4  4  length of the records, up to 16 MiB        8  records
//! ```
//!
//! A frame without records is not written. A log of an earlier version may have one; it is read like any other.
//!
//! A frame either decodes completely or does not count. The log ends at the first position without a complete frame:
//! at zeros, at the end of the file, or at bytes with a wrong checksum.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_format::crc32;
use mqstore_io::{VfsFile, switch};

use super::record::{MetaPosition, MetaRecord, SYNCED_MARK};
use mqstore_base::error::{IoContext, StoreError};

const MAGIC: &[u8; 8] = b"MQSTMETA";
const VERSION: u32 = 1;
/// Bytes of the head.
pub(super) const HEAD_BYTES: u64 = 48;
/// Bytes before a frame's records.
const FRAME_HEAD_BYTES: usize = 8;
/// Maximum bytes of records in one frame.
pub(super) const MAX_FRAME_BYTES: usize = 16 << 20;
/// Bytes of a frame that states up to where the log is synced.
const SYNCED_FRAME_BYTES: usize = FRAME_HEAD_BYTES + 16;
/// Bytes per read.
const READ_BYTES: usize = 256 << 10;

/// The content of a file's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileHeader {
    pub(super) generation: u64,
    pub(super) tail_start: u64,
    pub(super) place: MetaPosition,
}

impl FileHeader {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_be_bytes());
        bytes.extend_from_slice(&[0; 4]);
        for value in [self.generation, self.tail_start, self.place.0] {
            bytes.extend_from_slice(&value.to_be_bytes());
        }
        bytes.extend_from_slice(&[0; 4]);
        let crc = crc32(&bytes);
        bytes.extend_from_slice(&crc.to_be_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, crc) = bytes.split_last_chunk::<4>()?;
        let (magic, body_rest) = body.split_first_chunk::<8>()?;
        let (version, rest) = body_rest.split_first_chunk::<4>()?;
        let holds = bytes.len() as u64 == HEAD_BYTES && crc32(body) == u32::from_be_bytes(*crc);
        if magic != MAGIC || u32::from_be_bytes(*version) != VERSION || !holds {
            return None;
        }
        let value = |at: usize| {
            rest.get(at..).and_then(|rest| rest.first_chunk().map(|chunk| u64::from_be_bytes(*chunk)))
        };
        Some(Self { generation: value(4)?, tail_start: value(12)?, place: MetaPosition(value(20)?) })
    }
}

/// A frame under construction. The buffer is reused for the next one.
#[derive(Debug, Default)]
pub(super) struct Frame(Vec<u8>);

impl Frame {
    pub(super) fn clear(&mut self) {
        self.0.clear();
        self.0.extend_from_slice(&[0; FRAME_HEAD_BYTES]);
    }

    pub(super) fn push(&mut self, record: &MetaRecord<'_>) {
        record.encode(&mut self.0);
    }

    /// Bytes of its records.
    pub(super) fn len(&self) -> usize {
        self.0.len().saturating_sub(FRAME_HEAD_BYTES)
    }

    /// Completes the head and returns the bytes of the frame; `None` for a frame without records, which must not be
    /// written.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`] if the frame exceeds [`MAX_FRAME_BYTES`].
    pub(super) fn sealed(&mut self) -> Result<Option<&[u8]>, StoreError> {
        let (size, limit) = (self.len() as u64, MAX_FRAME_BYTES as u64);
        if size == 0 {
            return Ok(None);
        }
        if size > limit {
            return Err(StoreError::TooLarge { what: "a change of metadata", size, limit });
        }
        if let Some((crc, rest)) = self.0.split_first_chunk_mut::<4>() {
            if let Some(len) = rest.first_chunk_mut::<4>() {
                *len = (size as u32).to_be_bytes();
            }
            *crc = crc32(rest).to_be_bytes();
        }
        Ok(Some(&self.0))
    }
}

/// Returns the frame that states that everything before `place` is synced.
pub(super) fn synced_frame(place: MetaPosition) -> [u8; SYNCED_FRAME_BYTES] {
    let mut bytes = [0; SYNCED_FRAME_BYTES];
    let [_, _, _, _, rest @ ..] = &mut bytes;
    let parts = (16_u32.to_be_bytes(), *SYNCED_MARK, place.0.to_be_bytes());
    for (to, from) in rest.iter_mut().zip(parts.0.into_iter().chain(parts.1).chain(parts.2)) {
        *to = from;
    }
    let crc = crc32(rest);
    if let Some(first) = bytes.first_chunk_mut() {
        *first = crc.to_be_bytes();
    }
    bytes
}

/// The result of reading the next frame of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NextFrame<'a> {
    /// Where a frame begins, and its records.
    Frame(u64, &'a [u8]),
    /// The end of the log. If bytes follow, the reason why they are not a frame.
    End(Option<&'static str>),
}

/// Reads frames one after the other, with a bounded part of the file in memory.
pub(super) struct FrameReader {
    path: PathBuf,
    file: Arc<dyn VfsFile>,
    /// Where the next frame begins, in the file.
    at: u64,
    /// Length of the file.
    len: u64,
    buffer: Vec<u8>,
    /// Index in the buffer of the byte at `at`.
    begin: usize,
}

impl FrameReader {
    pub(super) fn new(path: &Path, file: &Arc<dyn VfsFile>, at: u64, len: u64) -> Self {
        Self { path: path.to_path_buf(), file: Arc::clone(file), at, len, buffer: Vec::new(), begin: 0 }
    }

    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Returns the next frame, or the end of the log.
    pub(super) fn next(&mut self) -> Result<NextFrame<'_>, StoreError> {
        let left = self.len.saturating_sub(self.at);
        if !self.fill(FRAME_HEAD_BYTES)? {
            return Ok(NextFrame::End((left > 0).then_some("the file ends within a frame")));
        }
        let head = self.buffer.get(self.begin..).and_then(|bytes| bytes.first_chunk::<FRAME_HEAD_BYTES>());
        let Some([_, _, _, _, len @ ..]) = head.filter(|head| **head != [0; FRAME_HEAD_BYTES]) else {
            return Ok(NextFrame::End(None));
        };
        let len = u32::from_be_bytes(*len) as usize;
        if len > MAX_FRAME_BYTES || (len + FRAME_HEAD_BYTES) as u64 > left {
            return Ok(NextFrame::End(Some("the length of a frame exceeds the file")));
        }
        if !self.fill(FRAME_HEAD_BYTES + len)? {
            return Ok(NextFrame::End(Some("the file ends within a frame")));
        }
        let bytes = self.buffer.get(self.begin..self.begin + FRAME_HEAD_BYTES + len).unwrap_or_default();
        let Some(records) = records_of(bytes) else {
            return Ok(NextFrame::End(Some("the checksum of a frame is wrong")));
        };
        let at = self.at;
        self.at += bytes.len() as u64;
        self.begin += bytes.len();
        Ok(NextFrame::Frame(at, records))
    }

    /// Fills the buffer to at least `wanted` bytes. Returns whether the file has that much.
    fn fill(&mut self, wanted: usize) -> Result<bool, StoreError> {
        let have = self.buffer.len() - self.begin;
        if have >= wanted {
            return Ok(true);
        }
        let left = self.len.saturating_sub(self.at);
        if left < wanted as u64 {
            return Ok(false);
        }
        self.buffer.drain(..self.begin);
        self.begin = 0;
        let whole = (wanted.max(READ_BYTES) as u64).min(left) as usize;
        self.buffer.resize(whole, 0);
        let mut filled = have;
        while let Some(rest) = self.buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let count = self.file.read_at(rest, self.at + filled as u64);
            match count.at(&self.path, "reading the metadata log")? {
                0 => break,
                count => filled += count,
            }
        }
        self.buffer.truncate(filled);
        Ok(filled >= wanted)
    }
}

/// Returns the records of a complete frame, or `None` if the bytes are not one.
fn records_of(frame: &[u8]) -> Option<&[u8]> {
    let (crc, rest) = frame.split_first_chunk::<4>()?;
    if switch::on("meta.frame_crc") && crc32(rest) != u32::from_be_bytes(*crc) {
        return None;
    }
    rest.get(4..)
}

/// The bytes after the end of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TailBytes {
    /// One past the last byte that is not zero; `None` if all are zero.
    pub(super) used: Option<u64>,
    /// The highest metadata position that a synced frame among them states.
    pub(super) synced: Option<MetaPosition>,
}

/// Inspects the bytes of the file from `from` on.
pub(super) fn inspect_tail(
    path: &Path,
    file: &dyn VfsFile,
    from: u64,
    len: u64,
) -> Result<TailBytes, StoreError> {
    let mut rest = TailBytes::default();
    let mut buffer = vec![0; READ_BYTES.min(len.saturating_sub(from) as usize)];
    let mut at = from;
    while at < len {
        match file.next_data(at).at(path, "looking for data in the metadata log")? {
            Some(data) if data < len => at = at.max(data),
            _ => break,
        }
        let wanted = (buffer.len() as u64).min(len - at) as usize;
        let bytes = buffer.get_mut(..wanted).unwrap_or_default();
        let count = file.read_at(bytes, at).at(path, "reading the metadata log")?;
        let bytes = bytes.get(..count).unwrap_or_default();
        if let Some(last) = bytes.iter().rposition(|byte| *byte != 0) {
            rest.used = Some(at + last as u64 + 1);
            let places = bytes.windows(SYNCED_FRAME_BYTES).filter_map(synced_place);
            rest.synced = rest.synced.max(places.max());
        }
        if count == 0 {
            break;
        }
        // A frame may span two parts.
        let again = if at + count as u64 >= len { 0 } else { SYNCED_FRAME_BYTES as u64 - 1 };
        at += (count as u64).saturating_sub(again).max(1);
    }
    Ok(rest)
}

/// Returns the position that a synced frame states, or `None` for other bytes.
fn synced_place(frame: &[u8]) -> Option<MetaPosition> {
    if frame.get(FRAME_HEAD_BYTES..)?.first_chunk() != Some(SYNCED_MARK) {
        return None;
    }
    let place = MetaPosition(u64::from_be_bytes(*frame.last_chunk()?));
    (frame == synced_frame(place)).then_some(place)
}

#[cfg(test)]
mod tests {
    use mqstore_io::{SimVfs, Vfs};
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::record::tests::any_record;
    use super::*;

    #[test]
    fn a_head_comes_back_and_no_other_byte_is_one() {
        let head = FileHeader { generation: 7, tail_start: 1 << 33, place: MetaPosition(9) };
        let bytes = head.encode();
        assert_eq!(bytes.len() as u64, HEAD_BYTES);
        assert_eq!(FileHeader::decode(&bytes), Some(head));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(FileHeader::decode(&damaged), None, "bit {bit}");
        }
        assert_eq!(FileHeader::decode(&bytes[..47]), None);
    }

    #[test]
    fn a_synced_frame_is_a_frame_and_is_found() {
        let frame = synced_frame(MetaPosition(77));
        let mut records = records_of(&frame).unwrap();
        assert_eq!(MetaRecord::decode(&mut records), Some(MetaRecord::Synced { place: MetaPosition(77) }));
        let mut same = Frame::default();
        same.clear();
        same.push(&MetaRecord::Synced { place: MetaPosition(77) });
        assert_eq!(same.sealed().unwrap().unwrap(), frame);
        assert_eq!(synced_place(&frame), Some(MetaPosition(77)));
        for at in 0..frame.len() {
            let mut damaged = frame;
            damaged[at] ^= 0x10;
            assert_eq!(synced_place(&damaged), None, "byte {at}");
        }
    }

    fn decoded(mut records: &[u8]) -> Vec<MetaRecord<'_>> {
        let next =
            std::iter::from_fn(|| (!records.is_empty()).then(|| MetaRecord::decode(&mut records).unwrap()));
        next.collect()
    }

    proptest! {
        #[test]
        fn each_list_of_records_is_read_as_it_was_written(lists in vec(vec(any_record(), 0..6), 0..6)) {
            let vfs = SimVfs::default();
            let file = vfs.create_new(Path::new("/log")).unwrap();
            let (mut frame, mut at) = (Frame::default(), 0);
            for list in &lists {
                frame.clear();
                for record in list {
                    frame.push(record);
                }
                let bytes = frame.sealed().unwrap();
                prop_assert_eq!(bytes.is_none(), list.is_empty());
                file.write_all_at(bytes.unwrap_or_default(), at).unwrap();
                at += bytes.map_or(0, <[u8]>::len) as u64;
            }
            file.set_len(at + 100).unwrap();
            let mut reader = FrameReader::new(Path::new("/log"), &file, 0, at + 100);
            for list in lists.iter().filter(|list| !list.is_empty()) {
                let NextFrame::Frame(_, records) = reader.next().unwrap() else { panic!("{list:?} is no frame") };
                prop_assert_eq!(&decoded(records), list);
            }
            prop_assert_eq!(reader.next().unwrap(), NextFrame::End(None));
            prop_assert_eq!(reader.at(), at);
        }
    }

    #[test]
    fn a_frame_that_is_too_long_is_none() {
        let text = "x".repeat(MAX_FRAME_BYTES);
        let mut frame = Frame::default();
        frame.clear();
        frame.push(&MetaRecord::Name { id: super::super::record::NameId(0), name: &text });
        assert!(matches!(frame.sealed(), Err(StoreError::TooLarge { .. })));
    }
}
