//! Creation of an object that must not exist: the step that publishes a result or a state of an archive.
//!
//! If a request fails, it may still have been carried out, or be carried out later. So the object is read then. It is that
//! of this request, that of another one, or missing; in the last case the request may still come.

use std::time::Duration;

use bytes::Bytes;

use super::{Target, TargetError};
use crate::clock::Clock;
use crate::remote::RemoteCause;
use crate::switch;

/// Milliseconds between two requests that conflict with requests in progress.
const PAUSES_MS: [u64; 7] = [50, 100, 200, 500, 1000, 2000, 4000];

/// Requests that create an object that exists.
const PROBES: usize = 3;

/// Why an object was not created.
#[derive(Debug)]
pub struct NotCreated {
    /// The failed request.
    pub error: TargetError,
    /// Whether the object cannot appear later, because the target refused the request.
    pub is_final: bool,
}

impl NotCreated {
    fn unknown(error: TargetError) -> Self {
        Self { error, is_final: false }
    }
}

/// Creates an object, and reads it back. Returns `None`; or the content of the object that exists.
///
/// # Errors
/// The request failed. Unless this is final, the object may appear later.
pub fn create(
    target: &dyn Target,
    clock: &dyn Clock,
    path: &str,
    content: &[u8],
) -> Result<Option<Bytes>, NotCreated> {
    for pause_ms in PAUSES_MS.into_iter().map(Some).chain([None]) {
        let failure = match target.put_if_absent(path, content) {
            Ok(true) => return read_back(target, path, content).map(|()| None),
            Ok(false) => None,
            Err(error) if error.raised.is_some() => return Err(NotCreated::unknown(error)),
            Err(error) if error.cause == RemoteCause::Denied => {
                return Err(NotCreated { error, is_final: true });
            }
            Err(error) => Some(error),
        };
        match (target.get(path), failure) {
            (Err(error), failure) => return Err(NotCreated::unknown(failure.unwrap_or(error))),
            (Ok(Some(found)), failure) => {
                if failure.is_some() {
                    // The request can have ended before the name was durable.
                    let folder = path.rfind('/').and_then(|end| path.get(..=end)).unwrap_or_default();
                    switch::step("target.settle_created", || target.settle(folder))
                        .map_err(NotCreated::unknown)?;
                }
                return Ok(Some(found));
            }
            (Ok(None), Some(failure)) => return Err(NotCreated::unknown(failure)),
            (Ok(None), None) => {}
        }
        if let Some(pause_ms) = pause_ms {
            // A server can refuse a request because another one for the same object has not ended yet.
            clock.sleep(Duration::from_millis(pause_ms));
        }
    }
    let reason = "another request for the object does not end: try again";
    Err(NotCreated::unknown(TargetError::new(RemoteCause::Other, path, reason)))
}

/// Compares a new object with its content, and removes it if they differ.
fn read_back(target: &dyn Target, path: &str, content: &[u8]) -> Result<(), NotCreated> {
    let found = target.get(path).map_err(NotCreated::unknown)?;
    if !switch::on("target.compare_created") || found.is_some_and(|found| *found == *content) {
        return Ok(());
    }
    // The bytes that were written can still come.
    let _ = target.delete(&[path.to_owned()]);
    let reason =
        "the object that was read back differs from what was written: repair the target, then try again";
    Err(NotCreated::unknown(TargetError::new(RemoteCause::Damaged, path, reason)))
}

/// Why a target is refused for which [`keeps_existing`] says no.
pub const OVERWRITES: &str = "the server overwrites an object that a request creates only if it is absent \
                              (If-None-Match); use another server";

/// Whether the second of two equal requests for `path` fails. An old server overwrites the object instead.
///
/// # Errors
/// A request failed.
pub fn keeps_existing(target: &dyn Target, path: &str) -> Result<bool, TargetError> {
    target.put_if_absent(path, b"probe")?;
    for _ in 0..PROBES {
        // A `clean` can remove the object before the second request, which then creates it again.
        if !target.put_if_absent(path, b"probe")? {
            return Ok(true);
        }
    }
    Ok(false)
}
