//! Checks and corrects the files of the log: their lengths, names and folders.
//!
//! Owns the decision about each file in the folders of the log, and its correction. After it, all segments have the
//! same length, each has the name that its records require, and there is no other file.
//!
//! ```text
//! 00000000000000000000            16384 bytes     correct
//! 00000000000000016384             4711 bytes     extended with zeros to the length of the others
//! 00000000000000032768            20000 bytes     cut to that length; the rest goes to lost+found
//! 00000000000000049152                0 bytes     removed
//! 00000000000000065536            its records have log offsets from 98304 on: renamed
//! 00000000000000098304.misplaced  between its old and its new name
//! notes.txt                       moved to lost+found
//! a second 00000000000000000000   in another folder, with no record that the first one lacks: moved to lost+found
//! ```
//!
//! Across a crash: each step leaves files that lead to the same decision, so that another repair completes a
//! stopped one. Files are not mapped.
//!
//! Source: `MappedFileQueue#doLoad`, which refuses other lengths and other names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_format::{MIN_RECORD_BYTES, RecordView, offset_file_name, parse_offset_file_name};
use mqstore_io::{Access, FileKind, FileLength, FileStat, MapAccess, MappedFile, VfsFile, switch};

use super::backup;
use super::damage_scan::DamagedPiece;
use mqstore_base::durable_mark::DurableMark;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;
use mqstore_log::commit_log::{
    LogScanner, ScanChecks, ScanItem, Segment, SegmentList, check_record, prefers_second,
};

/// Suffix of a misplaced segment until its correct name is free.
const MISPLACED: &str = ".misplaced";

/// Bytes of one read during a search for records.
const WINDOW_BYTES: usize = 1 << 20;

/// Number of records of a file whose log offsets must agree.
const AGREEING: usize = 16;

/// The correction of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FileAction {
    /// Move it to `lost+found`, for this reason.
    Aside(String),
    /// Remove it: it is empty.
    Remove,
    /// Extend it to the length of the others; its current length in bytes.
    Lengthen(u64),
    /// Cut it to the length of the others; its current length in bytes.
    Cut(u64),
    /// Rename it: it contains the segment with this base offset.
    Rename(u64),
}

/// The files of the log and their corrections.
#[derive(Debug, Default)]
pub(crate) struct FoundSegments {
    /// The log after the corrections: missing segments are gaps.
    pub(crate) list: Arc<SegmentList>,
    /// Bytes of a segment; 0 without any file.
    pub(crate) segment_bytes: u64,
    /// The corrections by path.
    pub(crate) actions: Vec<(PathBuf, FileAction)>,
}

/// A file whose name is an offset.
#[derive(Debug)]
struct Candidate {
    path: PathBuf,
    /// The offset in its name.
    base: u64,
    stat: FileStat,
    /// Whether a stopped repair was renaming it.
    waiting: bool,
}

/// Inspects the files of the log. Changes nothing.
///
/// # Errors
/// [`StoreError::Corrupt`] if a segment is a symbolic link, or if two segments have the same name and different records;
/// I/O errors.
pub(crate) fn inspect_files(
    files: &StoreFiles,
    mark: Option<&DurableMark>,
    watch: backup::ByteProgress<'_>,
) -> Result<FoundSegments, StoreError> {
    let mut actions = Vec::new();
    let mut candidates = candidates(files, &mut actions)?;
    candidates.sort_by(|a, b| (a.base, a.waiting, &a.path).cmp(&(b.base, b.waiting, &b.path)));
    let segment_bytes = common_length(&candidates, mark);
    if segment_bytes == 0 {
        return Ok(FoundSegments { actions, ..FoundSegments::default() });
    }
    let mut places = SegmentNames { files, segment_bytes, taken: BTreeMap::new(), actions };
    let (mut misplaced, mut empty) = (Vec::new(), Vec::new());
    for candidate in candidates {
        match own_base(files, &candidate, segment_bytes, watch)? {
            Some(base) if base != candidate.base || candidate.waiting => misplaced.push((base, candidate)),
            None if candidate.waiting => {
                places.aside(candidate, "no record shows its place in the log".to_owned());
            }
            Some(_) => places.keep_file(candidate)?,
            None => empty.push(candidate),
        }
    }
    for (base, candidate) in misplaced {
        places.rename(base, candidate)?;
    }
    // A file without records never takes the place of a file that has some.
    for candidate in empty {
        places.keep_file(candidate)?;
    }
    let SegmentNames { taken, mut actions, .. } = places;
    actions.sort_by(|a, b| a.0.cmp(&b.0));
    let segments = taken.into_values().collect();
    Ok(FoundSegments { list: Arc::new(SegmentList::of_files(segments)), segment_bytes, actions })
}

