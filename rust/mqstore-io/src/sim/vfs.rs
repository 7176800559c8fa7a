//! The file system's methods, in memory.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::MutexGuard;
use rustix::io::Errno;

use super::SimVfs;
use super::directory_tree::{DirNode, Edit, Node};
use super::fault_plan::OperationKind;
use super::file::SimFile;
use super::file_content::{FileData, PAGE};
use super::file_node::FileNode;
use super::shared_state::DiskState;
use crate::vfs::{
    Access, DirEntry, Environment, FileKind, FileStat, LockError, LockHolder, SpaceInfo, StoreLock, Vfs,
    VfsFile,
};

/// The reported size of a file system without a limit.
const UNLIMITED: u64 = 1 << 50;

impl SimVfs {
    fn begin(&self, kind: OperationKind, path: &Path) -> io::Result<MutexGuard<'_, DiskState>> {
        let mut state = self.shared.next_call();
        state.begin(kind, path, 0, 0)?;
        Ok(state)
    }

    fn handle(&self, path: &Path, node: Arc<FileNode>, access: Access) -> Arc<dyn VfsFile> {
        Arc::new(SimFile { shared: Arc::clone(&self.shared), node, path: path.into(), access })
    }
}

fn node_stat(node: &Node) -> FileStat {
    match node {
        Node::File(file) => file.stat(),
        Node::Dir(dir) => FileStat {
            kind: FileKind::Directory,
            len: 0,
            modified_ms: 0,
            inode: dir.id,
            links: 1,
            allocated_bytes: 0,
        },
    }
}

fn new_file(state: &mut DiskState, path: &Path) -> io::Result<Arc<FileNode>> {
    let place = state.tree.free_place(path)?;
    let mut data = FileData::new()?;
    state.touch(&mut data);
    data.keep_versions(state.options.versions);
    let node = FileNode::new(state.tree.take_id(), data);
    state.tree.change(vec![Edit::set(&place, Node::File(Arc::clone(&node)))], true);
    Ok(node)
}

fn new_dir(state: &mut DiskState, path: &Path) -> io::Result<()> {
    let place = state.tree.free_place(path)?;
    let node = DirNode::new(state.tree.take_id());
    state.tree.change(vec![Edit::set(&place, Node::Dir(node))], true);
    Ok(())
}

impl Vfs for SimVfs {
    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn VfsFile>> {
        let node = self.begin(OperationKind::Open, path)?.tree.file(path)?;
        Ok(self.handle(path, node, access))
    }

