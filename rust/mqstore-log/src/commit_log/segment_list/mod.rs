//! The list of segments: the files of the log at one moment, from one folder or several.
//!
//! A [`SegmentList`] is a snapshot. It does not change when the log rolls or loses its oldest segments, and its owner
//! can continue to read the files that it names. The name of a segment is the log offset of its first byte, with 20
//! digits. All segments have the length of the existing files, whatever the options say.
//!
//! Source: `MappedFileQueue#doLoad`, `#findMappedFileByOffset`, `MultiPathMappedFileQueue#load`.

mod files;
mod raft;
mod same_name;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

#[cfg(not(loom))]
use mqstore_io::sync::RwLock;
#[cfg(loom)]
use mqstore_io::sync::model::RwLock;

use mqstore_format::RAFT_HEADER_BYTES;
use mqstore_io::{FileLength, LoadReport, MapAccess, MappedFile, MappedFileQueue, StrayKind};

use mqstore_base::error::{IoContext, StoreError, Stray};
use mqstore_base::live_page::read_pace;
use mqstore_base::store_files::StoreFiles;

pub(crate) use files::is_unwritten;
use files::is_without_folders;
pub use same_name::prefers_second;

/// Maximum number of repeated listings for a log with a gap. A real gap needs one; a busy writer can cause more.
const MOST_LISTINGS: u32 = 20;

/// One file of the log.
pub type Segment = MappedFile;

/// The segments of a log in order, and the other entries of the folder.
#[derive(Clone, Debug, Default)]
pub struct SegmentList {
    segments: Arc<[Arc<Segment>]>,
    /// Entries that are no segments of this log, with the reason; folders are not included.
    pub strays: Vec<Stray>,
    /// Gaps between neighbours: the log offsets at which the log stops and continues.
    pub gaps: Vec<(u64, u64)>,
    /// Log offset from which the segments contain Raft entries.
    pub(super) entries_from: Option<u64>,
}

impl SegmentList {
    /// Lists the log's folders for reading. A missing folder is an error; empty folders mean an empty log.
    pub fn load(files: &StoreFiles) -> Result<Self, StoreError> {
        if let Some((path, base)) = files.only_segment() {
            let segment = MappedFile::open(&files.vfs, path, base, MapAccess::Read)
                .at(path, "opening a log segment")?;
            return Ok(Self::of_files(vec![segment]));
        }
        if let Some(log) = files.raft_log() {
            return list_consistently(|| Self::load_raft(files, log));
        }
        list_consistently(|| Self::load_contiguous(files, 1, MapAccess::Read).map(|(_, list)| list))
    }

    /// Like [`Self::load`], for a report about damage: of two segments with the same name and different records the
    /// first one counts, and the other one is a stray.
    pub fn load_damaged(files: &StoreFiles) -> Result<Self, StoreError> {
        match Self::load(files) {
            Err(StoreError::Corrupt { .. }) => {}
            loaded => return loaded,
        }
        let length = FileLength::Discover { default: 1 };
        list_consistently(|| {
            let (segments, report) = list(files, length, MapAccess::Read, &BTreeSet::new())?;
            Ok(Self::of_report(&segments, report))
        })
    }

    /// Like [`Self::load`], but a log without any of its folders is empty. A copy that kept only compacted topics is
    /// such a store.
    pub fn load_if_any(files: &StoreFiles) -> Result<Self, StoreError> {
        if files.raft_log().is_none() && is_without_folders(files)? {
            return Ok(Self::default());
        }
        Self::load(files)
    }

    /// Lists the log's folders. If no segment exists, new segments get `segment_bytes`.
    pub fn load_contiguous(
        files: &StoreFiles,
        segment_bytes: u64,
        access: MapAccess,
    ) -> Result<(MappedFileQueue, Self), StoreError> {
        Self::load_sized(files, FileLength::Discover { default: segment_bytes }, access)
    }

    /// Like [`Self::load_contiguous`]; files whose length differs from `length` are strays.
    pub fn load_sized(
        files: &StoreFiles,
        length: FileLength,
        access: MapAccess,
    ) -> Result<(MappedFileQueue, Self), StoreError> {
        let (mut segments, mut report) = list(files, length, access, &BTreeSet::new())?;
        let unused = unused_of_same_name(files, &segments, &report)?;
        if !unused.is_empty() {
            (segments, report) = list(files, length, access, &unused)?;
        }
        let list = Self::of_report(&segments, report);
        Ok((segments, list))
    }

