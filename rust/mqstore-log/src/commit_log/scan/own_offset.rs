//! The check that a record names its own log offset, for all ways to walk a log.

use mqstore_io::switch;

/// Whether a record at log offset `offset` names this offset.
#[inline]
pub(super) fn is_at(physical_offset: i64, offset: u64) -> bool {
    !switch::on("scan.own_position") || u64::try_from(physical_offset) == Ok(offset)
}
