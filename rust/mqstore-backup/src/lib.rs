//! Streaming backups: the log and the metadata of a store as objects in a target, and back.
//!
//! `layout` names the objects, `manifest` is one state of a backup, `pieces` divides files into the contents of objects,
//! and `place` makes the requests. `source` opens what a round copies, `round` copies what is new, and `restore`, `verify`
//! and `clean` do what their names say.
#![forbid(unsafe_code)]

pub mod clean;
pub mod layout;
pub mod manifest;
pub mod pieces;
pub mod place;
pub mod restore;
pub mod round;
pub mod source;
pub mod verify;
