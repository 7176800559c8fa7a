//! Calls of an asyncio event loop: methods that never block, and the events that wake the loop.

pub(crate) mod loop_delivery;
pub(crate) mod loop_link;
