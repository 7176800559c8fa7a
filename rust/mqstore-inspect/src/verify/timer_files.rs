//! Checks the files of delayed messages with an exact time: timer wheel, timer log and their checkpoint.
//!
//! Owns nothing on disk. It checks the properties that hold in every state of a broker: lengths, magic numbers and
//! positions within bounds. For waiting messages, each cell of the wheel must lead to units of its own second, back to
//! the first one, and each unit to a record of the timer topic. It does not check counts, because RocketMQ does not
//! keep them correct, nor units of delivered messages, which are not read any more.
//!
//! Their bytes are drawn in [`mqstore_format::delays::timer`]. Source: `TimerMessageStore#recoverAndRevise`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_format::delays::timer;
use mqstore_format::delays::timer::{
    TIMER_PRECISION_MS, TIMER_TOPIC, TIMER_UNIT_BYTES, TimerCheckpoint, TimerEntry, TimerSlot, TimerUnit,
    WHEEL_BYTES,
};
use mqstore_format::names::{TIMERCHECK_FILE, TIMERWHEEL_FILE};
use mqstore_format::{RecordView, parse_offset_file_name};
use mqstore_io::{Access, FileKind, VfsFile};

use crate::problem::{ProblemKind, VerifyReport};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;
use mqstore_log::commit_log::{SegmentList, read_record};

const SLOT_BYTES: u64 = timer::SLOT_BYTES as u64;
const UNIT_BYTES: u64 = TIMER_UNIT_BYTES as u64;
/// Number of units in one read.
const UNITS_AT_ONCE: u64 = 8192;
/// Maximum number of findings of one kind in the report.
const MOST_FINDINGS: usize = 100;

/// The values that the files are compared with.
pub(super) struct TimerContext<'a> {
    pub files: &'a StoreFiles,
    /// The commit log.
    pub list: &'a SegmentList,
    /// End of the log.
    pub log_end: u64,
    /// End of the queue of timer messages at the time of its check.
    pub queue_end: Option<i64>,
    /// Whether a writer has the store open: then the log may grow past `log_end`.
    pub beside: bool,
}

/// Checks all timer files.
pub(super) fn check(against: &TimerContext<'_>, report: &mut VerifyReport) -> Result<(), StoreError> {
    let files = against.files;
    // Read first the file that refers to the log: a broker advances all of them.
    let checked = files.vfs.read_file(&files.config().join(TIMERCHECK_FILE), 1 << 16).unwrap_or_default();
    let checked = TimerCheckpoint::decode(&checked);
    let slots = wheel(files, report)?;
    let log = timer_log(against, report)?;
    let wheel = files.root.join(TIMERWHEEL_FILE);
    let ahead = slots.iter().filter(|slot| slot.last >= log.end);
    for slot in ahead.take(MOST_FINDINGS) {
        let detail = format!(
            "the cell of time {} leads to {}; the timer log ends at {}",
            slot.time, slot.last, log.end
        );
        report.add(ProblemKind::TimerWheel, &wheel, Some(slot.place), detail);
    }
    let read_slot = checked.last_read_time_ms.div_euclid(TIMER_PRECISION_MS);
    let mut walk = WaitingMessages { against, log: &log, report, found: 0 };
    for slot in slots.iter().filter(|slot| slot.time >= read_slot && slot.last < log.end) {
        if let Some(detail) = walk.slot(slot)? {
            walk.found += 1;
            walk.report.add(ProblemKind::TimerWheel, &wheel, Some(slot.place), detail);
        }
        if walk.found >= MOST_FINDINGS {
            break;
        }
    }
    let path = files.config().join(TIMERCHECK_FILE);
    // A running writer advances queue and checkpoint during the check.
    let queue_end = against.queue_end.filter(|_| !against.beside);
    for (name, value, end) in [
        ("lastTimerLogFlushPos", checked.last_timer_log_flush_pos, Some(log.end)),
        ("lastTimerQueueOffset", checked.last_timer_queue_offset, queue_end),
    ] {
        if let Some(end) = end.filter(|end| value > *end) {
            report.add(
                ProblemKind::TimerCheckpoint,
                &path,
                None,
                format!("{name} is {value}; the end is {end}"),
            );
        }
    }
    Ok(())
}

/// The check of waiting messages: from each cell back through its units, and to their records.
struct WaitingMessages<'a, 'b> {
    against: &'a TimerContext<'b>,
    log: &'a TimerLogFiles,
    report: &'a mut VerifyReport,
    /// Number of findings so far.
    found: usize,
}

