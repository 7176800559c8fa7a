//! The findings of a worker, as a file.
//!
//! Owns `found` in the folder of an attempt:
//!
//! ```text
//! found   "mqfound1" | block | block | ...
//! block   [bytes:4][crc31 of them:4] kind 1 | value        kind: 1 part, 2 problem, 3 end, 4 single value
//! ```
//!
//! Values are encoded with `postcard`. A file without its end is incomplete. The reader trusts nothing: the length
//! and the checksum of the file must be those in the worker's answer, and each block has its own checksum. No
//! allocation is larger than the file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_format::{Crc31, crc31};
use mqstore_io::{Access, VfsFile};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::super::problem::Finding;
use super::documents::StepAnswer;
use crate::verify::log_part::PartFindings;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;

const MAGIC: &[u8; 8] = b"mqfound1";
const HEAD_BYTES: usize = 8;

/// Bytes that are buffered before a write.
const WRITE_BYTES: usize = 256 << 10;

const PART: u8 = 1;
const PROBLEM: u8 = 2;
const END: u8 = 3;
const WHOLE: u8 = 4;

/// One item of a file.
#[derive(Debug)]
pub(super) enum Item {
    Part(Box<PartFindings>),
    Problem(Finding),
    End(End),
}

/// The end of the findings about a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct End {
    /// Log offset of the next record; `None` if no record was found.
    pub(super) position: Option<u64>,
    /// Whether the log ends there.
    pub(super) over: bool,
    /// Number of problems that exceed the limit of the list.
    pub(super) more: u64,
}

/// Returns the path of the file in the folder of an attempt.
pub(super) fn file_in(attempt: &Path) -> PathBuf {
    attempt.join("found")
}

/// Writes a file.
pub(super) struct FindingsWriter {
    folder: String,
    path: PathBuf,
    file: Arc<dyn VfsFile>,
    buffer: Vec<u8>,
    written: u64,
    sum: Crc31,
}

impl FindingsWriter {
    pub(super) fn create(files: &StoreFiles, attempt: &Path, folder: &str) -> Result<Self, StoreError> {
        let path = file_in(attempt);
        let file = files.vfs.create_new(&path).at(&path, "creating a file for findings")?;
        let buffer = MAGIC.to_vec();
        Ok(Self { folder: folder.to_owned(), path, file, buffer, written: 0, sum: Crc31::default() })
    }

    pub(super) fn part(&mut self, part: &PartFindings) -> Result<(), StoreError> {
        self.block(PART, part)
    }

    pub(super) fn problem(&mut self, finding: &Finding) -> Result<(), StoreError> {
        self.block(PROBLEM, finding)
    }

    pub(super) fn end(&mut self, end: End) -> Result<(), StoreError> {
        self.block(END, &end)
    }

    /// Writes a value that is the only one of the file.
    pub(super) fn whole(&mut self, value: &impl Serialize) -> Result<(), StoreError> {
        self.block(WHOLE, value)
    }

    fn block(&mut self, kind: u8, value: &impl Serialize) -> Result<(), StoreError> {
        let head = self.buffer.len();
        self.buffer.extend_from_slice(&[0; HEAD_BYTES]);
        self.buffer.push(kind);
        let buffer = std::mem::take(&mut self.buffer);
        self.buffer = postcard::to_extend(value, buffer).map_err(|error| self.serialize_error(&error))?;
        let (_, block) = self.buffer.split_at_mut(head);
        let (head, payload) = block.split_at_mut(HEAD_BYTES);
        let (bytes, sum) = head.split_at_mut(4);
        bytes.copy_from_slice(&(payload.len() as u32).to_be_bytes());
        sum.copy_from_slice(&crc31(payload).to_be_bytes());
        if self.buffer.len() < WRITE_BYTES { Ok(()) } else { self.write() }
    }

    fn serialize_error(&self, error: &postcard::Error) -> StoreError {
        StoreError::Busy {
            reason: format!("{}: the findings cannot be written: {error}", self.path.display()),
        }
    }

