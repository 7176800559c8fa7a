//! The folders of a tiered store: clusters, brokers, topics and queues, and the files of a queue.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use mqstore_format::{
    TIERED_INDEX_TOPIC, TIERED_LOG_DIR, TIERED_QUEUE_DIR, parse_queue_dir_name, parse_tiered_cluster_folder,
    validate_stored_topic,
};
use mqstore_io::{FileKind, Vfs};

use crate::error::{IoContext, StoreError};

/// Entries of a folder among which the folders of a broker are looked for.
const MOST_LOOKED_AT: usize = 100;

/// The folder of a queue.
pub(super) struct QueueFolder {
    pub topic: String,
    pub queue_id: i32,
    pub path: PathBuf,
}

/// A file of the log or of the units of a queue.
#[derive(Debug)]
pub(super) struct TieredFile {
    pub path: PathBuf,
    /// Offset of its first byte, in bytes of the queue's log or of its units.
    pub base: u64,
    /// Bytes before the next file.
    pub len: u64,
}

impl TieredFile {
    pub(super) fn end(&self) -> u64 {
        self.base + self.len
    }
}

/// Returns the folders of the brokers below `root`, which is the folder of the tiered store, of a cluster or of a
/// broker.
pub(super) fn brokers(vfs: &dyn Vfs, root: &Path) -> Vec<PathBuf> {
    if is_broker(vfs, root) {
        return vec![root.to_path_buf()];
    }
    let names = folders(vfs, root);
    let is_cluster = |name: &&OsString| name.to_str().and_then(parse_tiered_cluster_folder).is_some();
    let mut homes: Vec<PathBuf> = names.iter().filter(is_cluster).map(|name| root.join(name)).collect();
    if homes.is_empty() {
        homes.push(root.to_path_buf());
    }
    let below = homes.iter().flat_map(|home| folders(vfs, home).into_iter().map(move |name| home.join(name)));
    below.take(MOST_LOOKED_AT).filter(|folder| is_broker(vfs, folder)).collect()
}

/// Whether `folder` contains a topic with a queue.
fn is_broker(vfs: &dyn Vfs, folder: &Path) -> bool {
    folders(vfs, folder).into_iter().take(MOST_LOOKED_AT).any(|topic| {
        let topic = folder.join(topic);
        let is_queue = |name: &OsString| name.to_str().and_then(parse_queue_dir_name).is_some();
        folders(vfs, &topic).into_iter().filter(is_queue).take(MOST_LOOKED_AT).any(|queue| {
            let queue = topic.join(queue);
            [TIERED_LOG_DIR, TIERED_QUEUE_DIR]
                .iter()
                .any(|name| vfs.stat(&queue.join(name)).is_ok_and(|stat| stat.kind == FileKind::Directory))
        })
    })
}

/// Returns the names of the folders in `folder`; none if it cannot be listed.
fn folders(vfs: &dyn Vfs, folder: &Path) -> Vec<OsString> {
    let names = vfs.list_kinds(folder).unwrap_or_default().into_iter();
    names.filter(|(_, kind)| *kind == FileKind::Directory).map(|(name, _)| name).collect()
}

/// Returns the queues of the broker in `folder`, sorted by topic and id.
pub(super) fn queues(vfs: &dyn Vfs, folder: &Path) -> Result<Vec<QueueFolder>, StoreError> {
    let mut found = Vec::new();
    for (name, kind) in vfs.list_kinds(folder).at(folder, "listing the topics of a tiered store")? {
        let Some(topic) = name.to_str().filter(|name| validate_stored_topic(name).is_ok()) else { continue };
        if kind != FileKind::Directory || topic == TIERED_INDEX_TOPIC {
            continue;
        }
        let home = folder.join(topic);
        for (name, kind) in vfs.list_kinds(&home).at(&home, "listing the queues of a tiered store")? {
            let Some(queue_id) = name.to_str().and_then(parse_queue_dir_name) else { continue };
            if kind == FileKind::Directory {
                found.push(QueueFolder { topic: topic.to_owned(), queue_id, path: home.join(name) });
            }
        }
    }
    found.sort_by(|a, b| (&a.topic, a.queue_id).cmp(&(&b.topic, b.queue_id)));
    Ok(found)
}
