//! The live page: the positions that a running writer publishes for readers in other processes.
//!
//! Owns `mqstore/live`, one page. The writer maps it. Readers read it with positional reads, or keep it mapped
//! ([`LiveWatch`]):
//!
//! ```text
//!   0  8  "MQSLIVE1"      8  8  process id       16 16  boot id      32  8  writer token
//!  40  8  1 if readers may see durable records only
//!  64  8  zero                                  72  8  published log offset
//! 128  8  counter, odd during a write          136  8  durable log offset
//! 192  8  counter, odd during a write          200  8  dispatched log offset
//! 256  8  counter, odd during a write          264  8  confirmed log offset + 1, 0 for none
//! 320  8  1 once a write or a sync failed
//! 384  8  how often topics changed so that readers must read them again
//! 448  8  log offset of the first byte that is not expired
//! 512  8  starts and ends of syncs of the log that a caller waited for, added: odd during such a sync
//! 520  8  how many of these syncs took too long
//! 528  8  nanoseconds after which the current or last one takes too long
//! ```
//!
//! The page is valid only while its owner holds the lock of the store and the lock of the page itself: byte 0 of the
//! file `mqstore/live`. The first lock can belong to a broker or to the next writer, which started after its owner was
//! killed. That page would show less than readers already found at the end of the log.
//!
//! Across a crash the page promises nothing. After a kill, recovery reads from it whether a sync has failed.
//!
//! Across threads: any thread raises the published position, in one step. Each other position has one writer at a time:
//! the leader of a group commit, or the holder of the dispatcher's lock. The counts of syncs belong to the leader.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mqstore_io::switch;
use mqstore_io::sync::Mutex;
use mqstore_io::{
    Access, Clock, LockError, MapAccess, ReadPace, Region, StoreLock, SyncCounts, SyncSource, Vfs, VfsFile,
};

use crate::error::{IoContext, StoreError};
use crate::store_files::StoreFiles;

const MAGIC: &[u8; 8] = b"MQSLIVE1";
const PAGE_BYTES: usize = 4096;
const PUBLISHED_AT: usize = 64;
const DURABLE_AT: usize = 128;
const DISPATCHED_AT: usize = 192;
const CONFIRMED_AT: usize = 256;
const FAILED_AT: usize = 320;
const TOPIC_CHANGES_AT: usize = 384;
const FIRST_AT: usize = 448;
const SYNCS_AT: usize = 512;
const SLOW_SYNCS_AT: usize = 520;
const SYNC_LIMIT_AT: usize = 528;
const READ_TRIES: usize = 1000;

/// The page as its writer uses it.
#[derive(Debug)]
pub struct LivePage {
    region: Region,
    /// Held while the number of changes of topics changes.
    topic_changes: Mutex<()>,
    sync_times: Mutex<SyncTimes>,
}

impl LivePage {
    /// Makes a new page for this process: published and durable up to the end of `log`, queues and index complete up to
    /// `dispatched`. It replaces the page of a previous writer, so it must not show less than that one did, and readers
    /// must see it before recovery changes a queue file. Readers believe the page while the returned lock is held.
    pub fn create(
        files: &StoreFiles,
        token: u64,
        durable_only: bool,
        log: Range<u64>,
        dispatched: u64,
    ) -> Result<(Self, Box<dyn StoreLock>), StoreError> {
        let path = files.live();
        let staged = files.staging().join("live");
        let environment = files.vfs.environment();
        let mut page = Vec::with_capacity(PAGE_BYTES);
        page.extend_from_slice(MAGIC);
        page.extend_from_slice(&u64::from(environment.pid).to_be_bytes());
        page.extend_from_slice(&environment.boot_id);
        page.extend_from_slice(&token.to_be_bytes());
        page.extend_from_slice(&u64::from(durable_only).to_be_bytes());
        page.resize(PAGE_BYTES, 0);
        for (at, position) in [
            (PUBLISHED_AT + 8, log.end),
            (DURABLE_AT + 8, log.end),
            (DISPATCHED_AT + 8, dispatched),
            (FIRST_AT, log.start),
        ] {
            page.get_mut(at..at + 8).unwrap_or_default().copy_from_slice(&position.to_be_bytes());
        }
        // A new file with a new inode: readers that have the previous writer's page open keep it.
        let _ = files.vfs.remove_file(&staged);
        let file = files.vfs.create_new(&staged).at(&staged, "making the live page")?;
        file.allocate(PAGE_BYTES as u64).at(&staged, "making the live page")?;
        file.write_all_at(&page, 0).at(&staged, "making the live page")?;
        let lock = files.vfs.lock(&staged).map_err(|error| match error {
            LockError::Held { pid } => StoreError::Locked { path: staged.clone(), pid },
            LockError::Io(error) => StoreError::io(&staged, "locking the live page", error),
        })?;
        files.vfs.rename(&staged, &path).at(&path, "naming the live page")?;
        let region = file.map(0, PAGE_BYTES, MapAccess::ReadWrite).at(&path, "mapping the live page")?;
        Ok((Self { region, topic_changes: Mutex::default(), sync_times: Mutex::default() }, lock))
    }

