//! Makes a manifest of an archive from its Parquet files.
//!
//! The footer of a file has the facts of the run that wrote it: the archive, the run, the neighbouring segments whose
//! records the run archived together, the range of the log, and the number of files of this range. So a range is complete
//! if all its files are there, and a segment if complete ranges cover it. The new manifest has everything of the newest
//! manifest that can be read, and then complete segments. Files of a run that failed are left out if other files have the
//! same part of the log.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use mqstore_base::error::StoreError;
use mqstore_io::target::{hex, random_id};
use mqstore_io::{Clock, Vfs};
use sha2::{Digest, Sha256};

use crate::file::FileError;
use crate::layout::{ROOT, is_file_path};
use crate::manifest::{ArchivedFile, ArchivedSegment, Extension, LastRecord, Manifest};
use crate::place::Place;
use crate::records::ArchiveFile;
use crate::verify::{WRONG_RECORDS, in_file};

/// More segments than any run archives together.
const MOST_SEGMENTS: u64 = 1 << 24;

const ACTION: &str = "rebuild the manifest";

/// A file that the newest readable manifest does not name.
struct Found {
    entry: ArchivedFile,
    facts: HashMap<String, String>,
    /// Number of files of its range.
    range_files: i64,
    /// Log offset, store time in epoch milliseconds and length of each record, sorted.
    places: Vec<(u64, i64, u32)>,
}

/// Neighbouring segments that one run archived together.
struct Group {
    segments: Vec<Range<u64>>,
    files: Vec<Found>,
}

impl Group {
    fn start(&self) -> u64 {
        self.segments.first().map_or(0, |segment| segment.start)
    }

    /// Returns the segments that complete ranges cover.
    fn complete(&self) -> Vec<Range<u64>> {
        let mut left: BTreeMap<(u64, u64), i64> = BTreeMap::new();
        for one in &self.files {
            *left.entry((one.entry.start, one.entry.end)).or_insert(one.range_files) -= 1;
        }
        let mut covered: Vec<Range<u64>> = Vec::new();
        for ((start, end), _) in left.into_iter().filter(|(_, left)| *left == 0) {
            match covered.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => covered.push(start..end),
            }
        }
        let is_covered =
            |one: &&Range<u64>| covered.iter().any(|range| range.start <= one.start && one.end <= range.end);
        self.segments.iter().filter(is_covered).cloned().collect()
    }
}

/// Creates a manifest with the complete files that the newest one does not name. Returns it, or `None` if there is nothing
/// to add; and a text for each file or range that could not be used.
///
/// # Errors
/// [`StoreError::Corrupt`] if no manifest can be read, and no files are complete; [`StoreError::Busy`] if a run has created
/// a manifest meanwhile; a request failed.
pub fn rebuild_manifest(
    place: &Place,
    vfs: &dyn Vfs,
    clock: &dyn Clock,
) -> Result<(Option<Manifest>, Vec<String>), StoreError> {
    let (base, number) = newest_readable(place)?;
    let (mut groups, mut problems) = groups(place, base.as_ref())?;
    let log_end = groups.iter().filter_map(|group| group.segments.last()).map(|last| last.end).max();
    groups.sort_by_key(|group| (group.start(), std::cmp::Reverse(group.complete().len())));
    let mut end = base.as_ref().map_or(0, Manifest::end);
    let mut chosen: Vec<(Group, Vec<Range<u64>>)> = Vec::new();
    for group in groups {
        let complete = group.complete();
        if let Some(last) = complete.last().filter(|_| group.start() >= end) {
            end = last.end;
            chosen.push((group, complete));
        }
    }
    if base.is_none() && chosen.is_empty() {
        problems.insert(0, "no files are complete".to_owned());
        return Err(StoreError::corrupt(place.shown().as_ref(), 0, problems.join("; ")));
    }
    let is_same = chosen.is_empty() && base.as_ref().is_some_and(|base| base.number == number);
    let mut manifest = extended(place, base, chosen)?;
    problems.extend(gaps(place, &manifest, log_end.unwrap_or(0)));
    if is_same {
        return Ok((None, problems));
    }
    manifest.number = number + 1;
    manifest.run = random_id(vfs);
    manifest.created_ms = clock.now_ms();
    if place.create(clock, ACTION, &manifest).map_err(|(error, _)| error)?.is_some() {
        let shown = place.shown();
        let reason = format!("{shown}: a run has extended the archive meanwhile: rebuild the manifest again");
        return Err(StoreError::Busy { reason });
    }
    Ok((Some(manifest), problems))
}

