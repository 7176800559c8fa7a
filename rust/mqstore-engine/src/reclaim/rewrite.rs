//! Makes the new file of a segment next to the log: written, synced, and compared with the old one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;
use mqstore_compaction::TaskMeter;
use mqstore_format::{BLANK_HEADER_BYTES, HiddenPlaceholder, RecordView, encode_blank, offset_file_name};
use mqstore_io::{MapAccess, MappedFile, VfsFile, switch};
use mqstore_log::commit_log::{LogScanner, ScanChecks, ScanItem, Segment, SegmentList};

use super::hidden_run::HiddenRun;
use super::rules::{RecordRules, RecordState};
use super::sparse_writer::SparseWriter;

/// The run that is being read, with a copy of its first record.
struct FirstRecord {
    run: HiddenRun,
    bytes: Vec<u8>,
}

/// Makes the new file of `segment`, with the time `modified_ms`. Returns its path, or why the segment must stay.
///
/// # Errors
/// [`StoreError::Corrupt`] if the new file differs from the old one other than planned; errors of the system. No file
/// remains then.
pub(super) fn stage(
    files: &StoreFiles,
    segment: &Arc<Segment>,
    modified_ms: i64,
    rules: &mut RecordRules<'_>,
    meter: &mut TaskMeter<'_>,
) -> Result<Result<PathBuf, String>, StoreError> {
    let folder = files.staging_beside(&segment.path())?;
    let staged = folder.join(format!("{}.rewrite", offset_file_name(segment.base_offset())));
    discard(files, &staged);
    let made = make(files, segment, (&staged, modified_ms), rules, meter);
    if !matches!(made, Ok(None)) {
        discard(files, &staged);
    }
    Ok(match made? {
        None => Ok(staged),
        Some(why) => Err(why),
    })
}

/// Removes a staged file. If that fails, the next open removes it with the staging folder.
pub(super) fn discard(files: &StoreFiles, staged: &Path) {
    let _ = files.vfs.remove_file(staged);
}

fn make(
    files: &StoreFiles,
    segment: &Arc<Segment>,
    (staged, modified_ms): (&Path, i64),
    rules: &mut RecordRules<'_>,
    meter: &mut TaskMeter<'_>,
) -> Result<Option<String>, StoreError> {
    let file = files.vfs.create_new(staged).at(staged, "making a rewritten segment")?;
    file.set_len(segment.len()).at(staged, "making a rewritten segment")?;
    if let Some(why) = write(segment, (&*file, staged), rules, meter)? {
        return Ok(Some(why));
    }
    // A broker deletes a segment by the time of its file.
    file.set_modified_ms(modified_ms).at(staged, "setting the time of a rewritten segment")?;
    switch::step("reclaim.sync_segment", || file.sync_all()).at(staged, "syncing a rewritten segment")?;
    let new = MappedFile::open(&files.vfs, staged, segment.base_offset(), MapAccess::Read)
        .at(staged, "opening a rewritten segment")?;
    compare(segment, &new, rules, meter)?;
    meter.look()?;
    Ok((!rules.still_apply()?).then(|| "units of queues lead to its hidden records again".to_owned()))
}

/// Writes the records of `segment`, with placeholders for those that `rules` let go. Returns why the segment must stay,
/// if it must.
fn write(
    segment: &Arc<Segment>,
    (file, staged): (&dyn VfsFile, &Path),
    rules: &mut RecordRules<'_>,
    meter: &mut TaskMeter<'_>,
) -> Result<Option<String>, StoreError> {
    let mut scanner = walk(segment);
    let mut out = SegmentWriter { writer: SparseWriter::new(file), staged, open: None };
    let base = segment.base_offset();
    loop {
        let at = scanner.position();
        match scanner.next_item()? {
            ScanItem::Record(record) => {
                if is_replaceable(rules, &record, (base, at))? {
                    out.replace(at, &record)?;
                } else {
                    out.keep(record.bytes)?;
                    meter.wrote(record.size);
                }
                meter.read(record.size)?;
            }
            ScanItem::Filler { .. } => {
                let rest = segment.end_offset() - at;
                out.keep(&encode_blank(rest as u32))?;
                out.skip(rest - BLANK_HEADER_BYTES as u64)?;
            }
            ScanItem::End { .. } if at == segment.end_offset() => break,
            ScanItem::End { .. } => return Ok(Some("it is not full".to_owned())),
            ScanItem::Damaged(damage) => {
                let (place, reason) = (damage.file_offset, damage.reason);
                return Ok(Some(format!("it is damaged at offset {place}: {reason}; repair it first")));
            }
        }
    }
    out.finish()?;
    Ok(None)
}

