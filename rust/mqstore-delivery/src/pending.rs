//! What waits in a store, for who looks at it: delayed messages, undecided transactions.

use mqstore_engine::Store;

use crate::delay::PendingDelays;
use crate::transactions::PendingGroup;

/// What waits in a store that is open for reading, by its files alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Delayed messages.
    pub delays: PendingDelays,
    /// Undecided transactions, by producer group.
    pub undecided: Vec<PendingGroup>,
    /// What a person should know.
    pub notes: Vec<String>,
}

impl Waiting {
    /// What waits in `store`; what cannot be read is left out, and a note tells of it.
    pub fn of(store: &Store) -> Self {
        let mut waiting = Self::default();
        match PendingDelays::of(store) {
            Ok(mut delays) => {
                waiting.notes.append(&mut delays.notes);
                waiting.delays = delays;
            }
            Err(error) => waiting.notes.push(format!("delayed messages are not shown ({error})")),
        }
        match PendingGroup::all_of(store) {
            Ok(groups) => waiting.undecided = groups,
            Err(error) => waiting.notes.push(format!("undecided transactions are not shown ({error})")),
        }
        waiting
    }
}
