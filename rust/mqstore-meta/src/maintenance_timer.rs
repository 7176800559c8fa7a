//! When the next maintenance step of the log is due.

use mqstore_io::EventCount;
use mqstore_io::sync::{AtomicI64, AtomicU64};

use mqstore_base::store_files::StoreFiles;

/// No sync was asked for.
pub(super) const NEVER: u64 = u64::MAX;

/// When the next step is due.
#[derive(Debug)]
pub(super) struct MaintenanceTimer {
    /// By when somebody wants a sync, in milliseconds of the interval clock.
    pub(super) sync_by_ms: AtomicU64,
    /// Tells the thread that steps of an earlier time.
    pub(super) sooner: EventCount,
    /// When JSON files were written last.
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
