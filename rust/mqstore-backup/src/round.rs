//! A round: uploads what a store has and its backup does not, and creates the next manifest.
//!
//! ```text
//! copy the other files -> choose the end of the log -> upload pieces -> check them -> manifest n + 1, if it is absent
//! ```
//!
//! Across a crash at any step: the backup is that of the newest complete manifest. Pieces that no manifest names are
//! removed by a clean. Across processes: of two sessions that back up to one target, one creates the manifest, and the
//! other one ends with [`StoreError::Busy`].

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::progress::{Progress, ProgressWatcher};
use mqstore_base::store_files::BackupMark;
use mqstore_engine::Store;
use mqstore_io::pool::{Jobs, Pool};
use mqstore_io::sync::Mutex;
use mqstore_io::target::{hex, random_id};
use mqstore_io::{Vfs, switch};
use sha2::{Digest, Sha256};

use crate::manifest::{FileEntry, Manifest, SegmentEntry};
use crate::pieces::{Piece, PieceSizes, is_zero, packed};
use crate::place::{AT_ONCE, Lists, NewObject, Place};
use crate::source::{LogSegment, OpenFile, Side, is_end_of_queue, segments};

/// Maximum number of pieces of a segment in its entry. More are in an object.
const MOST_LISTED: usize = 8;

/// Sizes of rounds.
#[derive(Clone, Copy, Debug)]
pub struct RoundSizes {
    /// Lengths of pieces.
    pub pieces: PieceSizes,
    /// Uploaded bytes of the log after which a state that is not complete names them.
    pub commit_bytes: u64,
    /// Pieces that are read and uploaded at the same time.
    pub at_once: u32,
}

impl Default for RoundSizes {
    fn default() -> Self {
        Self { pieces: PieceSizes::default(), commit_bytes: 4 << 30, at_once: AT_ONCE }
    }
}

/// What a round has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundReport {
    /// Number of the newest state.
    pub number: u64,
    /// When it was created, in epoch milliseconds.
    pub created_ms: i64,
    /// Whether the round has created it. If nothing has changed, it creates none.
    pub is_new: bool,
    /// Log offset at which the log of the state begins.
    pub log_start: u64,
    /// Its end.
    pub log_end: u64,
    /// Number of segments.
    pub segments: u64,
    /// New objects.
    pub objects: u64,
    /// Bytes of the new objects.
    pub bytes: u64,
    /// Bytes of the log that were deleted before they were backed up.
    pub missing_bytes: u64,
    /// Whether the log does not continue the log of the state before.
    pub is_new_generation: bool,
}

/// The backup of one store by one process.
#[derive(Debug)]
pub struct Session {
    place: Place,
    vfs: Arc<dyn Vfs>,
    run: String,
    sizes: RoundSizes,
    /// The newest manifest, after a round without an error.
    last: Option<Arc<Manifest>>,
    /// The id of the backup, once this session knows it.
    backup: Option<String>,
    /// Whether this session has created a manifest.
    has_created: bool,
    /// The pieces that were there when the session began, by name; `None` once a round has ended. A piece that someone
    /// has removed, or that is shorter, is uploaded again.
    present: Option<HashMap<String, u64>>,
    /// Objects of a round that failed, by the digest of their pieces.
    spare: Mutex<HashMap<String, NewObject>>,
}

/// How far the log of the state before is known to be the log of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    to: u64,
    is_continued: bool,
}

/// A piece to read, unless it is known.
struct Job<'a> {
    file: &'a OpenFile,
    range: Range<u64>,
    /// The piece at this place in the state before, which can have the same bytes.
    earlier: Option<Piece>,
}

/// A file with pieces that are known, and others that are read.
struct Plan<'a> {
    file: &'a OpenFile,
    pieces: Vec<(Range<u64>, Planned)>,
}

enum Planned {
    Known(Piece),
    Read(Option<Piece>),
}

/// The counts of a round, and what tells them.
struct Tally<'a> {
    new: Vec<NewObject>,
    /// Whether the bytes are those of the log, which the progress counts.
    is_log: bool,
    progress: Progress,
    tell: ProgressWatcher<'a>,
}

