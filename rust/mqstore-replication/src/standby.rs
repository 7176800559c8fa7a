//! The metadata of a master at its standby: topics, groups, offsets, and the state of work queues, delays and transactions.
//!
//! ```text
//! mqstore/standby    "mqstand1" (8), log offset (8), header bytes (4), header: JSON, the files, CRC of all before (4)
//! ```
//!
//! A master copies these files, and after that reads where its log ends: everything that they name is before this log
//! offset. The standby keeps the newest ones for which it has the log. A promotion puts them into their places. They are
//! then older than the log, as after a restore from a backup: work that was finished meanwhile is delivered again. The
//! files of compacted topics are none of them: the standby has its own.
//!
//! Across a crash: the file is replaced in one step, after a sync of the log up to its offset. A promotion that stopped
//! is done again from the begin, because the file is removed at its end.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use mqstore_base::durable_mark::{DurableMark, DurableMarkFile};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::options::RecoveryMode;
use mqstore_base::store_files::StoreFiles;
use mqstore_engine::{ArchiveState, Store, load_floors};
use mqstore_format::crc32;
use mqstore_format::json::{Dialect, TopicTable};
use mqstore_format::names::{TIMERCHECK_FILE, TIMERWHEEL_FILE};
use mqstore_inspect::{SideFiles, empty_folder, files_below};
use mqstore_io::FileKind;
use mqstore_io::vfs::parent_dir;
use mqstore_log::commit_log::SegmentList;
use mqstore_log::recovery::QueueManifest;
use mqstore_meta::{MetaLog, MetaPosition};
use serde::{Deserialize, Serialize};

use crate::metadata::Tables;

const MAGIC: &[u8; 8] = b"mqstand1";
/// Bytes before the header, and of the checksum.
const LENGTHS_BYTES: usize = 20;
const CRC_BYTES: usize = 4;
/// Maximum bytes of the metadata of a store.
pub(crate) const MOST_BYTES: usize = 256 << 20;

const KEEPING: &str = "keeping the metadata of the master";
const PLACING: &str = "putting the metadata of the master into its place";

/// The metadata of a store at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandbyMetadata {
    bytes: Vec<u8>,
}

/// The newest metadata of a master. A clone shares them.
#[derive(Clone, Debug)]
pub struct NewestMetadata {
    /// The metadata.
    pub metadata: Arc<StandbyMetadata>,
    /// They have every change that came before the log had this end.
    pub as_of: u64,
    state: Arc<MetadataState>,
}

/// What shows that the metadata of a store have changed.
#[derive(Debug, PartialEq, Eq)]
struct MetadataState {
    place: MetaPosition,
    /// Queues lose their last messages when it moves.
    log_start: u64,
    /// Paths, inodes, lengths and times of the other files.
    files: Vec<(PathBuf, u64, u64, i64)>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Header {
    /// The metadata position at which the metadata log ends.
    metadata_end: Option<u64>,
    archive: Option<ArchiveState>,
    /// The topics, as in `topics.json`.
    topics: String,
    /// Where the queues continue that have no message in the log any more, by topic and queue id.
    queues: BTreeMap<String, BTreeMap<i32, i64>>,
    /// Paths below the root, and lengths.
    files: Vec<(String, u64)>,
}

/// Paths below the root, and the content.
type Files<'a> = Vec<(PathBuf, &'a [u8])>;

impl NewestMetadata {
    /// Returns the metadata of a store that is open for writing. If `last` are still those, nothing is copied.
    ///
    /// # Errors
    /// Those of [`StandbyMetadata::capture`].
    pub fn of(store: &Store, last: Option<Self>) -> Result<Self, StoreError> {
        // Both before the copy: a change meanwhile is seen the next time.
        let as_of = store.log_feed()?.end();
        let state = Arc::new(MetadataState::of(store)?);
        match last {
            Some(last) if last.state == state => Ok(Self { as_of, ..last }),
            last => {
                let new = StandbyMetadata::capture(store)?;
                let known = last.map(|last| last.metadata).filter(|known| known.equals(&new));
                Ok(Self { metadata: known.unwrap_or_else(|| Arc::new(new)), as_of, state })
            }
        }
    }
}