    fn create_new(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>> {
        let node = new_file(&mut *self.begin(OperationKind::Create, path)?, path)?;
        Ok(self.handle(path, node, Access::ReadWrite))
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        let state = self.begin(OperationKind::Stat, path)?;
        Ok(node_stat(&state.tree.resolve(path)?))
    }

    fn linked_folder(&self, path: &Path) -> Option<PathBuf> {
        let state = self.shared.state.lock();
        state.options.links.iter().find(|(link, _)| link == path).map(|(_, target)| target.clone())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        // The lock is kept, because the content locks are taken inside it.
        let state = self.begin(OperationKind::List, dir)?;
        let dir = state.tree.dir(dir)?;
        let names = dir.live.lock();
        Ok(names.iter().map(|(name, node)| DirEntry { name: name.clone(), stat: node_stat(node) }).collect())
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        new_dir(&mut *self.begin(OperationKind::CreateDir, path)?, path)
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut missing = Vec::new();
        {
            let state = self.shared.state.lock();
            for part in path.ancestors().filter(|part| !part.as_os_str().is_empty()) {
                match state.tree.resolve(part) {
                    Ok(Node::Dir(_)) => break,
                    Ok(Node::File(_)) if missing.is_empty() => return Err(Errno::EXIST.into()),
                    Ok(Node::File(_)) => return Err(Errno::NOTDIR.into()),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(part),
                    Err(error) => return Err(error),
                }
            }
        }
        for part in missing.into_iter().rev() {
            if let Err(error) = self.create_dir(part) {
                // If the path contains `..`, a part may already exist.
                if self.shared.state.lock().tree.dir(part).is_err() {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.begin(OperationKind::Rename, to)?.tree.rename(from, to, true)
    }

    fn rename_noreplace(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.begin(OperationKind::Rename, to)?.tree.rename(from, to, false)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.begin(OperationKind::HardLink, to)?;
        let node = state.tree.resolve(from)?;
        let place = state.tree.free_place(to)?;
        let Node::File(file) = node else { return Err(Errno::PERM.into()) };
        state.tree.change(vec![Edit::set(&place, Node::File(file))], true);
        Ok(())
    }

    fn exchange(&self, a: &Path, b: &Path) -> io::Result<()> {
        let mut state = self.begin(OperationKind::Exchange, b)?;
        if state.options.no_exchange {
            return Err(io::ErrorKind::Unsupported.into());
        }
        state.tree.exchange(a, b)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut state = self.begin(OperationKind::RemoveFile, path)?;
        state.tree.file(path)?;
        let place = state.tree.place(path)?;
        state.tree.change(vec![Edit::clear(&place)], true);
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.begin(OperationKind::RemoveDir, path)?;
        if !state.tree.dir(path)?.is_empty() {
            return Err(Errno::NOTEMPTY.into());
        }
        let place = state.tree.place(path)?;
        state.tree.change(vec![Edit::clear(&place)], true);
        Ok(())
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut state = self.begin(OperationKind::RemoveDir, path)?;
        let dir = state.tree.dir(path)?;
        let place = state.tree.place(path)?;
        state.tree.clear_dir(&dir);
        state.tree.change(vec![Edit::clear(&place)], true);
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.begin(OperationKind::SyncDir, dir)?;
        let dir = state.tree.dir(dir)?;
        state.tree.sync(&dir);
        Ok(())
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn StoreLock>, LockError> {
        let mut state = self.begin(OperationKind::Lock, path)?;
        let node = match state.tree.file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => new_file(&mut state, path)?,
            found => found?,
        };
        if node.locked.swap(true, Ordering::AcqRel) {
            return Err(LockError::Held { pid: None });
        }
        let lock = SimLock { node, held: AtomicBool::new(true) };
        let mut data = lock.node.data.lock();
        if data.len == 0 {
            data.write(b"lock", 0)?;
        }
        drop(data);
        Ok(Box::new(lock))
    }

    fn lock_holder(&self, path: &Path) -> io::Result<Option<LockHolder>> {
        match self.begin(OperationKind::Lock, path)?.tree.file(path) {
            Ok(node) => Ok(node.lock_holder()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn free_space(&self, path: &Path) -> io::Result<SpaceInfo> {
        let state = self.begin(OperationKind::FreeSpace, path)?;
        state.tree.resolve(path)?;
        let total = state.options.space_bytes.unwrap_or(UNLIMITED);
        let free = total.saturating_sub(state.used_pages(None) * PAGE as u64);
        Ok(SpaceInfo { total, free, available: free })
    }

    fn environment(&self) -> Environment {
        let mut state = self.shared.state.lock();
        let mut boot_id = [0; 16];
        boot_id.iter_mut().zip(state.boot.to_be_bytes()).for_each(|(to, from)| *to = from);
        Environment {
            boot_id,
            pid: u32::try_from(1000 + state.process).unwrap_or(u32::MAX),
            hostname: "simulation".to_owned(),
            random_seed: state.rng.next(),
            threads: !state.options.by_hand,
            processors: 2,
            memory_bytes: state.options.memory_bytes.unwrap_or(1 << 40),
            open_files: 1024,
        }
    }
}

/// The lock while it is held.
#[derive(Debug)]
struct SimLock {
    node: Arc<FileNode>,
    held: AtomicBool,
}

impl StoreLock for SimLock {
    fn disown_in_child(&self) {
        if self.held.swap(false, Ordering::AcqRel) {
            self.node.locked.store(false, Ordering::Release);
        }
    }
}

impl Drop for SimLock {
    fn drop(&mut self) {
        self.disown_in_child();
    }
}
