//! Hooks: functions of a program that receive the events of a store and decide about its files.
//!
//! The store calls both hooks in the thread that deletes files: the background service, or the caller of an explicit
//! expiry. The events of an open come from the thread that opens the store. It holds no lock that an append or a read
//! needs. A hook may call the store, except for operations that wait for this thread: expire and close
//! ([`is_in_hook`]).

use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExpiredKind {
    /// A segment of the log.
    Segment,
    /// A file of a consume queue.
    Queue,
    /// A file of the key index.
    Index,
}

impl ExpiredKind {
    /// Returns the stable word: `segment`, `queue`, `index`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Segment => "segment",
            Self::Queue => "queue",
            Self::Index => "index",
        }
    }
}

/// A file that was removed, or would be removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpiredFile {
    /// The path, also after the removal.
    pub path: PathBuf,
    /// The kind.
    pub kind: ExpiredKind,
    /// Length in bytes.
    pub bytes: u64,
    /// The first offset in the file: a log offset of a segment, a queue offset of a queue file, or for an index file
    /// the log offset of its first record.
    pub first_offset: i64,
    /// The last offset, of the same kind.
    pub last_offset: i64,
    /// Store time of a segment's first record, in epoch milliseconds.
    pub first_store_timestamp_ms: Option<i64>,
    /// Store time of a segment's last record, in epoch milliseconds.
    pub last_store_timestamp_ms: Option<i64>,
    /// Why the file is removed. Starts with `age`, `size`, `disk` or `log` (its part of the log is removed).
    pub reason: String,
    /// Whether messages of a segment are lost that a group, a delayed delivery or a transaction still needs.
    pub unfinished: bool,
}

/// The answer of the hook `before_delete`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteVerdict {
    /// Delete the segment.
    Delete,
    /// Keep the segment in this pass; the next pass asks again.
    Keep,
    /// Keep the segment for this duration; then a pass asks again.
    Later(Duration),
}

/// An event of a store, for a person or a monitor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreEvent {
    /// The stable word of the event: `segment_deleted`, `segment_kept`, `segment_wiped`, `queue_file_deleted`,
    /// `index_file_deleted`, `appends_refused`, `appends_resumed`, `compacted`, `warning` (a note of the open, such as
    /// a damaged configuration file).
    pub kind: &'static str,
    /// The file, if the event is about one.
    pub file: Option<ExpiredFile>,
    /// A description for people.
    pub detail: String,
}

type OnEvent = Arc<dyn Fn(&StoreEvent) + Send + Sync>;
type BeforeDelete = Arc<dyn Fn(&ExpiredFile) -> DeleteVerdict + Send + Sync>;
/// The function of [`Hooks::archive_look`].
pub type ArchiveLook = Arc<dyn Fn(&str, u64, u64) -> Option<String> + Send + Sync>;

/// The hooks that a program registered. Two values are equal if they hold the same functions.
#[derive(Clone, Default)]
pub struct Hooks {
    /// Called after an event. Must not panic.
    pub on_event: Option<OnEvent>,
    /// Called before a segment is deleted, to copy it elsewhere or to keep it. Must not panic.
    pub before_delete: Option<BeforeDelete>,
    /// Looks at the archive of the store: gets its settings, the log offset up to which segments may be deleted because
    /// of it, and that of the start of the log. Returns why the archive does not have what it must have. Must not panic.
    pub archive_look: Option<ArchiveLook>,
}

impl fmt::Debug for Hooks {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Hooks")
            .field("on_event", &self.on_event.is_some())
            .field("before_delete", &self.before_delete.is_some())
            .field("archive_look", &self.archive_look.is_some())
            .finish()
    }
}

impl PartialEq for Hooks {
    fn eq(&self, other: &Self) -> bool {
        same(self.on_event.as_ref(), other.on_event.as_ref())
            && same(self.before_delete.as_ref(), other.before_delete.as_ref())
            && same(self.archive_look.as_ref(), other.archive_look.as_ref())
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

/// Whether this thread is inside a hook. It must not wait for the end of an expiry then.
pub fn is_in_hook() -> bool {
    IN_HOOK.get()
}

impl Hooks {
    /// Calls `on_event` with one event.
    pub fn tell(&self, kind: &'static str, file: Option<&ExpiredFile>, detail: String) {
        if let Some(on_event) = &self.on_event {
            let event = StoreEvent { kind, file: file.cloned(), detail };
            let outer = IN_HOOK.replace(true);
            on_event(&event);
            IN_HOOK.set(outer);
        }
    }

    /// Calls `before_delete` for `file`; without a hook the answer is to delete.
    pub fn ask(&self, file: &ExpiredFile) -> DeleteVerdict {
        let Some(before_delete) = &self.before_delete else { return DeleteVerdict::Delete };
        let outer = IN_HOOK.replace(true);
        let verdict = before_delete(file);
        IN_HOOK.set(outer);
        verdict
    }

    /// Calls `archive_look`; without it, the archive has what the store recorded.
    pub fn look_at_archive(&self, settings: &str, archived_to: u64, log_start: u64) -> Option<String> {
        let look = self.archive_look.as_ref()?;
        let outer = IN_HOOK.replace(true);
        let missing = look(settings, archived_to, log_start);
        IN_HOOK.set(outer);
        missing
    }
}
