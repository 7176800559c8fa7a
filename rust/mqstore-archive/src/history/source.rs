//! The archive of an open store, in which its reads continue. Opened when a read first needs it.

use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_engine::{OlderMessages, OlderSource, WeakStore};
use mqstore_io::sync::Mutex;

use super::History;
use crate::owner::check_owner;
use crate::place::Place;
use crate::reader::ArchiveReader;

/// The archive of an open store. Threads can share it.
#[derive(Debug)]
pub struct ArchiveSource {
    /// The store. It has this source, so a reference would keep it open.
    store: WeakStore,
    history: History,
    /// The log offset at which the archive begins, if it is known.
    begin: u64,
    /// Whether it is the archive of the store, as far as the log shows.
    is_own: Mutex<bool>,
}

impl ArchiveSource {
    /// Makes the source, which reads nothing yet.
    ///
    /// # Parameters
    /// - `begin`: the log offset at which the archive begins; 0 if it is not known.
    /// - `bloom_bytes`: memory for Bloom filters. Each look-up needs those of all files.
    pub fn new(store: WeakStore, place: Place, begin: u64, bloom_bytes: usize) -> Self {
        let history = History::new(Arc::new(ArchiveReader::new(place, bloom_bytes)));
        Self { store, history, begin, is_own: Mutex::default() }
    }

    /// Returns the same archive for another open of the store. Both share what was read.
    #[must_use]
    pub fn for_store(&self, store: WeakStore) -> Self {
        let history = History::new(Arc::clone(self.history.reader()));
        Self { store, history, begin: self.begin, is_own: Mutex::default() }
    }

    /// Returns the records of the archive, with a manifest that reaches log offset `log_start`, if there is one.
    ///
    /// # Errors
    /// Those of [`OlderSource::before`].
    pub fn history(&self, log_start: u64) -> Result<&History, StoreError> {
        let reader = self.history.reader();
        let mut is_own = self.is_own.lock();
        if !*is_own {
            reader.refresh()?;
            let (last, segments) = reader.last_facts();
            let shown = reader.shown().display().to_string();
            let Some(store) = self.store.upgrade() else {
                return Err(StoreError::Closed { path: reader.shown() });
            };
            check_owner(&store, &shown, last.as_ref(), &segments, false)?;
            *is_own = true;
        }
        if reader.end().is_some_and(|end| end < log_start) {
            reader.refresh()?;
        }
        Ok(&self.history)
    }
}

impl OlderSource for ArchiveSource {
    fn begin(&self) -> u64 {
        self.begin
    }

    fn before(&self, log_start: u64) -> Result<Arc<dyn OlderMessages>, StoreError> {
        Ok(Arc::new(self.history(log_start)?.clone()))
    }
}

/// The archive of a store whose settings cannot be read. Reads that need it get the error.
#[derive(Debug)]
pub struct UnknownArchive(pub WeakStore);

impl OlderSource for UnknownArchive {
    fn begin(&self) -> u64 {
        0
    }

    fn before(&self, _log_start: u64) -> Result<Arc<dyn OlderMessages>, StoreError> {
        if let Some(store) = self.0.upgrade() {
            store.archive().state()?;
        }
        let reason = "the settings of the archive could not be read when the store was opened: open it again";
        Err(StoreError::Refused { reason: reason.to_owned() })
    }
}
