//! Removal of the compaction files of a deleted topic.
//!
//! The floor of the topic is durable before. An open repeats the removal, so a stop leaves no file of the old topic
//! next to those of a new one. The facts in the manifest go before the files: facts without files mean a lost file. The
//! caller holds the store's lock, and no compaction runs.

use std::path::PathBuf;

use crate::files::folder::{LOG_DIR, QUEUE_DIR, queue_ids};
use crate::files::manifest::Manifest;
use crate::read::reader::CompactedQueue;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;
use mqstore_base::topic_floors::TopicFloor;

/// Removes the compaction files of `topic`.
///
/// # Errors
/// I/O errors.
pub fn remove_topic(files: &StoreFiles, topic: &str) -> Result<(), StoreError> {
    forget_facts(files, topic, |_| true)?;
    for path in topic_folders(files, topic) {
        match files.vfs.remove_dir_all(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(StoreError::io(&path, "removing the compaction files of a deleted topic", error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Removes the compaction files that a stop during [`remove_topic`] left: those of queues without a message at or after
/// their offset in `floor`. Damaged files stay: a read reports them.
///
/// # Errors
/// I/O errors.
pub fn remove_deleted(files: &StoreFiles, topic: &str, floor: &TopicFloor) -> Result<(), StoreError> {
    if topic_folders(files, topic).iter().all(|path| files.vfs.stat(path).is_err()) {
        return Ok(());
    }
    let mut gone = Vec::new();
    for queue_id in queue_ids(files, &files.compaction(), topic)? {
        let Some(first) = floor.queues.get(&queue_id) else { continue };
        match CompactedQueue::open(files, topic, queue_id) {
            Err(error) if error.is_damage() => {}
            queue => {
                if queue?.is_none_or(|queue| queue.max_offset() <= *first) {
                    gone.push(queue_id);
                }
            }
        }
    }
    if gone.is_empty() {
        return Ok(());
    }
    forget_facts(files, topic, |queue_id| gone.contains(&queue_id))?;
    for queue_id in gone {
        for path in topic_folders(files, topic) {
            let path = path.join(queue_id.to_string());
            if files.vfs.stat(&path).is_ok() {
                files
                    .vfs
                    .remove_dir_all(&path)
                    .at(&path, "removing the compaction files of a deleted topic")?;
            }
        }
    }
    Ok(())
}

fn forget_facts(files: &StoreFiles, topic: &str, is_gone: impl Fn(i32) -> bool) -> Result<(), StoreError> {
    let mut manifest = Manifest::load(files)?;
    if manifest.remove(topic, is_gone) { manifest.write(files) } else { Ok(()) }
}

fn topic_folders(files: &StoreFiles, topic: &str) -> [PathBuf; 2] {
    [LOG_DIR, QUEUE_DIR].map(|kind| files.compaction().join(kind).join(topic))
}
