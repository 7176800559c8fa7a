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

/// Of the calls at which a test stops an operation, the soak takes each one and `make test` each third one.
fn stops_step() -> usize {
    if std::env::var_os("MQSTORE_SOAK").is_some() { 1 } else { 3 }
}
