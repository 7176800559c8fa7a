//! Conversion of values between Python and Rust: arguments, options, messages and results.

pub(crate) mod append_input;
pub(crate) mod append_result;
pub(crate) mod append_results;
pub(crate) mod arguments;
pub(crate) mod batch_input;
pub(crate) mod buffer;
pub(crate) mod filter;
pub(crate) mod hooks;
pub(crate) mod message;
pub(crate) mod options;
pub(crate) mod shown;
pub(crate) mod stored_message;
