//! The store as a whole, on the simulated and the real file system.

mod batches;
mod compact;
mod compaction_append;
mod disk_space;
mod durability_modes;
mod lifecycle;
mod older;
mod older_beside;
mod quota;
mod random_read;
mod reading;
mod restore;
mod scan;
mod topics;
mod wait;
mod writer_restart;
