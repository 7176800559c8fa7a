//! Files of compacted topics: RocketMQ's pairs of log and queue, and mqstore's manifest of generations.

pub(crate) mod checksums;
pub(crate) mod cursor;
pub(crate) mod file_sizes;
pub(crate) mod folder;
pub(crate) mod generation;
pub(crate) mod manifest;
pub(crate) mod next_folder;
pub(crate) mod positions;
pub(crate) mod restored;
pub(crate) mod staged;
pub(crate) mod topics;
pub(crate) mod unfinished_tail;
