//! Calls of an asyncio event loop: verbs that never block, and the events that wake it.

pub(crate) mod loop_delivery;
pub(crate) mod loop_link;
