//! Looking at a store from outside: is everything in it as it should be?
//!
//! Reads only, takes no lock, changes no byte; works on stores that cannot be opened for writing and
//! beside a running writer (then up to what that one has dispatched). Every finding says what it is,
//! where, what it means for somebody who reads messages, and what a repair would do.

mod problems;
mod verify;

pub use problems::{Problem, Progress, VerifyReport};
pub use verify::verify;