    /// Raises the published position to `position`, if it is lower. Any number of threads can call this.
    #[inline]
    pub fn publish(&self, position: u64) {
        // The offset is a constant inside the page and a multiple of 8: this cannot fail.
        let _ = self.region.raise_u64_be(PUBLISHED_AT + 8, position);
    }

    /// Sets the durable position. One caller at a time.
    pub fn set_durable(&self, position: u64) {
        self.set(DURABLE_AT, position);
    }

    /// Sets the position up to which queues and index are complete. One caller at a time.
    pub fn dispatch(&self, position: u64) {
        self.set(DISPATCHED_AT, position);
    }

    /// Sets the position at which readers stop, whatever is published; `u64::MAX` means no limit. One caller at a time.
    pub fn confirm(&self, position: u64) {
        self.set(CONFIRMED_AT, position.wrapping_add(1));
    }

    /// Records that a write or a sync failed: bytes in the page cache may never reach the device.
    pub fn fail(&self) {
        if switch::on("live.note_failure") {
            // As in `set`, this cannot fail.
            let _ = self.region.store_i64_be_release(FAILED_AT, 1);
        }
    }

    /// Counts a change of topics that readers must know: a deletion, a creation, other settings. Readers then read the
    /// topics again.
    pub fn note_topic_change(&self) {
        let _one = self.topic_changes.lock();
        // As in `set`, this cannot fail.
        let count = self.region.load_i64_be_acquire(TOPIC_CHANGES_AT).unwrap_or(0);
        let _ = self.region.store_i64_be_release(TOPIC_CHANGES_AT, count.wrapping_add(1));
    }

    /// Raises the log offset of the first byte that is not expired, before the file of the earlier bytes is removed.
    /// One caller at a time.
    pub fn expire_to(&self, log_min: u64) {
        // As in `set`, this cannot fail.
        let _ = self.region.store_i64_be_release(FIRST_AT, log_min as i64);
    }

    /// Runs a sync of the log for which a caller waits, and counts it for readers, whose reads from the disk then have a
    /// pace. `bytes` is the number of bytes that the sync writes. One caller at a time.
    pub fn time_sync<T>(&self, clock: &dyn Clock, bytes: u64, run: impl FnOnce() -> T) -> T {
        let start = clock.monotonic();
        let limit = self.sync_times.lock().limit(start, bytes);
        // As in `set`, these stores cannot fail.
        let _ = self.region.store_i64_be_release(SYNC_LIMIT_AT, limit.as_nanos() as i64);
        self.count_at(SYNCS_AT);
        let outcome = run();
        let time = clock.monotonic().saturating_sub(start);
        self.sync_times.lock().add(time);
        if time > limit {
            self.count_at(SLOW_SYNCS_AT);
        }
        self.count_at(SYNCS_AT);
        outcome
    }

    fn count_at(&self, at: usize) {
        let count = self.region.load_i64_be_acquire(at).unwrap_or(0);
        let _ = self.region.store_i64_be_release(at, count.wrapping_add(1));
    }