impl MetadataState {
    fn of(store: &Store) -> Result<Self, StoreError> {
        let files = store.files();
        let mut found: Vec<_> = files_below(files, &files.config())?.into_values().collect();
        found.extend([files.archive(), files.delay_levels_file()]);
        let facts = found.into_iter().filter_map(|path| {
            let stat = files.vfs.stat(&path).ok()?;
            Some((path, stat.inode, stat.len, stat.modified_ms))
        });
        let log_start = store.log_feed()?.bounds().0;
        Ok(Self { place: store.meta()?.place(), log_start, files: facts.collect() })
    }
}

impl StandbyMetadata {
    /// Copies the metadata of a store that is open for writing.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] if it has more than 256 MiB; errors of the system.
    pub fn capture(store: &Store) -> Result<Self, StoreError> {
        let source = store.files();
        let staging = source.staging().join("standby");
        let staged = StoreFiles::new(Arc::clone(&source.vfs), Arc::clone(&source.clock), &staging);
        empty_folder(&*staged.vfs, &staging, KEEPING)?;
        let metadata_end = SideFiles { store, copy: &staged }.copy(&["config"])?;
        staged.remember_delays(store.delay_tables())?;
        let (topics, queues) = (topics_of(store)?, ends_of_queues(store)?);
        let mut header = Header { metadata_end, topics, queues, ..Header::default() };
        header.archive = match store.archive().state() {
            // A damaged state says nothing that the standby can use.
            Err(StoreError::Corrupt { .. }) => None,
            state => state?,
        };
        let mut content = Vec::new();
        for (name, path) in files_below(&staged, &staging)? {
            if !is_metadata(Path::new(&name)) {
                continue;
            }
            let left = (MOST_BYTES - content.len()) as u64;
            let too_large = || StoreError::Unsupported {
                path: source.root.clone(),
                reason: format!("a standby takes at most {MOST_BYTES} bytes of metadata"),
            };
            if staged.vfs.stat(&path).at(&path, KEEPING)?.len > left {
                return Err(too_large());
            }
            let bytes = staged.vfs.read_file(&path, left).at(&path, KEEPING)?;
            header.files.push((name, bytes.len() as u64));
            content.extend_from_slice(&bytes);
        }
        remove(&staged, &staging)?;
        // After the copies.
        let log_end = store.log_feed()?.end();
        let header = serde_json::to_vec(&header).unwrap_or_default();
        Ok(Self { bytes: encode(log_end, &header, &content) })
    }

    /// Returns the log offset that a standby must have before it keeps these metadata.
    pub fn log_end(&self) -> u64 {
        self.bytes.get(MAGIC.len()..).and_then(<[u8]>::first_chunk).map_or(0, |end| u64::from_be_bytes(*end))
    }

    /// Returns the bytes that a standby keeps.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether both have the same files.
    pub fn equals(&self, other: &Self) -> bool {
        self.content() == other.content()
    }

    /// Everything but the log offset, and the checksum, which covers it.
    fn content(&self) -> &[u8] {
        let end = self.bytes.len().saturating_sub(CRC_BYTES);
        self.bytes.get(MAGIC.len() + 8..end).unwrap_or_default()
    }

    /// Returns the topics, which the standby makes at once: they say which files it has for them.
    pub(crate) fn topics(&self) -> Tables {
        let (header, _) = self.parts().unwrap_or_default();
        Tables::of_topics(header.topics.as_bytes())
    }

    /// Checks bytes from a master or a file.
    ///
    /// # Errors
    /// A reason if they are no metadata.
    pub(crate) fn parse(bytes: Vec<u8>) -> Result<Self, String> {
        let is_whole = bytes.split_last_chunk::<CRC_BYTES>().is_some_and(|(covered, crc)| {
            crc32(covered) == u32::from_be_bytes(*crc) && covered.starts_with(MAGIC)
        });
        if !is_whole {
            return Err(damaged());
        }
        let found = Self { bytes };
        found.parts()?;
        Ok(found)
    }

