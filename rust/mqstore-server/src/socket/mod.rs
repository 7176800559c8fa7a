//! The local socket: the first front-end of the service.
//!
//! `address` publishes and finds the socket of a store, `listener` serves its connections in one thread.

pub(crate) mod address;
pub(crate) mod listener;
pub(crate) mod open_sockets;