impl Session {
    /// Begins a session. Makes no request.
    pub fn new(place: Place, store: &Store, sizes: RoundSizes) -> Self {
        let vfs = Arc::clone(&store.files().vfs);
        let run = random_id(&*vfs);
        Self {
            place,
            vfs,
            run,
            sizes,
            last: None,
            backup: None,
            has_created: false,
            present: None,
            spare: Mutex::default(),
        }
    }

    /// Tells the writer of the store how far the backup is, so that its retention by age keeps what the backup does not
    /// have, for `timeout_ms` milliseconds from now. With 0, this does not change the time, and with `None` neither a store
    /// in which no session has said it. A session without a round does not know how far the backup is, and changes nothing
    /// if another one has said it.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn keep_segments(&self, store: &Store, timeout_ms: Option<i64>) -> Result<(), StoreError> {
        let (files, target) = (store.files(), self.place.shown());
        let name = hex(&Sha256::digest(&target));
        let known = files.backup_mark(&name)?;
        let keeps_known = if known.is_some() { self.last.is_none() } else { timeout_ms.is_none() };
        if keeps_known {
            return Ok(());
        }
        let timeout_ms = timeout_ms.unwrap_or(0);
        let log_end = self.last.as_ref().map_or(0, |last| last.log_end);
        let now_ms = files.clock.now_ms();
        // A time that a wrong clock made lasts until the next round of a backup that continues.
        let until_ms = match &known {
            Some(known) if timeout_ms == 0 => known.until_ms,
            _ => now_ms.saturating_add(timeout_ms),
        };
        // Not again after each round of a store that does not change.
        let is_old = |known: &BackupMark| {
            known.log_end != log_end || until_ms.abs_diff(known.until_ms) > timeout_ms.unsigned_abs() / 10
        };
        if known.as_ref().is_none_or(is_old) {
            files.keep_backup_mark(&name, &BackupMark { target, log_end, until_ms })?;
        }
        Ok(())
    }

    /// Backs up what is new, and says so with [`Self::keep_segments`]. `staging` is a folder that the round makes and
    /// removes; `tell` gets the bytes of the log.
    ///
    /// # Errors
    /// [`StoreError::Busy`] if another session backs up to the target; [`StoreError::ResultExists`] if the target has the
    /// backup of another store; [`StoreError::Corrupt`] for a damaged manifest; [`StoreError::Unsupported`] as for a
    /// snapshot; a request failed; errors of reads and of `tell`. After an error, the backup is as before.
    pub fn round(
        &mut self,
        store: &Store,
        staging: &Path,
        timeout_ms: Option<i64>,
        tell: ProgressWatcher<'_>,
    ) -> Result<RoundReport, StoreError> {
        let done = self.whole(store, staging, tell);
        if done.is_err() {
            // The round can have created a state, or have lost the answer.
            self.last = None;
        } else {
            self.keep_segments(store, timeout_ms)?;
        }
        done
    }

    fn whole(
        &mut self,
        store: &Store,
        staging: &Path,
        tell: ProgressWatcher<'_>,
    ) -> Result<RoundReport, StoreError> {
        store.check()?;
        let before = self.state_before(store)?;
        // Before the end of the log, so that no metadata names an offset after it.
        let mut side = Side::capture(store, staging)?;
        let (log, log_end) = segments(store)?;
        let mut lists = Lists::new();
        let known = self.known(before.as_deref(), (&log, log_end), &mut lists)?;
        let total_bytes = log.iter().map(LogSegment::filled).sum();
        let progress = Progress { done_bytes: 0, total_bytes };
        let mut tally = Tally { new: Vec::new(), is_log: true, progress, tell };
        let mut next = self.first_of(store, before.as_deref(), &side, known, log_end);
        let pool = Pool::new(self.sizes.at_once.saturating_sub(1), "mq-backup");
        let mut newest = before.clone();
        let mut since = 0;
        for segment in &log {
            let uploaded = tally.new.len();
            match self.segment(&pool, before.as_deref(), segment, known, &mut lists, &mut tally)? {
                Some(entry) => next.segments.push(entry),
                // Retention has just deleted it, and those before it.
                None => next.segments.clear(),
            }
            since += tally.new.iter().skip(uploaded).map(|new| new.object.bytes).sum::<u64>();
            let has_more = next.segments.last().is_some_and(|last| last.end() < log_end);
            if since >= self.sizes.commit_bytes && has_more {
                since = 0;
                newest = Some(self.commit_part(store, &next, newest.as_deref(), &tally.new)?);
            }
        }
        let start = next.log_start();
        match before.as_deref().filter(|before| before.is_complete && before.log_start() == start) {
            Some(before) if self.has_ends_of_queues(before) => {
                next.files.extend(before.files.iter().filter(|file| is_end_of_queue(file)).cloned());
            }
            _ => side.add_ends_of_queues(store)?,
        }
        tally.is_log = false;
        for (path, file) in &side.files {
            let file = side.open(file)?;
            let earlier =
                before.as_deref().and_then(|before| before.files.iter().find(|one| one.path == *path));
            let earlier = earlier.map_or(&[][..], |file| &file.pieces);
            let pieces = self.upload(&pool, &self.plan(&file, earlier, 0), &mut tally)?;
            next.files.push(FileEntry { path: path.clone(), bytes: file.bytes, pieces });
        }
        next.files.sort_by(|one, other| one.path.cmp(&other.path));
        self.finish(store, next, (before.as_deref(), newest.as_deref()), &tally.new)
    }

    /// Returns the newest manifest.
    fn state_before(&mut self, store: &Store) -> Result<Option<Arc<Manifest>>, StoreError> {
        if let Some(last) = &self.last {
            return Ok(Some(Arc::clone(last)));
        }
        let Some(found) = self.place.newest()? else {
            if self.backup.is_some() {
                // An unmounted disk must not get a second backup.
                let reason = "the backup that was here is gone: mount or restore the target; to begin a new backup, \
                              start it again";
                return Err(StoreError::corrupt(self.place.shown().as_ref(), 0, reason));
            }
            self.place.probe(&random_id(&*store.files().vfs))?;
            return Ok(None);
        };
        self.place.settle()?;
        let is_same = self.backup.as_ref().is_none_or(|known| *known == found.backup);
        if !is_same || (self.has_created && found.run != self.run) {
            return Err(self.place.has_other_session());
        }
        self.backup = Some(found.backup.clone());
        self.present = Some(self.place.present()?);
        Ok(Some(Arc::new(found)))
    }

    /// Returns the next manifest, without segments and files.
    fn first_of(
        &self,
        store: &Store,
        before: Option<&Manifest>,
        side: &Side,
        known: Known,
        log_end: u64,
    ) -> Manifest {
        let vfs = &*store.files().vfs;
        Manifest {
            // Its creation gives it one.
            number: 0,
            backup: before.map_or_else(|| random_id(vfs), |before| before.backup.clone()),
            run: self.run.clone(),
            created_ms: store.files().clock.now_ms(),
            generation: before.map_or(0, |before| before.generation + u64::from(!known.is_continued)),
            is_complete: true,
            log_end,
            segments: Vec::new(),
            files: Vec::new(),
            metadata_end: side.metadata_end,
            archive: side.archive.clone(),
            geometry: side.geometry,
        }
    }

    /// Compares the log of the state before with that of the store, from its end backwards, until they agree.
    fn known(
        &self,
        before: Option<&Manifest>,
        (log, log_end): (&[LogSegment], u64),
        lists: &mut Lists,
    ) -> Result<Known, StoreError> {
        let Some(before) = before else { return Ok(Known { to: 0, is_continued: true }) };
        let start = log.first().map_or(log_end, LogSegment::base);
        let mut known = Known { to: 0, is_continued: true };
        let mut is_same_time = false;
        for earlier in before.segments.iter().rev() {
            if earlier.end() <= start {
                // Everything from here on was deleted by retention.
                return Ok(known);
            }
            let Some(now) = log.iter().find(|segment| segment.base() == earlier.base) else {
                known.is_continued = false;
                continue;
            };
            let Some(now) = now.open()? else { return Ok(known) };
            let pieces = self.pieces_of(earlier, lists)?;
            known.to = earlier.base + same_bytes(&now.file, &pieces, earlier.filled)?;
            known.is_continued &= known.to == earlier.end();
            if known.to > earlier.base {
                return Ok(known);
            }
            // A reclaim keeps the times of the first records.
            is_same_time |= now.first_ms.is_some() && now.first_ms == earlier.first_ms;
        }
        if is_same_time || before.segments.is_empty() {
            return Ok(known);
        }
        let reason = format!(
            "the backup there is of another store, or of a later time: it has the log from offset {} to {}; restore it, or \
             back up to another target",
            before.log_start(),
            before.log_end
        );
        Err(StoreError::ResultExists { path: self.place.shown(), reason })
    }

    /// Backs up a segment.
    fn segment(
        &self,
        pool: &Pool,
        before: Option<&Manifest>,
        segment: &LogSegment,
        known: Known,
        lists: &mut Lists,
        tally: &mut Tally<'_>,
    ) -> Result<Option<Arc<SegmentEntry>>, StoreError> {
        let earlier =
            before.and_then(|before| before.segments.iter().find(|earlier| earlier.base == segment.base()));
        if let Some(earlier) = earlier
            && earlier.filled == segment.filled()
            && known.to >= earlier.end()
            && self.is_whole(earlier, lists)?
            && segment.inode(&*self.vfs)? == Some(earlier.inode)
        {
            tally.step(earlier.filled)?;
            return Ok(Some(Arc::clone(earlier)));
        }
        let Some(open) = segment.open()? else { return Ok(None) };
        let is_same_file = earlier.is_some_and(|earlier| earlier.inode == open.inode);
        let known_bytes = if is_same_file { known.to.saturating_sub(segment.base()) } else { 0 };
        let pieces = earlier.map(|earlier| self.pieces_of(earlier, lists)).transpose()?;
        let plan = self.plan(&open.file, pieces.as_ref().map_or(&[], |pieces| pieces), known_bytes);
        let pieces = self.upload(pool, &plan, tally)?;
        let mut entry = SegmentEntry {
            base: segment.base(),
            bytes: segment.length(),
            filled: segment.filled(),
            inode: open.inode,
            first_ms: open.first_ms,
            list: None,
            pieces,
        };
        if entry.is_full() && entry.pieces.len() > MOST_LISTED {
            let content = serde_json::to_vec(&entry.pieces)
                .map_err(|error| StoreError::corrupt(&open.file.path, 0, error.to_string()))?;
            let list = earlier.and_then(|earlier| earlier.list.clone()).filter(|list| self.is_present(list));
            let (list, new) = self.stored(&content, list)?;
            tally.new.extend(new);
            (entry.list, entry.pieces) = (Some(list), Vec::new());
        }
        Ok(Some(Arc::new(entry)))
    }

    /// Returns the pieces of a segment; none if the object with their list is damaged or gone.
    fn pieces_of(&self, segment: &SegmentEntry, lists: &mut Lists) -> Result<Arc<Vec<Piece>>, StoreError> {
        match self.place.pieces_of(segment, lists) {
            Err(StoreError::Corrupt { .. }) => Ok(Arc::default()),
            found => found,
        }
    }

    /// Whether a piece was there when the session began.
    fn is_present(&self, piece: &Piece) -> bool {
        let (Some(present), Some(object)) = (&self.present, &piece.object) else { return true };
        present.get(&object.name) == Some(&object.bytes)
    }

    /// Whether the files of queues without a record were there when the session began.
    fn has_ends_of_queues(&self, before: &Manifest) -> bool {
        let files = before.files.iter().filter(|file| is_end_of_queue(file));
        files.flat_map(|file| &file.pieces).all(|piece| self.is_present(piece))
    }

    /// Whether all pieces of a segment were there when the session began.
    fn is_whole(&self, segment: &SegmentEntry, lists: &mut Lists) -> Result<bool, StoreError> {
        if self.present.is_none() {
            return Ok(true);
        }
        let pieces = self.pieces_of(segment, lists)?;
        let bytes: u64 = pieces.iter().map(|piece| piece.bytes).sum();
        let list = segment.list.as_ref().is_none_or(|list| self.is_present(list));
        Ok(list && bytes == segment.filled && pieces.iter().all(|piece| self.is_present(piece)))
    }

    /// Divides a file. `earlier` are its pieces in the state before; the first `known_bytes` bytes of them are known.
    fn plan<'a>(&self, file: &'a OpenFile, earlier: &[Piece], known_bytes: u64) -> Plan<'a> {
        let mut at = 0;
        let mut before: HashMap<(u64, u64), &Piece> = HashMap::new();
        for piece in earlier {
            before.insert((at, at + piece.bytes), piece);
            at += piece.bytes;
        }
        let planned = |range: Range<u64>| {
            let earlier = before.get(&(range.start, range.end)).filter(|piece| self.is_present(piece));
            let earlier = earlier.map(|piece| (*piece).clone());
            let planned = match earlier {
                Some(piece) if range.end <= known_bytes => Planned::Known(piece),
                earlier => Planned::Read(earlier),
            };
            (range, planned)
        };
        Plan { file, pieces: self.sizes.pieces.borders(file.bytes).map(planned).collect() }
    }

    /// Uploads the pieces of a file that the backup does not have. Returns all of them.
    fn upload(&self, pool: &Pool, plan: &Plan<'_>, tally: &mut Tally<'_>) -> Result<Vec<Piece>, StoreError> {
        let work = |job: Job<'_>| self.run(&job);
        let mut found = Vec::new();
        pool.in_order(self.sizes.at_once as usize, &work, |jobs| {
            for (range, planned) in &plan.pieces {
                let bytes = range.end - range.start;
                match planned {
                    Planned::Known(piece) => {
                        // In the order of the file.
                        take_all(jobs, &mut found, tally)?;
                        found.push(piece.clone());
                        tally.step(bytes)?;
                    }
                    Planned::Read(earlier) => {
                        jobs.give(Job { file: plan.file, range: range.clone(), earlier: earlier.clone() });
                        while let Some(done) = jobs.take_ready() {
                            add(done, &mut found, tally)?;
                        }
                    }
                }
            }
            take_all(jobs, &mut found, tally)
        })?;
        Ok(found)
    }

    /// Reads a piece, and uploads it if the backup does not have it.
    fn run(&self, job: &Job<'_>) -> Result<(Piece, Option<NewObject>), StoreError> {
        let content = read(job.file, job.range.clone())?;
        self.stored(&content, job.earlier.clone())
    }

    /// Returns the piece with these bytes, and its object if it is new.
    fn stored(
        &self,
        content: &[u8],
        earlier: Option<Piece>,
    ) -> Result<(Piece, Option<NewObject>), StoreError> {
        let bytes = content.len() as u64;
        if is_zero(content) {
            return Ok((Piece { bytes, object: None }, None));
        }
        if let Some(earlier) = earlier.filter(|earlier| earlier.is_of(content)) {
            return Ok((earlier, None));
        }
        let failed = |error| StoreError::io(self.place.shown().as_ref(), "compressing a piece", error);
        let (name, packed) = packed(content, self.vfs.environment().random_seed as u32).map_err(failed)?;
        let digest = name.split('-').next().unwrap_or_default().to_owned();
        let known = self.spare.lock().get(&digest).cloned();
        let new = match known {
            Some(known) => known,
            None => self.place.upload(&name, &packed)?,
        };
        self.spare.lock().insert(digest, new.clone());
        Ok((Piece { bytes, object: Some(new.object.clone()) }, Some(new)))
    }

    /// Creates a state that is not complete, so that a clean keeps the uploaded pieces, and a later session finds them.
    fn commit_part(
        &mut self,
        store: &Store,
        next: &Manifest,
        newest: Option<&Manifest>,
        new: &[NewObject],
    ) -> Result<Arc<Manifest>, StoreError> {
        let mut part = next.clone();
        part.is_complete = false;
        part.number = number_after(newest);
        part.log_end = part.segments.last().map_or(0, |segment| segment.end());
        self.create(store, &part, new)?;
        Ok(Arc::new(part))
    }

    /// Creates a manifest, whose new objects must be there.
    fn create(&mut self, store: &Store, manifest: &Manifest, new: &[NewObject]) -> Result<(), StoreError> {
        // A clean can have removed what a round long ago has uploaded.
        self.place.check_present(new).inspect_err(|_| self.spare.lock().clear())?;
        self.place.create(&*store.files().clock, manifest)?;
        (self.backup, self.has_created) = (Some(manifest.backup.clone()), true);
        Ok(())
    }

    /// Creates the manifest, unless nothing has changed.
    fn finish(
        &mut self,
        store: &Store,
        mut next: Manifest,
        (before, newest): (Option<&Manifest>, Option<&Manifest>),
        new: &[NewObject],
    ) -> Result<RoundReport, StoreError> {
        let mut report = RoundReport {
            log_start: next.log_start(),
            log_end: next.log_end,
            segments: next.segments.len() as u64,
            objects: new.len() as u64,
            bytes: new.iter().map(|new| new.object.bytes).sum(),
            missing_bytes: before.map_or(0, |before| next.log_start().saturating_sub(before.log_end)),
            is_new_generation: before.is_some_and(|before| before.generation != next.generation),
            ..RoundReport::default()
        };
        if let Some(before) = before.filter(|before| before.is_same(&next)) {
            (report.number, report.created_ms) = (before.number, before.created_ms);
            (self.last, self.present) = (Some(Arc::new(before.clone())), None);
            return Ok(report);
        }
        next.number = number_after(newest);
        self.create(store, &next, new)?;
        self.spare.lock().clear();
        (report.number, report.created_ms, report.is_new) = (next.number, next.created_ms, true);
        (self.last, self.present) = (Some(Arc::new(next)), None);
        Ok(report)
    }
}

