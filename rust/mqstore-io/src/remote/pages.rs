//! The parts of remote files that are in memory or on their way, and the choice of the ranges to fetch.
//!
//! A page has 64 KiB. A read of pages that are not in memory fetches them. Three things make a fetch larger: more
//! missing pages of the same read, the read-ahead of a sequential read, and the ranges that readers expect to read. A
//! block is the answer of one request. The memory is bounded, and a block is dropped as a whole. Blocks that were read
//! completely are dropped first, the least recently used ones before others, so that blocks that were fetched ahead are
//! still there when a walk of another file reaches them.
//!
//! Requests cost more than bytes, so a walk of a file should need one request for about 8 MiB.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use super::source::{PendingRange, RangeBytes};

/// Bytes of a page. A look-up reads single pages, so small pages make it cheap.
pub(super) const PAGE_BYTES: u64 = 64 << 10;

/// Maximum number of pages in memory and on their way: 96 MiB.
const MOST_PAGES: u64 = 1536;

/// Number of pages of completely read blocks that stay in memory, even if all other blocks are not: 32 MiB.
const LEAST_READ: u64 = 512;

/// Pages of the longest read-ahead: 8 MiB.
const MOST_AHEAD: u64 = 128;

/// Pages of the longest range, of `BEST_READ_BYTES`: 8 MiB. Longer ones are split, so that their parts are fetched at
/// the same time.
const MOST_OF_A_RANGE: u64 = 128;

/// Pages of a range that has a request of its own, for which no thread needs to wait: 1 MiB.
const LONG_RANGE: u64 = 16;

/// Pages of the longest expected range: 32 MiB.
const MOST_EXPECTED: u64 = 512;

/// A reader that expects at least this number of pages of a file knows what it reads, so there is no other read-ahead.
const LARGE_HINT: u64 = 32;

/// Pages of an expected range from which on it can wait, see [`can_wait`].
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

impl PageRun {
    fn len(&self) -> u64 {
        self.pages.end.saturating_sub(self.pages.start)
    }

    fn key(&self) -> PageKey {
        (self.file, self.pages.start)
    }

    /// Whether the range has a request of its own.
    pub(super) fn is_long(&self) -> bool {
        self.len() >= LONG_RANGE
    }
}

type PageKey = (usize, u64);

/// A page in memory.
#[derive(Clone)]
pub(super) struct Page {
    block: Arc<RangeBytes>,
    /// Its position in the block.
    at: usize,
}

impl Page {
    /// Returns the bytes from position `skipped` of the page on.
    pub(super) fn from(&self, skipped: usize) -> &[u8] {
        let bytes: &[u8] = (**self.block).as_ref();
        let end = bytes.len().min(self.at + PAGE_BYTES as usize);
        bytes.get(self.at + skipped..end).unwrap_or_default()
    }
}

/// A sequential read of a file.
#[derive(Clone, Copy)]
struct Stream {
    /// The page after the last fetched one.
    next: u64,
    /// Pages of its next read-ahead.
    ahead: u64,
}

struct Block {
    bytes: Arc<RangeBytes>,
    pages: u64,
    /// A bit for each page that was not read yet.
    unread: u128,
    /// Whether a reader may still need the last page: it has not read the page after a long block.
    is_current: bool,
    /// Its key in one of the orders.
    time: u64,
}

impl Block {
    fn is_read(&self) -> bool {
        self.unread == 0 && !self.is_current
    }
}

/// A range that was requested.
struct Flight {
    pages: u64,
    /// `None` while a thread waits for it.
    pending: Option<Box<dyn PendingRange>>,
}

/// The place of a page.
pub(super) enum Place {
    Memory(Page),
    /// In this range, which was requested.
    Way(PageRun),
    Absent,
}

#[derive(Default)]
pub(super) struct Pages {
    /// By file and first page.
    blocks: BTreeMap<PageKey, Block>,
    /// Blocks that were read completely, by the time of their last use.
    read: BTreeMap<u64, PageKey>,
    /// The other blocks, by the time of their fetch or last use.
    unread: BTreeMap<u64, PageKey>,
    /// Pages of all blocks, of those that were read, and of the ranges on their way.
    kept: u64,
    done: u64,
    flying: u64,
    /// Number of uses.
    now: u64,
    /// By file and first page.
    flights: BTreeMap<PageKey, Flight>,
    streams: HashMap<usize, Vec<Stream>>,
    hints: Vec<PageRun>,
    /// Blocks that were dropped, until [`Pages::take_dropped`].
    dropped: Vec<Arc<RangeBytes>>,
}