    /// Returns the header, and each file with its content.
    fn parts(&self) -> Result<(Header, Files<'_>), String> {
        let (covered, _) = self.bytes.split_last_chunk::<CRC_BYTES>().ok_or_else(damaged)?;
        let (lengths, rest) = covered.split_first_chunk::<LENGTHS_BYTES>().ok_or_else(damaged)?;
        let header_bytes = lengths.last_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes)) as usize;
        let (header, mut rest) = rest.split_at_checked(header_bytes).ok_or_else(damaged)?;
        let header: Header = serde_json::from_slice(header).map_err(|error| error.to_string())?;
        let mut files = Vec::with_capacity(header.files.len());
        for (name, length) in &header.files {
            let length = usize::try_from(*length).map_err(|_| damaged())?;
            let (content, after) = rest.split_at_checked(length).ok_or_else(damaged)?;
            let path = PathBuf::from(name);
            if !is_metadata(&path) {
                return Err(format!("its metadata have the file {name:?}"));
            }
            files.push((path, content));
            rest = after;
        }
        Ok((header, files))
    }

    /// Keeps the metadata at a standby, whose log is synced up to [`Self::log_end`].
    pub(crate) fn keep(&self, files: &StoreFiles) -> Result<(), StoreError> {
        files.replace_file(&path_of(files), &self.bytes, KEEPING)
    }

    /// Reads the kept metadata; `None` if there are none.
    pub(crate) fn load(files: &StoreFiles) -> Result<Option<Self>, StoreError> {
        let path = path_of(files);
        match files.vfs.read_file(&path, 2 * MOST_BYTES as u64) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            bytes => {
                let bytes = bytes.at(&path, "reading the metadata of the master")?;
                let remedy = "remove the file, and the promoted store has only the log";
                let damaged = |reason| StoreError::corrupt(&path, 0, format!("{reason}; {remedy}"));
                Self::parse(bytes).map(Some).map_err(damaged)
            }
        }
    }

    /// Puts the metadata into their places, in a store that no program has open.
    pub(crate) fn place(&self, files: &StoreFiles) -> Result<(), StoreError> {
        let (header, content) =
            self.parts().map_err(|reason| StoreError::corrupt(&path_of(files), 0, reason))?;
        mark(files, None)?;
        for folder in [files.config(), files.meta()] {
            empty_folder(&*files.vfs, &folder, PLACING)?;
            // A metadata log that came back could be newer than the one that is placed.
            files.vfs.sync_dir(&folder).at(&folder, PLACING)?;
        }
        remove(files, &files.archive())?;
        remove(files, &files.delay_levels_file())?;
        forget_delays(files)?;
        let mut folders = BTreeSet::new();
        for (name, bytes) in content {
            let path = files.root.join(name);
            files.replace_file(&path, bytes, PLACING)?;
            folders.extend(files.folders_up_from(parent_dir(&path)).skip(1).map(Path::to_path_buf));
        }
        // Also if they exist: a promotion that stopped can have made them.
        for folder in folders {
            files.vfs.sync_dir(&folder).at(&folder, PLACING)?;
        }
        if let Some(archive) = &header.archive {
            archive.save_for_copy(files, self.log_end())?;
        }
        forget_removed_topics(files)?;
        mark(files, header.metadata_end)?;
        continue_queues(files, &header.queues)
    }
}

fn damaged() -> String {
    "its metadata are damaged".to_owned()
}

/// Removes what a former master knows about delayed messages: it is made again from the log.
pub(crate) fn forget_delays(files: &StoreFiles) -> Result<(), StoreError> {
    let (wheel, check) = (files.root.join(TIMERWHEEL_FILE), files.config().join(TIMERCHECK_FILE));
    for path in [files.delays(), files.timer_log(), wheel, check] {
        remove(files, &path)?;
    }
    for folder in [&files.side(), &files.root] {
        files.vfs.sync_dir(folder).at(folder, PLACING)?;
    }
    Ok(())
}

/// Removes the kept metadata if their log offset is after `end`.
pub(crate) fn forget_after(files: &StoreFiles, end: u64) -> Result<(), StoreError> {
    match StandbyMetadata::load(files)? {
        Some(kept) if kept.log_end() > end => forget(files),
        _ => Ok(()),
    }
}

/// Removes the kept metadata.
pub(crate) fn forget(files: &StoreFiles) -> Result<(), StoreError> {
    remove(files, &path_of(files))?;
    files.vfs.sync_dir(&files.side()).at(&files.side(), KEEPING)
}

fn path_of(files: &StoreFiles) -> PathBuf {
    files.side().join("standby")
}

/// Removes a file or a folder, if it is there.
fn remove(files: &StoreFiles, path: &Path) -> Result<(), StoreError> {
    let removed = match files.vfs.stat(path) {
        Ok(stat) if stat.kind == FileKind::Directory => files.vfs.remove_dir_all(path),
        Ok(_) => files.vfs.remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.at(path, "removing a file of a standby"),
    }
}

