//! Arrow rows that become messages: the columns, and appends of a stream.

pub(crate) mod append_stream;
pub(crate) mod message_columns;
pub(super) mod values;
