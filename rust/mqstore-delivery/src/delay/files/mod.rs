//! The files of delayed messages: RocketMQ's timer log, timer wheel and checkpoints, and the saved state.
//!
//! [`DelayJournal`] joins them for the process that writes. Each file alone serves readers too.

mod journal;
mod level_offsets;
mod recovery_basis;
mod state_file;
mod timer_log;
mod timer_wheel;

pub(super) use journal::{DelayJournal, OpenedFiles, SaveSnapshot, replay_units};
pub(super) use level_offsets::{LevelOffsets, LevelQueue};
pub(super) use recovery_basis::{
    BEFORE_MS, RecoveryBasis, basis, broker_scan_start, check_bytes_in_use, is_in_queue,
};
pub(super) use state_file::{DelayState, MOST_LEVELS, StateFiles};
pub(super) use timer_log::TimerLog;
pub(super) use timer_wheel::TimerWheel;
