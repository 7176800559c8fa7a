//! Options of a simulated file system.

use std::path::PathBuf;
use std::sync::Arc;

use crate::clock::Clock;

/// Options of a simulated file system. By default it has no limits, is repeatable and has no faults.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a separate option")]
pub struct SimOptions {
    /// The seed of all random choices.
    pub seed: u64,
    /// Whether a crash can leave a mixture of old and new 512-byte sectors in a page.
    pub torn_sectors: bool,
    /// Whether a crash can leave each page, or sector, in any form since its last sync, and not only in the synced and
    /// the newest one. Replaces `write_back_one_in`.
    pub versions: bool,
    /// Size of the disk in bytes, in whole pages of 4 KiB; `None` is no limit.
    pub space_bytes: Option<u64>,
    /// Average number of calls between two random write-backs. Each one writes half of the unsynced pages to the disk,
    /// so that a crash can find versions between the synced and the newest one. 0 is never.
    pub write_back_one_in: u32,
    /// Whether to keep a list of all calls.
    pub trace: bool,
    /// Whether no thread may start: the test then makes each of their steps itself.
    pub by_hand: bool,
    /// Whether the call that exchanges two names is missing.
    pub no_exchange: bool,
    /// Symbolic links to folders, and their targets. The file system only knows where they lead: a call on a path that
    /// goes through a link fails.
    pub links: Vec<(PathBuf, PathBuf)>,
    /// Bytes of memory of the machine; `None` is more than any test needs.
    pub memory_bytes: Option<u64>,
    /// The source of file times; without one all times are zero.
    pub clock: Option<Arc<dyn Clock>>,
}
