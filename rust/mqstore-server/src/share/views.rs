//! The open stores of a process, one after the other: a reader while it is a client, a writer while it is the owner.
//!
//! A store stays in the list when its time is over, so that iterators and references on it stay valid. A process changes
//! its role only when an owner ends, so the list is short.

use std::sync::OnceLock;

use mqstore::Store;

/// One open store, and those after it.
#[derive(Debug)]
pub(crate) struct View {
    /// The store.
    pub(crate) store: Store,
    /// The same store, whose reads continue in the archive.
    pub(crate) reads: Store,
    next: OnceLock<Box<Self>>,
}

impl View {
    /// Makes a list of one store.
    pub(crate) fn new(store: Store) -> Self {
        Self { reads: store.continued(), store, next: OnceLock::new() }
    }

    /// Returns the newest store.
    pub(crate) fn newest(&self) -> &Self {
        let mut view = self;
        while let Some(next) = view.next.get() {
            view = next;
        }
        view
    }

    /// Adds a store, which is the newest from now on.
    pub(crate) fn push(&self, store: Store) {
        let mut next = Box::new(Self::new(store));
        let mut view = self.newest();
        while let Err(refused) = view.next.set(next) {
            next = refused;
            view = view.newest();
        }
    }

    /// Returns all stores.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Store> {
        std::iter::successors(Some(self), |view| view.next.get().map(Box::as_ref)).map(|view| &view.store)
    }

    /// Whether the newest store writes and is open.
    pub(crate) fn writer(&self) -> Option<&Store> {
        let newest = &self.newest().store;
        (newest.mode().writes() && !newest.is_closed()).then_some(newest)
    }
}
