//! Tests of whole topics: their deletion, and reads of all their queues.

mod deleted;
mod reads;
