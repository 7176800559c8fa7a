//! The pages of remote files that are in memory, and the choice of the ranges to fetch.
//!
//! A page has 64 KiB. A read of pages that are not in memory fetches them. Three things make a fetch larger: more
//! missing pages of the same read, the read-ahead of a sequential read, and the ranges that readers expect to read.
//! The memory is bounded. Pages that were read are dropped first, the least recently used ones before others, so that
//! pages that were fetched ahead are still there when a walk of another file reaches them.
//!
//! Requests cost more than bytes, so a walk of a file should need one request for about 8 MiB.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a page. A look-up reads single pages, so small pages make it cheap.
pub(super) const PAGE_BYTES: u64 = 64 << 10;

/// Maximum number of pages in memory: 64 MiB.
const MOST_PAGES: usize = 1024;

/// Number of pages that were read and stay in memory, even if all others were not read yet: 16 MiB.
const LEAST_READ: usize = 256;

/// Pages of the longest read-ahead: 8 MiB.
const MOST_AHEAD: u64 = 128;

/// Pages of the longest range: 8 MiB. Longer ones are split, so that their parts are fetched at the same time.
const MOST_OF_A_RANGE: u64 = 128;

/// Pages that one fetch takes from the expected ranges: 32 MiB.
const MOST_EXPECTED: u64 = 512;

/// A reader that expects at least this number of pages of a file knows what it reads, so there is no other read-ahead.
const LARGE_HINT: u64 = 32;

/// Pages of an expected range from which on it can wait, see [`Pages::take_hint`].
const PATIENT_HINT: u64 = 8;

/// Number of expected ranges that are remembered.
const MOST_HINTS: usize = 256;

/// Maximum number of sequential reads of one file that are followed at the same time. A scan reads a segment at several
/// positions.
const MOST_STREAMS: usize = 8;

/// Consecutive pages of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PageRun {
    pub(super) file: usize,
    pub(super) pages: Range<u64>,
}

type PageKey = (usize, u64);

/// A sequential read of a file.
#[derive(Clone, Copy, Debug)]
struct Stream {
    /// The page after the last fetched one.
    next: u64,
    /// Pages of its next read-ahead.
    ahead: u64,
}

#[derive(Debug)]
struct KeptPage {
    bytes: Arc<[u8]>,
    /// Its key in one of the orders.
    time: u64,
}

#[derive(Debug, Default)]
pub(super) struct Pages {
    kept: HashMap<PageKey, KeptPage>,
    /// Keys of the pages that were read, by the time of their last use.
    read: BTreeMap<u64, PageKey>,
    /// Keys of the other pages, by the time of their fetch.
    unread: BTreeMap<u64, PageKey>,
    /// Number of uses.
    now: u64,
    fetching: HashSet<PageKey>,
    streams: HashMap<usize, Vec<Stream>>,
    hints: Vec<PageRun>,
}

impl Pages {
    /// Returns a page that is in memory.
    pub(super) fn get(&mut self, file: usize, page: u64) -> Option<Arc<[u8]>> {
        let kept = self.kept.get_mut(&(file, page))?;
        self.now += 1;
        self.unread.remove(&kept.time);
        self.read.remove(&kept.time);
        self.read.insert(self.now, (file, page));
        kept.time = self.now;
        Some(Arc::clone(&kept.bytes))
    }

    /// Whether a thread fetches the page now.
    pub(super) fn is_fetching(&self, file: usize, page: u64) -> bool {
        self.fetching.contains(&(file, page))
    }

    /// Notes that a reader will read these pages soon.
    pub(super) fn expect(&mut self, file: usize, pages: &Range<u64>) {
        let end = pages.end.min(pages.start.saturating_add(MOST_EXPECTED));
        let mut start = pages.start;
        while start < end && self.hints.len() < MOST_HINTS {
            let part = start..end.min(start + MOST_OF_A_RANGE);
            start = part.end;
            self.hints.push(PageRun { file, pages: part });
        }
    }

