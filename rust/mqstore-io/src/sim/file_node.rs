//! A simulated file, independent of its names.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::file_content::FileData;
use crate::vfs::{FileKind, FileStat, LockHolder};

/// A file, independent of its names.
#[derive(Debug)]
pub(super) struct FileNode {
    pub(super) id: u64,
    pub(super) links: AtomicU64,
    pub(super) locked: AtomicBool,
    pub(super) data: Mutex<FileData>,
}

impl FileNode {
    pub(super) fn new(id: u64, data: FileData) -> Arc<Self> {
        Arc::new(Self {
            id,
            links: AtomicU64::new(0),
            locked: AtomicBool::new(false),
            data: Mutex::new(data),
        })
    }

    pub(super) fn lock_holder(&self) -> Option<LockHolder> {
        self.locked.load(Ordering::Acquire).then_some(LockHolder { pid: None, may_be_ours: true })
    }

    pub(super) fn stat(&self) -> FileStat {
        let data = self.data.lock();
        FileStat {
            kind: FileKind::File,
            len: data.len,
            modified_ms: data.modified_ms,
            inode: self.id,
            links: self.links.load(Ordering::Relaxed),
            allocated_bytes: data.reserved_bytes(),
        }
    }
}
