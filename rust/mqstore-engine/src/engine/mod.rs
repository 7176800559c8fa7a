//! A store that is open for writing, as plain data: the lowest folder of this crate.
//!
//! [`Engine`] has the log and everything that is derived from it, and the topics. It has no verbs: `read` makes it a view
//! and dispatches, `write` appends, and the services above them (`retention`, `compact` and so on) own their own state.
//! The other files own data that several folders need: the topics, the events of the background, the life cycle, the
//! gate that refuses appends to a full disk.

pub(crate) mod append_gate;
pub(crate) mod damage_notes;
pub(crate) mod disk_space;
pub(crate) mod lifecycle;
pub(crate) mod lone_job;
pub(crate) mod signals;
pub(crate) mod topics;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mqstore_format::UniqueKeyGenerator;
use mqstore_io::sync::Mutex;

use append_gate::AppendGate;
use lifecycle::Lifecycle;
use mqstore_base::live_page::LivePage;
use mqstore_base::options::StoreOptions;
use mqstore_base::store_files::StoreFiles;
use mqstore_compaction::ManifestCache;
use mqstore_log::commit_log::CommitLog;
use mqstore_log::consume_queue::QueueSet;
use mqstore_log::dispatch::Dispatcher;
use mqstore_log::flush::Flusher;
use mqstore_log::index::IndexSet;
use mqstore_meta::MetaLog;
use signals::ServiceSignals;
use topics::Topics;

/// See the header of this module.
pub(crate) struct Engine {
    pub(crate) files: StoreFiles,
    pub(crate) options: StoreOptions,
    pub(crate) log: Arc<CommitLog>,
    pub(crate) live: Arc<LivePage>,
    pub(crate) queues: Arc<QueueSet>,
    pub(crate) index: Arc<IndexSet>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) flusher: Arc<Flusher>,
    pub(crate) topics: Topics,
    pub(crate) meta: Arc<MetaLog>,
    pub(crate) ids: UniqueKeyGenerator,
    /// Distinguishes this engine from others in this process.
    pub(crate) token: u64,
    pub(crate) append_gate: AppendGate,
    pub(crate) signals: ServiceSignals,
    pub(crate) lifecycle: Lifecycle,
    /// The manifests of the compaction files, as reads last saw them.
    pub(crate) manifests: ManifestCache,
    /// Log offset before which queues do not lead, as its segments are removed, or about to be. The list of segments says
    /// so later.
    pub(crate) removed_to: AtomicU64,
    /// Held during a rebuild of queues and index, and while segments are rewritten.
    pub(crate) rebuilding: Mutex<()>,
}

/// The next token.
static TOKENS: AtomicU64 = AtomicU64::new(0);

/// Returns a token that no other engine of this process has.
pub(crate) fn next_token() -> u64 {
    TOKENS.fetch_add(1, Ordering::Relaxed)
}
