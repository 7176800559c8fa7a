//! Tools for store directories and their reports: verify, repair, rebuild, copy, snapshot, describe.

pub use mqstore_base::live_page::{is_written_elsewhere, writer_pid};
pub use mqstore_base::store_files::StoreFiles;
pub use mqstore_inspect::{
    InfoReport, LostOffsets, LostRange, Problem, RaftInfo, RepairReport, RepairTarget, RestoredLog,
    SnapshotReport, TieredInfo, VerifyReport, copy_store, distributed, info, info_with, rebuild, repair,
    snapshot, verify,
};
