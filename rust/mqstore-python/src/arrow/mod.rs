//! Arrow columns: those of a scan, and those of rows that become messages.

pub(crate) mod append_stream;
pub(crate) mod message_columns;
pub(crate) mod schema;
