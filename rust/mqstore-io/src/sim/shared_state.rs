//! The shared state of all handles of one simulated file system.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::ThreadId;

use parking_lot::{Mutex, MutexGuard};

use super::directory_tree::Tree;
use super::fault_plan::{FaultPlan, Operation, OperationKind};
use super::file_content::{FileData, PAGE};
use super::file_node::FileNode;
use super::options::SimOptions;
use super::rng::Rng;

/// One lock for the whole file system: calls happen one after the other, which makes runs repeatable. Lock order: this
/// lock first, then the lock of a file's content.
pub(super) struct SharedDisk {
    pub(super) state: Mutex<DiskState>,
}

/// What another process does before a later call of a thread.
pub(super) struct Visit {
    pub(super) thread: ThreadId,
    /// Number of calls before it.
    pub(super) calls: u64,
    pub(super) act: Box<dyn FnOnce() + Send>,
}

impl SharedDisk {
    /// Begins a call: first comes what another process does before it.
    pub(super) fn next_call(&self) -> MutexGuard<'_, DiskState> {
        let mut state = self.state.lock();
        let is_here = |visit: &mut Visit| visit.thread == std::thread::current().id();
        let Some(mut visit) = state.visit.take_if(is_here) else { return state };
        if visit.calls > 0 {
            visit.calls -= 1;
            state.visit = Some(visit);
            return state;
        }
        drop(state);
        (visit.act)();
        self.state.lock()
    }
}

impl fmt::Debug for SharedDisk {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("SimVfs")
    }
}

pub(super) struct DiskState {
    pub(super) tree: Tree,
    pub(super) options: SimOptions,
    pub(super) rng: Rng,
    pub(super) operations: u64,
    pub(super) trace: Vec<Operation>,
    pub(super) faults: FaultPlan,
    pub(super) violations: Vec<String>,
    pub(super) visit: Option<Visit>,
    pub(super) freeze_at: BTreeSet<u64>,
    pub(super) frozen: Vec<(u64, DiskState)>,
    /// File, offset and length of the last call, if it was a write.
    pub(super) last_write: Option<(u64, u64, u64)>,
    /// Number of power losses.
    pub(super) boot: u64,
    /// Number of processes since the start.
    pub(super) process: u64,
}

impl DiskState {
    pub(super) fn new(options: SimOptions) -> Self {
        let rng = Rng::new(options.seed);
        Self::with_tree(options, Tree::new(), rng)
    }

    pub(super) fn with_tree(options: SimOptions, tree: Tree, rng: Rng) -> Self {
        Self {
            tree,
            options,
            rng,
            operations: 0,
            trace: Vec::new(),
            faults: FaultPlan::default(),
            violations: Vec::new(),
            visit: None,
            freeze_at: BTreeSet::new(),
            frozen: Vec::new(),
            last_write: None,
            boot: 1,
            process: 1,
        }
    }

    /// Counts and records a call; fails if a fault hits it.
    pub(super) fn begin(
        &mut self,
        kind: OperationKind,
        path: &Path,
        offset: u64,
        len: u64,
    ) -> io::Result<()> {
        self.operations += 1;
        if self.freeze_at.remove(&self.operations) {
            let copy = self.fork(true)?;
            self.frozen.push((self.operations, copy));
        }
        self.last_write = None;
        if self.options.trace {
            let number = self.operations;
            self.trace.push(Operation { number, kind, path: path.to_path_buf(), offset, len });
        }
        if self.options.write_back_one_in > 0 && self.rng.below(self.options.write_back_one_in.into()) == 0 {
            self.write_back();
        }
        self.faults.strike(kind, path)
    }

    /// Releases all locks.
    pub(super) fn free_locks(&self) {
        for file in self.tree.all_files() {
            file.locked.store(false, Ordering::Release);
        }
    }

    /// Writes random dirty pages to the disk.
    pub(super) fn write_back(&mut self) {
        for file in self.tree.root.files() {
            file.data.lock().write_back_some(&mut self.rng);
        }
    }

    pub(super) fn violate(&mut self, what: String) {
        self.violations.push(what);
    }

    /// Records that the content changes now.
    pub(super) fn touch(&self, data: &mut FileData) {
        data.modified_ms = self.now_ms();
    }

    pub(super) fn now_ms(&self) -> i64 {
        self.options.clock.as_ref().map_or(0, |clock| clock.now_ms())
    }

    /// Returns the pages that all named files occupy. The caller holds the content lock of `held`.
    pub(super) fn used_pages(&self, held: Option<(&Arc<FileNode>, &FileData)>) -> u64 {
        let bytes = self.tree.root.files().into_iter().map(|file| match held {
            Some((node, data)) if node.id == file.id => data.reserved_bytes(),
            _ => file.data.lock().reserved_bytes(),
        });
        bytes.sum::<u64>() / PAGE as u64
    }

    /// Returns the number of free pages, for a call that holds the content lock of `node`.
    pub(super) fn free_pages(&self, node: &Arc<FileNode>, data: &FileData) -> u64 {
        match self.options.space_bytes {
            Some(space) => (space / PAGE as u64).saturating_sub(self.used_pages(Some((node, data)))),
            None => u64::MAX,
        }
    }
}
