//! The store as a whole, on the simulated and the real file system.

mod batches;
mod compact;
mod engine;
mod feed;
mod lifecycle;
mod quota;
mod reading;
mod restore;
mod scan;
mod single;
mod waiting;