    fn set(&self, at: usize, position: u64) {
        // The page is 4 KiB and the offsets are constants, so these stores cannot fail. The counter is odd while a
        // reader without atomic loads can see a half-written position.
        let counter = self.region.load_i64_be_acquire(at).unwrap_or(0);
        let _ = self.region.store_i64_be_release(at, counter.wrapping_add(1));
        let _ = self.region.store_i64_be_release(at + 8, position as i64);
        let _ = self.region.store_i64_be_release(at, counter.wrapping_add(2));
    }
}

/// How long the syncs of a log take without other work on its device.
///
/// That is the shortest time of the last [`SyncTimes::PERIOD`] to twice this period: even next to many reads, some syncs
/// meet none of them. A period ends, so that a device that became slower does not look busy for ever.
#[derive(Debug, Default)]
struct SyncTimes {
    /// The shortest time of the current period.
    least: Option<Duration>,
    /// The shortest time of the period before it.
    earlier: Option<Duration>,
    period_end: Duration,
}

impl SyncTimes {
    const PERIOD: Duration = Duration::from_secs(10);

    /// A sync takes too long if it takes this many times the shortest time. Two waits on a disk with a head differ less.
    const MOST_TIMES: u32 = 4;

    /// No sync takes too long below this time, which on a fast device a few other requests or a busy processor cause.
    const NEVER_BELOW: Duration = Duration::from_millis(1);

    /// Nanoseconds for each byte that a sync writes: 100 MB/s, a slow disk.
    const NS_PER_BYTE: u64 = 10;

    /// Time that no sync takes, for the first sync: nothing is known about it.
    const FOREVER: Duration = Duration::from_secs(3600);

    /// Returns the time after which a sync of `bytes` that starts `now` takes too long.
    fn limit(&mut self, now: Duration, bytes: u64) -> Duration {
        if now >= self.period_end {
            self.earlier = self.least.take();
            self.period_end = now + Self::PERIOD;
        }
        let least = self.least.into_iter().chain(self.earlier).min();
        let usual = least.map_or(Self::FOREVER, |least| (least * Self::MOST_TIMES).max(Self::NEVER_BELOW));
        usual + Duration::from_nanos(bytes.saturating_mul(Self::NS_PER_BYTE)).min(Self::FOREVER)
    }

    fn add(&mut self, time: Duration) {
        self.least = self.least.into_iter().chain([time]).min();
    }
}

/// The counts of syncs on the live page of a store, whichever process writes it.
#[derive(Debug)]
struct LiveSyncs {
    vfs: Arc<dyn Vfs>,
    path: PathBuf,
    /// The inode and the map of the page: each open for writing makes a new one.
    page: Mutex<Option<(u64, Region)>>,
}

impl LiveSyncs {
    fn open_page(&self) -> Option<(u64, Region)> {
        let (file, region, inode) = map_page(&*self.vfs, &self.path)?;
        let mut magic = [0; 8];
        file.read_exact_at(&mut magic, 0).ok().filter(|()| magic == *MAGIC)?;
        Some((inode, region))
    }
}

impl SyncSource for LiveSyncs {
    fn counts(&self) -> Option<SyncCounts> {
        let mut page = self.page.lock();
        let inode = self.vfs.inode(&self.path).ok();
        if page.as_ref().map(|(inode, _)| *inode) != inode {
            *page = self.open_page();
        }
        let (_, region) = page.as_ref()?;
        let word = |at| region.load_i64_be_acquire(at).ok().map(i64::cast_unsigned);
        Some(SyncCounts {
            steps: word(SYNCS_AT)?,
            slow: word(SLOW_SYNCS_AT)?,
            limit_ns: word(SYNC_LIMIT_AT)?,
        })
    }
}