impl FoundSegments {
    /// Returns the places before the first segment whose files exist and are empty. They had records once: a segment
    /// gets its name with its first record, and a log loses its oldest segments together with their files.
    pub(crate) fn emptied(&self) -> Vec<DamagedPiece> {
        let first = self.list.min_offset();
        let removed = self.actions.iter().filter(|(_, action)| matches!(action, FileAction::Remove));
        removed
            .filter_map(|(path, _)| {
                let base = parse_offset_file_name(&path.file_name()?.to_string_lossy())?;
                let to = base.saturating_add(self.segment_bytes).min(first);
                (base < first).then(|| DamagedPiece {
                    from: base,
                    to,
                    path: Some(path.clone()),
                    base,
                    to_end: true,
                    reason: "its file is empty".to_owned(),
                    store_timestamp_ms: 0,
                })
            })
            .collect()
    }
}

/// Checks that each message that can be read now can be read after the corrections. Changes nothing.
///
/// # Errors
/// [`StoreError::Corrupt`] with the first file that would lose messages: a mistake of the repair. I/O errors.
pub(crate) fn check_keeps_messages(
    files: &StoreFiles,
    segments: &FoundSegments,
    watch: backup::ByteProgress<'_>,
) -> Result<(), StoreError> {
    if segments.actions.is_empty() {
        return Ok(());
    }
    let now = match SegmentList::load(files) {
        // Nothing can be read now.
        Err(StoreError::Corrupt { .. }) => return Ok(()),
        now => now?,
    };
    for segment in now.segments() {
        let place = |kept: &Segment| (kept.path(), kept.base_offset(), kept.len());
        let kept = segments.list.find(segment.base_offset());
        if kept.is_some_and(|kept| place(kept) == place(segment)) {
            continue;
        }
        if let Some((first, count)) = lost_messages(segment, &segments.list, watch)? {
            let reason = format!(
                "the repair would lose {count} messages that can be read now, so nothing was changed; this is a \
                 mistake of the repair: report it, and copy the store before you move any file"
            );
            return Err(StoreError::corrupt(&segment.path(), first - segment.base_offset(), reason));
        }
    }
    Ok(())
}

/// Returns the first message of `segment` that is not in `list`, and the number of such messages.
fn lost_messages(
    segment: &Arc<Segment>,
    list: &SegmentList,
    watch: backup::ByteProgress<'_>,
) -> Result<Option<(u64, u64)>, StoreError> {
    let alone = Arc::new(SegmentList::of_files(vec![Arc::clone(segment)]));
    let mut scanner = LogScanner::new(alone, segment.base_offset(), u64::MAX, ScanChecks { crc: true });
    let mut lost: Option<(u64, u64)> = None;
    while let Some(offset) = scanner.resync_watched(scanner.position(), watch)? {
        scanner.seek(offset);
        let ScanItem::Record(record) = scanner.next_item()? else { break };
        if !record.is_placeholder() && !has_bytes(list, offset, record.bytes)? {
            lost = Some(lost.map_or((offset, 1), |(first, count)| (first, count + 1)));
        }
    }
    Ok(lost)
}

/// Whether the log `list` has these bytes at log offset `offset`.
fn has_bytes(list: &SegmentList, offset: u64, bytes: &[u8]) -> Result<bool, StoreError> {
    let end = offset + bytes.len() as u64;
    let Some(segment) = list.find(offset).filter(|segment| end <= segment.end_offset()) else {
        return Ok(false);
    };
    let path = segment.path();
    let file = segment.file().at(&path, "opening a log segment")?;
    let mut found = vec![0; bytes.len()];
    file.read_exact_at(&mut found, offset - segment.base_offset()).at(&path, "comparing records")?;
    Ok(found == bytes)
}

