//! A simulated file system in memory, which loses unsynced data and fails or fills up on request.
//!
//! [`SimVfs`] keeps two images of every file and name: *live*, which every call sees, and *disk*, which was synced. One
//! seed gives one history: the random numbers come from the simulation's own generator, names are in order, and all
//! calls take one lock. With several threads, the scheduler decides their order.
//!
//! It is simpler than a real file system. It has only files and folders. A mapped file cannot grow beyond its memory
//! (`Unsupported`). When the last name of a file is removed, its space is free, even if the file is open. A sync of a
//! map also makes the length of its file durable.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

#[cfg(test)]
mod conformance;
mod crash;
mod directory_tree;
mod fault_plan;
mod file;
mod file_content;
mod file_node;
mod options;
mod rng;
mod shared_state;
#[cfg(test)]
mod tests;
mod vfs;

pub use crash::{Choice, CrashChoice};
pub use fault_plan::{Fault, Operation, OperationKind};
pub use options::SimOptions;

use rng::Rng;
use shared_state::{DiskState, SharedDisk, Visit};

/// A file system in memory; a clone is the same one.
///
/// ```text
/// write_all_at ─┐
///               ├──► live ──sync_data, sync_all, flush──► disk ──crash──► a new SimVfs
/// Region::write ┘      │                                                    ▲
///  names: at once      └──── any 4 KiB page, any name, at any time ─────────┘
/// ```
///
/// * [`SimVfs::kill`] is the death of the process: the live image stays, locks are free.
/// * [`SimVfs::crash`] is a power loss: each page of each file is either as last synced or as it is now. Each length
///   and each change of a name that no sync covered is there or not. One seed gives one of these states.
///   [`SimVfs::crash_with`] asks for each choice, so that a test can try all of them.
/// * [`SimVfs::freeze_at`] keeps the state just before a given call while the run continues, so that a test can crash
///   at each point of one run.
/// * [`SimVfs::inject`] lets calls fail. After a failed sync the pages count as clean, any of them may be on the disk,
///   and the next sync succeeds without writing them, as on Linux.
/// * A disk of [`SimOptions::space_bytes`] fills up, page by page.
///
/// [`SimVfs::violations`] lists accesses that would be a signal on a real machine: a write through a map where the file
/// has no space, or a mapped file that was truncated. A test should end by asserting that the list is empty.
#[derive(Clone)]
pub struct SimVfs {
    shared: Arc<SharedDisk>,
}

impl fmt::Debug for SimVfs {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.state.lock();
        out.debug_struct("SimVfs")
            .field("seed", &state.options.seed)
            .field("operations", &state.operations)
            .finish_non_exhaustive()
    }
}

impl Default for SimVfs {
    fn default() -> Self {
        Self::new(SimOptions::default())
    }
}

/// Returns the newest form reachable by consecutive `true` answers.
fn newest_if(forms: u32, mut newer: impl FnMut() -> bool) -> u32 {
    (1..forms).find(|_| !newer()).map_or(forms.saturating_sub(1), |first_no| first_no - 1)
}

impl SimVfs {
    /// Creates an empty file system; the root folder `/` exists.
    pub fn new(options: SimOptions) -> Self {
        Self::from_state(DiskState::new(options))
    }

    fn from_state(state: DiskState) -> Self {
        Self { shared: Arc::new(SharedDisk { state: Mutex::new(state) }) }
    }

    /// Returns the file system after the process dies now. Every write is in it, synced or not, and unsynced data is
    /// still not durable. No locks are held. This file system does not change. Fails if memory is short.
    pub fn kill(&self) -> io::Result<Self> {
        Ok(Self::from_state(self.shared.state.lock().fork(false)?))
    }

    /// Returns the file system after a power loss now, one possible state per seed: all synced data, and a random part,
    /// from none to all, of the rest. Everything in it is durable, no locks are held, no faults are armed. This file
    /// system does not change. Fails if memory is short.
    pub fn crash(&self, seed: u64) -> io::Result<Self> {
        let mut rng = Rng::new(seed);
        // Some seeds lose nearly all unsynced data, some nearly none. Bugs hide in both extremes.
        let odds = [0, 1, 4, 4, 7, 8];
        let eighths = odds.get(rng.below(odds.len() as u64) as usize).copied().unwrap_or(4);
        let later = Rng::new(seed ^ 0x5EED);
        let state = self.shared.state.lock();
        let torn = state.options.torn_sectors;
        let crashed = state.crash(later, torn, &mut |_, forms| newest_if(forms, || rng.chance(eighths)))?;
        drop(state);
        Ok(Self::from_state(crashed))
    }

    /// Returns the file system after a power loss now. `choose` makes each choice: `true` selects the newer form. If it
    /// always returns `false`, the result is exactly the synced data. The choices come in the same order each time. For
    /// a part with more than two forms, `choose` is called again after each `true`.
    pub fn crash_with(&self, choose: &mut dyn FnMut(CrashChoice) -> bool) -> io::Result<Self> {
        let torn = self.shared.state.lock().options.torn_sectors;
        self.crash_as(torn, &mut |what, forms| newest_if(forms, || choose(what)))
    }

    /// Returns all parts with several possible forms at a power loss now, per page, or per sector if `torn`: changes of
    /// names in their order, then lengths and bytes of each file.
    pub fn choices(&self, torn: bool) -> Vec<Choice> {
        self.shared.state.lock().choices(torn)
    }

