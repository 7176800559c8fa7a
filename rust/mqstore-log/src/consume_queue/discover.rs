//! Discovery of topics, queues and files in `consumequeue/`, and of other entries there.
//!
//! This module classifies every name below the folder, and below `batchconsumequeue/`, which has the same structure. It
//! reads only folders and opens no file, so a pipe cannot block it and it follows no link below the folder. Names,
//! kinds and lengths decide:
//!
//! ```text
//! consumequeue/<topic>/<queue id>/<20 digits>      a queue file, all of one length
//! consumequeue/[.../]CURRENT, MANIFEST-000001      a RocksDB instance: another kind of queue
//! ```
//!
//! Source: `ConsumeQueueStore#load`, `MappedFileQueue#doLoad`, `RocksDBConsumeQueueStore`.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use mqstore_format::{parse_offset_file_name, parse_queue_dir_name, validate_stored_topic};
use mqstore_io::sync::Arc;
use mqstore_io::{DirEntry, FileKind, Vfs, parallel_map};

use super::layout::QueueLayout;
use mqstore_base::error::{IoContext, StoreError, Stray};
use mqstore_base::store_files::{OWN_FOLDER, QUEUES_IN_ROCKSDB};
use mqstore_base::strays::{is_folder, most_frequent_len, wrong_kind};

/// Name of the threads that list folders together with the caller.
const LISTING_THREAD: &str = "mq-list";

/// A folder whose name is that of a queue.
#[derive(Debug)]
pub(super) struct FoundQueue {
    /// Topic name; all queues of the topic share it.
    pub(super) topic: Arc<str>,
    pub(super) queue_id: i32,
    /// All entries of the folder.
    pub(super) entries: Vec<DirEntry>,
}

/// The queues below `consumequeue/`, and the other entries.
#[derive(Debug, Default)]
pub(super) struct FoundQueues {
    pub(super) queues: Vec<FoundQueue>,
    pub(super) strays: Vec<Stray>,
}

/// The files of one queue.
#[derive(Debug, Default)]
pub(super) struct QueueListing {
    /// Files of the right length, in ascending order.
    pub(super) bases: Vec<u64>,
    /// A last file of length 0, which a new file may replace.
    pub(super) empty_last: Option<u64>,
    /// All other entries.
    pub(super) strays: Vec<Stray>,
    /// Why units may be missing.
    pub(super) damaged: Option<String>,
}

/// Lists all queues; a missing folder counts as empty.
pub(super) fn scan(vfs: &dyn Vfs, root: &Path) -> Result<FoundQueues, StoreError> {
    let mut found = FoundQueues::default();
    if !is_folder(vfs, root, "reading the queue folder", "a folder of queues", &mut found.strays)? {
        return Ok(found);
    }
    let topics = scan_root(vfs, root, &mut found.strays)?;
    let helpers = vfs.environment().helpers();
    let scanned = parallel_map(helpers, LISTING_THREAD, &topics, |topic| scan_topic(vfs, root, topic))?;
    let mut queues = Vec::with_capacity(scanned.iter().map(|topic| topic.queue_ids.len()).sum());
    for (topic, scanned) in topics.iter().zip(scanned) {
        queues.extend(scanned.queue_ids.into_iter().map(|queue_id| (topic, queue_id)));
        found.strays.extend(scanned.strays);
    }
    found.queues = parallel_map(helpers, LISTING_THREAD, &queues, |(topic, queue_id)| {
        let mut entries = list(vfs, &root.join(&***topic).join(queue_id.to_string()))?;
        // The entries of all queues are in memory together, and most queues have one.
        entries.shrink_to_fit();
        Ok::<_, StoreError>(FoundQueue { topic: Arc::clone(topic), queue_id: *queue_id, entries })
    })?;
    Ok(found)
}

/// Lists the topics by the names of their folders.
fn scan_root(vfs: &dyn Vfs, root: &Path, strays: &mut Vec<Stray>) -> Result<Vec<Arc<str>>, StoreError> {
    let names = list_kinds(vfs, root)?;
    let rocksdb = is_rocksdb(names.iter().map(|(name, kind)| (name.as_os_str(), *kind)));
    if rocksdb {
        strays.push(Stray::new(root, QUEUES_IN_ROCKSDB));
    }
    let mut topics = Vec::new();
    for (name, kind) in &names {
        let path = root.join(name);
        if name == OWN_FOLDER && *kind == FileKind::Directory {
            continue;
        }
        if *kind != FileKind::Directory {
            if !rocksdb {
                strays.push(Stray::new(&path, wrong_kind(*kind, "the folder of a topic")));
            }
            continue;
        }
        match name.to_str().filter(|name| validate_stored_topic(name).is_ok()) {
            Some(topic) => topics.push(topic.into()),
            None => strays.push(Stray::new(&path, "its name cannot be a topic")),
        }
    }
    Ok(topics)
}

/// The queue ids of one topic, and its other entries.
#[derive(Default)]
struct FoundTopic {
    queue_ids: Vec<i32>,
    strays: Vec<Stray>,
}