    fn write(&mut self) -> Result<(), StoreError> {
        self.sum.update(&self.buffer);
        self.file.write_all_at(&self.buffer, self.written).at(&self.path, "writing a file of findings")?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Writes the rest; then the file is complete.
    pub(super) fn finish(mut self) -> Result<StepAnswer, StoreError> {
        self.write()?;
        Ok(StepAnswer { folder: self.folder, bytes: self.written, checksum: self.sum.finish() })
    }
}

/// Reads a file.
pub(super) struct FindingsReader {
    path: PathBuf,
    file: Arc<dyn VfsFile>,
    /// Length of the file.
    bytes: u64,
    position: u64,
    checksum: u32,
    sum: Crc31,
    buffer: Vec<u8>,
}

impl FindingsReader {
    pub(super) fn open(files: &StoreFiles, path: &Path, answer: &StepAnswer) -> Result<Self, StoreError> {
        let file = files.vfs.open(path, Access::Read).at(path, "opening a file of findings")?;
        let bytes = file.len().at(path, "reading the length of a file of findings")?;
        let mut reader = Self {
            path: path.to_path_buf(),
            file,
            bytes,
            position: 0,
            checksum: answer.checksum,
            sum: Crc31::default(),
            buffer: Vec::new(),
        };
        if bytes != answer.bytes {
            return Err(
                reader.wrong(&format!("it has {bytes} bytes instead of the {} written", answer.bytes))
            );
        }
        if reader.take(MAGIC.len() as u64)? != MAGIC {
            return Err(reader.wrong("it does not begin with the magic number"));
        }
        Ok(reader)
    }

    /// Returns the next item.
    pub(super) fn item(&mut self) -> Result<Item, StoreError> {
        Ok(match self.block()? {
            PART => Item::Part(self.value()?),
            PROBLEM => Item::Problem(self.value()?),
            END => {
                let end = self.value()?;
                self.must_be_over()?;
                Item::End(end)
            }
            kind => return Err(self.wrong(&format!("{kind} is not a known kind of block"))),
        })
    }

    /// Returns the only value of the file.
    pub(super) fn whole<T: DeserializeOwned>(mut self) -> Result<T, StoreError> {
        if self.block()? != WHOLE {
            return Err(self.wrong("it is of another step"));
        }
        let value = self.value()?;
        self.must_be_over()?;
        Ok(value)
    }

    /// Reads the next block and returns its kind.
    fn block(&mut self) -> Result<u8, StoreError> {
        let head = self.take(HEAD_BYTES as u64)?;
        let word = |at: usize| {
            head.get(at..).and_then(|rest| rest.first_chunk()).map(|word| u32::from_be_bytes(*word))
        };
        let (Some(bytes), Some(sum)) = (word(0), word(4)) else { return Err(self.wrong("it is cut off")) };
        let payload = self.take(u64::from(bytes))?;
        match payload.first() {
            Some(kind) if crc31(payload) == sum => Ok(*kind),
            _ => Err(self.wrong("a checksum is wrong")),
        }
    }

    fn value<T: DeserializeOwned>(&self) -> Result<T, StoreError> {
        match postcard::take_from_bytes(self.buffer.get(1..).unwrap_or_default()) {
            Ok((value, [])) => Ok(value),
            Ok(_) => Err(self.wrong("a block is longer than its value")),
            Err(error) => Err(self.wrong(&error.to_string())),
        }
    }

    fn take(&mut self, bytes: u64) -> Result<&[u8], StoreError> {
        if bytes > self.bytes - self.position {
            return Err(self.wrong("it is incomplete"));
        }
        self.buffer.resize(bytes as usize, 0);
        self.file
            .read_exact_at(&mut self.buffer, self.position)
            .at(&self.path, "reading a file of findings")?;
        self.position += bytes;
        self.sum.update(&self.buffer);
        Ok(&self.buffer)
    }

    fn must_be_over(&mut self) -> Result<(), StoreError> {
        if self.position < self.bytes {
            return Err(self.wrong("it has bytes after its end"));
        }
        if self.sum.clone().finish() == self.checksum {
            Ok(())
        } else {
            Err(self.wrong("it is not what its worker wrote"))
        }
    }

    /// Returns the error for a file that cannot be used.
    pub(super) fn wrong(&self, what: &str) -> StoreError {
        StoreError::corrupt(&self.path, self.position, format!("{what}; run the job again"))
    }
}

#[cfg(test)]
mod tests {
    use mqstore_io::{ManualClock, SimVfs, Vfs};

    use super::super::super::problem::ProblemKind;
    use super::*;
    use crate::verify::index_walk::KeyEvent;
    use crate::verify::log_part::{MissingUnits, QueuePart};
    use crate::verify::misordered::MisorderedRange;

    fn attempt() -> (StoreFiles, PathBuf) {
        let vfs = Arc::new(SimVfs::default());
        let folder = PathBuf::from("/job/task");
        vfs.create_dir_all(&folder).unwrap();
        (StoreFiles::new(vfs, Arc::new(ManualClock::new(0)), Path::new("/store")), folder)
    }

