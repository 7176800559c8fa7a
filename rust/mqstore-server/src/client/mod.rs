//! A client: its connection to the owner, and the calls that it sends.
//!
//! `encoded` is a request ready to send, `connection` the socket with the calls that wait for their answers.

pub(crate) mod connection;
pub(crate) mod encoded;