fn scan_topic(vfs: &dyn Vfs, root: &Path, topic: &str) -> Result<FoundTopic, StoreError> {
    let mut found = FoundTopic::default();
    let folder = &root.join(topic);
    let entries = list_kinds(vfs, folder)?;
    if is_rocksdb(entries.iter().map(|(name, kind)| (name.as_os_str(), *kind))) {
        found.strays.push(Stray::new(folder, QUEUES_IN_ROCKSDB));
        return Ok(found);
    }
    for (name, kind) in entries {
        if kind != FileKind::Directory {
            let reason = wrong_kind(kind, "the folder of a queue");
            found.strays.push(Stray::new(&folder.join(name), reason));
            continue;
        }
        let Some(queue_id) = name.to_str().and_then(parse_queue_dir_name) else {
            found.strays.push(Stray::new(&folder.join(name), "its name is no queue id"));
            continue;
        };
        found.queue_ids.push(queue_id);
    }
    found.queue_ids.sort_unstable();
    Ok(found)
}

/// Lists the folder of one queue; a missing folder counts as empty.
pub(super) fn list_queue(vfs: &dyn Vfs, folder: &Path) -> Result<Vec<DirEntry>, StoreError> {
    match vfs.stat(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(StoreError::io(folder, "reading the folder of a queue", error)),
        // The load of the store reported this entry already.
        Ok(stat) if stat.kind != FileKind::Directory => Ok(Vec::new()),
        Ok(_) => list(vfs, folder),
    }
}

fn list(vfs: &dyn Vfs, folder: &Path) -> Result<Vec<DirEntry>, StoreError> {
    match vfs.list(folder) {
        // Its owner deleted the folder after it was listed.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        result => result.at(folder, "listing queues"),
    }
}

/// Like [`list`], but returns only names and kinds.
fn list_kinds(vfs: &dyn Vfs, folder: &Path) -> Result<Vec<(OsString, FileKind)>, StoreError> {
    match vfs.list_kinds(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        result => result.at(folder, "listing queues"),
    }
}

/// Returns the most frequent possible length of queue files; of equally frequent ones `configured` is preferred. `None`
/// without such a file.
pub(super) fn common_len(queues: &[FoundQueue], unit_bytes: u64, configured: u64) -> Option<u64> {
    let entries = queues.iter().flat_map(|queue| &queue.entries);
    let lens = entries.filter(|entry| {
        let (kind, len) = (entry.stat.kind, entry.stat.len);
        kind == FileKind::File && QueueLayout::may_have(len, unit_bytes) && base_of(&entry.name).is_some()
    });
    most_frequent_len(lens.map(|entry| entry.stat.len), Some(configured))
}

/// Classifies the entries in the folder of one queue.
pub(super) fn classify(folder: &Path, entries: &[DirEntry], layout: QueueLayout) -> QueueListing {
    let mut listing = QueueListing { bases: Vec::with_capacity(entries.len()), ..QueueListing::default() };
    if is_rocksdb(entries.iter().map(|entry| (entry.name.as_os_str(), entry.stat.kind))) {
        listing.strays.push(Stray::new(folder, QUEUES_IN_ROCKSDB));
        listing.damaged = Some(format!("{}: {QUEUES_IN_ROCKSDB}", folder.display()));
        return listing;
    }
    let last = entries.iter().filter_map(|entry| base_of(&entry.name)).max();
    for entry in entries {
        let base = base_of(&entry.name);
        let Some(reason) = file_problem(entry, base, layout) else {
            listing.bases.extend(base);
            continue;
        };
        let path = folder.join(&entry.name);
        let empty_last = entry.stat.kind == FileKind::File && entry.stat.len == 0 && base == last;
        if empty_last && base.is_some_and(|base| layout.is_base(base)) {
            listing.empty_last = base;
        } else if base.is_some() {
            listing.damaged.get_or_insert_with(|| format!("{}: {reason}", path.display()));
        }
        listing.strays.push(Stray::new(&path, reason));
    }
    listing.bases.sort_unstable();
    let missing = listing.bases.windows(2).find_map(|pair| match *pair {
        [left, right] if left + layout.file_bytes() != right => Some((left, right)),
        _ => None,
    });
    if let Some((left, right)) = missing {
        let text = format!("{}: no file between {left:020} and {right:020}", folder.display());
        listing.damaged.get_or_insert(text);
    }
    listing
}

fn file_problem(entry: &DirEntry, base: Option<u64>, layout: QueueLayout) -> Option<String> {
    if entry.stat.kind != FileKind::File {
        return Some(wrong_kind(entry.stat.kind, "a queue file"));
    }
    let Some(base) = base else {
        return Some("its name is not the 20 digits of a queue file".to_owned());
    };
    if entry.stat.len != layout.file_bytes() {
        return Some(format!("{} bytes long; queue files here have {}", entry.stat.len, layout.file_bytes()));
    }
    (!layout.is_base(base)).then(|| format!("its name is no multiple of {}", layout.file_bytes()))
}

fn base_of(name: &OsStr) -> Option<u64> {
    name.to_str().and_then(parse_offset_file_name)
}

fn is_rocksdb<'a>(mut entries: impl Iterator<Item = (&'a OsStr, FileKind)>) -> bool {
    entries.any(|(name, kind)| {
        let name = name.as_encoded_bytes();
        kind == FileKind::File && (name == b"CURRENT" || name.starts_with(b"MANIFEST-"))
    })
}