impl Pages {
    /// Returns the place of a page, and notes that it is read.
    pub(super) fn get(&mut self, file: usize, page: u64) -> Place {
        let key = (file, page);
        let Some((start, block)) =
            covering(self.blocks.range_mut(..=key).next_back(), key, |block| block.pages)
        else {
            let flight = covering(self.flights.range(..=key).next_back(), key, |flight| flight.pages);
            let run = |(start, flight): (u64, &Flight)| PageRun { file, pages: start..start + flight.pages };
            return flight.map_or(Place::Absent, |found| Place::Way(run(found)));
        };
        let at = page - start;
        let was_read = block.is_read();
        block.unread &= !(1 << at);
        let found = Page { block: Arc::clone(&block.bytes), at: (at * PAGE_BYTES) as usize };
        self.note_use((file, start), was_read);
        if at == 0 && page > 0 {
            self.end_block_before(file, page);
        }
        Place::Memory(found)
    }

    /// Moves a block to the end of its order.
    fn note_use(&mut self, key: PageKey, was_read: bool) {
        let Some(block) = self.blocks.get_mut(&key) else { return };
        self.now += 1;
        let order = if was_read { &mut self.read } else { &mut self.unread };
        order.remove(&block.time);
        block.time = self.now;
        let is_read = block.is_read();
        let order = if is_read { &mut self.read } else { &mut self.unread };
        order.insert(self.now, key);
        self.done += if is_read && !was_read { block.pages } else { 0 };
    }

    /// Notes that a reader has passed the block that ends at `page`.
    fn end_block_before(&mut self, file: usize, page: u64) {
        let key = (file, page - 1);
        let before = covering(self.blocks.range_mut(..=key).next_back(), key, |block| block.pages);
        if let Some((start, block)) = before.filter(|(_, block)| block.is_current) {
            block.is_current = false;
            self.note_use((file, start), false);
        }
    }

    /// Notes that a reader will read these pages soon. Returns the ranges to request now, and marks them: the parts of a
    /// long range, if there is space for them. Others are fetched with the next read.
    pub(super) fn expect(&mut self, file: usize, pages: &Range<u64>) -> Vec<PageRun> {
        let end = pages.end.min(pages.start.saturating_add(MOST_EXPECTED));
        let is_long = end.saturating_sub(pages.start) >= MOST_OF_A_RANGE;
        let mut start = pages.start;
        let mut wanted = Vec::new();
        while start < end && self.hints.len() < MOST_HINTS {
            let part = start..end.min(start + MOST_OF_A_RANGE);
            // A range that does not begin at a page can end one page later; this page is not worth a request.
            if start > pages.start && part.end - start < LONG_RANGE {
                break;
            }
            start = part.end;
            let absent = self.absent(file, part.clone());
            let count = absent.len() as u64;
            let fits = wanted.len() as u64 + count <= self.pages_left_ahead();
            if is_long && fits && count >= LONG_RANGE && !can_wait(&part, &absent) {
                wanted.extend(absent);
            } else if count > 0 {
                self.hints.push(PageRun { file, pages: part });
            }
        }
        self.begin(&mut wanted)
    }

