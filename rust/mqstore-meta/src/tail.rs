//! The end of the log, where frames are appended.
//!
//! A frame whose caller does not wait for a sync is copied into a map of space that is allocated ahead. This needs no
//! system call. A frame that will be synced at once goes through the file, because a sync of a mapped page may write
//! its neighbours too. Both kinds are in the page cache when the append returns. Frames are appended one at a time,
//! so a kill can only tear the last one.
//!
//! The log itself states up to where it is synced, in a record before the next frame: see `record`. A failed sync
//! stops the log permanently and calls the registered callback.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use mqstore_io::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use mqstore_io::{MapAccess, Region, VfsFile, switch};

use super::frame::synced_frame;
use super::record::MetaPosition;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::group_commit::GroupCommit;
use mqstore_base::store_files::StoreFiles;

/// Space that is allocated at once: as much as the tail already has, within these bounds.
const LEAST_MAP_BYTES: u64 = 64 << 10;
const MOST_MAP_BYTES: u64 = 4 << 20;
/// Alignment of the start of a map: a multiple of every page size.
const MAP_STEP_BYTES: u64 = 64 << 10;
/// Longer frames are always written by system calls.
const MAPPED_FRAME_BYTES: usize = 32 << 10;

const STAGE: &str = "syncing the metadata log";

/// The way in which a frame gets into the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteMethod {
    /// For a frame whose caller does not wait for a sync.
    Map,
    /// For a frame that is synced at once.
    File,
}

/// The end of the log; see the module's text.
#[derive(Debug)]
pub(super) struct Tail {
    files: StoreFiles,
    state: Mutex<Option<TailState>>,
    ready: AtomicBool,
    stopped: AtomicBool,
    on_stop: StopListeners,
    end: AtomicU64,
    commit: Arc<GroupCommit>,
}

/// The callback for a stop of the log. It gets the stage and the cause, and is called under the lock of the tail.
pub(super) type StopCallback = Box<dyn Fn(&'static str, &str) + Send + Sync>;

/// The registered callback.
#[derive(Default)]
struct StopListeners(OnceLock<StopCallback>);

impl fmt::Debug for StopListeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnStop").field(&self.0.get().is_some()).finish()
    }
}

/// The file that receives appends.
#[derive(Debug)]
pub(super) struct TailState {
    pub(super) path: PathBuf,
    pub(super) file: Arc<dyn VfsFile>,
    /// The end of the snapshot, in the file.
    pub(super) tail_start: u64,
    /// Where the next frame goes: the offset in the file, and the metadata position.
    pub(super) at: u64,
    pub(super) place: u64,
    /// The position up to which the log states that it is synced.
    pub(super) marked: u64,
    /// The metadata position at which everything is known to be synced and stated as such. A close at this position
    /// writes nothing.
    pub(super) settled: u64,
    pub(super) map: Option<TailMap>,
}

/// A map of the end of the file.
#[derive(Debug)]
pub(super) struct TailMap {
    region: Region,
    from: u64,
    end: u64,
}

impl TailState {
    fn write(&mut self, frame: &[u8], via: WriteMethod) -> Result<(), StoreError> {
        let len = frame.len() as u64;
        if via == WriteMethod::File || frame.len() > MAPPED_FRAME_BYTES {
            // A mapped file does not grow.
            self.map.take_if(|map| map.end < self.at + len);
            self.file.write_all_at(frame, self.at).at(&self.path, "writing the metadata log")?;
        } else {
            let at = self.at;
            let map = self.map_with_space(len)?;
            let copied = map.region.write((at - map.from) as usize, frame);
            copied.map_err(Into::into).at(&self.path, "writing the metadata log")?;
        }
        self.at += len;
        self.place += len;
        Ok(())
    }

    /// Returns a map with space for `len` more bytes.
    fn map_with_space(&mut self, len: u64) -> Result<&TailMap, StoreError> {
        if self.map.as_ref().is_none_or(|map| map.end < self.at + len) {
            let step = (self.at - self.tail_start).clamp(LEAST_MAP_BYTES, MOST_MAP_BYTES).max(len);
            let end = (self.at + step).next_multiple_of(MAP_STEP_BYTES);
            let from = self.at - self.at % MAP_STEP_BYTES;
            self.map = None;
            self.file.allocate(end).at(&self.path, "allocating space for the metadata log")?;
            let region = self.file.map(from, (end - from) as usize, MapAccess::ReadWrite);
            self.map =
                Some(TailMap { region: region.at(&self.path, "mapping the metadata log")?, from, end });
        }
        let none = || StoreError::corrupt(&self.path, self.at, "no space is mapped");
        self.map.as_ref().ok_or_else(none)
    }

    /// Truncates the file at its last frame.
    fn finish(&mut self) -> Result<(), StoreError> {
        self.map = None;
        let len = self.file.len().at(&self.path, "reading the length of the metadata log")?;
        if self.settled < self.place {
            self.write(&synced_frame(MetaPosition(self.place)), WriteMethod::File)?;
        } else if len <= self.at {
            return Ok(());
        }
        if len > self.at {
            self.file.set_len(self.at).at(&self.path, "truncating the metadata log")?;
        }
        switch::step("meta.sync_end", || self.file.sync_data()).at(&self.path, STAGE)
    }
}

