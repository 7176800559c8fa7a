//! Live copies of the log of a RocketMQ master.
//!
//! [`replica`] is the protocol: a state machine that takes bytes and times, and returns bytes. [`wire`] has its frames,
//! [`epochs`] the history of a log, [`log`] what the protocol needs of a log, and `records` makes whole records of the
//! bytes. [`copy`] is the store that the records go to, [`metadata`] what a copy takes of the tables of a broker, and
//! [`standby`] what a standby takes of a store of ours. There are no sockets and no threads here.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests put real files next to the store"
    )
)]

pub mod copy;
pub mod epochs;
#[cfg(test)]
mod failover_tests;
pub mod log;
pub mod master;
pub mod metadata;
#[cfg(test)]
mod model_tests;
mod records;
pub mod replica;
pub mod replica_set;
pub mod standby;
#[cfg(test)]
mod standby_tests;
pub mod wire;
