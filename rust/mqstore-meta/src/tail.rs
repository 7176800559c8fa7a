//! The end of the log, where frames are appended.
//!
//! Frames that nobody waits for are copied into a map of room that was allocated ahead, which takes no system call;
//! those that are to be synced go through the file, because syncing a mapped page may write its neighbours too. Both
//! are in the page cache when the append returns. One frame is appended at a time, so nothing but the last one is
//! ever torn by the death of the process.
//!
//! What was synced is said in the log itself, in front of the next frame: see `record`. A sync that failed stops the
//! log for good, and tells whoever asked to be told.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use mqstore_io::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use mqstore_io::{MapAccess, Region, VfsFile, switch};

use super::frame::synced_frame;
use super::record::Place;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::group_commit::GroupCommit;
use mqstore_base::store_files::StoreFiles;

/// Room that is allocated at once: as much as there is, within these bounds.
const LEAST_ROOM_BYTES: u64 = 64 << 10;
const MOST_ROOM_BYTES: u64 = 4 << 20;
/// Where a map may begin: a multiple of every page size.
const MAP_STEP_BYTES: u64 = 64 << 10;
/// Longer frames are written by system calls, whoever waits for them.
const MAPPED_FRAME_BYTES: usize = 32 << 10;

const STAGE: &str = "syncing the metadata log";

/// How a frame gets into the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteMethod {
    /// Nobody waits for its sync.
    Map,
    /// It is synced at once.
    File,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Tail {
    files: StoreFiles,
    front: Mutex<Option<TailState>>,
    ready: AtomicBool,
    stopped: AtomicBool,
    on_stop: StopListeners,
    end: AtomicU64,
    commit: GroupCommit,
}

/// Called with the stage and the cause when the log stops, under the lock of the tail.
pub(super) type StopCallback = Box<dyn Fn(&'static str, &str) + Send + Sync>;

/// Who is told when the log stops.
#[derive(Default)]
struct StopListeners(OnceLock<StopCallback>);

impl fmt::Debug for StopListeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnStop").field(&self.0.get().is_some()).finish()
    }
}

/// The file that is appended to.
#[derive(Debug)]
pub(super) struct TailState {
    pub(super) path: PathBuf,
    pub(super) file: Arc<dyn VfsFile>,
    /// Where its snapshot ends.
    pub(super) tail_start: u64,
    /// Where the next frame goes: in the file, and its place.
    pub(super) at: u64,
    pub(super) place: u64,
    /// What the log says to be synced.
    pub(super) marked: u64,
    /// Where nothing has been appended since it was said that all is synced.
    pub(super) settled: u64,
    pub(super) room: Option<TailMap>,
}

/// A map of the file's end.
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
            // A file that is mapped does not grow.
            self.room.take_if(|room| room.end < self.at + len);
            self.file.write_all_at(frame, self.at).at(&self.path, "writing the metadata log")?;
        } else {
            let at = self.at;
            let room = self.room(len)?;
            let copied = room.region.write((at - room.from) as usize, frame);
            copied.map_err(Into::into).at(&self.path, "writing the metadata log")?;
        }
        self.at += len;
        self.place += len;
        Ok(())
    }

    /// A map with room for `len` bytes.
    fn room(&mut self, len: u64) -> Result<&TailMap, StoreError> {
        if self.room.as_ref().is_none_or(|room| room.end < self.at + len) {
            let step = (self.at - self.tail_start).clamp(LEAST_ROOM_BYTES, MOST_ROOM_BYTES).max(len);
            let end = (self.at + step).next_multiple_of(MAP_STEP_BYTES);
            let from = self.at - self.at % MAP_STEP_BYTES;
            self.room = None;
            self.file.allocate(end).at(&self.path, "allocating room for the metadata log")?;
            let region = self.file.map(from, (end - from) as usize, MapAccess::ReadWrite);
            self.room =
                Some(TailMap { region: region.at(&self.path, "mapping the metadata log")?, from, end });
        }
        let none = || StoreError::corrupt(&self.path, self.at, "no room is mapped");
        self.room.as_ref().ok_or_else(none)
    }

    /// Makes the file end with the last frame.
    fn finish(&mut self) -> Result<(), StoreError> {
        self.room = None;
        let len = self.file.len().at(&self.path, "looking at the metadata log")?;
        if self.settled < self.place {
            self.write(&synced_frame(Place(self.place)), WriteMethod::File)?;
        } else if len <= self.at {
            return Ok(());
        }
        if len > self.at {
            self.file.set_len(self.at).at(&self.path, "cutting the metadata log")?;
        }
        switch::step("meta.sync_end", || self.file.sync_data()).at(&self.path, STAGE)
    }
}

