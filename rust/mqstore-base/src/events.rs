//! What a program may hear of a store, and decide about its files.
//!
//! Both hooks are called from the thread that deletes, the service's or that of an explicit expiry,
//! with no lock held that an append or a read needs. They may call the store, except for what waits
//! for that thread: expiring and closing ([`is_in_hook`]).

use std::cell::Cell;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpiredKind {
    /// A segment of the log.
    Segment,
    /// A file of a consume queue.
    Queue,
    /// A file of the key index.
    Index,
}

impl ExpiredKind {
    /// Its stable word: `segment`, `queue`, `index`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Segment => "segment",
            Self::Queue => "queue",
            Self::Index => "index",
        }
    }
}

/// One file that went, or would go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiredFile {
    /// Where it is, or was.
    pub path: PathBuf,
    /// What it is.
    pub kind: ExpiredKind,
    /// Its length in bytes.
    pub bytes: u64,
    /// The first offset in it: a byte of the log, an entry of a queue, or for an index file the log
    /// offset of its first record.
    pub first_offset: i64,
    /// The last one.
    pub last_offset: i64,
    /// Store time of a segment's first record, in epoch milliseconds.
    pub first_store_timestamp_ms: Option<i64>,
    /// Store time of its last record.
    pub last_store_timestamp_ms: Option<i64>,
    /// Why it goes, in words that start with `age`, `size`, `disk` or `log` (its part of the log is gone).
    pub reason: String,
}

/// Whether a segment may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteVerdict {
    /// It may.
    Delete,
    /// Not in this pass; asked again in the next one.
    Keep,
    /// Not before this time has passed; asked again then.
    Later(Duration),
}

/// Something that a person or a monitor may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreEvent {
    /// A stable word: `segment_deleted`, `segment_kept`, `segment_wiped`, `queue_file_deleted`,
    /// `index_file_deleted`, `appends_refused`, `appends_resumed`, `compacted`.
    pub kind: &'static str,
    /// The file, where it is about one.
    pub file: Option<ExpiredFile>,
    /// In words.
    pub detail: String,
}

type OnEvent = Arc<dyn Fn(&StoreEvent) + Send + Sync>;
type BeforeDelete = Arc<dyn Fn(&ExpiredFile) -> DeleteVerdict + Send + Sync>;

/// The calls that a program asked for. Equal when they are the same ones.
#[derive(Clone, Default)]
pub struct Hooks {
    /// Called after something happened. Must not panic.
    pub on_event: Option<OnEvent>,
    /// Called before a segment goes, to copy it elsewhere or to keep it. Must not panic.
    pub before_delete: Option<BeforeDelete>,
}

impl fmt::Debug for Hooks {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Hooks")
            .field("on_event", &self.on_event.is_some())
            .field("before_delete", &self.before_delete.is_some())
            .finish()
    }
}

impl PartialEq for Hooks {
    fn eq(&self, other: &Self) -> bool {
        same(self.on_event.as_ref(), other.on_event.as_ref())
            && same(self.before_delete.as_ref(), other.before_delete.as_ref())
    }
}

fn same<T: ?Sized>(left: Option<&Arc<T>>, right: Option<&Arc<T>>) -> bool {
    match (left, right) {
        (None, None) => true,
        (Some(left), Some(right)) => std::ptr::addr_eq(Arc::as_ptr(left), Arc::as_ptr(right)),
        _ => false,
    }
}

thread_local! {
    static IN_HOOK: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is inside of a hook, so that it must not wait for the end of an expiry.
pub fn is_in_hook() -> bool {
    IN_HOOK.get()
}

impl Hooks {
    /// Tells the program of something.
    pub fn tell(&self, kind: &'static str, file: Option<&ExpiredFile>, detail: String) {
        if let Some(on_event) = &self.on_event {
            let event = StoreEvent { kind, file: file.cloned(), detail };
            let outer = IN_HOOK.replace(true);
            on_event(&event);
            IN_HOOK.set(outer);
        }
    }

    /// Asks the program whether `file` may go.
    pub fn ask(&self, file: &ExpiredFile) -> DeleteVerdict {
        let Some(before_delete) = &self.before_delete else { return DeleteVerdict::Delete };
        let outer = IN_HOOK.replace(true);
        let verdict = before_delete(file);
        IN_HOOK.set(outer);
        verdict
    }
}