/// Returns the newest manifest that can be read, and the largest number of all.
fn newest_readable(place: &Place) -> Result<(Option<Manifest>, u64), StoreError> {
    let numbers = place.manifest_numbers()?;
    let newest = numbers.first().copied().unwrap_or(0);
    for number in numbers {
        match place.manifest(number) {
            Err(StoreError::Corrupt { .. }) => {}
            found => return Ok((Some(found?), newest)),
        }
    }
    Ok((None, newest))
}

/// Returns the files that a manifest does not name, by the segments to which they belong; and the damaged ones.
fn groups(place: &Place, base: Option<&Manifest>) -> Result<(Vec<Group>, Vec<String>), StoreError> {
    let named: HashSet<&str> =
        base.into_iter().flat_map(|base| &base.files).map(|file| &*file.path).collect();
    let mut groups: BTreeMap<(String, String), Group> = BTreeMap::new();
    let mut problems = Vec::new();
    for object in place.objects()? {
        let path = object.path.strip_prefix(ROOT).and_then(|path| path.strip_prefix('/'));
        let Some(path) = path.filter(|path| is_file_path(path) && !named.contains(path)) else { continue };
        let found = read(place, path).and_then(|found| {
            let segments = segments_of(&found).ok_or_else(|| wrong_footer(place, path))?;
            Ok((found, segments))
        });
        match found {
            Ok((found, segments)) => {
                let fact = |name: &str| found.facts.get(name).cloned().unwrap_or_default();
                let group = groups.entry((fact("run"), fact("segments")));
                group.or_insert_with(|| Group { segments, files: Vec::new() }).files.push(found);
            }
            Err(error @ StoreError::Corrupt { .. }) => problems.push(error.to_string()),
            Err(error) => return Err(error),
        }
    }
    Ok((groups.into_values().collect(), problems))
}

fn wrong_footer(place: &Place, path: &str) -> StoreError {
    let reason = "its footer has not the facts of a run: restore the file from a copy";
    StoreError::corrupt(&place.full_path(path), 0, reason)
}

fn segments_of(found: &Found) -> Option<Vec<Range<u64>>> {
    let (mut at, runs): (u64, Vec<(u64, u64)>) = serde_json::from_str(found.facts.get("segments")?).ok()?;
    let mut segments = Vec::new();
    let mut left = MOST_SEGMENTS;
    for (length, count) in runs {
        left = left.checked_sub(count)?;
        for _ in 0..count {
            let end = at.checked_add(length).filter(|end| i64::try_from(*end).is_ok() && *end > at)?;
            segments.push(at..end);
            at = end;
        }
    }
    Some(segments).filter(|segments| !segments.is_empty())
}

/// Returns the entry of a file, whose records must be those of its footer.
fn read(place: &Place, path: &str) -> Result<Found, StoreError> {
    let content = place.content(path)?;
    let digest = (content.len() as u64, hex(&Sha256::digest(&content)));
    let read = || {
        let file = ArchiveFile::open(Box::new(content), None)?;
        let facts: HashMap<String, String> =
            file.footer().facts().map(|(name, text)| (name.to_owned(), text.to_owned())).collect();
        let places = if file.footer().has_records() { file.places()? } else { Vec::new() };
        Ok::<_, FileError>((file.topic()?, facts, file.summary()?, places))
    };
    let (topic, facts, summary, places) = in_file(place, path, read())?;
    if !facts.contains_key("range_files") {
        let reason =
            "an earlier version of mqstore wrote the file, and no manifest that can be read names it";
        return Err(StoreError::corrupt(&place.full_path(path), 0, reason));
    }
    let number = |name: &str| facts.get(name).and_then(|text| text.parse::<u64>().ok());
    let sums =
        [("rows", summary.rows), ("record_bytes", summary.record_bytes), ("crc32_sum", summary.crc_sum)];
    if sums.iter().any(|(name, sum)| number(name) != Some(*sum)) {
        return Err(StoreError::corrupt(&place.full_path(path), 0, WRONG_RECORDS));
    }
    let range = facts.get("range").and_then(|range| {
        let (start, end) = range.split_once('-')?;
        Some(start.parse().ok()?..end.parse().ok()?)
    });
    let range_files = number("range_files").and_then(|files| i64::try_from(files).ok());
    let (Some(range), Some(range_files)) = (range, range_files) else {
        return Err(wrong_footer(place, path));
    };
    let entry = ArchivedFile::new(path, topic.as_deref(), &range, summary, digest);
    Ok(Found { entry, facts, range_files, places })
}

