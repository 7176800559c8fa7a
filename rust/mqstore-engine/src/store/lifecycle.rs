//! What a store that is open for writing holds from its open to its close: the lock, its tasks, and notes for a person.
//!
//! Owns RocketMQ's lock of the store. Across a crash: the system releases the lock. Across threads: the store is closed
//! once, and whoever asks afterwards is told so.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use mqstore_io::StoreLock;
use mqstore_io::sync::{Mutex, RwLock};

use super::background_task::BackgroundTask;

/// See the module's text.
pub(crate) struct Lifecycle {
    lock: Mutex<Option<Box<dyn StoreLock>>>,
    closed: AtomicBool,
    notes: RwLock<Vec<String>>,
    tasks: Mutex<Vec<Weak<dyn BackgroundTask>>>,
}

impl Lifecycle {
    /// Of a store whose `lock` is taken and whose open left `notes`.
    pub(crate) fn new(lock: Box<dyn StoreLock>, notes: Vec<String>) -> Self {
        Self {
            lock: Mutex::new(Some(lock)),
            closed: AtomicBool::new(false),
            notes: RwLock::new(notes),
            tasks: Mutex::default(),
        }
    }

    /// Whether the close has begun.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Has every later call answer that the store is closed.
    pub(crate) fn set_closed(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Releases the store's lock.
    pub(crate) fn release_lock(&self) {
        self.lock.lock().take();
    }

    /// In a child process after a fork: lets go of the lock's descriptor without releasing the lock.
    pub(crate) fn disown_in_child(&self) {
        self.set_closed();
        if let Some(lock) = self.lock.try_lock().as_deref().and_then(Option::as_ref) {
            lock.disown_in_child();
        }
    }

    /// Things that a person should know, each once.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.notes.read().clone()
    }

    /// Keeps `note` for the person who opened the store, once.
    pub(crate) fn note(&self, note: &str) {
        let mut notes = self.notes.write();
        if !notes.iter().any(|known| known == note) {
            notes.push(note.to_owned());
        }
    }

    /// Keeps a task for [`Self::tasks`], weakly: a task holds the store.
    pub(crate) fn add_task(&self, task: &Arc<dyn BackgroundTask>) {
        self.tasks.lock().push(Arc::downgrade(task));
    }

    /// The tasks that somebody still holds.
    pub(crate) fn tasks(&self) -> Vec<Arc<dyn BackgroundTask>> {
        self.tasks.lock().iter().filter_map(Weak::upgrade).collect()
    }
}