impl WaitingMessages<'_, '_> {
    /// Walks the units of a cell; returns the problem of the cell itself.
    fn slot(&mut self, slot: &WheelSlot) -> Result<Option<String>, StoreError> {
        let (mut place, mut first) = (slot.last, slot.last);
        while place >= self.log.begin {
            let Some((file, at, unit)) = self.log.unit(place)? else {
                return Ok(Some(format!(
                    "the cell of time {} leads to {place} in the timer log, where no unit is",
                    slot.time
                )));
            };
            let time = unit.slot_ms().div_euclid(TIMER_PRECISION_MS);
            if time != slot.time {
                let detail = format!(
                    "the cell of time {} leads to {place} in the timer log, where a unit of time {time} is",
                    slot.time
                );
                return Ok(Some(detail));
            }
            if let Some(detail) = self.record(&unit)? {
                self.found += 1;
                self.report.add(ProblemKind::TimerLog, file, Some(at), detail);
            }
            (first, place) = (place, unit.previous);
        }
        // Units before the begin of the timer log have expired.
        let ends = slot.first < self.log.begin || slot.first == first;
        Ok((!ends).then(|| {
            let time = slot.time;
            format!("the first unit of the cell of time {time} is at {first}, not at {}", slot.first)
        }))
    }

    /// Describes the problem of the record that a unit points to.
    fn record(&self, unit: &TimerUnit) -> Result<Option<String>, StoreError> {
        let TimerContext { files, list, log_end, .. } = self.against;
        let (offset, size) = (unit.physical_offset as u64, unit.size.cast_unsigned());
        let end = offset.saturating_add(u64::from(size));
        // The record has expired, or is past the end that this check saw.
        if offset < list.min_offset() || end > *log_end {
            return Ok(None);
        }
        let is = match read_record(files, list, offset, size as usize) {
            Ok(bytes) => match RecordView::decode(bytes.as_slice()) {
                Ok(view) if view.size == size && view.topic == TIMER_TOPIC => return Ok(None),
                Ok(view) => format!("a record of {} with {} bytes is", view.topic, view.size),
                Err(_) => "no record begins".to_owned(),
            },
            Err(StoreError::Corrupt { .. }) => "no complete record begins".to_owned(),
            Err(error) if error.is_gone() => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(Some(format!("leads to log offset {offset} ({size} bytes), where {is}")))
    }
}

/// A cell of the wheel that has messages.
struct WheelSlot {
    place: u64,
    time: i64,
    first: i64,
    last: i64,
}

fn wheel(files: &StoreFiles, report: &mut VerifyReport) -> Result<Vec<WheelSlot>, StoreError> {
    let path = files.root.join(TIMERWHEEL_FILE);
    let Ok(file) = files.vfs.open(&path, Access::Read) else { return Ok(Vec::new()) };
    let len = file.len().at(&path, "looking at the timer wheel")?;
    if len != WHEEL_BYTES {
        let detail = format!("{len} bytes long; a wheel has {WHEEL_BYTES}");
        report.add(ProblemKind::TimerWheel, &path, None, detail);
        return Ok(Vec::new());
    }
    let (mut found, mut buffer, mut at, mut wrong) = (Vec::new(), Vec::new(), 0, 0);
    while let Some(data) = file.next_data(at).at(&path, "looking for cells")? {
        at = at.max(data / SLOT_BYTES * SLOT_BYTES);
        let bytes = (len - at).min(UNITS_AT_ONCE * SLOT_BYTES);
        if bytes == 0 {
            break;
        }
        buffer.resize(bytes as usize, 0);
        file.read_exact_at(&mut buffer, at).at(&path, "reading the timer wheel")?;
        for (slot, place) in buffer.as_chunks::<32>().0.iter().zip((at..).step_by(SLOT_BYTES as usize)) {
            let Some(TimerSlot { time, first, last, .. }) = TimerSlot::decode(slot) else { continue };
            let index = place / SLOT_BYTES;
            let belongs = time >= 0 && TimerSlot::index(time) as u64 == index;
            if belongs && first <= last && first >= -1 {
                found.push(WheelSlot { place, time, first, last });
            } else if wrong < MOST_FINDINGS {
                wrong += 1;
                let detail =
                    format!("cell {index} has time {time}, first position {first} and last position {last}");
                report.add(ProblemKind::TimerWheel, &path, Some(place), detail);
            }
        }
        at += bytes;
    }
    Ok(found)
}

/// The files of the timer log.
struct TimerLogFiles {
    /// Position of the first byte of the first file.
    begin: i64,
    /// End of the last complete unit.
    end: i64,
    /// Bytes of each file.
    length: u64,
    /// The files by the position of their first byte, ascending.
    files: Vec<(u64, PathBuf, Arc<dyn VfsFile>)>,
}

impl TimerLogFiles {
    /// Returns the unit at `position`, its file, and its byte offset in the file.
    fn unit(&self, position: i64) -> Result<Option<(&Path, u64, TimerUnit)>, StoreError> {
        let Ok(place) = u64::try_from(position) else { return Ok(None) };
        let number = self.files.partition_point(|(base, ..)| *base <= place);
        let file = number.checked_sub(1).and_then(|number| self.files.get(number));
        let Some((base, path, file)) = file.filter(|(base, ..)| place - base + UNIT_BYTES <= self.length)
        else {
            return Ok(None);
        };
        let mut bytes = [0; TIMER_UNIT_BYTES];
        file.read_exact_at(&mut bytes, place - base).at(path, "reading a timer log")?;
        Ok(match TimerEntry::decode(&bytes, position) {
            TimerEntry::Unit(unit) => Some((path, place - base, unit)),
            _ => None,
        })
    }
}

fn timer_log(against: &TimerContext<'_>, report: &mut VerifyReport) -> Result<TimerLogFiles, StoreError> {
    let files = against.files;
    let folder = files.timer_log();
    let mut found: Vec<(u64, u64, PathBuf)> = Vec::new();
    for entry in files.vfs.list(&folder).unwrap_or_default() {
        let path = folder.join(&entry.name);
        let base = entry.name.to_str().and_then(parse_offset_file_name);
        match (entry.stat.kind, base) {
            (FileKind::File, Some(base)) if base <= i64::MAX as u64 / 2 => {
                found.push((base, entry.stat.len, path));
            }
            (FileKind::Directory, _) => {}
            _ => {
                report.add_stray(
                    ProblemKind::TimerLog,
                    &path,
                    "its name is not the 20 digits of a timer log",
                );
            }
        }
    }
    found.sort();
    let begin = found.first().map_or(0, |(base, ..)| *base as i64);
    let length = found.first().map_or(0, |(_, len, _)| *len);
    let mut log = TimerLogFiles { begin, end: begin, length, files: Vec::new() };
    let mut before = None;
    for (base, len, path) in found {
        if len != length {
            let detail = format!("{len} bytes long; others have {length}");
            report.add(ProblemKind::TimerLog, &path, None, detail);
            return Ok(log);
        }
        if before.replace(base + len).is_some_and(|end| end != base) {
            report.add(ProblemKind::TimerLog, &path, None, "the file before it is missing");
        }
        let file = files.vfs.open(&path, Access::Read).at(&path, "opening a timer log")?;
        log.files.push((base, path.clone(), Arc::clone(&file)));
        if !units(against, (&path, base, &*file), report, &mut log)? {
            return Ok(log);
        }
    }
    Ok(log)
}

/// Walks the units of a file; returns whether the timer log continues in the next one.
fn units(
    against: &TimerContext<'_>,
    (path, base, file): (&Path, u64, &dyn VfsFile),
    report: &mut VerifyReport,
    log: &mut TimerLogFiles,
) -> Result<bool, StoreError> {
    let len = log.length;
    // While a writer runs, units may point past the end that this check saw.
    let log_end = if against.beside { u64::MAX } else { against.log_end };
    let (mut at, mut buffer) = (0, Vec::new());
    while at + UNIT_BYTES <= len {
        let bytes = ((len - at) / UNIT_BYTES).min(UNITS_AT_ONCE) * UNIT_BYTES;
        buffer.resize(bytes as usize, 0);
        file.read_exact_at(&mut buffer, at).at(path, "reading a timer log")?;
        for unit in buffer.as_chunks::<52>().0 {
            let own = (base + at) as i64;
            match judge(unit, own, log_end) {
                TimerEntry::Unit(_) => at += UNIT_BYTES,
                TimerEntry::Blank => {
                    log.end = (base + len) as i64;
                    return Ok(true);
                }
                TimerEntry::Empty => return Ok(false),
                TimerEntry::Wrong(reason) => {
                    report.add(ProblemKind::TimerLog, path, Some(at), reason);
                    return Ok(false);
                }
            }
            log.end = (base + at) as i64;
        }
    }
    log.end = (base + len) as i64;
    Ok(true)
}

fn judge(unit: &[u8; TIMER_UNIT_BYTES], own: i64, log_end: u64) -> TimerEntry {
    let entry = TimerEntry::decode(unit, own);
    if let TimerEntry::Unit(TimerUnit { physical_offset, size, .. }) = entry
        && physical_offset as u64 + size as u64 > log_end
    {
        return TimerEntry::Wrong(format!(
            "leads to log offset {physical_offset} ({size} bytes); the log ends at {log_end}"
        ));
    }
    entry
}