/// Lists the folders; files without the name of a segment go to `actions`.
fn candidates(
    files: &StoreFiles,
    actions: &mut Vec<(PathBuf, FileAction)>,
) -> Result<Vec<Candidate>, StoreError> {
    let mut found = Vec::new();
    for folder in files.log_folders()?.all() {
        for entry in files.vfs.list(&folder).at(&folder, "listing the commit log")? {
            let path = folder.join(&entry.name);
            let text = entry.name.to_string_lossy();
            let waiting = text.ends_with(MISPLACED);
            let base = parse_offset_file_name(text.trim_end_matches(MISPLACED));
            let base = base.filter(|base| *base <= i64::MAX as u64 / 2);
            match (entry.stat.kind, base) {
                // RocketMQ ignores them too.
                (FileKind::Directory, _) => {}
                (FileKind::Symlink, Some(_)) => {
                    let advice = "a segment is a symbolic link; replace the link with the file itself";
                    return Err(StoreError::corrupt(&path, 0, advice));
                }
                (FileKind::File, Some(_)) if entry.stat.len == 0 => actions.push((path, FileAction::Remove)),
                (FileKind::File, Some(base)) => {
                    found.push(Candidate { path, base, stat: entry.stat, waiting });
                }
                _ => actions.push((path, FileAction::Aside("not a segment of a log".to_owned()))),
            }
        }
    }
    Ok(found)
}

/// Returns the length of a segment: from the mark, otherwise the one that most lengths and names of files agree on.
fn common_length(candidates: &[Candidate], mark: Option<&DurableMark>) -> u64 {
    let known = mark.map(|mark| mark.segment_bytes).filter(|bytes| *bytes > 0);
    let has = |bytes: &u64| candidates.iter().any(|candidate| candidate.stat.len == *bytes);
    if let Some(bytes) = known.filter(|bytes| has(bytes) || candidates.len() == 1) {
        return bytes;
    }
    let mut scores: BTreeMap<u64, usize> = BTreeMap::new();
    for candidate in candidates {
        *scores.entry(candidate.stat.len).or_default() += 1;
    }
    let bases: BTreeSet<u64> = candidates.iter().map(|candidate| candidate.base).collect();
    for (left, right) in bases.iter().zip(bases.iter().skip(1)) {
        if let Some(score) = scores.get_mut(&(right - left)) {
            *score += 1;
        }
    }
    scores.into_iter().max_by_key(|(bytes, score)| (*score, *bytes)).map_or(0, |(bytes, _)| bytes)
}

/// The files by their places in the log.
struct SegmentNames<'a> {
    files: &'a StoreFiles,
    segment_bytes: u64,
    taken: BTreeMap<u64, Arc<Segment>>,
    actions: Vec<(PathBuf, FileAction)>,
}

impl SegmentNames<'_> {
    /// Keeps a file under its name, unless another file overlaps its place. Of two files with the same name, the one
    /// that has the records of both stays.
    fn keep_file(&mut self, candidate: Candidate) -> Result<(), StoreError> {
        if let Some(known) = self.taken.get(&candidate.base).cloned() {
            let other = segment_at(self.files, &candidate, candidate.base, self.segment_bytes)?;
            if !prefers_second(&known, &other)? {
                let reason = format!("{} has the same name and all of its records", known.path().display());
                self.aside(candidate, reason);
                return Ok(());
            }
            let reason = format!("{} has the same name and all of its records", candidate.path.display());
            let path = known.path();
            self.actions.retain(|(kept, _)| *kept != path);
            self.actions.push((path, FileAction::Aside(reason)));
            self.taken.remove(&candidate.base);
        }
        let around =
            candidate.base.saturating_sub(self.segment_bytes - 1)..candidate.base + self.segment_bytes;
        if let Some((base, _)) = self.taken.range(around).next() {
            let reason = format!("the segment at offset {base} overlaps its place");
            self.aside(candidate, reason);
            return Ok(());
        }
        let len = candidate.stat.len;
        if len < self.segment_bytes {
            self.actions.push((candidate.path.clone(), FileAction::Lengthen(len)));
        } else if len > self.segment_bytes {
            self.actions.push((candidate.path.clone(), FileAction::Cut(len)));
        }
        self.take(candidate.base, &candidate)
    }

    /// Gives a file the place that its records show, if that place is free.
    fn rename(&mut self, base: u64, candidate: Candidate) -> Result<(), StoreError> {
        let phase = self.taken.keys().next().map_or(0, |first| first % self.segment_bytes);
        let free = !self.taken.contains_key(&base) && base % self.segment_bytes == phase;
        if !free || candidate.stat.len != self.segment_bytes {
            let reason = format!("its records belong to another file, the segment at offset {base}");
            self.aside(candidate, reason);
            return Ok(());
        }
        self.actions.push((candidate.path.clone(), FileAction::Rename(base)));
        self.take(base, &candidate)
    }

    fn aside(&mut self, candidate: Candidate, reason: String) {
        self.actions.push((candidate.path, FileAction::Aside(reason)));
    }

    fn take(&mut self, base: u64, candidate: &Candidate) -> Result<(), StoreError> {
        self.taken.insert(base, segment_at(self.files, candidate, base, self.segment_bytes)?);
        Ok(())
    }
}