    /// Returns the ranges to request for the `missing` pages of a file, sorted, and marks them. `page_counts` is the
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
        let mut pages_left = self.pages_left_ahead();
        let mut later = Vec::new();
        for hint in std::mem::take(&mut self.hints) {
            let pages = hint.pages.start..hint.pages.end.min(page_counts(hint.file));
            let is_missing = hint.file == file && missing.iter().any(|page| pages.contains(page));
            let absent = self.absent(hint.file, pages.clone());
            if !is_missing && can_wait(&pages, &absent) {
                continue;
            }
            if !is_missing && absent.len() as u64 > pages_left {
                later.push(hint);
                continue;
            }
            pages_left = pages_left.saturating_sub(absent.len() as u64);
            wanted.extend(absent);
        }
        self.hints = later;
        self.begin(&mut wanted)
    }

    /// Returns how many pages can be fetched ahead without dropping a block that was fetched ahead before.
    fn pages_left_ahead(&self) -> u64 {
        let unread = self.kept - self.done;
        (MOST_PAGES - LEAST_READ).saturating_sub(self.flying + unread)
    }

    /// Marks pages as requested, and makes space for them. Returns them as ranges.
    fn begin(&mut self, wanted: &mut Vec<PageKey>) -> Vec<PageRun> {
        wanted.sort_unstable();
        wanted.dedup();
        let runs = runs_of(wanted);
        for run in &runs {
            self.flights.insert(run.key(), Flight { pages: run.len(), pending: None });
            self.flying += run.len();
            self.follow_streams(run);
        }
        while self.kept + self.flying > MOST_PAGES && self.drop_block() {}
        runs
    }

    /// Drops the block that is needed least. Returns whether there was one.
    fn drop_block(&mut self) -> bool {
        let is_read = self.done > LEAST_READ || self.unread.is_empty();
        let order = if is_read { &mut self.read } else { &mut self.unread };
        let Some(block) = order.pop_first().and_then(|(_, oldest)| self.blocks.remove(&oldest)) else {
            return false;
        };
        self.kept -= block.pages;
        self.done -= if is_read { block.pages } else { 0 };
        self.dropped.push(block.bytes);
        true
    }

    /// Returns the blocks that were dropped. Free them without a lock: the memory can be Python's, so that the thread
    /// waits for the interpreter.
    pub(super) fn take_dropped(&mut self) -> Vec<Arc<RangeBytes>> {
        std::mem::take(&mut self.dropped)
    }

    /// Returns the pages of a range that are neither in memory nor on their way.
    fn absent(&self, file: usize, pages: Range<u64>) -> Vec<PageKey> {
        pages.map(|page| (file, page)).filter(|key| self.is_absent(*key)).collect()
    }

    fn is_absent(&self, key: PageKey) -> bool {
        covering(self.blocks.range(..=key).next_back(), key, |block| block.pages).is_none()
            && covering(self.flights.range(..=key).next_back(), key, |flight| flight.pages).is_none()
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
        let is_large = |hint: &PageRun| hint.len() >= LARGE_HINT;
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

    /// Keeps the request for a range until a thread needs its pages.
    pub(super) fn started(&mut self, run: &PageRun, pending: Box<dyn PendingRange>) {
        if let Some(flight) = self.flights.get_mut(&run.key()) {
            flight.pending = Some(pending);
        }
    }

    /// Takes the request for a range; `None` if another thread has it. The caller must call [`Self::arrive`].
    pub(super) fn take_pending(&mut self, run: &PageRun) -> Option<Box<dyn PendingRange>> {
        self.flights.get_mut(&run.key())?.pending.take()
    }

    /// Ends the request for a range and keeps its bytes; `None` after an error.
    pub(super) fn arrive(&mut self, run: &PageRun, bytes: Option<RangeBytes>) {
        let Some(flight) = self.flights.remove(&run.key()) else { return };
        self.flying -= flight.pages;
        let Some(bytes) = bytes else { return };
        self.now += 1;
        self.unread.insert(self.now, run.key());
        self.kept += flight.pages;
        let unread = u128::MAX >> (u128::BITS - flight.pages as u32);
        let is_current = run.is_long();
        let block = Block { bytes: Arc::new(bytes), pages: flight.pages, unread, is_current, time: self.now };
        self.blocks.insert(run.key(), block);
    }
}

/// Whether the `absent` pages of an expected range can wait, because the first quarter of a long range is there: the
/// reader names the others again before it needs them, and a longer request can fetch them.
fn can_wait(pages: &Range<u64>, absent: &[PageKey]) -> bool {
    let count = pages.end.saturating_sub(pages.start);
    let first = absent.first().map_or(pages.end, |(_, page)| *page);
    count >= PATIENT_HINT && 4 * first.saturating_sub(pages.start) >= count
}

/// Returns the first page of a range with pages, and the range, if it contains the page `key`.
fn covering<T>(
    found: Option<(&PageKey, T)>,
    (file, page): PageKey,
    pages: impl Fn(&T) -> u64,
) -> Option<(u64, T)> {
    let (&(of, start), range) = found?;
    (of == file && page - start < pages(&range)).then_some((start, range))
}

