//! The store that is a copy of a master's log.
//!
//! ```text
//! mqstore/follow    {"master": "10.0.0.5:10912", "protocol": "default", "copy": 1234, "path": "/data/copy"}
//! ```
//!
//! The copy is a store that is open for writing, so it has the lock, the live page, dispatch and retention of one; only
//! its appends are the master's bytes. The file `mqstore/follow` marks it: other opens for writing are refused, so its
//! log stays the master's. A broker ignores the file. Across a crash: whole records of the log are there up to some
//! place, as after appends; the epochs are durable before the first record of an epoch.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_base::durable_mark::{DurableMark, DurableMarkFile};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::options::{OpenMode, StoreOptions};
use mqstore_base::store_files::StoreFiles;
use mqstore_engine::{Store, take_lock};
use mqstore_format::{crc31, offset_file_name};
use mqstore_inspect::files_below;
use mqstore_io::{Clock, FileKind, OsVfs, SystemClock, Vfs};
use mqstore_log::commit_log::{CopiedPart, SegmentList, read_record};
use mqstore_log::recovery::{ProgressReporter, last_whole_record, truncate_after};

use crate::epochs::EpochTable;
use crate::log::{LogState, ReplicaLog};
use crate::standby::{self, StandbyMetadata, change_mark};
use crate::wire::Protocol;

/// Maximum bytes of `mqstore/follow`.
const MOST_BYTES: u64 = 1 << 20;

const FOLLOWING: &str = "following a master";

/// The master of a copy, as `mqstore/follow` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Master {
    /// Host and port.
    pub address: String,
    /// Its protocol.
    pub protocol: Protocol,
}

impl Master {
    fn to_json(&self, copy: Option<u64>, root: &Path) -> String {
        let (protocol, path) = (self.protocol.name(), root.display().to_string());
        serde_json::json!({"master": self.address, "protocol": protocol, "copy": copy, "path": path})
            .to_string()
    }

    /// Returns also the number of the copy at `root`.
    fn parse(text: &[u8], root: &Path) -> Option<(Self, Option<u64>)> {
        let value: serde_json::Value = serde_json::from_slice(text).ok()?;
        let protocol = Protocol::named(value.get("protocol")?.as_str()?)?;
        let address = value.get("master")?.as_str()?.to_owned();
        // Copied files are another copy.
        let is_here = value.get("path").and_then(|path| path.as_str()) == Some(&*root.display().to_string());
        let copy = value.get("copy").and_then(serde_json::Value::as_u64).filter(|_| is_here);
        Some((Self { address, protocol }, copy))
    }

    /// Returns the master that the store in the directory `root` follows, if that is known.
    pub fn at(root: &Path) -> Option<Self> {
        let files = StoreFiles::new(Arc::new(OsVfs::new()), Arc::new(SystemClock::new()), root);
        Self::of(&files).ok().flatten()
    }

    /// Returns the master that the store at `files` follows; `None` for a store of its own.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] for a damaged file; errors of the system.
    pub fn of(files: &StoreFiles) -> Result<Option<Self>, StoreError> {
        Ok(Self::with_copy(files)?.map(|(master, _)| master))
    }

    /// Returns also the number of the copy, if it has one.
    fn with_copy(files: &StoreFiles) -> Result<Option<(Self, Option<u64>)>, StoreError> {
        let path = mark_path(files);
        let text = match files.vfs.read_file(&path, MOST_BYTES) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            text => text.at(&path, "reading the master's address")?,
        };
        let reason = "it does not name a master; if this store follows none, remove the file";
        Self::parse(&text, &files.root)
            .map(Some)
            .ok_or_else(|| StoreError::corrupt(&path, 0, reason.to_owned()))
    }
}

fn mark_path(files: &StoreFiles) -> PathBuf {
    files.side().join("follow")
}

fn mark(files: &StoreFiles, master: &Master, copy: Option<u64>) -> Result<(), StoreError> {
    files.replace_file(&mark_path(files), master.to_json(copy, &files.root).as_bytes(), FOLLOWING)
}

