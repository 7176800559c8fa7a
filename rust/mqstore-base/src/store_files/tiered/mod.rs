//! RocketMQ's tiered store in its POSIX layout, for readers only. Each queue there has a log of its own; a reader sees
//! all of them as one store, whose segments are the files of these logs in the order of their first store times.
//!
//! ```text
//! <root>/212d6b50_DefaultCluster/broker-a/orders/0/COMMIT_LOG/...       ->  <root>/commitlog/<20 digits>
//! <root>/212d6b50_DefaultCluster/broker-a/orders/0/CONSUME_QUEUE/...    ->  <root>/consumequeue/orders/0/<20 digits>
//! ```
//!
//! Nothing is written. Source: `FlatMessageFile`, `FlatAppendFile`, `PosixFileSegment`.

mod fault;
mod layout;
mod queue;
mod source;
mod store;
mod units;
mod walk;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_io::{RemoteVfs, Vfs};

pub use fault::{TieredFault, TieredFaultKind};
pub use store::TieredStore;

use crate::error::{IoContext, StoreError};
use crate::notes::Notes;
use source::TieredSource;

/// Lists the files of the broker in `folder`, and returns the file system that shows them as a store at `root`.
pub(super) fn open(
    vfs: &Arc<dyn Vfs>,
    root: &Path,
    folder: PathBuf,
    notes: &Arc<Notes>,
) -> Result<(Arc<TieredStore>, RemoteVfs), StoreError> {
    let store = Arc::new(TieredStore::load(vfs, folder, notes)?);
    let source = Arc::new(TieredSource(Arc::clone(&store)));
    let joined = RemoteVfs::open(root, source).at(root, "listing the tiered store")?;
    Ok((store, joined))
}
