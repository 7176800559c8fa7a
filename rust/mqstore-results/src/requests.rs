//! What all verbs need: errors of failed requests, and paths.

use mqstore_base::error::StoreError;
use mqstore_io::{Target, TargetError};

/// Returns the error of a failed request.
pub(crate) fn failed(target: &dyn Target, action: &'static str) -> impl Fn(TargetError) -> StoreError {
    let shown = target.shown(None);
    move |error| StoreError::request(&shown, action, error)
}

/// Returns the path of something in a folder of a result; "" is the root.
pub(crate) fn path_in(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}
