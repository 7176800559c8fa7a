//! Compares the sparse queues of compacted topics with their logs.
//!
//! Owns nothing on disk. Reads each compaction log and the queue file of the same name in parallel. Each unit must
//! match the record at its place, queue offsets must ascend, and both files must end together.
//!
//! ```text
//! compactionLog/T/0/00000000000000000000   record | record | record | filler, zeros or the end
//!                                             |        |        |
//! compactionCq/T/0/00000000000000000000    unit   | unit   | unit   | end marker, zeros or the end
//! ```
//!
//! Damage in the log itself ends the comparison of that file; the check that reads through the queue reports it.
//! While a writer runs, and after it was killed, a log may be ahead of its queue.
//!
//! Source: `CompactionLog.CompactionAppendMessageCallback`, `SparseConsumeQueue#putBatchMessagePositionInfo`.

use mqstore_format::{
    BATCH_CQ_UNIT_BYTES, BLANK_HEADER_BYTES, BatchCqUnit, CrcCheck, DelayLevels, Peek, RecordView,
    SCHEDULE_TOPIC, peek,
};
use mqstore_io::VfsFile;

use crate::problem::{ProblemKind, VerifyReport};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;
use mqstore_compaction::{DataFile, FilePair, QueueFolder, SparseTags, WITHOUT_LOG, open_listed};

/// Bytes of one read.
const WINDOW_BYTES: usize = 1 << 20;

/// Maximum number of findings listed for one file.
const MOST_FINDINGS: u32 = 100;

/// Compares the files of a queue. `beside` is set if a writer runs, `unfinished` if it runs or was killed.
pub(super) fn check(
    files: &StoreFiles,
    (topic, queue_id): (&str, i32),
    (beside, unfinished): (bool, bool),
    report: &mut VerifyReport,
) -> Result<(), StoreError> {
    let folder = QueueFolder::load(files, &files.compaction(), topic, queue_id)?;
    // A broker that runs may be between the two files.
    for queue in folder.without_log.iter().filter(|_| !beside) {
        report.add(ProblemKind::CompactionFile, &queue.path, None, WITHOUT_LOG);
    }
    let (mut before, mut tags) = (None, SparseTags::default());
    for pair in &folder.pairs {
        let Some(log) = open_listed(files, &pair.log)? else { return Ok(()) };
        let queue = match &pair.queue {
            Some(queue) => match open_listed(files, queue)? {
                Some(file) => Some(FileReader::new(file, queue)),
                // A new generation replaced this one.
                None => return Ok(()),
            },
            None => None,
        };
        let (delayed, log) = (topic == SCHEDULE_TOPIC, FileReader::new(log, &pair.log));
        let tags = &mut tags;
        let mut walk = Walk { files, delayed, tags, pair, log, queue, found: 0, unfinished, report };
        before = walk.all(before)?;
    }
    Ok(())
}

struct Walk<'a> {
    files: &'a StoreFiles,
    /// Whether the queue holds delayed messages.
    delayed: bool,
    tags: &'a mut SparseTags,
    pair: &'a FilePair,
    log: FileReader<'a>,
    queue: Option<FileReader<'a>>,
    found: u32,
    unfinished: bool,
    report: &'a mut VerifyReport,
}

