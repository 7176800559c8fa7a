//! The files of delayed messages with times of their own: wheel, timer log, their checkpoint.
//!
//! Owns nothing on disk. Looks at what must hold whatever a broker was doing: lengths, magic numbers, places within
//! bounds. Counts are not looked at, since RocketMQ itself does not keep them true.
//!
//! Their bytes are drawn in [`mqstore_format::timer`]. Source: `TimerMessageStore#recoverAndRevise`.

use std::path::{Path, PathBuf};

use mqstore_format::names::{TIMERCHECK_FILE, TIMERLOG_DIR, TIMERWHEEL_FILE};
use mqstore_format::parse_offset_file_name;
use mqstore_format::timer::{
    self, TIMER_UNIT_BYTES, TimerCheckpoint, TimerEntry, TimerSlot, TimerUnit, WHEEL_BYTES,
};
use mqstore_io::{Access, FileKind};

use super::problems::{Kind, VerifyReport};
use crate::error::{IoContext, StoreError};
use crate::files::StoreFiles;

const SLOT_BYTES: u64 = timer::SLOT_BYTES as u64;
const UNIT_BYTES: u64 = TIMER_UNIT_BYTES as u64;
/// Units that are read at once.
const UNITS_AT_ONCE: u64 = 8192;
/// Findings of one kind that are told one by one.
const MOST_FINDINGS: usize = 100;

/// Looks at all of them. `log_end` is where the commit log ends, `queue_end` where the queue of timer messages does.
pub(super) fn check(
    files: &StoreFiles,
    log_end: u64,
    queue_end: Option<i64>,
    report: &mut VerifyReport,
) -> Result<(), StoreError> {
    // What speaks of the log comes before it: a broker moves all of them on.
    let checked = files.vfs.read_file(&files.config().join(TIMERCHECK_FILE), 1 << 16).unwrap_or_default();
    let checked = TimerCheckpoint::decode(&checked);
    let slots = wheel(files, report)?;
    let log = timer_log(files, log_end, report)?;
    let wheel = files.root.join(TIMERWHEEL_FILE);
    let ahead = slots.iter().filter(|slot| slot.last >= log.end);
    for slot in ahead.take(MOST_FINDINGS) {
        let detail = format!(
            "the slot of time {} leads to {}; the timer log ends at {}",
            slot.time, slot.last, log.end
        );
        report.add(Kind::TimerWheel, &wheel, Some(slot.place), detail);
    }
    let path = files.config().join(TIMERCHECK_FILE);
    for (name, value, end) in [
        ("lastTimerLogFlushPos", checked.last_timer_log_flush_pos, Some(log.end)),
        ("lastTimerQueueOffset", checked.last_timer_queue_offset, queue_end),
    ] {
        if let Some(end) = end.filter(|end| value > *end) {
            report.add(Kind::TimerCheckpoint, &path, None, format!("{name} is {value}; the end is {end}"));
        }
    }
    Ok(())
}

/// A slot that has messages.
struct Slot {
    place: u64,
    time: i64,
    last: i64,
}

fn wheel(files: &StoreFiles, report: &mut VerifyReport) -> Result<Vec<Slot>, StoreError> {
    let path = files.root.join(TIMERWHEEL_FILE);
    let Ok(file) = files.vfs.open(&path, Access::Read) else { return Ok(Vec::new()) };
    let len = file.len().at(&path, "looking at the timer wheel")?;
    if len != WHEEL_BYTES {
        let detail = format!("{len} bytes long; a wheel has {WHEEL_BYTES}");
        report.add(Kind::TimerWheel, &path, None, detail);
        return Ok(Vec::new());
    }
    let (mut found, mut buffer, mut at, mut wrong) = (Vec::new(), Vec::new(), 0, 0);
    while let Some(data) = file.next_data(at).at(&path, "looking for slots")? {
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
                found.push(Slot { place, time, last });
            } else if wrong < MOST_FINDINGS {
                wrong += 1;
                let detail =
                    format!("slot {index} has time {time}, first position {first} and last position {last}");
                report.add(Kind::TimerWheel, &path, Some(place), detail);
            }
        }
        at += bytes;
    }
    Ok(found)
}

/// The timer log as it was found.
struct TimerLog {
    /// Where it ends.
    end: i64,
}

fn timer_log(files: &StoreFiles, log_end: u64, report: &mut VerifyReport) -> Result<TimerLog, StoreError> {
    let folder = files.root.join(TIMERLOG_DIR);
    let mut found: Vec<(u64, u64, PathBuf)> = Vec::new();
    for entry in files.vfs.list(&folder).unwrap_or_default() {
        let path = folder.join(&entry.name);
        let base = entry.name.to_str().and_then(parse_offset_file_name);
        match (entry.stat.kind, base) {
            (FileKind::File, Some(base)) if base <= i64::MAX as u64 / 2 => {
                found.push((base, entry.stat.len, path));
            }
            (FileKind::Directory, _) => {}
            _ => report.add(Kind::TimerLog, &path, None, "its name is not the 20 digits of a timer log"),
        }
    }
    found.sort();
    let mut log = TimerLog { end: found.first().map_or(0, |(base, ..)| *base as i64) };
    let length = found.first().map_or(0, |(_, len, _)| *len);
    for (number, (base, len, path)) in found.iter().enumerate() {
        if *len != length {
            let detail = format!("{len} bytes long; others have {length}");
            report.add(Kind::TimerLog, path, None, detail);
            return Ok(log);
        }
        let follows = found.get(number.wrapping_sub(1)).is_none_or(|(before, ..)| before + length == *base);
        if !follows {
            report.add(Kind::TimerLog, path, None, "a file before it is missing");
        }
        if !units(files, path, *base, *len, log_end, report, &mut log)? {
            return Ok(log);
        }
    }
    Ok(log)
}

/// Walks the units of a file; whether it goes on with the next one.
fn units(
    files: &StoreFiles,
    path: &Path,
    base: u64,
    len: u64,
    log_end: u64,
    report: &mut VerifyReport,
    log: &mut TimerLog,
) -> Result<bool, StoreError> {
    let file = files.vfs.open(path, Access::Read).at(path, "opening a timer log")?;
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
                    report.add(Kind::TimerLog, path, Some(at), reason);
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
