//! Compaction of an open store: on request, in the background, and for every new message.

pub(crate) mod append;
pub(crate) mod auto_compact;
pub(crate) mod compaction_state;
pub(crate) mod open_store;
pub(crate) mod restore;
