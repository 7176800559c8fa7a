//! The tools on whole stores, simulated and real.

mod distributed;
mod edges;
mod group_offsets;
mod info;
mod kept;
mod others;
mod rebuild;
mod repair;
mod snapshot;
mod verify;
