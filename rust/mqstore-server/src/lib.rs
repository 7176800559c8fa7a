//! One store for several processes of a machine.
//!
//! One process, the owner, has the store open and serves the others. [`wire`] is the protocol, `service` what the owner
//! does for requests, `socket` the local socket, `client` the other end of it, and [`share`] the handle of a process,
//! which becomes owner or client, and changes from one to the other. [`follow`] is a live copy of a RocketMQ master.
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
mod service;
pub mod share;
mod socket;
mod steps;
pub mod wire;
