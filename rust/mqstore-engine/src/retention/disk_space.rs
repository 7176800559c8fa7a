//! The used part of the disks, and the decisions that depend on it.
//!
//! Computed as in RocketMQ: used / (used + space that an ordinary user can still use), in whole percent, rounded up,
//! and compared with "more than". Of several log folders the emptiest counts, because new segments go to folders with
//! space. A folder that cannot take a segment, or is above `disk_force_ratio`, receives none while another one has
//! space.
//!
//! Source: `UtilAll#getDiskPartitionSpaceUsedPercent`, `CleanCommitLogService#isSpaceToDelete`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use mqstore_io::SpaceInfo;

use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;

/// The current use of a store's disks. A disk that does not report its size counts as empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskSpace {
    /// The folders for new segments.
    logs: Vec<(PathBuf, SpaceInfo)>,
    /// The root, which contains queues and index.
    root: Option<SpaceInfo>,
}

/// Returns the used part of a disk in whole percent, rounded up; 0 for a disk of size 0.
pub(crate) fn used_percent(space: SpaceInfo) -> u64 {
    let used = u128::from(space.total.saturating_sub(space.free));
    let size = used + u128::from(space.available);
    if size == 0 { 0 } else { (used * 100).div_ceil(size) as u64 }
}

/// Whether `percent` is more than `ratio`.
pub(super) fn exceeds(percent: u64, ratio: f64) -> bool {
    // Percents are small whole numbers; a ratio such as 0.29 is slightly less than 29 of them.
    percent as f64 > (ratio * 100.0 + 1e-6)
}

impl DiskSpace {
    /// Measures the disks.
    pub(crate) fn look(files: &StoreFiles) -> Result<Self, StoreError> {
        let measure = |path: &PathBuf| files.vfs.free_space(path).ok();
        let folders = files.log_folders()?.for_new();
        let logs = folders.into_iter().filter_map(|path| measure(&path).map(|space| (path, space))).collect();
        Ok(Self { logs, root: measure(&files.root) })
    }

    /// Returns the used percent of the emptiest disk for segments, or of the root's disk if that is fuller.
    pub(crate) fn used_percent(&self) -> u64 {
        let logs = self.logs.iter().map(|(_, space)| used_percent(*space)).min().unwrap_or(0);
        logs.max(self.root.map_or(0, used_percent))
    }

    /// Returns the folders for segments whose disk is fuller than `ratio`, or cannot take `segment_bytes` more.
    pub(crate) fn full(&self, ratio: Option<f64>, segment_bytes: u64) -> BTreeSet<PathBuf> {
        let is_full = |space: &SpaceInfo| {
            ratio.is_some_and(|ratio| exceeds(used_percent(*space), ratio)) || !space.can_take(segment_bytes)
        };
        self.logs.iter().filter(|(_, space)| is_full(space)).map(|(path, _)| path.clone()).collect()
    }

    /// Returns how much space is left if the root's disk, or each disk for segments, has less than its reserve.
    pub(crate) fn below_reserve(&self) -> Option<String> {
        let log = self.logs.iter().map(|(_, space)| space).max_by_key(|space| space.available);
        let short = log.into_iter().chain(&self.root).find(|space| !space.can_take(0))?;
        let (available, reserve) = (short.available, short.reserve_bytes());
        Some(format!(
            "{available} bytes of the disk are free, and the reserve for metadata is {reserve} bytes"
        ))
    }

    /// Adds the space of a removed file of `bytes` bytes in `folder`: for plans.
    pub(super) fn give_back(&mut self, folder: &std::path::Path, bytes: u64) {
        let Some(disk) = self.logs.iter().find(|(path, _)| path == folder).map(|(_, space)| *space) else {
            return;
        };
        // Folders on one disk have the same numbers.
        let disks = self.logs.iter_mut().map(|(_, space)| space).chain(&mut self.root);
        for space in disks.filter(|space| **space == disk) {
            space.free = space.free.saturating_add(bytes).min(space.total);
            space.available = space.available.saturating_add(bytes).min(space.total);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(total: u64, free: u64, available: u64) -> SpaceInfo {
        SpaceInfo { total, free, available }
    }

    #[test]
    fn the_worked_examples() {
        assert_eq!(used_percent(space(1000, 249, 240)), 76);
        assert_eq!(used_percent(space(1000, 250, 250)), 75);
        assert_eq!(used_percent(space(1000, 100, 50)), 95);
        assert_eq!(used_percent(space(0, 0, 0)), 0);
        assert_eq!(used_percent(space(u64::MAX, 0, 0)), 100);
        assert!(!exceeds(75, 0.75) && exceeds(76, 0.75) && !exceeds(100, 1.0));
        for percent in 0..100 {
            assert!(!exceeds(percent, percent as f64 / 100.0), "{percent}");
            assert!(exceeds(percent + 1, percent as f64 / 100.0), "{percent}");
        }
    }

    #[test]
    fn the_emptiest_log_disk_counts_and_the_root_too() {
        let disk = |path: &str, free| (PathBuf::from(path), space(100, free, free));
        let logs = vec![disk("/a", 5), disk("/b", 50)];
        let mut both = DiskSpace { logs, root: Some(space(100, 60, 60)) };
        assert_eq!(both.used_percent(), 50);
        assert_eq!(both.full(Some(0.85), 1), BTreeSet::from(["/a".into()]));
        assert_eq!(both.full(None, 5), BTreeSet::from(["/a".into()]), "one of a hundred is its reserve");
        assert_eq!(both.below_reserve(), None);
        both.root = Some(space(100, 7, 7));
        assert_eq!(both.used_percent(), 93);
        both.give_back(std::path::Path::new("/a"), 40);
        assert!(both.full(Some(0.85), 1).is_empty());
        assert_eq!(both.used_percent(), 93, "the root is another disk");
        both.root = Some(space(100, 50, 50));
        both.give_back(std::path::Path::new("/b"), 20);
        assert_eq!(both.used_percent(), 30, "one disk for both");
    }
}
