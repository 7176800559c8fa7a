//! The open store, and the functions on stores and directories that Python calls.

pub(crate) mod archive;
pub(crate) mod compaction;
pub(crate) mod delay;
pub(crate) mod directory;
pub(crate) mod folder;
pub(crate) mod iterators;
mod native_store;
pub(crate) mod pending;
pub(crate) mod pop;
pub(crate) mod replication;
pub(crate) mod retention;
pub(crate) mod settings;
pub(crate) mod shared;
pub(crate) mod table;
pub(crate) mod topics;
pub(crate) mod verify;

pub(crate) use native_store::NativeStore;
