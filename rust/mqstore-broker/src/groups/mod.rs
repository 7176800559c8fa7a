//! Consumer groups: several consumers that share the queues of topics, and where each queue goes on.

pub mod assignment;
