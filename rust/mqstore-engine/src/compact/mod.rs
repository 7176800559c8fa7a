//! Compaction of an open store: on request, in the background, and for every new message.

pub(crate) mod append;
pub(crate) mod compact;
pub(crate) mod compact_due;
pub(crate) mod restore;