/// Makes a store a copy of `master`: the next follower removes what that master does not have.
///
/// # Errors
/// [`StoreError::NotAStore`]; [`StoreError::Locked`] while it is open for writing; [`StoreError::Refused`] without
/// epochs, which say where both logs part; errors of the system.
pub fn demote(files: &StoreFiles, master: &Master) -> Result<(), StoreError> {
    let _lock = take_lock(files)?;
    if master.protocol == Protocol::Default || EpochTable::load(files)?.epochs().is_empty() {
        let reason = format!(
            "{}: this log has no epochs in common with another master: only a store that was open with replication has \
             them, and only the protocol \"autoswitch\" sends them; make a new copy instead",
            files.root.display()
        );
        return Err(StoreError::Refused { reason });
    }
    files.ensure_folder(&files.side())?;
    standby::forget(files)?;
    standby::forget_delays(files)?;
    mark(files, master, None)
}

/// Makes a copy a store of its own: it can be opened for writing, and has the metadata of its master, if the protocol
/// has them. Returns its former master; `None` if it has none.
///
/// # Errors
/// [`StoreError::Locked`] while it is followed; [`StoreError::Corrupt`] for damaged metadata; errors of the system.
pub fn promote(files: &StoreFiles) -> Result<Option<Master>, StoreError> {
    let _lock = take_lock(files)?;
    let master = Master::of(files)?;
    if master.is_some() {
        if let Some(metadata) = StandbyMetadata::load(files)? {
            metadata.place(files)?;
            standby::forget(files)?;
        }
        let path = mark_path(files);
        files.vfs.remove_file(&path).at(&path, "promoting a copy")?;
        files.vfs.sync_dir(&files.side()).at(&path, "promoting a copy")?;
    }
    Ok(master)
}

/// Removes the copy, so that it can begin again. Another store stays.
///
/// # Errors
/// [`StoreError::Refused`] if the store follows no master; [`StoreError::Locked`]; errors of the system.
pub fn remove_copy(files: &StoreFiles) -> Result<(), StoreError> {
    let _lock = take_lock(files)?;
    if Master::of(files)?.is_none() {
        let reason = format!(
            "{}: a full copy would remove this store, which follows no master: remove it yourself",
            files.root.display()
        );
        return Err(StoreError::Refused { reason });
    }
    let side = files.side();
    let kept = ["lock", "mqstore"];
    for (folder, kept) in [(&files.root, kept.as_slice()), (&side, &["follow"])] {
        for entry in files.vfs.list(folder).at(folder, "removing a copy")? {
            if kept.iter().any(|kept| entry.name == *kept) {
                continue;
            }
            let path = folder.join(&entry.name);
            let removed = match entry.stat.kind {
                FileKind::Directory => files.vfs.remove_dir_all(&path),
                _ => files.vfs.remove_file(&path),
            };
            removed.at(&path, "removing a copy")?;
        }
    }
    let log = files.commit_log();
    files.vfs.create_dir(&log).at(&log, "removing a copy")?;
    files.vfs.sync_dir(&files.root).at(&files.root, "removing a copy")
}

/// How to open a copy.
#[derive(Clone)]
pub struct CopySetup {
    /// The file system.
    pub vfs: Arc<dyn Vfs>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The root of the store.
    pub root: PathBuf,
    /// Its options, with the master's size of segments.
    pub options: StoreOptions,
    /// The master.
    pub master: Master,
}

impl CopySetup {
    /// Returns the files of the copy.
    pub fn files(&self) -> StoreFiles {
        StoreFiles::new(Arc::clone(&self.vfs), Arc::clone(&self.clock), &self.root)
    }
}

/// A copy that is open. See the header of this module.
pub struct CopyStore {
    setup: CopySetup,
    files: StoreFiles,
    store: Store,
    /// End of the log.
    end: u64,
    /// Log offset and length of the last record.
    last: Option<(u64, u32)>,
    /// The number of the copy.
    id: u64,
    /// Whether `mqstore/follow` names this master and this number.
    is_marked: bool,
    /// Notes that [`Self::take_notes`] has not returned yet, and how many of the store it has.
    notes: Vec<String>,
    notes_taken: usize,
}