/// Returns a scanner of all records of `segment`, with verified checksums.
fn walk(segment: &Arc<Segment>) -> LogScanner {
    let alone = Arc::new(SegmentList::of_files(vec![Arc::clone(segment)]));
    let (start, end) = (segment.base_offset(), segment.end_offset());
    LogScanner::new(alone, start, end, ScanChecks { crc: true })
}

fn is_replaceable(
    rules: &mut RecordRules<'_>,
    record: &RecordView<'_>,
    place: (u64, u64),
) -> Result<bool, StoreError> {
    if record.is_placeholder() {
        return Ok(false);
    }
    let topic = rules.topic(record.topic);
    Ok(rules.state_of(&topic, record, place)? == RecordState::Replaceable)
}

/// The file that is being written.
struct SegmentWriter<'a> {
    writer: SparseWriter<'a>,
    staged: &'a Path,
    open: Option<FirstRecord>,
}

impl SegmentWriter<'_> {
    /// Adds the record at log offset `at` to the open run, or to a new one.
    fn replace(&mut self, at: u64, record: &RecordView<'_>) -> Result<(), StoreError> {
        if self.open.as_mut().is_some_and(|open| open.run.extend(at, record.size)) {
            return Ok(());
        }
        self.end_run()?;
        self.open = Some(FirstRecord { run: HiddenRun::of(at, record), bytes: record.bytes.to_vec() });
        Ok(())
    }

    fn keep(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.end_run()?;
        self.writer.push(bytes).at(self.staged, WRITING)
    }

    fn skip(&mut self, bytes: u64) -> Result<(), StoreError> {
        self.writer.push_zeros(bytes).at(self.staged, WRITING)
    }

    /// Writes the placeholder of the open run.
    fn end_run(&mut self) -> Result<(), StoreError> {
        let Some(FirstRecord { run, bytes }) = self.open.take() else { return Ok(()) };
        let placeholder = RecordView::decode(&bytes)
            .and_then(|first| HiddenPlaceholder::new(&first, run.end - run.start))
            .map_err(|error| StoreError::format(self.staged, run.start, &error))?;
        self.writer.push(&placeholder.head).at(self.staged, WRITING)?;
        self.skip(placeholder.body_bytes)?;
        self.writer.push(&placeholder.tail).at(self.staged, WRITING)
    }

    fn finish(mut self) -> Result<(), StoreError> {
        self.end_run()?;
        self.writer.finish().at(self.staged, WRITING)
    }
}

/// The action in errors of writes.
const WRITING: &str = "writing a rewritten segment";

/// Checks that `new` has every record of `old` that `rules` do not let go, with the same bytes at the same log offset,
/// and only placeholders otherwise.
fn compare(
    old: &Arc<Segment>,
    new: &Arc<Segment>,
    rules: &mut RecordRules<'_>,
    meter: &mut TaskMeter<'_>,
) -> Result<(), StoreError> {
    let base = old.base_offset();
    let (mut before, mut after) = (walk(old), walk(new));
    let differs = |at: u64| {
        let reason = "the rewritten segment differs from the old one, which stays; this is a mistake of mqstore: \
                      report it";
        StoreError::corrupt(&new.path(), at - base, reason)
    };
    loop {
        let at = after.position();
        let end = match after.next_item()? {
            ScanItem::Record(record) => {
                let end = at + u64::from(record.size);
                let ScanItem::Record(first) = before.next_item()? else { return Err(differs(at)) };
                let is_right = first.bytes == record.bytes
                    || record.is_placeholder() && is_replaceable(rules, &first, (base, at))?;
                if !is_right {
                    return Err(differs(at));
                }
                meter.read(record.size)?;
                meter.read(first.size)?;
                end
            }
            ScanItem::Filler { .. } if matches!(before.next_item()?, ScanItem::Filler { .. }) => {
                old.end_offset()
            }
            ScanItem::End { .. } if at == old.end_offset() => return Ok(()),
            _ => return Err(differs(at)),
        };
        // The other records of a placeholder.
        while before.position() < end {
            let at = before.position();
            let replaced = match before.next_item()? {
                ScanItem::Record(record) => {
                    meter.read(record.size)?;
                    is_replaceable(rules, &record, (base, at))?
                }
                _ => false,
            };
            if !replaced {
                return Err(differs(at));
            }
        }
        if before.position() != end {
            return Err(differs(end));
        }
    }
}