/// Returns the pace of reads of the log of `files` from the disk; all clones of them share it.
pub fn read_pace(files: &StoreFiles) -> &Arc<ReadPace> {
    files.read_pace.get_or_init(|| {
        let source = LiveSyncs { vfs: Arc::clone(&files.vfs), path: files.live(), page: Mutex::default() };
        Arc::new(ReadPace::new(Arc::clone(&files.clock), Box::new(source)))
    })
}

/// The content of the page, as a reader uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveState {
    /// The writer's process id.
    pub pid: u32,
    /// The writer's token; another token means another writer.
    pub token: u64,
    /// The log offset up to which a reader may read.
    pub visible: u64,
    /// The log offset up to which queues and index are complete.
    pub dispatched: u64,
    /// How often this writer changed topics so that readers must read them again.
    pub topic_changes: u64,
    /// The log offset of the first byte that is not expired.
    pub log_min: u64,
}

/// Takes the lock that RocketMQ takes.
///
/// # Errors
/// [`StoreError::Locked`] with the process that holds the lock, if it is known; I/O errors.
pub fn lock_store(files: &StoreFiles) -> Result<Box<dyn StoreLock>, StoreError> {
    let path = files.lock();
    files.vfs.lock(&path).map_err(|error| match error {
        LockError::Held { pid } => {
            StoreError::Locked { path: path.clone(), pid: pid.or_else(|| writer_pid(files)) }
        }
        LockError::Io(error) => StoreError::io(&path, "taking the store's lock", error),
    })
}

/// Returns the id of the process that holds the lock of the store, if it is known. A lock of ours has no process id: the
/// live page holds that of an open store, and the system may know that of another holder, such as a rebuild.
pub fn writer_pid(files: &StoreFiles) -> Option<i32> {
    let holder = files.vfs.lock_holder(&files.lock()).ok().flatten()?;
    holder
        .pid
        .or_else(|| read_live(files).and_then(|live| i32::try_from(live.pid).ok()))
        .or_else(|| files.vfs.lock_owner(&files.lock()))
}

/// Whether the writer that has the store open runs on another machine, which a network file system permits: the lock of
/// its page is held, and the page is of another boot.
pub fn is_written_elsewhere(files: &StoreFiles) -> bool {
    let foreign_token = || {
        let page = files.vfs.read_file(&files.live(), PAGE_BYTES as u64).ok()?;
        let is_foreign = page.get(..8)? == MAGIC && page.get(16..32)? != files.vfs.environment().boot_id;
        is_foreign.then(|| page.get(32..40).map(<[u8]>::to_vec))?
    };
    let before = foreign_token();
    let is_held = files.vfs.lock_holder(&files.live()).is_ok_and(|holder| holder.is_some());
    // The page that is held may be that of the next writer. The page of before is one that a lost power left then.
    before.is_some() && is_held && foreign_token() == before
}

/// Reads the page of the writer that holds the lock now; `None` if no writer of ours holds it, or if it has made no page
/// yet.
pub fn read_live(files: &StoreFiles) -> Option<LiveState> {
    let holder = files.vfs.lock_holder(&files.lock()).ok().flatten()?;
    if !holder.may_be_ours {
        return None;
    }
    // Where the holder's id is known, it shows whose page this is.
    let is_owner = |live: &LiveState| match holder.pid {
        Some(pid) => i64::from(pid) == i64::from(live.pid),
        None => files.vfs.lock_holder(&files.live()).is_ok_and(|holder| holder.is_some()),
    };
    let environment = files.vfs.environment();
    let (mut whole, mut halfway) = (None::<LiveState>, None::<LiveState>);
    let mut lower = None;
    for _ in 0..READ_TRIES {
        let page = files.vfs.read_file(&files.live(), PAGE_BYTES as u64).ok()?;
        match decode(&page, environment.boot_id) {
            PageRead::State(now) => match whole {
                // No other page replaced this one between the two reads, so the lock is that of this page.
                Some(before) if before.token == now.token => return Some(before.lower(now)),
                _ if is_owner(&now) => whole = Some(now),
                _ => return None,
            },
            // The writer was stopped or lost its processor between the counter and the position. The position is the
            // old one or the new one, and both are valid.
            PageRead::InTheMiddle(now) => {
                lower = halfway.filter(|before| before.token == now.token).map(|before| before.lower(now));
                halfway = Some(now);
            }
            PageRead::Foreign => return None,
        }
    }
    lower.or(whole).filter(is_owner)
}

