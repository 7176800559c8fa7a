//! Queues that cannot be read, among others that can.

use crate::error::BrokerError;

/// Handles the read errors of some of `queues`, given with the index of the queue. If other queues have messages,
/// calls `note` for each error. Otherwise returns the first error. The next poll meets the errors again.
pub(crate) fn merge_queue_errors<Q>(
    queues: &mut [Q],
    failures: Vec<(usize, BrokerError)>,
    others_have: bool,
    mut note: impl FnMut(&mut Q, &BrokerError),
) -> Result<(), BrokerError> {
    for (at, error) in failures {
        if !others_have {
            return Err(error);
        }
        if let Some(queue) = queues.get_mut(at) {
            note(queue, &error);
        }
    }
    Ok(())
}