/// Whether a path below the root is one of the files that [`StandbyMetadata::capture`] copies. A master could send any.
fn is_metadata(path: &Path) -> bool {
    let mut parts = path.components().map(|part| match part {
        Component::Normal(part) => part.to_str(),
        _ => None,
    });
    let names: Option<Vec<&str>> = parts.try_fold(Vec::new(), |mut names, part| {
        names.push(part?);
        Some(names)
    });
    match names.as_deref() {
        Some(["config", _, ..] | ["mqstore", "meta", _]) => true,
        Some(["mqstore", name]) => *name == mqstore_base::store_files::DELAY_LEVELS_FILE,
        _ => false,
    }
}

pub(crate) fn encode(log_end: u64, header: &[u8], content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(LENGTHS_BYTES + header.len() + content.len() + CRC_BYTES);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&log_end.to_be_bytes());
    bytes.extend_from_slice(&(header.len() as u32).to_be_bytes());
    bytes.extend_from_slice(header);
    bytes.extend_from_slice(content);
    let crc = crc32(&bytes);
    bytes.extend_from_slice(&crc.to_be_bytes());
    bytes
}

fn topics_of(store: &Store) -> Result<String, StoreError> {
    let topics = store.meta()?.topics().into_iter().map(|topic| (topic.name.clone(), (*topic).clone()));
    let table = TopicTable { topics: topics.collect(), ..TopicTable::default() };
    Ok(table.to_json(Dialect::default()))
}

/// Returns where the queues continue that have no message in the log any more. A copy that begins after them has no
/// file of these queues.
fn ends_of_queues(store: &Store) -> Result<BTreeMap<String, BTreeMap<i32, i64>>, StoreError> {
    let mut ends: BTreeMap<String, BTreeMap<i32, i64>> = BTreeMap::new();
    for topic in store.topics()? {
        for queue_id in store.queue_ids(&topic)? {
            let (min, max) = store.bounds(&topic, queue_id)?;
            if max > 0 && min == max {
                ends.entry(topic.clone()).or_default().insert(queue_id, max);
            }
        }
    }
    Ok(ends)
}

/// Says where the metadata log ends. Before that, there is none: a crash leaves a store that can be opened.
fn mark(files: &StoreFiles, metadata_end: Option<u64>) -> Result<(), StoreError> {
    change_mark(files, |old| DurableMark { has_metadata: metadata_end.is_some(), metadata_end, ..old })
}

/// Changes the durable mark of a store that no program has open.
pub(crate) fn change_mark(
    files: &StoreFiles,
    change: impl FnOnce(DurableMark) -> DurableMark,
) -> Result<(), StoreError> {
    let marks = DurableMarkFile::new(files);
    let Some(old) = marks.try_load()? else { return Ok(()) };
    marks.store(&DurableMark { sequence: old.sequence + 1, clean: false, ..change(old) }, true)
}

/// Removes the topics that the master has deleted from the list of queues: the next open removes their files.
fn forget_removed_topics(files: &StoreFiles) -> Result<(), StoreError> {
    let floors = load_floors(files, &mut Vec::new()).now();
    match QueueManifest::load(files) {
        Some(manifest) => manifest.without(|topic| floors.deleted(topic) > 0).store(files),
        None => Ok(()),
    }
}

/// Lets the queues without a message in this log continue where those of the master do.
fn continue_queues(
    files: &StoreFiles,
    ends: &BTreeMap<String, BTreeMap<i32, i64>>,
) -> Result<(), StoreError> {
    let mut missing: BTreeMap<&str, BTreeMap<i32, i64>> = BTreeMap::new();
    for (topic, queues) in ends {
        for (queue_id, end) in queues {
            let folder = files.consume_queue().join(topic).join(queue_id.to_string());
            if files.vfs.stat(&folder).is_err() {
                missing.entry(topic).or_default().insert(*queue_id, *end);
            }
        }
    }
    let log_start = SegmentList::load_if_any(files)?.min_offset();
    if missing.is_empty() || log_start == 0 {
        return Ok(());
    }
    let meta = MetaLog::open(files, MetaLog::find(files, RecoveryMode::Strict)?, &mut Vec::new())?;
    let raised: Vec<_> = missing.iter().map(|(topic, queues)| (*topic, log_start, queues)).collect();
    meta.raise_floors(&raised)?;
    meta.close()?;
    mark(files, Some(meta.synced().durable()))
}