/// Returns sorted pages as runs.
fn runs_of(pages: &[PageKey]) -> Vec<PageRun> {
    let mut runs: Vec<PageRun> = Vec::new();
    for (file, page) in pages {
        let follows =
            |run: &&mut PageRun| run.file == *file && run.pages.end == *page && run.len() < MOST_OF_A_RANGE;
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

    fn arrive(pages: &mut Pages, runs: &[PageRun]) {
        for run in runs {
            let bytes: RangeBytes = Box::new(vec![0; run.pages.clone().count() * PAGE_BYTES as usize]);
            pages.arrive(run, Some(bytes));
        }
    }

    fn fetch(pages: &mut Pages, file: usize, missing: &[u64]) -> Vec<PageRun> {
        let runs = pages.plan(file, missing, |_| 10_000);
        arrive(pages, &runs);
        runs
    }

    /// Reads a page. Returns whether it is in memory.
    fn read(pages: &mut Pages, file: usize, page: u64) -> bool {
        matches!(pages.get(file, page), Place::Memory(_))
    }

    #[test]
    fn a_single_read_fetches_its_pages_only() {
        let mut pages = Pages::default();
        assert_eq!(fetch(&mut pages, 0, &[7]), [run(0, 7..8)]);
        assert_eq!(fetch(&mut pages, 0, &[100, 101, 103]), [run(0, 100..102), run(0, 103..104)]);
        assert!(read(&mut pages, 0, 7));
        assert!(!read(&mut pages, 1, 7));
        assert!(!read(&mut pages, 0, 102));
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
        assert_eq!(pages.expect(0, &(1..3)), []);
        assert_eq!(pages.expect(2, &(5..6)), []);
        assert_eq!(fetch(&mut pages, 0, &[0]), [run(0, 0..3), run(2, 5..6)]);
        assert_eq!(fetch(&mut pages, 2, &[9]), [run(2, 9..10)], "once only");
    }

    #[test]
    fn a_reader_that_expects_much_is_not_read_ahead_for() {
        let mut pages = Pages::default();
        fetch(&mut pages, 0, &[0]);
        assert_eq!(pages.expect(0, &(1..40)), []);
        assert_eq!(fetch(&mut pages, 0, &[1]), [run(0, 1..40)]);
        assert_eq!(fetch(&mut pages, 0, &[40]), [run(0, 40..56)], "it expects nothing more");
    }

    #[test]
    fn a_long_expected_range_is_requested_without_a_read() {
        let mut pages = Pages::default();
        let parts = [run(0, 40..168), run(0, 168..296), run(0, 296..340)];
        assert_eq!(pages.expect(0, &(40..340)), parts);
        assert_eq!(pages.expect(0, &(40..340)), [], "once only");
        assert!(matches!(pages.get(0, 300), Place::Way(way) if way == parts[2]));
        arrive(&mut pages, &parts);
        assert!(read(&mut pages, 0, 300));
    }

    #[test]
    fn ranges_that_do_not_fit_wait_for_a_read() {
        let mut pages = Pages::default();
        let first = pages.expect(1, &(0..512));
        assert_eq!(first.len(), 4);
        arrive(&mut pages, &first);
        assert_eq!(pages.expect(2, &(0..512)).len(), 4);
        assert_eq!(pages.expect(2, &(512..640)), []);
        assert_eq!(fetch(&mut pages, 0, &[0]), [run(0, 0..1)]);
        // A range that a read needs is fetched in any case.
        assert_eq!(fetch(&mut pages, 2, &[600]), [run(2, 512..640)]);
        assert_eq!(pages.expect(3, &(0..128)), []);
        for page in 0..512 {
            assert!(read(&mut pages, 1, page));
        }
        assert_eq!(fetch(&mut pages, 0, &[9]), [run(0, 9..10), run(3, 0..128)]);
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
        assert!(matches!(pages.get(0, 3), Place::Way(way) if way == runs[0]));
        pages.arrive(&runs[0], None);
        assert!(matches!(pages.get(0, 3), Place::Absent), "the fetch failed");
    }

    #[test]
    fn the_least_recently_used_pages_are_dropped() {
        let mut pages = Pages::default();
        fetch(&mut pages, 0, &[0]);
        for page in 0..MOST_PAGES {
            assert!(read(&mut pages, 0, 0));
            fetch(&mut pages, 1, &[3 * page]);
        }
        assert!(read(&mut pages, 0, 0));
        assert!(!read(&mut pages, 1, 0));
        assert_eq!((pages.kept, pages.blocks.len()), (MOST_PAGES, MOST_PAGES as usize));
        assert_eq!(pages.read.len() + pages.unread.len(), MOST_PAGES as usize);
    }

    #[test]
    fn blocks_that_were_read_are_dropped_before_those_that_were_not() {
        let mut pages = Pages::default();
        let ahead = pages.expect(2, &(0..128));
        arrive(&mut pages, &ahead);
        for page in 0..4 * MOST_PAGES {
            fetch(&mut pages, 1, &[3 * page]);
            assert!(read(&mut pages, 1, 3 * page));
        }
        assert!(!read(&mut pages, 1, 0));
        for page in 0..128 {
            assert!(read(&mut pages, 2, page));
        }
        assert_eq!(pages.kept, MOST_PAGES);
        assert!(!read(&mut pages, 2, 128), "the reader has passed the block");
        let after = fetch(&mut pages, 2, &[128]);
        assert_eq!(after, [run(2, 128..129)]);
        assert!(read(&mut pages, 2, 128));
        for page in 0..2 * MOST_PAGES {
            fetch(&mut pages, 3, &[3 * page]);
            assert!(read(&mut pages, 3, 3 * page));
        }
        assert!(!read(&mut pages, 2, 127));
        assert_eq!((pages.kept, pages.done, pages.flying), (MOST_PAGES, MOST_PAGES, 0));
    }

    #[test]
    fn ranges_on_their_way_need_space_too() {
        let mut pages = Pages::default();
        for page in 0..MOST_PAGES {
            fetch(&mut pages, 1, &[3 * page]);
            assert!(read(&mut pages, 1, 3 * page));
        }
        let ahead = pages.expect(2, &(0..256));
        assert_eq!((pages.kept, pages.flying), (MOST_PAGES - 256, 256));
        arrive(&mut pages, &ahead);
        assert_eq!((pages.kept, pages.flying), (MOST_PAGES, 0));
    }
}
