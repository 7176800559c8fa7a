//! Units of queues and candidates of the index, in the form that both views return.

use mqstore_base::error::StoreError;
use mqstore_format::CqUnit;
use mqstore_log::consume_queue::ConsumeQueue;

/// Returns units of `queue` in `from..end` with their offsets, without blank units.
pub(crate) fn read_units(
    queue: &ConsumeQueue,
    from: i64,
    end: i64,
    max: usize,
    units: &mut Vec<(i64, CqUnit)>,
) -> Result<(), StoreError> {
    let mut from = from;
    while from < end && units.is_empty() {
        let before = from;
        let wanted = usize::try_from(end - from).unwrap_or(max).min(max);
        queue.read_each(before, wanted, |offset, unit| {
            from = offset + 1;
            if !unit.is_blank() {
                units.push((offset, unit));
            }
        })?;
        if from == before {
            break;
        }
    }
    Ok(())
}

/// Returns the candidates inside the log, oldest first, without duplicates.
pub(crate) fn sorted_offsets(offsets: Vec<i64>, min: u64, end: u64) -> Vec<u64> {
    let mut offsets: Vec<u64> = offsets
        .into_iter()
        .filter_map(|offset| u64::try_from(offset).ok())
        .filter(|offset| (min..end).contains(offset))
        .collect();
    offsets.sort_unstable();
    offsets.dedup();
    offsets
}
