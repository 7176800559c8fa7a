//! Delayed messages: delay levels, the timer log and wheel, and waiting records.

pub mod delay_levels;
pub mod pending;
pub mod timer;
