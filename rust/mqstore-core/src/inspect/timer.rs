//! The files of delayed messages with times of their own: wheel, timer log, their checkpoint.
//!
//! Owns nothing on disk. Looks at what must hold whatever a broker was doing: lengths, magic numbers, places within
//! bounds. Counts are not looked at, since RocketMQ itself does not keep them true.
//!
//! ```text
//! timerwheel           slots of 32 bytes: time 8 | first 8 | last 8 | count 4 | magic 4      by time modulo slots
//! timerlog/<20 digits> units of 52 bytes: size 4 | previous 8 | magic 4 | written 8 | delay 4 | log offset 8 | size 4 | ...
//!                      a blank of 16 bytes ends a file: bytes left 4 | 0 8 | CBD43194
//! config/timercheck    read time 8 | log position 8 | queue offset 8 | ...
//! ```
//!
//! Source: `TimerWheel`, `Slot`, `TimerLog`, `TimerMessageStore#recoverAndRevise`, `TimerCheckpoint`.

use std::path::{Path, PathBuf};

use mqstore_format::names::{TIMERLOG_DIR, TIMERWHEEL_FILE};
use mqstore_format::parse_offset_file_name;
use mqstore_io::{Access, FileKind};

use super::problems::{Kind, VerifyReport};
use crate::error::{IoContext, StoreError};
use crate::files::StoreFiles;

const SLOT_BYTES: u64 = 32;
/// Twice seven days of seconds. Source: `TimerMessageStore#TIMER_WHEEL_TTL_DAY`, `TimerWheel#slotsTotal`.
const SLOTS: u64 = 2 * 7 * 86_400;
const UNIT_BYTES: u64 = 52;
const BLANK_MAGIC: u32 = 0xCBD4_3194;
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
    let checked = files.vfs.read_file(&files.config().join("timercheck"), 1 << 16).unwrap_or_default();
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
    let long = |at: usize| {
        checked.get(at..at + 8).and_then(|bytes| bytes.first_chunk()).map(|bytes| i64::from_be_bytes(*bytes))
    };
    let path = files.config().join("timercheck");
    for (name, value, end) in
        [("lastTimerLogFlushPos", long(8), Some(log.end)), ("lastTimerQueueOffset", long(16), queue_end)]
    {
        if let (Some(value), Some(end)) = (value, end)
            && value > end
        {
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
    if len != SLOTS * SLOT_BYTES {
        let detail = format!("{len} bytes long; a wheel has {}", SLOTS * SLOT_BYTES);
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
            if *slot == [0; 32] {
                continue;
            }
            let (time, first, last) = (long(slot, 0), long(slot, 8), long(slot, 16));
            let index = place / SLOT_BYTES;
            let belongs = u64::try_from(time).is_ok_and(|time| time % SLOTS == index);
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
                Unit::Good => at += UNIT_BYTES,
                Unit::Blank => {
                    log.end = (base + len) as i64;
                    return Ok(true);
                }
                Unit::Zero => return Ok(false),
                Unit::Wrong(reason) => {
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

enum Unit {
    Good,
    Blank,
    /// Nothing was written here.
    Zero,
    Wrong(String),
}

fn judge(unit: &[u8; 52], own: i64, log_end: u64) -> Unit {
    let (size, magic) = (int(unit, 0), int(unit, 12));
    if *unit == [0; 52] {
        return Unit::Zero;
    }
    if magic as u32 == BLANK_MAGIC {
        return Unit::Blank;
    }
    if i64::from(size) != UNIT_BYTES as i64 || magic & !0xF != 0 || magic & 1 == 0 {
        return Unit::Wrong(format!("no unit of a timer log: size {size}, magic {magic:#x}"));
    }
    let (previous, place, bytes) = (long(unit, 4), long(unit, 28), int(unit, 36));
    if previous < -1 || previous >= own {
        return Unit::Wrong(format!("its previous unit would be at {previous}; it stands at {own} itself"));
    }
    let ends =
        u64::try_from(place).ok().zip(u64::try_from(bytes).ok()).and_then(|(at, len)| at.checked_add(len));
    if bytes <= 0 || ends.is_none_or(|end| end > log_end) {
        let reason = format!("leads to log offset {place} ({bytes} bytes); the log ends at {log_end}");
        return Unit::Wrong(reason);
    }
    Unit::Good
}

fn long(bytes: &[u8], at: usize) -> i64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| i64::from_be_bytes(*bytes))
}

fn int(bytes: &[u8], at: usize) -> i32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| i32::from_be_bytes(*bytes))
}