/// Returns a manifest with more segments.
fn extended(
    place: &Place,
    base: Option<Manifest>,
    chosen: Vec<(Group, Vec<Range<u64>>)>,
) -> Result<Manifest, StoreError> {
    let base = match base {
        Some(base) => base,
        None => first_manifest(place, chosen.first().and_then(|(group, _)| group.files.first()))?,
    };
    let mut last_ms = base.segments.last().map_or(0, |segment| segment.last_ms);
    let (mut files, mut new) = (Vec::new(), Extension::default());
    for (group, segments) in chosen {
        let overlaps = |one: &Found, segment: &Range<u64>| {
            one.entry.start < segment.end && one.entry.end > segment.start
        };
        let kept = group.files.into_iter();
        let kept: Vec<Found> =
            kept.filter(|one| segments.iter().any(|segment| overlaps(one, segment))).collect();
        for segment in segments {
            let first_ms;
            (first_ms, last_ms) = times(&kept, &segment, last_ms);
            let bytes = segment.end - segment.start;
            new.segments.push(ArchivedSegment { base: segment.start, bytes, first_ms, last_ms });
        }
        files.extend(kept);
    }
    new.last = last_record(place, &files)?;
    new.files = files.into_iter().map(|one| one.entry).collect();
    Ok(base.extended(&base.run, 0, new))
}

/// Returns the manifest before the first run, as a file names the archive.
fn first_manifest(place: &Place, file: Option<&Found>) -> Result<Manifest, StoreError> {
    let fact = |name: &str| file.and_then(|file| file.facts.get(name));
    let topics = fact("topics").and_then(|text| serde_json::from_str(text).ok());
    match (fact("id"), topics) {
        (Some(id), Some(topics)) => Ok(Manifest::first(id.clone(), topics)),
        _ => Err(wrong_footer(place, file.map_or("", |file| &file.entry.path))),
    }
}

/// Returns the store times of the first and the last record of a segment; without records, those before it.
fn times(files: &[Found], segment: &Range<u64>, before_ms: i64) -> (Option<i64>, i64) {
    let within = files.iter().flat_map(|one| {
        let low = one.places.partition_point(|(offset, ..)| *offset < segment.start);
        let high = one.places.partition_point(|(offset, ..)| *offset < segment.end);
        let some = one.places.get(low..high).unwrap_or_default();
        some.first().into_iter().chain(some.last()).map(|(offset, time_ms, _)| (*offset, *time_ms))
    });
    let (first, last) = within.fold((None, None), |(first, last): (Option<(u64, i64)>, _), one| {
        (Some(first.map_or(one, |first| first.min(one))), last.max(Some(one)))
    });
    (first.map(|(_, time_ms)| time_ms), last.map_or(before_ms, |(_, time_ms)| time_ms))
}

fn last_record(place: &Place, files: &[Found]) -> Result<Option<LastRecord>, StoreError> {
    let last = |one: &Found| one.places.last().map(|(offset, _, length)| (*offset, *length));
    let Some(found) = files.iter().filter(|one| last(one).is_some()).max_by_key(|one| last(one)) else {
        return Ok(None);
    };
    let (log_offset, length) = last(found).unwrap_or_default();
    let path = &found.entry.path;
    let content = place.checked_content(&found.entry)?;
    let record = ArchiveFile::open(Box::new(content), Some(found.entry.record_bytes))
        .and_then(|file| file.record_at(log_offset));
    let record = in_file(place, path, record)?;
    Ok(Some(LastRecord { log_offset, bytes: u64::from(length), sha256: hex(&Sha256::digest(&record)) }))
}

/// Returns the parts of the log that the files do not have.
fn gaps(place: &Place, manifest: &Manifest, log_end: u64) -> Vec<String> {
    let pairs = manifest.segments.windows(2);
    let between = pairs.filter_map(|pair| match pair {
        [before, after] => Some((before.end(), after.base)),
        _ => None,
    });
    let all = between.chain([(manifest.end(), log_end)]).filter(|(start, end)| start < end);
    let text = |(start, end)| {
        format!(
            "{}: no complete files have the log from offset {start} to {end}; restore the files, or, if the log still has \
             this part, archive again",
            place.shown()
        )
    };
    all.map(text).collect()
}
