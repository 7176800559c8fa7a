//! Compaction of an open store: on request, in the background, and for every new message.

pub(crate) mod append;
pub(crate) mod compact_due;
pub(crate) mod open_store;
pub(crate) mod restore;