    /// Returns the ranges to fetch for the `missing` pages of a file, sorted, and marks them. `page_counts` is the
    /// number of pages of each file.
    pub(super) fn plan(
        &mut self,
        file: usize,
        missing: &[u64],
        page_counts: impl Fn(usize) -> u64,
    ) -> Vec<PageRun> {
        let mut wanted: Vec<PageKey> = missing.iter().map(|page| (file, *page)).collect();
        if let (Some(first), Some(last)) = (missing.first(), missing.last()) {
            let ahead = self.read_ahead(file, *first, *last + 1).min(page_counts(file));
            wanted.extend((*last + 1..ahead).map(|page| (file, page)).take_while(|key| self.is_absent(*key)));
        }
        let mut room = MOST_EXPECTED;
        let mut later = Vec::new();
        for hint in std::mem::take(&mut self.hints) {
            let pages = hint.pages.start..hint.pages.end.min(page_counts(hint.file));
            let Some(absent) = self.take_hint(hint.file, pages) else { continue };
            if absent.len() as u64 > room {
                later.push(hint);
                continue;
            }
            room -= absent.len() as u64;
            wanted.extend(absent);
        }
        self.hints = later;
        wanted.sort_unstable();
        wanted.dedup();
        self.fetching.extend(wanted.iter().copied());
        let runs = runs_of(&wanted);
        for run in &runs {
            self.follow_streams(run);
        }
        runs
    }

    /// Returns the pages of an expected range that are not in memory. If the first quarter of a long range is, returns
    /// `None`: the reader names the other pages again before it needs them, and a longer request can fetch them.
    fn take_hint(&self, file: usize, pages: Range<u64>) -> Option<Vec<PageKey>> {
        let (start, end) = (pages.start, pages.end);
        let count = end.saturating_sub(start);
        let absent: Vec<PageKey> =
            pages.map(|page| (file, page)).filter(|key| self.is_absent(*key)).collect();
        let first = absent.first().map_or(end, |(_, page)| *page);
        let can_wait = count >= PATIENT_HINT && 4 * first.saturating_sub(start) >= count;
        (!can_wait).then_some(absent)
    }

    fn is_absent(&self, key: PageKey) -> bool {
        !self.kept.contains_key(&key) && !self.fetching.contains(&key)
    }

    /// Returns the end of the read-ahead of a read of the pages `first` to `end`; `end` if it is not sequential.
    fn read_ahead(&mut self, file: usize, first: u64, end: u64) -> u64 {
        let streams = self.streams.entry(file).or_default();
        // The page of the last fetch may have been read twice: once for its first record, once for the rest. Or it was
        // dropped since then.
        let continues = |stream: &Stream| first < stream.next + 2 && stream.next < end;
        let Some(at) = streams.iter().position(continues) else {
            streams.truncate(MOST_STREAMS - 1);
            streams.insert(0, Stream { next: end, ahead: 4 });
            return end;
        };
        let stream = streams.remove(at);
        streams.insert(0, Stream { next: end, ahead: (stream.ahead * 4).min(MOST_AHEAD) });
        let is_large = |hint: &PageRun| hint.pages.end - hint.pages.start >= LARGE_HINT;
        if self.hints.iter().any(|hint| hint.file == file && is_large(hint)) {
            return end;
        }
        end.max(first + stream.ahead)
    }

    /// Moves the sequential reads that continue in a fetched range to its end.
    fn follow_streams(&mut self, run: &PageRun) {
        for stream in self.streams.get_mut(&run.file).into_iter().flatten() {
            if (run.pages.start..=run.pages.end).contains(&stream.next) {
                stream.next = run.pages.end;
            }
        }
    }

