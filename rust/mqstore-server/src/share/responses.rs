//! The values of responses, by kind. A response of another kind is an error of the owner.

#![expect(clippy::needless_pass_by_value, reason = "they are values that get responses")]

use mqstore::Error;
use mqstore::delivery::Queue;
use mqstore::message::StoredRecord;

use super::handle::odd;
use crate::wire::response::Response;

/// Converts the messages of a response.
pub(super) fn stored(response: Response) -> Result<Vec<StoredRecord>, Error> {
    let Response::Records(found) = response else { return Err(odd()) };
    found.into_iter().map(|record| record.stored().ok_or_else(odd)).collect()
}

pub(super) fn done(response: Response) -> Result<(), Error> {
    if matches!(response, Response::Done) { Ok(()) } else { Err(odd()) }
}

pub(super) fn offset(response: Response) -> Result<Option<i64>, Error> {
    if let Response::Offset(offset) = response { Ok(offset) } else { Err(odd()) }
}

pub(super) fn queues(response: Response) -> Result<Vec<(Queue, i64)>, Error> {
    if let Response::Queues(queues) = response { Ok(queues) } else { Err(odd()) }
}

pub(super) fn count(response: Response) -> Result<u64, Error> {
    if let Response::Count(count) = response { Ok(count) } else { Err(odd()) }
}

pub(super) fn flag(response: Response) -> Result<bool, Error> {
    if let Response::Flag(flag) = response { Ok(flag) } else { Err(odd()) }
}