impl LiveState {
    /// Builds the state from the page; `word` returns the number at a place.
    fn of(word: &impl Fn(usize) -> Option<u64>) -> Option<Self> {
        // First: it may only be lower than the position up to which readers see the log.
        let dispatched = word(DISPATCHED_AT + 8)?;
        // Zero means no limit and becomes the largest number.
        let confirmed = word(CONFIRMED_AT + 8)?.wrapping_sub(1);
        Some(Self {
            pid: word(8)? as u32,
            token: word(32)?,
            visible: word(visible_at(word)? + 8)?.min(confirmed),
            dispatched,
            topic_changes: word(TOPIC_CHANGES_AT)?,
            log_min: word(FIRST_AT)?,
        })
    }

    /// Positions only grow. Of two reads, the lower value is valid, even if one read saw a half-written position.
    fn lower(self, now: Self) -> Self {
        let (visible, dispatched) = (self.visible.min(now.visible), self.dispatched.min(now.dispatched));
        Self { visible, dispatched, ..now }
    }
}

/// Whether the last writer ran in this boot of the machine and none of its syncs failed. Call this before a new page
/// replaces the old one.
pub fn no_sync_failed(files: &StoreFiles) -> bool {
    let Ok(page) = files.vfs.read_file(&files.live(), PAGE_BYTES as u64) else { return false };
    page.get(..8) == Some(MAGIC)
        && page.get(16..32) == Some(&files.vfs.environment().boot_id)
        && page.get(FAILED_AT..FAILED_AT + 8) == Some(&[0; 8])
}

enum PageRead {
    State(LiveState),
    /// A position is being written; the positions of this state can have any value.
    InTheMiddle(LiveState),
    /// Not a page of ours, or a page of an earlier boot.
    Foreign,
}

fn decode(page: &[u8], boot_id: [u8; 16]) -> PageRead {
    match decode_state(page, boot_id) {
        Some((state, true)) => PageRead::State(state),
        Some((state, false)) => PageRead::InTheMiddle(state),
        None => PageRead::Foreign,
    }
}

/// Returns the state, and whether it is completely written; `None` if the page is not of a live writer.
fn decode_state(page: &[u8], boot_id: [u8; 16]) -> Option<(LiveState, bool)> {
    if page.get(..8)? != MAGIC || page.get(16..32)? != boot_id {
        return None;
    }
    let word =
        |at: usize| page.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes);
    let positions = [visible_at(&word)?, DISPATCHED_AT, CONFIRMED_AT];
    let whole = positions.iter().all(|at| word(*at).is_some_and(|it| it.is_multiple_of(2)));
    Some((LiveState::of(&word)?, whole))
}

/// Returns the place of the position up to which readers may see the log. `word` returns the number at a place.
fn visible_at(word: &impl Fn(usize) -> Option<u64>) -> Option<usize> {
    Some(if word(40)? == 1 { DURABLE_AT } else { PUBLISHED_AT })
}

/// The live page as a reader keeps it: mapped, and with its file open. While the writer of the page runs, a look costs
/// one system call.
#[derive(Debug, Default)]
pub struct LiveWatch(Mutex<Option<KeptPage>>);

impl LiveWatch {
    /// Returns the inode of the page, which is another one for each open for writing, and the result of [`read_live`].
    /// The inode is at most as new as the state.
    pub fn look(&self, files: &StoreFiles) -> (Option<u64>, Option<LiveState>) {
        let mut kept = self.0.lock();
        if let Some(page) = &*kept
            && let Some(live) = page.state()
        {
            return (Some(page.inode), Some(live));
        }
        let inode = page_inode(files);
        let live = read_live(files);
        *kept = live.and_then(|live| KeptPage::open(files, live.token));
        (inode, live)
    }