/// Opens a file as the segment at `base`.
fn segment_at(
    files: &StoreFiles,
    candidate: &Candidate,
    base: u64,
    segment_bytes: u64,
) -> Result<Arc<Segment>, StoreError> {
    MappedFile::front(&files.vfs, &candidate.path, base, &candidate.stat, segment_bytes)
        .at(&candidate.path, "opening a log segment")
}

/// Returns the base offset that the records of a file show: that of its name if one record agrees; `None` if the file
/// contains no record.
fn own_base(
    files: &StoreFiles,
    candidate: &Candidate,
    segment_bytes: u64,
    watch: backup::ByteProgress<'_>,
) -> Result<Option<u64>, StoreError> {
    let segment = segment_at(files, candidate, candidate.base, segment_bytes)?;
    let list = Arc::new(SegmentList::of_files(vec![Arc::clone(&segment)]));
    let mut scanner = LogScanner::new(list, candidate.base, u64::MAX, ScanChecks { crc: true });
    watch(0)?;
    if scanner.resync_watched(candidate.base, watch)?.is_some() {
        return Ok(Some(candidate.base));
    }
    let path = &candidate.path;
    let file = segment.file().at(path, "opening a log segment")?;
    foreign_base(&*file, path, segment.len(), watch)
}

/// Returns the base offset on which the first records of a file agree.
fn foreign_base(
    file: &dyn VfsFile,
    path: &Path,
    len: u64,
    watch: backup::ByteProgress<'_>,
) -> Result<Option<u64>, StoreError> {
    let mut bases = Vec::new();
    let mut at = 0;
    while let Some((position, own, size)) = next_record(file, path, at, len, watch)? {
        bases.push(own.checked_sub(position));
        at = position + size;
        if bases.len() == AGREEING {
            break;
        }
    }
    let first = bases.first().copied().flatten();
    Ok(first.filter(|first| bases.iter().all(|base| *base == Some(*first))))
}

/// Returns the first record with valid checksums at or after `at`: position, its own log offset, size.
fn next_record(
    file: &dyn VfsFile,
    path: &Path,
    mut at: u64,
    len: u64,
    watch: backup::ByteProgress<'_>,
) -> Result<Option<(u64, u64, u64)>, StoreError> {
    let mut window = Vec::new();
    let reading = "looking for records";
    let is_inside = |data: &u64| data + MIN_RECORD_BYTES as u64 <= len;
    while let Some(data) = file.next_data(at).at(path, reading)?.filter(is_inside) {
        watch(0)?;
        at = at.max(data);
        window.resize(((len - at) as usize).min(WINDOW_BYTES), 0);
        file.read_exact_at(&mut window, at).at(path, reading)?;
        for start in 0..window.len().saturating_sub(MIN_RECORD_BYTES - 1) {
            let head = window.get(start..).unwrap_or_default();
            let Some(size) = record_size_at(head).filter(|size| at + start as u64 + size <= len) else {
                continue;
            };
            let position = at + start as u64;
            let mut whole = vec![0; size as usize];
            file.read_exact_at(&mut whole, position).at(path, reading)?;
            let own =
                RecordView::decode(&whole).ok().and_then(|view| u64::try_from(view.physical_offset).ok());
            let holds = |own: &u64| check_record(&whole, *own, ScanChecks { crc: true }).is_ok();
            if let Some(own) = own.filter(holds) {
                return Ok(Some((position, own, size)));
            }
        }
        at += (window.len() - (MIN_RECORD_BYTES - 1)) as u64;
    }
    Ok(None)
}