impl Tail {
    /// Creates the end of a log that has no file yet, or no file that can take appends.
    pub(super) fn new(files: &StoreFiles, place: MetaPosition) -> Self {
        Self {
            files: files.clone(),
            state: Mutex::default(),
            ready: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            on_stop: StopListeners::default(),
            end: AtomicU64::new(place.0),
            commit: Arc::new(GroupCommit::new(place.0)),
        }
    }

    /// Creates the end of a log that continues a file whose content is durable.
    pub(super) fn going_on(files: &StoreFiles, state: TailState) -> Self {
        let tail = Self::new(files, MetaPosition(state.place));
        *tail.state.lock() = Some(state);
        tail.ready.store(true, Ordering::Release);
        tail
    }

    /// Whether there is a file for appends.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Returns the position after the last frame.
    #[inline]
    pub(super) fn place(&self) -> MetaPosition {
        MetaPosition(self.end.load(Ordering::Acquire))
    }

    /// Returns the position before which everything is durable.
    pub(super) fn durable(&self) -> MetaPosition {
        MetaPosition(self.commit.durable())
    }

    /// Returns the group commit, which knows the position before which everything is durable.
    pub(super) fn commit(&self) -> Arc<GroupCommit> {
        Arc::clone(&self.commit)
    }

    /// Appends a complete frame. Returns the position after it.
    pub(super) fn append(&self, frame: &[u8], via: WriteMethod) -> Result<MetaPosition, StoreError> {
        let mut state = self.state.lock();
        let Some(state) = &mut *state else { return Err(self.closed_error()) };
        if self.stopped.load(Ordering::Acquire) {
            return Err(self.poisoned("a sync failed"));
        }
        let durable = self.commit.durable();
        if durable > state.marked {
            state.write(&synced_frame(MetaPosition(durable)), via)?;
            state.marked = durable;
        }
        state.write(frame, via)?;
        self.end.store(state.place, Ordering::Release);
        Ok(MetaPosition(state.place))
    }

    fn closed_error(&self) -> StoreError {
        StoreError::Closed { path: self.files.root.clone() }
    }

    /// Returns once everything before `place` is durable.
    pub(super) fn sync(&self, place: MetaPosition) -> Result<(), StoreError> {
        if self.commit.durable() >= place.0 {
            return Ok(());
        }
        let sync = || self.sync_once();
        self.commit.wait(place.0, || self.place().0, sync, |cause| self.poisoned(cause))
    }

    fn sync_once(&self) -> Result<u64, StoreError> {
        let (file, path, place) = match &*self.state.lock() {
            Some(state) => (Arc::clone(&state.file), state.path.clone(), state.place),
            None => return Err(self.closed_error()),
        };
        let synced = switch::step("meta.sync_tail", || file.sync_data()).at(&path, STAGE);
        synced.inspect_err(|error| self.stop(error))?;
        Ok(place)
    }

    /// Registers `tell`, which is called when the log stops permanently. It must not call into the log.
    pub(super) fn on_stop(&self, tell: StopCallback) {
        // Only the first registration counts; a log has one store.
        let _ = self.on_stop.0.set(tell);
    }

    fn stop(&self, cause: &StoreError) {
        self.stopped.store(true, Ordering::Release);
        if let Some(tell) = self.on_stop.0.get() {
            tell(STAGE, &cause.to_string());
        }
    }

    fn poisoned(&self, cause: &str) -> StoreError {
        StoreError::Poisoned { path: self.files.root.clone(), stage: STAGE, cause: cause.to_owned() }
    }

    /// Calls `look` with the file that receives appends, if there is one. Appends wait meanwhile.
    pub(super) fn look<T>(&self, look: impl FnOnce(&TailState) -> T) -> Option<T> {
        self.state.lock().as_ref().map(look)
    }

    /// Replaces the file with the one that `make` returns, whose content is durable. Appends wait meanwhile. If
    /// `make` fails after it named the file, the log stops: it is unknown which file an open would find.
    pub(super) fn replace(
        &self,
        make: impl FnOnce(Option<&TailState>) -> Result<TailState, (bool, StoreError)>,
    ) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        match make(state.as_ref()) {
            Ok(next) => {
                self.commit.raise(next.place);
                self.end.store(next.place, Ordering::Release);
                *state = Some(next);
                self.ready.store(true, Ordering::Release);
                Ok(())
            }
            Err((named, error)) => {
                if named {
                    self.stop(&error);
                    return Err(self.poisoned(&error.to_string()));
                }
                Err(error)
            }
        }
    }

    /// Makes everything durable and closes the file. Nothing can be appended afterwards.
    pub(super) fn close(&self) -> Result<(), StoreError> {
        let outcome = if self.is_ready() { self.sync(self.place()) } else { Ok(()) };
        let Some(mut state) = self.state.lock().take() else { return outcome };
        outcome.and_then(|()| state.finish())?;
        self.end.store(state.place, Ordering::Release);
        self.commit.raise(state.place);
        Ok(())
    }
}
