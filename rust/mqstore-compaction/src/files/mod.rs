//! Files of compacted topics: RocketMQ's pairs of log and queue, and our manifest of generations.

pub(crate) mod checksums;
pub(crate) mod folder;
pub(crate) mod geometry;
pub(crate) mod manifest;
pub(crate) mod positions;
pub(crate) mod state;
pub(crate) mod topics;
pub(crate) mod tree;
