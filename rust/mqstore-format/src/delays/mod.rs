//! Delayed messages: delay levels, the timer log and wheel, and records that wait.

pub mod delay;
pub mod timer;
pub mod waiting;
