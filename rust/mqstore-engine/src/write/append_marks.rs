//! What a record has that no application can set: where a copy comes from, and what it is in a transaction.

use mqstore_format::{Host, SysFlag, TransactionType, patch_prepared_offset};

use mqstore_base::error::StoreError;

/// What a message keeps of where it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageOrigin {
    /// How its body is compressed; of other bits nothing is kept.
    pub sys_flag: SysFlag,
    /// Where it was made.
    pub born_host: Host,
    /// How often consumers gave it back.
    pub reconsume_times: i32,
}

/// What a record of a transaction has that no application can set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransactionMark {
    /// What it keeps of the half message, where that came from elsewhere.
    pub origin: Option<MessageOrigin>,
    /// Whether it is a final record: its transaction bits say so.
    pub commit: bool,
    /// The log position of the half message that it is made of; 0 where there is none.
    pub prepared_transaction_offset: u64,
}

/// What is said of each of the messages of one append.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AppendMarks<'a> {
    /// Nothing.
    None,
    /// Where they come from.
    Origins(&'a [MessageOrigin]),
    /// What they are in a transaction.
    Together(&'a [TransactionMark]),
}

impl AppendMarks<'_> {
    fn of(&self, index: usize) -> Option<&TransactionMark> {
        if let Self::Together(marks) = self { marks.get(index) } else { None }
    }

    pub(crate) fn origin(&self, index: usize) -> Option<&MessageOrigin> {
        match self {
            Self::None => None,
            Self::Origins(origins) => origins.get(index),
            Self::Together(marks) => marks.get(index).and_then(|mark| mark.origin.as_ref()),
        }
    }

    pub(crate) fn flags(&self, index: usize) -> SysFlag {
        let commit = self.of(index).is_some_and(|mark| mark.commit);
        SysFlag(0).with_transaction(if commit { TransactionType::Commit } else { TransactionType::None })
    }

    /// Writes what is left into the encoded record, or the part of it before the body.
    pub(crate) fn stamp(&self, index: usize, head: &mut [u8]) -> Result<(), StoreError> {
        match self.of(index).map(|mark| mark.prepared_transaction_offset) {
            None | Some(0) => Ok(()),
            Some(position) => {
                let position = i64::try_from(position).unwrap_or(i64::MAX);
                patch_prepared_offset(head, position).map_err(|error| StoreError::invalid_message(&error))
            }
        }
    }

    pub(crate) fn belong_together(&self) -> bool {
        matches!(self, Self::Together(_))
    }
}