    /// Ends the fetch of `runs` and keeps the fetched pages. `bytes` has one part for each run, or is empty after an
    /// error.
    pub(super) fn arrive(&mut self, runs: &[PageRun], bytes: &[Vec<u8>]) {
        for (number, run) in runs.iter().enumerate() {
            let mut parts = bytes.get(number).map(|bytes| bytes.chunks(PAGE_BYTES as usize));
            for page in run.pages.clone() {
                let key = (run.file, page);
                self.fetching.remove(&key);
                if let Some(part) = parts.as_mut().and_then(Iterator::next) {
                    self.keep(key, part.into());
                }
            }
        }
    }

    fn keep(&mut self, key: PageKey, bytes: Arc<[u8]>) {
        self.now += 1;
        self.unread.insert(self.now, key);
        if let Some(before) = self.kept.insert(key, KeptPage { bytes, time: self.now }) {
            self.unread.remove(&before.time);
            self.read.remove(&before.time);
        }
        while self.kept.len() > MOST_PAGES {
            let is_read = self.read.len() > LEAST_READ || self.unread.is_empty();
            let order = if is_read { &mut self.read } else { &mut self.unread };
            let Some((_, oldest)) = order.pop_first() else { break };
            self.kept.remove(&oldest);
        }
    }
}

