//! Tests of the log that need several of its modules.

#[cfg(test)]
pub(crate) mod log_paths;
#[cfg(test)]
pub(crate) mod raft;