    /// Returns the file system after a power loss now. `choose` gets each part of [`SimVfs::choices`] with the number
    /// of its forms, and returns the form on the disk.
    pub fn crash_as(&self, torn: bool, choose: &mut dyn FnMut(CrashChoice, u32) -> u32) -> io::Result<Self> {
        let state = self.shared.state.lock();
        let rng = Rng::new(state.options.seed ^ state.boot);
        Ok(Self::from_state(state.crash(rng, torn, choose)?))
    }

    /// Returns offset and length of the bytes that the last call wrote, if it was a write.
    pub fn last_write(&self) -> Option<(u64, u64)> {
        self.shared.state.lock().last_write.map(|(_, offset, len)| (offset, len))
    }

    /// Like [`SimVfs::kill`] during the last call, if it was a write: only the first `done` bytes were copied. Returns
    /// `None` if the last call was not a write of more than `done` bytes. Needs [`SimOptions::versions`].
    pub fn tear(&self, done: u64) -> io::Result<Option<Self>> {
        let state = self.shared.state.lock();
        let Some((inode, offset, len)) = state.last_write.filter(|(_, _, len)| done < *len) else {
            return Ok(None);
        };
        let copy = state.fork(false)?;
        for file in copy.tree.all_files().iter().filter(|file| file.id == inode) {
            file.data.lock().take_back(offset + done, len - done)?;
        }
        Ok(Some(Self::from_state(copy)))
    }

    /// Returns a copy in which the process still lives and holds its locks, for a second process to inspect.
    pub fn look(&self) -> io::Result<Self> {
        Ok(Self::from_state(self.shared.state.lock().fork(true)?))
    }

    /// Keeps a copy of the state just before call number `operation`; the run continues.
    pub fn freeze_at(&self, operation: u64) {
        self.freeze_at_each([operation]);
    }

    /// [`SimVfs::freeze_at`] for many calls of one run.
    pub fn freeze_at_each(&self, operations: impl IntoIterator<Item = u64>) {
        let mut state = self.shared.state.lock();
        state.freeze_at = operations.into_iter().collect();
        state.frozen.clear();
    }

    /// Returns the copy of [`SimVfs::freeze_at`], in the state after [`SimVfs::kill`] at that moment. Returns `None` if
    /// that call has not happened, or if the copy was already taken.
    pub fn take_frozen(&self) -> Option<Self> {
        let (_, state) = self.shared.state.lock().frozen.pop()?;
        state.free_locks();
        Some(Self::from_state(state))
    }

    /// Returns the copies of [`SimVfs::freeze_at_each`], each with the number of the call before which it was taken.
    /// The process lives in them, as in [`SimVfs::look`].
    pub fn take_all_frozen(&self) -> Vec<(u64, Self)> {
        let frozen = std::mem::take(&mut self.shared.state.lock().frozen);
        frozen.into_iter().map(|(call, state)| (call, Self::from_state(state))).collect()
    }

    /// Runs `act` once, just before the `nth` call of this thread from now on (1 is the next call): what another process
    /// does between two calls of this one. Replaces an `act` that did not run yet.
    pub fn visit_before(&self, nth: u64, act: impl FnOnce() + Send + 'static) {
        let thread = std::thread::current().id();
        let visit = Visit { thread, calls: nth.saturating_sub(1), act: Box::new(act) };
        self.shared.state.lock().visit = Some(visit);
    }

    /// Drops what [`Self::visit_before`] has not run yet. Returns whether there was something.
    pub fn cancel_visit(&self) -> bool {
        self.shared.state.lock().visit.take().is_some()
    }

    /// Arms a fault, which makes a later call fail.
    pub fn inject(&self, fault: Fault) {
        self.shared.state.lock().faults.arm(fault);
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        self.shared.state.lock().faults.clear();
    }

    /// Returns the number of calls that a fault hit.
    pub fn faults_fired(&self) -> u64 {
        self.shared.state.lock().faults.fired
    }

    /// Sets or removes the size limit of the disk. Existing files stay.
    pub fn set_space(&self, space_bytes: Option<u64>) {
        self.shared.state.lock().options.space_bytes = space_bytes;
    }

    /// Writes half of the unsynced pages, chosen at random, to the disk.
    pub fn write_back(&self) {
        self.shared.state.lock().write_back();
    }

    /// Drops clean pages from the page cache: after a failed sync, reads then see the content of the disk. Do not call
    /// it while views of such pages exist.
    pub fn drop_cache(&self) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        let files = state.tree.root.files();
        files.iter().try_for_each(|file| file.data.lock().drop_cache(&mut state.rng))
    }

    /// Returns a hash of all current names and bytes. Equal hashes mean equal states, almost certainly.
    pub fn fingerprint(&self) -> u64 {
        self.shared.state.lock().tree.fingerprint()
    }

    /// Changes one byte of a file on the disk and in memory, by exclusive or with `mask`, as decay does. Do not call it
    /// while views of the file exist.
    pub fn flip(&self, path: &Path, offset: u64, mask: u8) -> io::Result<()> {
        let state = self.shared.state.lock();
        let node = state.tree.file(path)?;
        node.data.lock().flip(offset, mask)
    }

    /// Returns the number of calls. Each call of a trait's method, each write to a map and each flush counts.
    pub fn operations(&self) -> u64 {
        self.shared.state.lock().operations
    }

    /// Returns all calls so far; empty without [`SimOptions::trace`].
    pub fn trace(&self) -> Vec<Operation> {
        self.shared.state.lock().trace.clone()
    }

    /// Returns the accesses that would have killed a real process or silently lost data.
    pub fn violations(&self) -> Vec<String> {
        self.shared.state.lock().violations.clone()
    }
}
