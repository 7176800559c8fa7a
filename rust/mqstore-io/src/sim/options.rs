//! How a simulated file system behaves.

use std::sync::Arc;

use crate::clock::Clock;

/// How a simulated file system behaves. The default is without limits, repeatable, and kind.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a property of its own")]
pub struct SimOptions {
    /// Decides everything that is left to chance.
    pub seed: u64,
    /// A crash may leave a mixture of old and new 512-byte sectors in a page.
    pub torn_sectors: bool,
    /// A crash may leave each page, or sector, in any form that it had since it was last synced, and
    /// not only in the synced one and the newest. Takes the place of `write_back_one_in`.
    pub versions: bool,
    /// Size of the disk in bytes, in whole pages of 4 KiB; `None` for no limit.
    pub space_bytes: Option<u64>,
    /// At one call in so many, half of the unsynced pages reach the disk on their own, so that a crash
    /// may find versions between the synced and the newest one; 0 for never.
    pub write_back_one_in: u32,
    /// Keep a list of all calls.
    pub trace: bool,
    /// Nothing may start threads: the test does what they would do, call by call.
    pub by_hand: bool,
    /// There is no call that exchanges two names.
    pub no_exchange: bool,
    /// Bytes of memory that the machine has; `None` for more than any test needs.
    pub memory_bytes: Option<u64>,
    /// Where the times of files come from; all zero without one.
    pub clock: Option<Arc<dyn Clock>>,
}
