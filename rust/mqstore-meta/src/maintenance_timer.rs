//! The time of the next maintenance step of the log.

use mqstore_io::EventCount;
use mqstore_io::sync::{AtomicI64, AtomicU64};

use mqstore_base::store_files::StoreFiles;

/// No sync is requested.
pub(super) const NEVER: u64 = u64::MAX;

/// The time of the next maintenance step.
#[derive(Debug)]
pub(super) struct MaintenanceTimer {
    /// Deadline of the requested sync, in milliseconds of the interval clock.
    pub(super) sync_by_ms: AtomicU64,
    /// Signals an earlier deadline to the thread that runs the steps.
    pub(super) sooner: EventCount,
    /// Time of the last write of the JSON files, in epoch milliseconds.
    pub(super) exported_ms: AtomicI64,
}

impl MaintenanceTimer {
    pub(super) fn new(files: &StoreFiles) -> Self {
        Self {
            sync_by_ms: AtomicU64::new(NEVER),
            sooner: EventCount::new(),
            exported_ms: AtomicI64::new(files.clock.now_ms()),
        }
    }
}
