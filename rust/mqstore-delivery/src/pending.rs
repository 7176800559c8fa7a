//! Delayed messages and pending transactions of a store, counted for a reader.

use mqstore_engine::Store;

use crate::delay::PendingDelays;
use crate::transactions::PendingGroup;

/// The waiting messages of a store that is open for reading, from its files alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingDeliveries {
    /// Delayed messages.
    pub delays: PendingDelays,
    /// Pending transactions, by producer group.
    pub undecided: Vec<PendingGroup>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl PendingDeliveries {
    /// Counts the waiting messages of `store`. Parts that cannot be read are left out, with a note.
    pub fn of(store: &Store) -> Self {
        let mut waiting = Self::default();
        match PendingDelays::of(store) {
            Ok(mut delays) => {
                waiting.notes.append(&mut delays.notes);
                waiting.delays = delays;
            }
            Err(error) => waiting.notes.push(format!("cannot count delayed messages ({error})")),
        }
        match PendingGroup::all_of(store) {
            Ok(groups) => waiting.undecided = groups,
            Err(error) => waiting.notes.push(format!("cannot list pending transactions ({error})")),
        }
        waiting
    }
}
