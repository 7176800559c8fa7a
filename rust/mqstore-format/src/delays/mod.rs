//! Delayed messages: delay levels, the timer log and wheel, and records that wait.

pub mod delay_levels;
pub mod pending;
pub mod timer;