    /// Returns how often the writer of the last look has counted a change of topics by now; `None` if no writer ran
    /// then. Reads memory only.
    pub fn topic_changes(&self) -> Option<u64> {
        self.0.lock().as_ref()?.word(TOPIC_CHANGES_AT)
    }

    /// Returns the inode of the page.
    pub fn inode(&self, files: &StoreFiles) -> Option<u64> {
        match &*self.0.lock() {
            Some(page) if page.is_current() => Some(page.inode),
            _ => page_inode(files),
        }
    }
}

fn page_inode(files: &StoreFiles) -> Option<u64> {
    files.vfs.stat(&files.live()).ok().map(|stat| stat.inode)
}

/// Opens and maps the page at `path`, and returns its inode.
fn map_page(vfs: &dyn Vfs, path: &Path) -> Option<(Arc<dyn VfsFile>, Region, u64)> {
    let file = vfs.open(path, Access::Read).ok()?;
    let stat = file.stat().ok()?;
    // A page has its full length from the start, and nothing truncates it.
    let region = (stat.len >= PAGE_BYTES as u64).then(|| file.map(0, PAGE_BYTES, MapAccess::Read))?.ok()?;
    Some((file, region, stat.inode))
}

#[derive(Debug)]
struct KeptPage {
    file: Arc<dyn VfsFile>,
    region: Region,
    inode: u64,
}

impl KeptPage {
    /// Maps the page of the writer with this token; `None` if another writer's page is there now.
    fn open(files: &StoreFiles, token: u64) -> Option<Self> {
        let (file, region, inode) = map_page(&*files.vfs, &files.live())?;
        let page = Self { file, region, inode };
        (page.word(32)? == token).then_some(page)
    }

    fn word(&self, at: usize) -> Option<u64> {
        self.region.load_i64_be_acquire(at).ok().map(i64::cast_unsigned)
    }

    /// Whether the writer of the page runs: it holds the lock of the page to its end, and only the next writer, which
    /// starts after that, replaces the page.
    fn is_current(&self) -> bool {
        self.file.lock_holder().is_ok_and(|holder| holder.is_some_and(|holder| holder.may_be_ours))
    }

    fn state(&self) -> Option<LiveState> {
        // Each position is loaded in one step, so that no counter is needed.
        let state = LiveState::of(&|at| self.word(at))?;
        // After the positions: all of them are from a writer that still runs.
        self.is_current().then_some(state)
    }
}

#[cfg(test)]
mod tests {
    use mqstore_io::{ManualClock, SimVfs};

    use super::*;

    #[test]
    fn a_writer_that_rests_halfway_takes_nothing_back() {
        let vfs = SimVfs::default();
        let files =
            StoreFiles::new(Arc::new(vfs.clone()), Arc::new(ManualClock::new(0)), Path::new("/store"));
        vfs.create_dir_all(&files.staging()).unwrap();
        let held = vfs.lock(&files.lock()).unwrap();
        let (page, page_lock) = LivePage::create(&files, 7, false, 0..0, 0).unwrap();
        page.publish(100);
        page.dispatch(60);
        let seen = |live: Option<LiveState>| live.map(|live| (live.token, live.visible, live.dispatched));
        assert_eq!(seen(read_live(&files)), Some((7, 100, 60)));
        // The dispatcher lost its processor before the position, or after it; other threads continue.
        let counter = page.region.load_i64_be_acquire(DISPATCHED_AT).unwrap();
        page.region.store_i64_be_release(DISPATCHED_AT, counter + 1).unwrap();
        page.publish(120);
        assert_eq!(seen(read_live(&files)), Some((7, 120, 60)));
        page.region.store_i64_be_release(DISPATCHED_AT + 8, 110).unwrap();
        assert_eq!(seen(read_live(&files)), Some((7, 120, 110)));
        drop(held);
        assert_eq!(read_live(&files), None);
        // The next writer has the store's lock, and its page is not there yet.
        drop(page_lock);
        let _held = vfs.lock(&files.lock()).unwrap();
        assert_eq!(read_live(&files), None);
    }

