//! Appends of many messages: the queue of appends that do not wait, staged blocks, and copies.

pub use mqstore_engine::{
    AppendQueue, AppendRequest, MessageOrigin, OwnedMessage, RefusedMessage, StagedBlock, check_copy,
    check_target, staged_messages,
};