impl CopyStore {
    /// Opens the copy, and creates it if it is missing. A note says if it followed another master before.
    ///
    /// # Errors
    /// Those of an open for writing.
    pub fn open(setup: CopySetup) -> Result<Self, StoreError> {
        let files = setup.files();
        let known = Master::with_copy(&files)?;
        let known_id = known.as_ref().and_then(|(_, id)| *id);
        let is_marked = known_id.is_some() && known.as_ref().is_some_and(|(known, _)| *known == setup.master);
        // A broker id is a positive number.
        let id = known_id.unwrap_or_else(|| files.vfs.environment().random_seed >> 1);
        let mut notes = Vec::new();
        if let Some((known, _)) = known.filter(|(known, _)| known.address != setup.master.address) {
            let (root, old, new) = (setup.root.display(), known.address, &setup.master.address);
            notes.push(format!("{root}: followed {old} before, and follows {new} now"));
        }
        let store = open(&setup)?;
        let mut copy = Self { setup, files, store, end: 0, last: None, id, is_marked, notes, notes_taken: 0 };
        copy.opened()?;
        Ok(copy)
    }

    /// Returns the store. The caller must not append to it.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Waits until the copy is synced.
    ///
    /// # Errors
    /// Those of a sync.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.store.system_appends().sync_to(self.end)
    }

    /// Returns the new notes for the log of the program.
    pub fn take_notes(&mut self) -> Vec<String> {
        let of_store = self.store.notes();
        self.notes.extend_from_slice(of_store.get(self.notes_taken..).unwrap_or_default());
        self.notes_taken = of_store.len();
        std::mem::take(&mut self.notes)
    }

    /// Closes the copy. It stays one.
    ///
    /// # Errors
    /// Those of the last flush.
    pub fn close(&self) -> Result<(), StoreError> {
        self.store.close()
    }

    /// Looks for the last record, and hides what the master confirms later.
    fn opened(&mut self) -> Result<(), StoreError> {
        let mark = DurableMarkFile::new(&self.files).try_load()?.unwrap_or_default();
        let min = self.store.segments().min_offset();
        let is_there = mark.last_size > 0 && mark.last_offset >= min;
        self.last = is_there.then_some((mark.last_offset, mark.last_size));
        // An open ends with a sync of the log, which the mark names.
        self.end = mark.position;
        if self.setup.master.protocol.has_epochs() {
            self.store.set_confirm_offset(Some(self.end))?;
        }
        Ok(())
    }

    /// Marks the store as a copy, before it gets the first byte of a master.
    fn mark(&mut self) -> Result<(), StoreError> {
        if !self.is_marked {
            mark(&self.files, &self.setup.master, Some(self.id))?;
            self.is_marked = true;
        }
        Ok(())
    }

    fn reopen(&mut self) -> Result<(), StoreError> {
        self.notes = self.take_notes();
        self.notes_taken = 0;
        self.store = open(&self.setup)?;
        self.opened()
    }
}

fn open(setup: &CopySetup) -> Result<Store, StoreError> {
    let (vfs, clock) = (Arc::clone(&setup.vfs), Arc::clone(&setup.clock));
    // Its large writes make the pages of the file themselves.
    let options = StoreOptions { prewarm: false, ..setup.options.clone() };
    Store::open(vfs, clock, &setup.root, OpenMode::Create, &options)
}

impl ReplicaLog for CopyStore {
    fn state(&self) -> Result<LogState, StoreError> {
        let list = self.store.segments();
        let last = match self.last {
            Some((offset, size)) => {
                let bytes = read_record(&self.files, &list, offset, size as usize)?;
                Some((offset, bytes.as_slice().to_vec()))
            }
            None => None,
        };
        let epochs = match self.setup.master.protocol {
            Protocol::Default => EpochTable::default(),
            Protocol::AutoSwitch | Protocol::Own => EpochTable::load(&self.files)?,
        };
        Ok(LogState {
            is_empty: list.segments().is_empty(),
            start: list.min_offset(),
            end: self.end,
            segment_bytes: list.segment_bytes().unwrap_or(self.setup.options.segment_bytes),
            copy_id: self.id,
            last,
            epochs,
        })
    }

