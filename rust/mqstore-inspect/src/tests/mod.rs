//! Tests of the tools on complete stores, simulated and real.

mod broker_files;
mod checksums;
mod distributed;
mod group_offsets;
mod info;
mod links;
mod metadata_log;
mod missing_ends;
mod rebuild;
mod repair;
mod restored_log;
mod same_name;
mod snapshot;
mod verify;
