//! Requests to a target, with errors of the store.

use mqstore_base::error::StoreError;
use mqstore_io::{Target, TargetError};

/// Objects of one request that removes them.
const MOST_REMOVED: usize = 1000;

/// Returns the error of a failed request.
pub(crate) fn failed(target: &dyn Target, action: &'static str) -> impl Fn(TargetError) -> StoreError {
    let shown = target.shown(None);
    move |error| StoreError::request(&shown, action, error)
}

/// Removes objects.
pub(crate) fn delete(target: &dyn Target, paths: &[String]) -> Result<(), TargetError> {
    paths.chunks(MOST_REMOVED).try_for_each(|some| target.delete(some))
}