    #[test]
    fn a_writer_on_another_machine_is_known_by_its_boot() {
        let vfs = SimVfs::default();
        let files = StoreFiles::new(Arc::new(vfs.clone()), Arc::new(ManualClock::new(0)), Path::new("/s"));
        vfs.create_dir_all(&files.staging()).unwrap();
        assert!(!is_written_elsewhere(&files));
        let (_page, lock) = LivePage::create(&files, 7, false, 0..0, 0).unwrap();
        assert!(!is_written_elsewhere(&files), "a writer of this machine");
        let file = vfs.open(&files.live(), Access::ReadWrite).unwrap();
        file.write_all_at(&[9; 16], 16).unwrap();
        assert!(is_written_elsewhere(&files));
        drop(lock);
        assert!(!is_written_elsewhere(&files), "a page that a lost power left");
        let (_page, _lock) = LivePage::create(&files, 8, false, 0..0, 0).unwrap();
        assert!(!is_written_elsewhere(&files), "the next writer");
    }

    #[test]
    fn readers_see_the_syncs_of_each_writer() {
        let vfs = SimVfs::default();
        let clock = Arc::new(ManualClock::new(0));
        let files =
            StoreFiles::new(Arc::new(vfs.clone()), Arc::<ManualClock>::clone(&clock), Path::new("/s"));
        vfs.create_dir_all(&files.staging()).unwrap();
        let syncs = LiveSyncs { vfs: Arc::new(vfs), path: files.live(), page: Mutex::default() };
        let seen = || syncs.counts().map(|counts| (counts.steps, counts.slow));
        assert_eq!(seen(), None);
        let (page, lock) = LivePage::create(&files, 7, false, 0..0, 0).unwrap();
        assert_eq!(seen(), Some((0, 0)));
        let sync_for = |page: &LivePage, bytes: u64, us: u64| {
            let began = seen().unwrap().0;
            page.time_sync(&*clock, bytes, || {
                assert_eq!(seen().unwrap().0, began + 1, "readers see that a sync runs");
                clock.advance(Duration::from_micros(us));
            });
            let counts = syncs.counts().unwrap();
            (counts.steps, counts.slow, counts.limit_ns / 1000)
        };
        let forever_us = SyncTimes::FOREVER.as_micros() as u64;
        // The first sync has nothing to compare with. Then a millisecond is never too long, and bytes take time.
        assert_eq!(sync_for(&page, 0, 900), (2, 0, forever_us));
        assert_eq!(sync_for(&page, 0, 100), (4, 0, 3600));
        assert_eq!(sync_for(&page, 0, 1000), (6, 0, 1000));
        assert_eq!(sync_for(&page, 0, 1001), (8, 1, 1000));
        assert_eq!(sync_for(&page, 1_000_000, 11_000), (10, 1, 11_000));
        // After two periods in which no sync took less than 2 ms, this is the usual time.
        clock.advance(SyncTimes::PERIOD);
        assert_eq!(sync_for(&page, 0, 2000), (12, 2, 1000));
        clock.advance(SyncTimes::PERIOD);
        assert_eq!(sync_for(&page, 0, 7999), (14, 2, 8000));
        drop(lock);
        let (_page, _lock) = LivePage::create(&files, 8, false, 0..0, 0).unwrap();
        assert_eq!(seen(), Some((0, 0)));
    }

    #[test]
    fn a_file_that_is_no_page_counts_nothing() {
        let vfs = SimVfs::default();
        let clock = Arc::new(ManualClock::new(0));
        let files = StoreFiles::new(Arc::new(vfs.clone()), clock, Path::new("/s"));
        for bytes in [&b"MQSLIVE1"[..], &[0; PAGE_BYTES]] {
            vfs.create_dir_all(&files.staging()).unwrap();
            vfs.write_atomic(&files.live(), &files.staging().join("live"), bytes).unwrap();
            let syncs = LiveSyncs { vfs: Arc::clone(&files.vfs), path: files.live(), page: Mutex::default() };
            assert_eq!(syncs.counts(), None);
        }
    }
}
