//! The gate of appends: refuses them while the disks are nearly full.
//!
//! Owns the last answer about the disks, and the folders that receive no new segments. Across threads: any number ask;
//! the background and an append that is refused look at the disks again. Nothing on disk.

use mqstore_io::sync::{AtomicBool, AtomicU64, Mutex, Ordering};

use super::disk_space::{DiskSpace, exceeds};
use mqstore_base::error::StoreError;
use mqstore_base::options::StoreOptions;
use mqstore_base::store_files::StoreFiles;

/// See the header of this module.
#[derive(Debug)]
pub(crate) struct AppendGate {
    files: StoreFiles,
    options: StoreOptions,
    /// Length of the log's segments in bytes.
    segment_bytes: u64,
    /// Whether appends are refused, for the reason in `refused_because`, with the option that helps.
    refusing: AtomicBool,
    refused_because: Mutex<(String, &'static str)>,
    /// Appends refused because the disk is nearly full, or a quota is used up.
    pub(crate) refused_appends: AtomicU64,
}

impl AppendGate {
    /// Returns a gate that accepts appends before the first look at the disks.
    pub(crate) fn new(files: &StoreFiles, options: &StoreOptions, segment_bytes: u64) -> Self {
        Self {
            files: files.clone(),
            options: options.clone(),
            segment_bytes,
            refusing: AtomicBool::new(false),
            refused_because: Mutex::default(),
            refused_appends: AtomicU64::new(0),
        }
    }

    /// Whether appends are refused.
    pub(crate) fn is_refusing(&self) -> bool {
        self.refusing.load(Ordering::Relaxed)
    }

    /// Checks whether appends are accepted. Loads one flag; checks the disks if they were nearly full.
    ///
    /// # Errors
    /// [`StoreError::DiskNearlyFull`] if the last check of the disks found too little space.
    #[inline]
    pub(crate) fn check_append(&self) -> Result<(), StoreError> {
        if !self.refusing.load(Ordering::Acquire) {
            return Ok(());
        }
        if self.check_disks().is_ok() && !self.refusing.load(Ordering::Acquire) {
            return Ok(());
        }
        self.refused_appends.fetch_add(1, Ordering::Relaxed);
        let (reason, option) = self.refused_because.lock().clone();
        Err(StoreError::DiskNearlyFull { path: self.files.root.clone(), reason, option })
    }

    /// Checks the disks: refuses appends or accepts them again, and lets new segments go to folders with space.
    pub(crate) fn check_disks(&self) -> Result<DiskSpace, StoreError> {
        let space = DiskSpace::look(&self.files)?;
        self.files.log_folders()?.set_full(space.full(self.options.disk_force_ratio, self.segment_bytes));
        let used = space.used_percent();
        let reason = match self.options.disk_refuse_ratio.filter(|limit| exceeds(used, *limit)) {
            Some(limit) => {
                let reason = format!("{used} % of the disk are used, disk_refuse_ratio is {limit}");
                Some((reason, "disk_refuse_ratio"))
            }
            // No option changes the reserve. A limit of the log keeps space free.
            None => space.below_reserve().map(|reason| (reason, "retention_bytes")),
        };
        if let Some(reason) = &reason {
            self.refused_because.lock().clone_from(reason);
        }
        let before = self.refusing.swap(reason.is_some(), Ordering::AcqRel);
        match reason {
            Some((reason, _)) if !before => self.options.hooks.tell("appends_refused", None, reason),
            None if before => {
                self.options.hooks.tell("appends_resumed", None, format!("{used} % of the disk are used"));
            }
            _ => {}
        }
        Ok(space)
    }
}