impl Walk<'_> {
    /// Walks both files and returns the last queue offset. The first record must exceed the offset `before`.
    fn all(&mut self, mut before: Option<i64>) -> Result<Option<i64>, StoreError> {
        let (mut place, mut number, mut without) = (0, 0, None);
        while let Some((size, expected)) = self.record(place)? {
            let entry = self.entry(number)?.filter(BatchCqUnit::is_valid);
            let ascends = before.is_none_or(|before| expected.base_offset > before);
            match entry {
                // Leftover of an older, longer file.
                None if !ascends => break,
                None => {
                    without.get_or_insert((number, expected.base_offset));
                }
                Some(entry) if entry != expected && !self.is_due_by_another_table(&entry, &expected) => {
                    self.tell(false, number * UNIT, differs(&entry, &expected));
                }
                Some(_) if !ascends => {
                    let detail = format!("the record of offset {} follows a later one", expected.base_offset);
                    self.tell(true, place, detail);
                }
                Some(_) => {}
            }
            before = before.max(Some(expected.base_offset));
            place += size;
            number += 1;
        }
        if let Some((first, offset)) = without.filter(|_| !self.unfinished) {
            let detail = format!("the records from offset {offset} on have no unit");
            self.tell(false, first * UNIT, detail);
        }
        let over = self.log_is_over(place)?;
        if let Some(entry) = self.entry(number)?.filter(|entry| over && entry.is_valid()) {
            let offset = entry.base_offset;
            let detail = format!("the units from offset {offset} on point past the last record");
            self.tell(false, number * UNIT, detail);
        }
        Ok(before)
    }

    /// Returns the size of the record at `place` and its expected unit.
    fn record(&mut self, place: u64) -> Result<Option<(u64, BatchCqUnit)>, StoreError> {
        let Some(head) = self.log.at(place, BLANK_HEADER_BYTES)? else { return Ok(None) };
        let Ok(Peek::Record { size, .. }) = peek(head) else { return Ok(None) };
        let Some(bytes) = self.log.at(place, size as usize)? else { return Ok(None) };
        let Ok(record) = RecordView::decode(bytes) else { return Ok(None) };
        // The checksum over the whole record includes its position in the commit log.
        let place = (self.pair.log.base + place) as i64;
        if record.check_crc(CrcCheck { body: true, property: false }).is_err()
            || record.physical_offset != place
        {
            return Ok(None);
        }
        let tags_code = self.tags.code(self.files, &record)?;
        let (time, offset) = (record.store_timestamp, record.queue_offset);
        let expected = BatchCqUnit::new(place, size as i32, tags_code, time, offset, 1);
        Ok(Some((u64::from(size), expected)))
    }

    /// Whether a unit differs only in the due time of its message, because it used another table of delay levels.
    fn is_due_by_another_table(&self, entry: &BatchCqUnit, expected: &BatchCqUnit) -> bool {
        self.delayed
            && *entry == BatchCqUnit { tags_code: entry.tags_code, ..*expected }
            && DelayLevels::is_delivery_time(entry.tags_code, entry.store_timestamp)
    }

    /// Whether the log ends normally at `place`, and not in damage.
    fn log_is_over(&mut self, place: u64) -> Result<bool, StoreError> {
        let Some(head) = self.log.at(place, BLANK_HEADER_BYTES)? else { return Ok(true) };
        Ok(matches!(peek(head), Ok(Peek::Zero | Peek::Blank { .. })))
    }

    fn entry(&mut self, number: u64) -> Result<Option<BatchCqUnit>, StoreError> {
        let Some(queue) = &mut self.queue else { return Ok(None) };
        let bytes = queue.at(number * UNIT, BATCH_CQ_UNIT_BYTES)?;
        Ok(bytes.and_then(|bytes| bytes.first_chunk()).map(BatchCqUnit::decode))
    }

    fn tell(&mut self, of_log: bool, place: u64, detail: String) {
        self.found += 1;
        if self.found > MOST_FINDINGS {
            self.report.more += 1;
            return;
        }
        let file = if of_log { None } else { self.pair.queue.as_ref() };
        match file {
            Some(queue) => self.report.add(ProblemKind::CompactionEntry, &queue.path, Some(place), detail),
            None => self.report.add(ProblemKind::CompactionEntry, &self.pair.log.path, Some(place), detail),
        }
    }
}

const UNIT: u64 = BATCH_CQ_UNIT_BYTES as u64;

fn differs(entry: &BatchCqUnit, expected: &BatchCqUnit) -> String {
    let describe = |unit: &BatchCqUnit| {
        format!(
            "offset {}, position {} ({} bytes), tags' hash {}, stored at {}",
            unit.base_offset, unit.physical_offset, unit.size, unit.tags_code, unit.store_timestamp
        )
    };
    format!("the unit has {}; its record: {}", describe(entry), describe(expected))
}

/// A file that is read from front to end.
struct FileReader<'a> {
    file: std::sync::Arc<dyn VfsFile>,
    of: &'a DataFile,
    start: u64,
    buffer: Vec<u8>,
}

impl<'a> FileReader<'a> {
    fn new(file: std::sync::Arc<dyn VfsFile>, of: &'a DataFile) -> Self {
        Self { file, of, start: 0, buffer: Vec::new() }
    }