/// Returns sorted pages as runs.
fn runs_of(pages: &[PageKey]) -> Vec<PageRun> {
    let mut runs: Vec<PageRun> = Vec::new();
    for (file, page) in pages {
        let follows = |run: &&mut PageRun| {
            run.file == *file && run.pages.end == *page && run.pages.end - run.pages.start < MOST_OF_A_RANGE
        };
        match runs.last_mut().filter(follows) {
            Some(run) => run.pages.end += 1,
            None => runs.push(PageRun { file: *file, pages: *page..page + 1 }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(file: usize, pages: Range<u64>) -> PageRun {
        PageRun { file, pages }
    }

    fn fetch(pages: &mut Pages, file: usize, missing: &[u64]) -> Vec<PageRun> {
        let runs = pages.plan(file, missing, |_| 1000);
        let page = PAGE_BYTES as usize;
        let bytes: Vec<_> = runs.iter().map(|run| vec![0; run.pages.clone().count() * page]).collect();
        pages.arrive(&runs, &bytes);
        runs
    }

    #[test]
    fn a_single_read_fetches_its_pages_only() {
        let mut pages = Pages::default();
        assert_eq!(fetch(&mut pages, 0, &[7]), [run(0, 7..8)]);
        assert_eq!(fetch(&mut pages, 0, &[100, 101, 103]), [run(0, 100..102), run(0, 103..104)]);
        assert!(pages.get(0, 7).is_some());
        assert!(pages.get(1, 7).is_none());
    }

    #[test]
    fn a_sequential_read_fetches_more_each_time_up_to_a_limit() {
        let mut pages = Pages::default();
        let mut next = 0;
        let mut lengths = Vec::new();
        for _ in 0..5 {
            let runs = fetch(&mut pages, 0, &[next]);
            next = runs.last().unwrap().pages.end;
            lengths.push(runs.iter().map(|run| run.pages.end - run.pages.start).sum::<u64>());
        }
        assert_eq!(lengths, [1, 4, 16, 64, 128]);
        // The end of the file limits it.
        let runs = pages.plan(0, &[next], |_| next + 2);
        assert_eq!(runs, [run(0, next..next + 2)]);
    }

    #[test]
    fn expected_ranges_are_fetched_with_the_next_read_and_joined() {
        let mut pages = Pages::default();
        pages.expect(0, &(1..3));
        pages.expect(2, &(5..6));
        assert_eq!(fetch(&mut pages, 0, &[0]), [run(0, 0..3), run(2, 5..6)]);
        assert_eq!(fetch(&mut pages, 2, &[9]), [run(2, 9..10)], "once only");
    }

    #[test]
    fn a_reader_that_expects_much_is_not_read_ahead_for() {
        let mut pages = Pages::default();
        fetch(&mut pages, 0, &[0]);
        pages.expect(0, &(1..40));
        assert_eq!(fetch(&mut pages, 0, &[1]), [run(0, 1..40)]);
        pages.expect(0, &(40..340));
        // The ranges are long, and fetched at the same time.
        assert_eq!(fetch(&mut pages, 0, &[40]), [run(0, 40..168), run(0, 168..296), run(0, 296..340)]);
        assert_eq!(fetch(&mut pages, 0, &[340]), [run(0, 340..404)], "it expects nothing more");
    }

    #[test]
    fn a_sequential_read_continues_after_small_expected_ranges() {
        let mut pages = Pages::default();
        let mut next = 0;
        let mut lengths = Vec::new();
        for _ in 0..4 {
            pages.expect(0, &(next + 1..next + 3));
            let runs = fetch(&mut pages, 0, &[next]);
            assert_eq!(runs.len(), 1);
            next = runs[0].pages.end;
            lengths.push(runs[0].pages.clone().count());
        }
        assert_eq!(lengths, [3, 4, 16, 64]);
    }

    #[test]
    fn a_long_expected_range_waits_if_its_first_pages_are_in_memory() {
        let mut pages = Pages::default();
        pages.expect(1, &(0..16));
        assert_eq!(fetch(&mut pages, 0, &[0]), [run(0, 0..1), run(1, 0..16)]);
        pages.expect(1, &(8..24));
        assert_eq!(fetch(&mut pages, 0, &[50]), [run(0, 50..51)], "half of it is in memory");
        pages.expect(1, &(13..29));
        assert_eq!(fetch(&mut pages, 0, &[100]), [run(0, 100..101), run(1, 16..29)]);
        pages.expect(1, &(39..60));
        fetch(&mut pages, 0, &[150]);
        pages.expect(1, &(30..60));
        assert_eq!(fetch(&mut pages, 0, &[200]), [run(0, 200..201), run(1, 30..39)], "it begins with these");
    }

    #[test]
    fn a_sequential_read_continues_if_its_last_page_was_dropped() {
        let mut pages = Pages::default();
        fetch(&mut pages, 0, &[0]);
        assert_eq!(fetch(&mut pages, 0, &[1]), [run(0, 1..5)]);
        let again = pages.plan(0, &[4, 5], |_| 1000);
        assert_eq!(again, [run(0, 4..20)]);
    }

    #[test]
    fn a_page_is_fetched_by_one_thread() {
        let mut pages = Pages::default();
        let runs = pages.plan(0, &[3], |_| 1000);
        assert!(pages.is_fetching(0, 3));
        pages.arrive(&runs, &[]);
        assert!(!pages.is_fetching(0, 3));
        assert!(pages.get(0, 3).is_none(), "the fetch failed");
    }

    #[test]
    fn the_least_recently_used_pages_are_dropped() {
        let mut pages = Pages::default();
        fetch(&mut pages, 0, &[0]);
        for page in 0..MOST_PAGES as u64 {
            assert!(pages.get(0, 0).is_some());
            fetch(&mut pages, 1, &[3 * page]);
        }
        assert!(pages.get(0, 0).is_some());
        assert!(pages.get(1, 0).is_none());
        assert_eq!((pages.kept.len(), pages.read.len() + pages.unread.len()), (MOST_PAGES, MOST_PAGES));
    }

    #[test]
    fn pages_that_were_read_are_dropped_before_those_that_were_not() {
        let mut pages = Pages::default();
        pages.expect(2, &(0..100));
        fetch(&mut pages, 0, &[0]);
        for page in 0..4 * MOST_PAGES as u64 {
            fetch(&mut pages, 1, &[3 * page]);
            assert!(pages.get(1, 3 * page).is_some());
        }
        assert!((0..100).all(|page| !pages.is_absent((2, page))));
        assert_eq!(pages.kept.len(), MOST_PAGES);
        assert!(pages.get(1, 0).is_none());
    }
}
