//! Delayed messages: the timer log and wheel, and waiting records.

pub mod pending;
pub mod timer;