/// Returns the size of the record that may start here.
fn record_size_at(head: &[u8]) -> Option<u64> {
    match mqstore_format::peek(head).ok()? {
        mqstore_format::Peek::Record { size, .. } => Some(u64::from(size)),
        _ => None,
    }
}

/// Loads the current segments.
pub(crate) fn load(files: &StoreFiles, segment_bytes: u64) -> Result<Arc<SegmentList>, StoreError> {
    let length = FileLength::Expected(segment_bytes.max(1));
    Ok(Arc::new(SegmentList::load_sized(files, length, MapAccess::Read)?.1))
}

/// Describes `action` for people.
pub(crate) fn describe_action(path: &Path, action: &FileAction, segment_bytes: u64) -> String {
    let path = path.display();
    match action {
        FileAction::Aside(reason) => format!("{path}: {reason}; moved to lost+found"),
        FileAction::Remove => format!("{path}: empty file, removed"),
        FileAction::Lengthen(len) => {
            format!("{path}: was {len} bytes long, extended to {segment_bytes} with zeros")
        }
        FileAction::Cut(len) => {
            format!("{path}: was {len} bytes long, cut to {segment_bytes}; the rest is kept in lost+found")
        }
        FileAction::Rename(base) => {
            format!("{path}: contains the segment at offset {base}, renamed to {}", offset_file_name(*base))
        }
    }
}

/// Copies the bytes after the regular length of a file to `lost+found`, unless they are zeros.
pub(crate) fn backup_surplus(
    files: &StoreFiles,
    path: &Path,
    segment_bytes: u64,
    watch: backup::ByteProgress<'_>,
) -> Result<Option<PathBuf>, StoreError> {
    let file = files.vfs.open(path, Access::Read).at(path, "opening a log segment")?;
    let len = file.len().at(path, "looking at a log segment")?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    backup::copy(files, path, &*file, &format!("{name}.beyond-{segment_bytes}"), segment_bytes..len, watch)
}

/// Applies the corrections. Bytes to be cut are already copied.
pub(crate) fn repair_files(
    files: &StoreFiles,
    segments: &FoundSegments,
    watch: backup::ByteProgress<'_>,
) -> Result<(), StoreError> {
    let mut folders = BTreeSet::new();
    for (path, action) in &segments.actions {
        folders.extend(path.parent().map(Path::to_path_buf));
        match action {
            FileAction::Aside(_) => backup::quarantine_file(files, path, watch)?,
            FileAction::Remove => files.vfs.remove_file(path).at(path, "removing an empty segment")?,
            FileAction::Lengthen(_) | FileAction::Cut(_) => {
                backup::break_hard_link(files, path, watch)?;
                let file = files.vfs.open(path, Access::ReadWrite).at(path, "opening a log segment")?;
                file.set_len(segments.segment_bytes).at(path, "giving a segment its length")?;
                switch::step("repair.sync_length", || file.sync_all()).at(path, "syncing a segment")?;
            }
            FileAction::Rename(_) => wait_for_name(files, path)?,
        }
    }
    sync_folders(files, &folders)?;
    // The sync of the log's folders before the mark makes the names below durable.
    for (path, action) in &segments.actions {
        if let FileAction::Rename(base) = action {
            let waiting = waiting_path(path);
            let to = path.with_file_name(offset_file_name(*base));
            files.vfs.rename_noreplace(&waiting, &to).at(&to, "giving a segment its name")?;
        }
    }
    Ok(())
}

fn waiting_path(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    path.with_file_name(format!("{}{MISPLACED}", name.trim_end_matches(MISPLACED)))
}

/// Moves a misplaced segment to a waiting name, so that its old name is free.
fn wait_for_name(files: &StoreFiles, path: &Path) -> Result<(), StoreError> {
    let waiting = waiting_path(path);
    if waiting == path {
        return Ok(());
    }
    files.vfs.rename_noreplace(path, &waiting).at(path, "freeing the name of a segment")
}

fn sync_folders(files: &StoreFiles, folders: &BTreeSet<PathBuf>) -> Result<(), StoreError> {
    folders.iter().try_for_each(|folder| {
        switch::step("repair.sync_log_folder", || files.vfs.sync_dir(folder)).at(folder, "syncing a folder")
    })
}
