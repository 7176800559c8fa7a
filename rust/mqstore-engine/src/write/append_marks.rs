//! Fields of a record that no application can set: the origin of a copy, and the role in a transaction.

use mqstore_format::{Host, SysFlag, TransactionType, patch_prepared_offset};

use mqstore_base::error::StoreError;

/// The fields that a copied message keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageOrigin {
    /// How its body is compressed; other bits are not kept.
    pub sys_flag: SysFlag,
    /// The host that made it.
    pub born_host: Host,
    /// How often consumers returned it.
    pub reconsume_times: i32,
}

/// The fields of a record in a transaction that no application can set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransactionMark {
    /// The origin of the half message, if it is a copy.
    pub origin: Option<MessageOrigin>,
    /// Whether it is a final record; then its transaction bits say so.
    pub commit: bool,
    /// The log offset of its half message; 0 if there is none.
    pub prepared_transaction_offset: u64,
}

/// The marks of the messages of one append, in the order of the messages.
#[derive(Clone, Copy, Debug)]
pub enum AppendMarks<'a> {
    /// No marks.
    None,
    /// The origin of each message.
    Origins(&'a [MessageOrigin]),
    /// The origin of each message that an earlier call appended for a later delivery. The append creates no topic that was
    /// deleted since: [`StoreError::TopicNotFound`].
    Deliveries(&'a [MessageOrigin]),
    /// The transaction mark of each message. All messages are appended together, durably if one of them must be. After an
    /// error none of them is, unless the error stopped the store: [`StoreError::TooLarge`] for more than
    /// [`SystemAppends::max_together_bytes`](crate::SystemAppends::max_together_bytes). It creates no topic that was
    /// deleted.
    Together(&'a [TransactionMark]),
}

impl AppendMarks<'_> {
    /// Whether the messages come from the program, and are no copies or parts of a transaction.
    pub(crate) fn are_none(&self) -> bool {
        matches!(self, Self::None)
    }

    fn of(&self, index: usize) -> Option<&TransactionMark> {
        if let Self::Together(marks) = self { marks.get(index) } else { None }
    }

    pub(crate) fn origin(&self, index: usize) -> Option<&MessageOrigin> {
        match self {
            Self::None => None,
            Self::Origins(origins) | Self::Deliveries(origins) => origins.get(index),
            Self::Together(marks) => marks.get(index).and_then(|mark| mark.origin.as_ref()),
        }
    }

    pub(crate) fn flags(&self, index: usize) -> SysFlag {
        let commit = self.of(index).is_some_and(|mark| mark.commit);
        SysFlag(0).with_transaction(if commit { TransactionType::Commit } else { TransactionType::None })
    }

    /// Writes the remaining fields into the encoded record, or into the part before its body.
    pub(crate) fn stamp(&self, index: usize, head: &mut [u8]) -> Result<(), StoreError> {
        match self.of(index).map(|mark| mark.prepared_transaction_offset) {
            None | Some(0) => Ok(()),
            Some(position) => {
                let position = i64::try_from(position).unwrap_or(i64::MAX);
                patch_prepared_offset(head, position).map_err(|error| StoreError::invalid_message(&error))
            }
        }
    }

    /// Whether an append creates a deleted topic again. A delivery is no new message: its topic was deleted after it.
    pub(crate) fn recreate(&self) -> bool {
        matches!(self, Self::None | Self::Origins(_))
    }

    /// Whether an earlier call accepted the messages, for a later time or a decision.
    pub(crate) fn were_accepted(&self) -> bool {
        matches!(self, Self::Deliveries(_) | Self::Together(_))
    }

    pub(crate) fn belong_together(&self) -> bool {
        matches!(self, Self::Together(_))
    }
}