    fn begin(&mut self, base: u64) -> Result<(), StoreError> {
        self.mark()?;
        if base == 0 {
            return Ok(());
        }
        self.store.close()?;
        let folder = self.files.commit_log();
        let path = folder.join(offset_file_name(base));
        let file = self.files.vfs.create_new(&path).at(&path, FOLLOWING)?;
        file.set_len(self.setup.options.segment_bytes).at(&path, FOLLOWING)?;
        file.sync_all().at(&path, FOLLOWING)?;
        self.files.vfs.sync_dir(&folder).at(&folder, FOLLOWING)?;
        // The old mark says that the log ends at 0.
        change_mark(&self.files, |old| DurableMark { position: base, ..old })?;
        self.reopen()
    }

    fn use_segments(&mut self, segment_bytes: u64) -> Result<(), StoreError> {
        self.store.close()?;
        self.setup.options.segment_bytes = segment_bytes;
        // The mark keeps the length for a store without a segment.
        change_mark(&self.files, |old| DurableMark { segment_bytes, ..old })?;
        self.reopen()
    }

    fn keep_metadata(&mut self, metadata: &StandbyMetadata) -> Result<(), StoreError> {
        self.mark()?;
        metadata.topics().apply_topics(&self.store)?;
        self.sync()?;
        metadata.keep(&self.files)
    }

    fn append(&mut self, position: u64, part: CopiedPart<'_>) -> Result<u64, StoreError> {
        self.mark()?;
        let end = self.store.system_appends().append_copied(position, part)?;
        self.end = end;
        if let CopiedPart::Records { last_size, .. } = part {
            self.last = Some((end - u64::from(last_size), last_size));
        }
        Ok(end)
    }

    fn truncate(&mut self, end: u64) -> Result<(), StoreError> {
        if Master::of(&self.files)?.is_none() {
            let reason = format!(
                "{}: this store follows no master, and has messages after log offset {end} that this master does not \
                 have; to remove them, make it a copy with mqstore.demote (mqstore demote)",
                self.files.root.display()
            );
            return Err(StoreError::Refused { reason });
        }
        let compaction = self.files.compaction();
        if !files_below(&self.files, &compaction)?.is_empty() {
            let reason = format!(
                "{}: has messages after log offset {end} that this master does not have, and compaction files can have \
                 them, too: copy everything again, with full_copy=True (--full-copy)",
                self.files.root.display()
            );
            return Err(StoreError::Refused { reason });
        }
        self.store.close()?;
        standby::forget_after(&self.files, end)?;
        let notes = cut(&self.files, &self.setup.clock, end)?;
        self.notes.extend(notes);
        self.reopen()
    }

    fn save_epochs(&mut self, epochs: &EpochTable) -> Result<(), StoreError> {
        epochs.save(&self.files)
    }

    fn confirm(&mut self, offset: u64) -> Result<(), StoreError> {
        match self.store.set_confirm_offset(Some(offset)) {
            // Inside a record, or before what readers have seen: the next one is later.
            Err(StoreError::InvalidOption { .. }) => Ok(()),
            outcome => outcome,
        }
    }
}

/// Truncates the log of a closed store to the last record that ends at or before `end`. What it removes is kept in
/// `mqstore/lost+found`. Returns notes about that.
fn cut(files: &StoreFiles, clock: &Arc<dyn Clock>, end: u64) -> Result<Vec<String>, StoreError> {
    let _lock = take_lock(files)?;
    let list = Arc::new(SegmentList::load(files)?);
    let last = last_whole_record(&list, end)?;
    let is_base = list.find(end).is_some_and(|segment| segment.base_offset() == end);
    let end = match last {
        Some((offset, size)) if !is_base => offset + u64::from(size),
        _ => end,
    };
    let marks = DurableMarkFile::new(files);
    let old = marks.try_load()?.unwrap_or_default();
    let mut mark = DurableMark {
        sequence: old.sequence + 1,
        clean: false,
        position: end,
        last_offset: 0,
        last_size: 0,
        dispatched: old.dispatched.min(end),
        ..old
    };
    if let Some((offset, size)) = last {
        let bytes = read_record(files, &list, offset, size as usize)?;
        (mark.last_offset, mark.last_size, mark.last_crc) = (offset, size, crc31(bytes.as_slice()));
    }
    // First: until the bytes are zero, a recovery accepts them again, and the next connection removes them.
    marks.store(&mark, true)?;
    let mut still = |_| Ok(());
    let mut watch = ProgressReporter::new(clock, &mut still);
    truncate_after(files, &list, end, "the master does not have it", &mut watch)
}
