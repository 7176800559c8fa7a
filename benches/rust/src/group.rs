//! The bare loop of a group commit: the cost of a sync that covers many threads, without a store.
//!
//! Each thread takes a place under a mutex, writes its own record there and joins the open group. The first
//! thread of a group that finds no running sync closes the group and syncs for all of it. A thread that joins
//! during this sync belongs to the next group.
//!
//! ```text
//! group  g     joined ........ closed | fdatasync | all of g wake
//! group  g + 1                          joined ... | one of g + 1 wakes and closes it
//! ```

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Condvar, Mutex, PoisonError};

/// A file to which threads append synced records.
pub struct Group {
    file: File,
    state: Mutex<State>,
    /// One for groups of even number and one for odd, so that a finished sync wakes only its own group.
    turns: [Condvar; 2],
    /// After this many bytes, the next record goes to the beginning of the file.
    end: u64,
}

struct State {
    /// The place of the next record.
    position: u64,
    /// The group that a writer joins now. Earlier groups are synced or are being synced.
    open: u64,
    synced: u64,
    syncing: bool,
}

impl Group {
    /// Records go to `file` from `position` on.
    pub fn new(file: File, position: u64) -> Self {
        let state = State { position, open: 1, synced: 0, syncing: false };
        Self { file, state: Mutex::new(state), turns: [Condvar::new(), Condvar::new()], end: u64::MAX }
    }

    /// Records cycle through the first `len` bytes of the file.
    #[must_use]
    pub fn round(self, len: u64) -> Self {
        Self { end: len, ..self }
    }

    /// Writes `record` at the end and returns after a sync has covered it.
    ///
    /// # Errors
    /// Those of the system.
    pub fn append(&self, record: &[u8]) -> io::Result<()> {
        let at = {
            let mut state = self.lock();
            let len = record.len() as u64;
            let at = if state.position + len > self.end { 0 } else { state.position };
            state.position = at + len;
            at
        };
        self.file.write_all_at(record, at)?;
        let mut state = self.lock();
        let mine = state.open;
        loop {
            if state.synced >= mine {
                return Ok(());
            }
            if !state.syncing {
                break;
            }
            state = self.turn(mine).wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.syncing = true;
        state.open = mine + 1;
        drop(state);
        let outcome = self.file.sync_data();
        let mut state = self.lock();
        state.synced = mine;
        state.syncing = false;
        drop(state);
        self.turn(mine).notify_all();
        self.turn(mine + 1).notify_one();
        outcome
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self, group: u64) -> &Condvar {
        let [even, odd] = &self.turns;
        if group.is_multiple_of(2) { even } else { odd }
    }
}
