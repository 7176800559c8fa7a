//! Arrow columns of messages.
//!
//! `text_columns` builds columns of text, bytes, lists and maps, in memory that `buffer_pool` keeps for reuse. `values`
//! returns the values of a column, whatever the type that a library uses for them. This crate does no I/O.
#![forbid(unsafe_code)]

mod buffer_pool;
mod text_columns;
mod values;

pub use buffer_pool::BufferPool;
pub use text_columns::{
    BytesColumn, KeyListColumn, MapColumn, PropertyColumns, each_once, entries_field, entry_fields,
    key_field, taken,
};
pub use values::{BytesValues, Numbers, TextLists, TextMaps, integers, times_ms};