impl Tally<'_> {
    fn step(&mut self, bytes: u64) -> Result<(), StoreError> {
        self.progress.done_bytes += if self.is_log { bytes } else { 0 };
        (self.tell)(self.progress)
    }
}

/// Returns the number of the next manifest.
fn number_after(newest: Option<&Manifest>) -> u64 {
    newest.map_or(0, |newest| newest.number) + 1
}

/// Reads a part of a file. A hole is not read.
fn read(file: &OpenFile, range: Range<u64>) -> Result<Vec<u8>, StoreError> {
    const READING: &str = "reading a file for a backup";
    let length = (range.end - range.start) as usize;
    let mut content = vec![0; length];
    let data = file.file.next_data(range.start).at(&file.path, READING)?;
    if data.is_some_and(|data| data < range.end) {
        file.file.read_exact_once_at(&mut content, range.start).at(&file.path, READING)?;
    }
    Ok(content)
}

/// Returns how many of the first bytes of a file are those of the pieces. Looks at the last piece first: if that is the
/// same, all are.
fn same_bytes(file: &OpenFile, pieces: &[Piece], filled: u64) -> Result<u64, StoreError> {
    let is_same = |piece: &Piece, end: u64| -> Result<bool, StoreError> {
        Ok(end <= file.bytes && piece.is_of(&read(file, end - piece.bytes..end)?))
    };
    if !switch::on("backup.compare_tail") {
        return Ok(filled);
    }
    // Not a piece of zero bytes, as a filler has them.
    let last = pieces.iter().rposition(|piece| piece.object.is_some());
    let to_last = last.map_or(&[][..], |last| pieces.get(..=last).unwrap_or_default());
    if let Some(piece) = to_last.last()
        && filled <= file.bytes
        && is_same(piece, to_last.iter().map(|piece| piece.bytes).sum())?
    {
        return Ok(filled);
    }
    let mut end = 0;
    for piece in pieces {
        if !is_same(piece, end + piece.bytes)? {
            break;
        }
        end += piece.bytes;
    }
    Ok(end)
}

type Done = Result<(Piece, Option<NewObject>), StoreError>;

/// Adds a piece that was read.
fn add(done: Done, found: &mut Vec<Piece>, tally: &mut Tally<'_>) -> Result<(), StoreError> {
    let (piece, new) = done?;
    tally.new.extend(new);
    let bytes = piece.bytes;
    found.push(piece);
    tally.step(bytes)
}

/// Waits for all pieces that are read.
fn take_all<'env>(
    jobs: &mut Jobs<'_, 'env, Job<'env>, Done>,
    found: &mut Vec<Piece>,
    tally: &mut Tally<'_>,
) -> Result<(), StoreError> {
    while let Some(done) = jobs.take() {
        add(done, found, tally)?;
    }
    Ok(())
}
