//! The store's side of an archive, which the Python package writes: the segments that an archive may contain, their
//! bytes, and the log offset up to which the archive covers the log.
//!
//! `sealed` finds segments that never change again. `state` owns the durable file `mqstore/archive`. While it exists,
//! `retention` keeps each segment that ends after its log offset.

mod sealed;
pub(crate) mod state;

pub use sealed::{SealedLog, SealedSegment};
pub use state::ArchiveState;