    fn part() -> PartFindings {
        let mut part =
            PartFindings { first: Some(100), end: 900, messages: 3, bytes: 700, ..PartFindings::default() };
        part.times.back.push((100, -1, i64::MAX));
        part.keys.events.push(KeyEvent::ManyMissing { first: 100, last: 500, keys: 2, hash: 7 });
        part.queues.push(QueuePart {
            topic: "orders".into(),
            queue_id: 3,
            rows: vec![MisorderedRange { from: 5, to: 8, first: 100, last: 600, records: 3 }],
            matched: 1,
            absent: vec![MissingUnits { from: 6, to: 7, physical: 300 }],
            wrong: vec![(7, "it is another one".to_owned())],
            ..QueuePart::default()
        });
        part
    }

    fn written() -> (StoreFiles, PathBuf, StepAnswer) {
        let (files, folder) = attempt();
        let mut writer = FindingsWriter::create(&files, &folder, "task").unwrap();
        let kind = ProblemKind::RecordDamaged;
        let finding = Finding { kind, path: "/store/x".into(), offset: Some(9), detail: "no".to_owned() };
        writer.part(&part()).unwrap();
        writer.problem(&finding).unwrap();
        writer.end(End { position: Some(900), over: true, more: 2 }).unwrap();
        (files, file_in(&folder), writer.finish().unwrap())
    }

    fn read(files: &StoreFiles, path: &Path, answer: &StepAnswer) -> Result<Vec<Item>, StoreError> {
        let mut reader = FindingsReader::open(files, path, answer)?;
        let mut items = Vec::new();
        while !matches!(items.last(), Some(Item::End(_))) {
            items.push(reader.item()?);
        }
        Ok(items)
    }

    #[test]
    fn what_was_written_is_read() {
        let (files, path, answer) = written();
        let wanted = [
            Item::Part(Box::new(part())),
            Item::Problem(Finding {
                kind: ProblemKind::RecordDamaged,
                path: "/store/x".into(),
                offset: Some(9),
                detail: "no".to_owned(),
            }),
            Item::End(End { position: Some(900), over: true, more: 2 }),
        ];
        assert_eq!(format!("{:?}", read(&files, &path, &answer).unwrap()), format!("{wanted:?}"));
        let file = FindingsReader::open(&files, &path, &answer).unwrap();
        assert!(file.whole::<Vec<u64>>().unwrap_err().to_string().contains("of another step"));
    }

    #[test]
    fn a_file_with_another_byte_or_another_length_is_refused() {
        let (files, path, answer) = written();
        let bytes = files.vfs.read_file(&path, 1 << 20).unwrap();
        let refused = |bytes: &[u8], what: usize| {
            let file = files.vfs.open(&path, Access::ReadWrite).unwrap();
            file.set_len(0).unwrap();
            file.write_all_at(bytes, 0).unwrap();
            let error = read(&files, &path, &answer).unwrap_err();
            assert!(matches!(&error, StoreError::Corrupt { .. }), "{what}: {error}");
            assert!(error.to_string().contains("run the job again"), "{error}");
        };
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                refused(&changed, at * 8 + bit);
            }
            refused(&bytes[..at], at);
        }
        refused(&[&bytes[..], &[0]].concat(), bytes.len());
        // Another attempt has another checksum, although each of its blocks is correct.
        let other = StepAnswer { checksum: answer.checksum ^ 1, ..answer.clone() };
        let file = files.vfs.open(&path, Access::ReadWrite).unwrap();
        file.set_len(bytes.len() as u64).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        assert!(read(&files, &path, &other).unwrap_err().to_string().contains("not what its worker wrote"));
        assert_eq!(read(&files, &path, &answer).unwrap().len(), 3);
    }

    #[test]
    fn numbers_that_cannot_be_those_of_records_are_seen() {
        assert!(part().is_sound(100) && part().is_sound(0) && !part().is_sound(101));
        let wrong: [fn(&mut PartFindings); 10] = [
            |part| part.end = 99,
            |part| part.messages = 800 / 91 + 1,
            |part| part.bytes = 801,
            |part| part.queues[0].queue_id = -1,
            |part| part.queues[0].matched = -1,
            |part| part.queues[0].rows[0].from = -1,
            |part| part.queues[0].rows[0].to = 4,
            |part| part.queues[0].rows[0].records = 801,
            |part| part.queues[0].rows[0].records = -1,
            |part| part.queues[0].absent[0].to = 5,
        ];
        for (number, change) in wrong.iter().enumerate() {
            let mut changed = part();
            change(&mut changed);
            assert!(!changed.is_sound(100), "{number}");
        }
    }
}
