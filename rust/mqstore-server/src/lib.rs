//! One store for several processes of a machine.
//!
//! One process, the owner, has the store open and serves the others. [`wire`] is the protocol, `service` what the owner
//! does for requests, `socket` the local socket, `client` the other end of it, and [`share`] the handle of a process,
//! which becomes owner or client, and changes from one to the other. [`follow`] is a live copy of a master, and
//! [`master`] serves the copies of a store.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests put real files next to the store, and wait for real threads"
    )
)]

mod client;
mod deadline;
pub mod follow;
pub mod master;
mod service;
pub mod share;
mod socket;
mod steps;
mod tcp;
pub mod wire;

/// In a child, directly after a fork: closes its copies of all sockets. What owns them must be leaked then.
pub fn close_sockets_in_child() {
    socket::open_sockets::close_in_child();
}