    fn of_report(segments: &MappedFileQueue, report: LoadReport) -> Self {
        let strays = report.strays.into_iter().filter(|stray| stray.kind != StrayKind::Directory);
        Self {
            segments: segments.snapshot(),
            strays: strays.map(|stray| Stray { path: stray.path, reason: stray.kind.to_string() }).collect(),
            gaps: report.gaps.into_iter().map(|gap| (gap.start, gap.end)).collect(),
            entries_from: None,
        }
    }

    /// Creates a list of the given files, in ascending order of offset; files that do not touch leave gaps.
    pub fn of_files(segments: Vec<Arc<Segment>>) -> Self {
        Self { segments: segments.into(), ..Self::default() }
    }

    /// Returns the current state of `segments`.
    pub fn of(segments: &MappedFileQueue) -> Self {
        Self { segments: segments.snapshot(), ..Self::default() }
    }

    /// Returns the log offset from which the segments contain Raft entries; `None` if none of them does.
    pub fn entries_from(&self) -> Option<u64> {
        self.entries_from
    }

    /// Whether the segment at `offset` contains Raft entries, with records in them.
    #[inline]
    pub fn has_entries(&self, offset: u64) -> bool {
        self.entries_from.is_some_and(|from| offset >= from)
    }

    /// Returns the log offset of the first record of a segment that begins at `base`, unless something precedes it.
    pub fn first_record_of(&self, base: u64) -> u64 {
        if self.has_entries(base) { base + RAFT_HEADER_BYTES as u64 } else { base }
    }

    /// Returns the segments in ascending order of offset.
    pub fn segments(&self) -> &[Arc<Segment>] {
        &self.segments
    }

    /// Common length of the segments, if a segment exists.
    pub fn segment_bytes(&self) -> Option<u64> {
        self.segments.first().map(|segment| segment.len())
    }

    /// Log offset of the first byte; 0 for an empty log.
    pub fn min_offset(&self) -> u64 {
        self.segments.first().map_or(0, |segment| segment.base_offset())
    }

    /// One past the last byte of the last segment, written or not.
    pub fn end_offset(&self) -> u64 {
        self.segments.last().map_or(0, |segment| segment.end_offset())
    }

    /// Returns the segment that contains `offset`.
    pub fn find(&self, offset: u64) -> Option<&Arc<Segment>> {
        let after = self.segments.partition_point(|segment| segment.base_offset() <= offset);
        let segment = self.segments.get(after.checked_sub(1)?)?;
        (offset < segment.end_offset()).then_some(segment)
    }

    /// Returns the first segment that starts at or after `offset`.
    pub fn next_from(&self, offset: u64) -> Option<&Arc<Segment>> {
        self.segments.get(self.segments.partition_point(|segment| segment.base_offset() < offset))
    }
}

/// Lists the log's folders without the files in `unused`.
fn list(
    files: &StoreFiles,
    length: FileLength,
    access: MapAccess,
    unused: &BTreeSet<PathBuf>,
) -> Result<(MappedFileQueue, LoadReport), StoreError> {
    let folders = files.log_folders()?.all();
    for folder in &folders {
        // The error must name the folder that cannot be listed. Without it, its segments would be lost.
        files.vfs.stat(folder).at(folder, "listing the commit log")?;
    }
    let (segments, report) = MappedFileQueue::load_dirs(&files.vfs, &folders, length, access, unused)
        .at_file(|| files.commit_log(), "listing the commit log")?;
    for segment in segments.snapshot().iter() {
        segment.pace_reads(read_pace(files));
    }
    Ok((segments, report))
}

/// Returns the files of `segments` to which a file of the same name is preferred.
fn unused_of_same_name(
    files: &StoreFiles,
    segments: &MappedFileQueue,
    report: &LoadReport,
) -> Result<BTreeSet<PathBuf>, StoreError> {
    let mut others: BTreeMap<u64, Vec<&PathBuf>> = BTreeMap::new();
    for stray in &report.strays {
        if let StrayKind::SameName { base_offset } = stray.kind {
            others.entry(base_offset).or_default().push(&stray.path);
        }
    }
    let mut unused = BTreeSet::new();
    for (base, paths) in others {
        let Some(mut best) = segments.find(base) else { continue };
        for path in paths {
            let other = MappedFile::open(&files.vfs, path, base, MapAccess::Read);
            let mut worse = other.at(path, "opening a log segment")?;
            if prefers_second(&best, &worse)? {
                std::mem::swap(&mut best, &mut worse);
            }
            unused.insert(worse.path());
        }
    }
    // Without a change, the list stands.
    let used = segments.snapshot();
    let changed = used.iter().any(|segment| unused.contains(&segment.path()));
    Ok(if changed { unused } else { BTreeSet::new() })
}

