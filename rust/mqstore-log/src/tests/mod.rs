//! Tests of the log that need more than one of its parts.

#[cfg(test)]
pub(crate) mod log_paths;