    /// Returns `len` bytes at `place`; `None` if the file ends before them.
    fn at(&mut self, place: u64, len: usize) -> Result<Option<&[u8]>, StoreError> {
        if place.checked_add(len as u64).is_none_or(|end| end > self.of.len) {
            return Ok(None);
        }
        let held = place >= self.start && place + len as u64 <= self.start + self.buffer.len() as u64;
        if !held {
            self.buffer.resize((self.of.len - place).min(WINDOW_BYTES.max(len) as u64) as usize, 0);
            self.start = place;
            self.file
                .read_exact_at(&mut self.buffer, place)
                .at(&self.of.path, "reading a compacted queue")?;
        }
        let from = (place - self.start) as usize;
        Ok(self.buffer.get(from..from + len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqstore_compaction::cut_unfinished_tails;
    use mqstore_compaction::testing::{Broker, Sent, sim_files};

    const LOG: u64 = 2048;
    const QUEUE: u64 = 46 * 8;

    fn broker(files: &StoreFiles) -> Broker {
        let mut broker = Broker::new(files, LOG, QUEUE);
        for offset in 0..20 {
            broker.append(3 * offset, &Sent::new(&format!("k{offset}"), "a body"));
        }
        broker
    }

    fn found(files: &StoreFiles, beside: bool) -> Vec<(Option<u64>, String)> {
        let mut report = VerifyReport::default();
        check(files, ("ctopic", 0), (beside, beside), &mut report).unwrap();
        assert!(report.problems.iter().all(|problem| problem.kind == "compaction_entry_wrong"));
        report.problems.into_iter().map(|problem| (problem.offset, problem.detail)).collect()
    }

    #[test]
    fn entries_and_records_are_compared_both_ways() {
        let files = sim_files();
        let broker = broker(&files);
        assert_eq!(found(&files, false), []);
        // Change each field of one unit in the second file.
        let unit = files.vfs.read_file(&broker.path("compactionCq", LOG), 1 << 20).unwrap();
        let unit: [u8; BATCH_CQ_UNIT_BYTES] = *unit[2 * 46..].first_chunk().unwrap();
        for at in [7, 11, 19, 27, 35, 37, 41, 45] {
            let mut spoiled = unit;
            spoiled[at] ^= 64;
            broker.write("compactionCq", LOG, 2 * 46, &spoiled);
            let found = found(&files, false);
            assert_eq!(found.len(), 1, "{at}: {found:?}");
            assert_eq!(found[0].0, Some(2 * 46), "{at}");
        }
        broker.write("compactionCq", LOG, 2 * 46, &unit);
        assert_eq!(found(&files, false), []);
    }

    #[test]
    fn neither_goes_on_without_the_other() {
        let files = sim_files();
        let broker = broker(&files);
        let last = BatchCqUnit::new(5000, 100, 0, 1, 900, 1);
        // 20 records in three files: 7, 7 and 6.
        broker.write("compactionCq", 2 * LOG, 6 * 46, &last.encode());
        let ahead = found(&files, false);
        assert!(matches!(&ahead[..], [(Some(276), detail)] if detail.contains("offset 900")), "{ahead:?}");
        broker.write("compactionCq", 2 * LOG, 5 * 46, &[0; 92]);
        let behind = found(&files, false);
        assert!(matches!(&behind[..], [(Some(230), detail)] if detail.contains("offset 57")), "{behind:?}");
        assert_eq!(found(&files, true), []);
    }

    #[test]
    fn a_copy_ends_where_its_units_end() {
        let files = sim_files();
        let broker = broker(&files);
        broker.write("compactionCq", 2 * LOG, 4 * 46, &[0; 92]);
        assert_eq!(found(&files, true), []);
        assert_eq!(found(&files, false).len(), 1);
        cut_unfinished_tails(&files).unwrap();
        assert_eq!(found(&files, false), []);
        // The third file has four records, and then none: it was made after the queue files were copied.
        files.vfs.remove_file(&broker.path("compactionCq", 2 * LOG)).unwrap();
        broker.write("compactionCq", LOG, 6 * 46, &[0; 46]);
        cut_unfinished_tails(&files).unwrap();
        assert_eq!(found(&files, false), []);
        let folder = QueueFolder::load(&files, &files.compaction(), "ctopic", 0).unwrap();
        assert_eq!((folder.pairs.len(), folder.pairs[1].log.len), (2, LOG));
    }

    #[test]
    fn offsets_ascend_over_files() {
        let files = sim_files();
        let mut broker = broker(&files);
        broker.append(56, &Sent::new("k", "late"));
        let found = found(&files, false);
        assert!(matches!(&found[..], [(Some(_), detail)] if detail.contains("offset 56")), "{found:?}");
    }
}
