//! Tools for store directories: verify, repair, rebuild, copy, snapshot and describe.
//!
//! Each command has its own folder or file: [`verify`], [`repair`], [`rebuild`], [`info`], [`copy_store`] and
//! [`snapshot`]. `distributed` divides a verification among several processes, [`RestoredLog`] writes the log of a store
//! that is restored. The tools use the same decoders as an open store. Only repair and rebuild write into RocketMQ's
//! folders.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests put real files, links and pipes next to the store"
    )
)]

pub(crate) mod copy;
pub mod distributed;
pub(crate) mod hourly_rates;
pub(crate) mod info;
pub(crate) mod loss_report;
pub(crate) mod problem;
pub(crate) mod raft_info;
pub(crate) mod rebuild;
pub(crate) mod repair;
pub(crate) mod restored_log;
pub(crate) mod side_files;
pub(crate) mod snapshot;
pub(crate) mod tiered;
pub(crate) mod verify;

#[cfg(test)]
mod tests;

pub use copy::copy_store;
pub use hourly_rates::HourRate;
pub use info::{InfoReport, PartSize, info, info_with};
pub use loss_report::{LostOffsets, LostRange};
pub use problem::{Problem, VerifyReport};
pub use raft_info::{RaftInfo, RaftTerm};
pub use rebuild::rebuild;
pub use repair::{RepairReport, RepairTarget, repair};
pub use restored_log::{RestoredLog, empty_folder};
pub use side_files::{CopiedLog, SideFiles, files_below, refuse_other_kinds};
pub use snapshot::{SnapshotReport, snapshot};
pub use tiered::TieredInfo;
pub use verify::verify;
