//! The state that the records of the metadata log lead to.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use mqstore_format::json::{SubscriptionGroup, TopicConfig};
use mqstore_io::sync::{Mutex, MutexGuard};

use super::progress::Progress;
use super::record::{NameId, QueueKey};

/// Names and their numbers.
#[derive(Debug, Default)]
pub(super) struct Names {
    ids: HashMap<Arc<str>, NameId>,
    texts: HashMap<NameId, Arc<str>>,
    next: u32,
}

impl Names {
    pub(super) fn id(&self, name: &str) -> Option<NameId> {
        self.ids.get(name).copied()
    }

    pub(super) fn name(&self, id: NameId) -> Option<Arc<str>> {
        self.texts.get(&id).cloned()
    }

    /// A number for a new name; `None` when there are no more.
    pub(super) fn add(&mut self, name: &str) -> Option<NameId> {
        let id = NameId(self.next);
        self.next = self.next.checked_add(1)?;
        let name: Arc<str> = name.into();
        self.ids.insert(Arc::clone(&name), id);
        self.texts.insert(id, name);
        Some(id)
    }
}

/// Topics and groups by name.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) topics: BTreeMap<Arc<str>, Arc<TopicConfig>>,
    pub(super) groups: BTreeMap<Arc<str>, Arc<SubscriptionGroup>>,
}

/// The [`Progress`] of one group in one queue, which several threads may hold.
///
/// It changes by [`MetaLog::append_progress`](super::MetaLog::append_progress) and
/// [`MetaLog::change_progress`](super::MetaLog::change_progress) alone.
#[derive(Debug)]
pub struct QueueProgress {
    pub(super) key: QueueKey,
    pub(super) state: Mutex<Kept>,
}

/// What is behind the lock of a [`QueueProgress`].
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) progress: Progress,
    /// Its topic or its group was removed: nothing may be appended any more.
    pub(super) removed: bool,
    /// The records of the change that is being made, so that making one allocates nothing.
    pub(super) records: Vec<super::ProgressRecord>,
}

impl QueueProgress {
    pub(super) fn new(key: QueueKey) -> Self {
        Self { key, state: Mutex::default() }
    }

    /// Whose progress, in which queue.
    pub fn queue(&self) -> QueueKey {
        self.key
    }

    /// The state, to look at; changes wait as long as the answer is held.
    pub fn lock(&self) -> ProgressView<'_> {
        ProgressView(self.state.lock())
    }
}

/// A look at a [`Progress`], which does not change meanwhile.
#[derive(Debug)]
pub struct ProgressView<'a>(MutexGuard<'a, Kept>);

impl std::ops::Deref for ProgressView<'_> {
    type Target = Progress;

    fn deref(&self) -> &Progress {
        &self.0.progress
    }
}
