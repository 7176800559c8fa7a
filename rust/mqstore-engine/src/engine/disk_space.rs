//! The used part of the disks, and the decisions that depend on it.
//!
//! Computed as in RocketMQ: used / (used + space that an ordinary user can still use), in whole percent, rounded up,
//! and compared with "more than". Of several log folders the emptiest counts, because new segments go to folders with
//! space. A folder that cannot take a segment, or is above `disk_force_ratio`, receives none while another one has
//! space. Queues and index on disks of their own count like the root.
//!
//! Source: `UtilAll#getDiskPartitionSpaceUsedPercent`, `CleanCommitLogService#isSpaceToDelete`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use mqstore_io::SpaceInfo;

use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;

/// The current use of a store's disks. A disk that does not report its size counts as empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskSpace {
    /// The folders for new segments.
    logs: Vec<(PathBuf, SpaceInfo)>,
    /// The root, and the disks of queues and index if these are links.
    others: Vec<(PathBuf, SpaceInfo)>,
}

/// Returns the used part of a disk in whole percent, rounded up; 0 for a disk of size 0.
pub(crate) fn used_percent(space: SpaceInfo) -> u64 {
    let used = u128::from(space.total.saturating_sub(space.free));
    let size = used + u128::from(space.available);
    if size == 0 { 0 } else { (used * 100).div_ceil(size) as u64 }
}

/// Whether `percent` is more than `ratio`.
pub(crate) fn exceeds(percent: u64, ratio: f64) -> bool {
    // Percents are small whole numbers; a ratio such as 0.29 is slightly less than 29 of them.
    percent as f64 > (ratio * 100.0 + 1e-6)
}

impl DiskSpace {
    /// Measures the disks.
    pub(crate) fn look(files: &StoreFiles) -> Result<Self, StoreError> {
        let measure = |path: &Path| Some((path.to_path_buf(), files.vfs.free_space(path).ok()?));
        let logs = files.log_folders()?.for_new();
        let others = std::iter::once(files.root.as_path()).chain(files.derived_targets());
        Ok(Self {
            logs: logs.iter().filter_map(|path| measure(path)).collect(),
            others: others.filter_map(measure).collect(),
        })
    }

    /// Returns the used percent of the emptiest disk for segments, or of a fuller disk of the other files.
    pub(crate) fn used_percent(&self) -> u64 {
        let logs = self.logs.iter().map(|(_, space)| used_percent(*space)).min().unwrap_or(0);
        self.others.iter().map(|(_, space)| used_percent(*space)).fold(logs, u64::max)
    }

    /// Returns the folders for segments whose disk is fuller than `ratio`, or cannot take `segment_bytes` more.
    pub(crate) fn full(&self, ratio: Option<f64>, segment_bytes: u64) -> BTreeSet<PathBuf> {
        let is_full = |space: &SpaceInfo| {
            ratio.is_some_and(|ratio| exceeds(used_percent(*space), ratio)) || !space.can_take(segment_bytes)
        };
        self.logs.iter().filter(|(_, space)| is_full(space)).map(|(path, _)| path.clone()).collect()
    }

    /// Returns how much space is left if a disk of the other files, or each disk for segments, has less than its
    /// reserve.
    pub(crate) fn below_reserve(&self) -> Option<String> {
        let log = self.logs.iter().max_by_key(|(_, space)| space.available);
        let (path, short) = log.into_iter().chain(&self.others).find(|(_, space)| !space.can_take(0))?;
        let (path, available, reserve) = (path.display(), short.available, short.reserve_bytes());
        Some(format!(
            "{available} bytes of the disk of {path} are free, and the reserve for metadata is {reserve} bytes"
        ))
    }

    /// Adds the space of a removed file of `bytes` bytes in `folder`: for plans.
    pub(crate) fn give_back(&mut self, folder: &Path, bytes: u64) {
        let Some(disk) = self.logs.iter().find(|(path, _)| path == folder).map(|(_, space)| *space) else {
            return;
        };
        // Folders on one disk have the same numbers.
        let disks = self.logs.iter_mut().chain(&mut self.others).map(|(_, space)| space);
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
    fn the_emptiest_log_disk_counts_and_the_others_too() {
        let disk = |path: &str, free| (PathBuf::from(path), space(100, free, free));
        let logs = vec![disk("/a", 5), disk("/b", 50)];
        let mut both = DiskSpace { logs, others: vec![disk("/root", 60)] };
        assert_eq!(both.used_percent(), 50);
        assert_eq!(both.full(Some(0.85), 1), BTreeSet::from(["/a".into()]));
        assert_eq!(both.full(None, 5), BTreeSet::from(["/a".into()]), "one of a hundred is its reserve");
        assert_eq!(both.below_reserve(), None);
        both.others = vec![disk("/root", 60), disk("/index", 7)];
        assert_eq!(both.used_percent(), 93, "the index is on a full disk");
        both.others = vec![disk("/root", 60), disk("/index", 0)];
        assert!(
            both.below_reserve()
                .is_some_and(|text| text.starts_with("0 bytes of the disk of /index are free"))
        );
        both.others = vec![disk("/root", 60), disk("/index", 7)];
        both.give_back(std::path::Path::new("/a"), 40);
        assert!(both.full(Some(0.85), 1).is_empty());
        assert_eq!(both.used_percent(), 93, "the index is on another disk");
        both.others = vec![disk("/root", 50)];
        both.give_back(std::path::Path::new("/b"), 20);
        assert_eq!(both.used_percent(), 30, "one disk for both");
    }
}
