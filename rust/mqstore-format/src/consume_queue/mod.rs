//! Entries of consume queues: 20-byte units, 46-byte batch units, and the extension file.

pub mod batch_unit;
pub mod extension_unit;
pub mod unit;