/// Returns a consistent result of `list` while a writer may name and remove segments. The listing of a folder may lack
/// a file that was named during it and still contain one that was named later. Segments are named in order, so a gap
/// counts only if the segment after it existed before the listing began.
fn list_consistently(
    mut list: impl FnMut() -> Result<SegmentList, StoreError>,
) -> Result<SegmentList, StoreError> {
    let mut found = list()?;
    for _ in 0..MOST_LISTINGS {
        if found.gaps.is_empty() {
            break;
        }
        let named = found.end_offset();
        found = list()?;
        if found.gaps.iter().all(|(_, behind)| *behind < named) {
            break;
        }
    }
    Ok(found)
}

/// The current list of segments that are added and removed.
///
/// Across threads: a thread that adds or removes a segment renews the list; readers take it without waiting for that
/// thread.
#[derive(Debug)]
pub(super) struct NewestList(RwLock<Arc<SegmentList>>);

impl NewestList {
    pub(super) fn of(segments: &MappedFileQueue) -> Self {
        Self(RwLock::new(Arc::new(SegmentList::of(segments))))
    }

    pub(super) fn get(&self) -> Arc<SegmentList> {
        Arc::clone(&self.0.read())
    }

    /// Renews the list after a segment was added or removed.
    pub(super) fn renew(&self, segments: &MappedFileQueue) {
        // Reads the segments under the lock: if two threads changed them, the later one leaves the newer list.
        let mut list = self.0.write();
        *list = Arc::new(SegmentList::of(segments));
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use mqstore_io::{SimVfs, Vfs};

    use super::*;

    const BYTES: u64 = 16;

    /// Returns the result of listings that see segments of these numbers, one after the other (the last one
    /// repeatedly), and the number of listings.
    fn found(listings: &[&[u64]]) -> (Vec<u64>, Vec<(u64, u64)>, usize) {
        let vfs: Arc<dyn Vfs> = Arc::new(SimVfs::default());
        let mut made = 0;
        let list = list_consistently(|| {
            let numbers = *listings.get(made).or(listings.last()).unwrap();
            made += 1;
            let open = |number: &u64| {
                let path = PathBuf::from(format!("/{made}-{number}"));
                MappedFile::stage(&vfs, &path, number * BYTES, BYTES, BYTES).unwrap()
            };
            let list = SegmentList::of_files(numbers.iter().map(open).collect());
            let ends = list.segments().iter().map(|segment| segment.end_offset());
            let begins = list.segments().iter().skip(1).map(|segment| segment.base_offset());
            let gaps = ends.zip(begins).filter(|(end, begin)| end != begin).collect();
            Ok(SegmentList { gaps, ..list })
        })
        .unwrap();
        let numbers = list.segments().iter().map(|segment| segment.base_offset() / BYTES).collect();
        (numbers, list.gaps, made)
    }

    #[test]
    fn a_row_without_a_gap_is_listed_once() {
        assert_eq!(found(&[&[0, 1, 2]]), (vec![0, 1, 2], vec![], 1));
        assert_eq!(found(&[&[]]), (vec![], vec![], 1));
    }

    #[test]
    fn a_segment_that_was_named_during_the_listing_is_found() {
        assert_eq!(found(&[&[0, 1, 3], &[0, 1, 2, 3]]), (vec![0, 1, 2, 3], vec![], 2));
        // A segment that was named during the second listing is found too.
        assert_eq!(found(&[&[0, 2], &[0, 1, 2, 4], &[0, 1, 2, 3, 4]]), (vec![0, 1, 2, 3, 4], vec![], 3));
        // Retention removed two segments during the first listing.
        assert_eq!(found(&[&[0, 2, 3], &[2, 3]]), (vec![2, 3], vec![], 2));
    }

    #[test]
    fn what_is_missing_stays_so() {
        assert_eq!(found(&[&[0, 2, 3]]), (vec![0, 2, 3], vec![(BYTES, 2 * BYTES)], 2));
        assert_eq!(found(&[&[0, 2], &[0, 2, 3]]), (vec![0, 2, 3], vec![(BYTES, 2 * BYTES)], 2));
        let last = 2 + u64::from(MOST_LISTINGS);
        let rows: Vec<Vec<u64>> = (2..=last).map(|newest| vec![0, newest]).collect();
        let rows: Vec<&[u64]> = rows.iter().map(Vec::as_slice).collect();
        assert_eq!(found(&rows).2, 1 + MOST_LISTINGS as usize, "a writer that is always busy");
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::thread;
    use mqstore_io::{SimVfs, Vfs};

    use super::*;

    const BYTES: u64 = 16;

    fn make(vfs: &Arc<dyn Vfs>, base: u64) -> Arc<Segment> {
        let segment = MappedFile::stage(vfs, format!("/{base}").as_ref(), base, BYTES, BYTES).unwrap();
        segment.file().unwrap().write_all_at(&[7; BYTES as usize], 0).unwrap();
        segment
    }

    /// Creates two segments on a simulated disk. The model checker does not see the disk's own lock, so no
    /// thread switch happens inside a call of it.
    fn segments() -> (Arc<dyn Vfs>, loom::sync::Arc<(MappedFileQueue, NewestList)>) {
        let vfs: Arc<dyn Vfs> = Arc::new(SimVfs::default());
        let segments = MappedFileQueue::new(&vfs, BYTES);
        for base in [0, BYTES] {
            segments.push(make(&vfs, base)).unwrap();
        }
        let list = NewestList::of(&segments);
        (vfs, loom::sync::Arc::new((segments, list)))
    }

    fn check(model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(model);
    }

    fn bases(list: &SegmentList) -> Vec<u64> {
        list.segments().iter().map(|segment| segment.base_offset()).collect()
    }

    /// One thread retires the oldest segment, another adds one. Each list is a part of the segments without a hole, the
    /// lists of one reader never go back, and the last list equals the segments.
    #[test]
    fn the_list_follows_segments_that_come_and_go() {
        check(|| {
            let (vfs, log) = segments();
            let new = make(&vfs, 2 * BYTES);
            let cleaner = {
                let log = loom::sync::Arc::clone(&log);
                thread::spawn(move || {
                    assert!(log.0.retire_oldest(0, MappedFile::retire).unwrap());
                    log.1.renew(&log.0);
                })
            };
            let writer = {
                let log = loom::sync::Arc::clone(&log);
                thread::spawn(move || {
                    log.0.push(new).unwrap();
                    log.1.renew(&log.0);
                })
            };
            let mut before = log.1.get();
            for _ in 0..2 {
                let list = log.1.get();
                assert!(list.min_offset() >= before.min_offset() && list.end_offset() >= before.end_offset());
                assert!(list.segments().windows(2).all(|two| two[0].end_offset() == two[1].base_offset()));
                assert!(list.find(BYTES).is_some());
                before = list;
            }
            cleaner.join().unwrap();
            writer.join().unwrap();
            assert_eq!(bases(&log.1.get()), [BYTES, 2 * BYTES]);
            assert_eq!(bases(&SegmentList::of(&log.0)), [BYTES, 2 * BYTES]);
        });
    }

    /// A reader holds a segment from its list. Retention removes the segment and overwrites it once it is not held. A
    /// read under a guard returns the bytes that were written.
    #[test]
    fn what_is_held_is_not_overwritten() {
        check(|| {
            let (_vfs, log) = segments();
            let reader = {
                let log = loom::sync::Arc::clone(&log);
                thread::spawn(move || {
                    let list = log.1.get();
                    let Some(guard) = list.find(0).and_then(Segment::hold) else { return };
                    let mut bytes = [0; BYTES as usize];
                    guard.file().unwrap().read_exact_at(&mut bytes, 0).unwrap();
                    // The thread that overwrites the segment may run here, too.
                    thread::yield_now();
                    assert_eq!(bytes, [7; BYTES as usize], "overwritten under a guard");
                    guard.file().unwrap().read_exact_at(&mut bytes, 0).unwrap();
                    assert_eq!(bytes, [7; BYTES as usize], "overwritten under a guard");
                })
            };
            let segment = log.0.first().unwrap();
            assert!(log.0.retire_oldest(0, MappedFile::retire).unwrap());
            log.1.renew(&log.0);
            if !segment.is_in_use() {
                segment.file().unwrap().write_all_at(&[0; BYTES as usize], 0).unwrap();
            }
            reader.join().unwrap();
            assert!(!segment.is_in_use() && segment.hold().is_none());
        });
    }
}
