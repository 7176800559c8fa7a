//! Conversion of values between Python and Rust: arguments, options, messages, results and errors.

pub(crate) mod batch;
pub(crate) mod buffer;
pub(crate) mod error;
pub(crate) mod events;
pub(crate) mod filter;
pub(crate) mod input;
pub(crate) mod message;
pub(crate) mod options;
pub(crate) mod results;