impl Tail {
    /// The end of a log that has no file yet, or none that can be appended to.
    pub(super) fn new(files: &StoreFiles, place: Place) -> Self {
        Self {
            files: files.clone(),
            front: Mutex::default(),
            ready: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            on_stop: StopListeners::default(),
            end: AtomicU64::new(place.0),
            commit: GroupCommit::new(place.0),
        }
    }

    /// The end of a file that is durable up to its end.
    pub(super) fn going_on(files: &StoreFiles, front: TailState) -> Self {
        let tail = Self::new(files, Place(front.place));
        *tail.front.lock() = Some(front);
        tail.ready.store(true, Ordering::Release);
        tail
    }

    /// Whether there is a file to append to.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// The place behind the last frame.
    #[inline]
    pub(super) fn place(&self) -> Place {
        Place(self.end.load(Ordering::Acquire))
    }

    /// Everything before this place is durable.
    pub(super) fn durable(&self) -> Place {
        Place(self.commit.durable())
    }

    /// Appends a sealed frame and answers the place behind it.
    pub(super) fn append(&self, frame: &[u8], via: WriteMethod) -> Result<Place, StoreError> {
        let mut front = self.front.lock();
        let Some(front) = &mut *front else { return Err(self.closed_error()) };
        if self.stopped.load(Ordering::Acquire) {
            return Err(self.poisoned("a sync failed"));
        }
        let durable = self.commit.durable();
        if durable > front.marked {
            front.write(&synced_frame(Place(durable)), via)?;
            front.marked = durable;
        }
        front.write(frame, via)?;
        self.end.store(front.place, Ordering::Release);
        Ok(Place(front.place))
    }

    fn closed_error(&self) -> StoreError {
        StoreError::Closed { path: self.files.root.clone() }
    }

    /// Returns once everything before `place` is durable.
    pub(super) fn sync(&self, place: Place) -> Result<(), StoreError> {
        if self.commit.durable() >= place.0 {
            return Ok(());
        }
        let sync = || self.sync_once();
        self.commit.wait(place.0, || self.place().0, sync, |cause| self.poisoned(cause))
    }

    fn sync_once(&self) -> Result<u64, StoreError> {
        let (file, path, place) = match &*self.front.lock() {
            Some(front) => (Arc::clone(&front.file), front.path.clone(), front.place),
            None => return Err(self.closed_error()),
        };
        let synced = switch::step("meta.sync_tail", || file.sync_data()).at(&path, STAGE);
        synced.inspect_err(|error| self.stop(error))?;
        Ok(place)
    }

    /// Has `tell` called when the log stops for good. It must not call into the log.
    pub(super) fn on_stop(&self, tell: StopCallback) {
        // The first one counts; there is one store to a log.
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

    /// What `look` sees of the file that is appended to, if there is one; appends wait meanwhile.
    pub(super) fn look<T>(&self, look: impl FnOnce(&TailState) -> T) -> Option<T> {
        self.front.lock().as_ref().map(look)
    }

    /// Puts the file that `make` answers in the place of the one there is; appends wait meanwhile. Everything in it is
    /// durable. An error once the name was given stops the log: nobody knows then which file an open will find.
    pub(super) fn replace(
        &self,
        make: impl FnOnce(Option<&TailState>) -> Result<TailState, (bool, StoreError)>,
    ) -> Result<(), StoreError> {
        let mut front = self.front.lock();
        match make(front.as_ref()) {
            Ok(next) => {
                self.commit.raise(next.place);
                self.end.store(next.place, Ordering::Release);
                *front = Some(next);
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

    /// Makes everything durable and lets go of the file; nothing can be appended afterwards.
    pub(super) fn close(&self) -> Result<(), StoreError> {
        let outcome = if self.is_ready() { self.sync(self.place()) } else { Ok(()) };
        let Some(mut front) = self.front.lock().take() else { return outcome };
        outcome.and_then(|()| front.finish())
    }
}
