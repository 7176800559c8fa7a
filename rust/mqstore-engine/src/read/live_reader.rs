//! Looking at files while a writer in another process makes and deletes them.
//!
//! Owns nothing and writes nothing. A look that met a file on its way is made again; what stays as it is
//! after some of them is how things are.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;
use mqstore_log::consume_queue::ConsumeQueue;

/// How often a look is made again after a file was gone; a folder that is missing is so each time.
const GONE_TRIES: u32 = 20;

/// How often a look is made again after a file seemed to be missing: 80 ms of naps.
const SETTLE_TRIES: u32 = 14;

/// How long a wait beside a writer sleeps before its first look, and before any later one.
const FIRST_NAP: Duration = Duration::from_micros(100);
const LONGEST_NAP: Duration = Duration::from_millis(10);

/// How long to sleep before look `round` (0 is the first) for what the writer may have done.
pub(crate) fn poll_interval(round: u32) -> Duration {
    FIRST_NAP.saturating_mul(1 << round.min(16)).min(LONGEST_NAP)
}

/// What `look` answers, when a writer that deletes files does not come between it at each try.
pub(crate) fn retry_if_changed<T>(mut look: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
    for _ in 0..GONE_TRIES {
        match look() {
            Err(error) if error.is_gone() => {}
            outcome => return outcome,
        }
    }
    look()
}

/// What `look` answers; once more when a writer deleted one of the queue's files meanwhile.
pub(crate) fn renewed<T>(
    queue: &ConsumeQueue,
    mut look: impl FnMut() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    match look() {
        Err(error) if error.is_gone() => {
            queue.recover_bounds()?;
            look()
        }
        outcome => outcome,
    }
}

/// Those of `queues` whose files are wrong, as `is_odd` tells. A listing may lack a file that the writer names
/// while it is made and have the one that is named after it; and of two workers the one with the later file may be
/// the first to name it. Beside a writer the files of such queues are therefore listed anew, by `renew`, before
/// that counts.
pub(crate) fn confirm_problems<Q>(
    files: &StoreFiles,
    beside: bool,
    mut queues: Vec<Arc<Q>>,
    is_odd: impl Fn(&Q) -> Result<bool, StoreError>,
    renew: impl Fn(&Q) -> Result<(), StoreError>,
) -> Result<Vec<Arc<Q>>, StoreError> {
    let mut keep_odd = |renewed: bool| {
        let mut odd = Vec::new();
        for queue in mem::take(&mut queues) {
            if renewed {
                renew(&queue)?;
            }
            if is_odd(&queue)? {
                odd.push(queue);
            }
        }
        queues = odd;
        Ok(queues.is_empty())
    };
    let mut done = keep_odd(false)?;
    let mut round = 0;
    while beside && !done && round < SETTLE_TRIES {
        files.clock.sleep(poll_interval(round));
        done = keep_odd(true)?;
        round += 1;
    }
    Ok(queues)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use mqstore_io::{ManualClock, SimVfs};

    use super::*;

    /// The queues that stay odd, of one that is whole once it is listed a third time and one that never is.
    fn odd_ones(beside: bool) -> (Vec<u32>, u32) {
        let clock = Arc::new(ManualClock::new(1_700_000_000_000));
        let files = StoreFiles::new(Arc::new(SimVfs::default()), clock, std::path::Path::new("/store"));
        let looks = Cell::new(0);
        let renewed = Cell::new(0);
        let is_odd = |queue: &u32| Ok(*queue == 7 || *queue == 3 && renewed.get() < 3);
        let renew = |queue: &u32| {
            looks.set(looks.get() + 1);
            renewed.set(renewed.get() + u32::from(*queue == 3));
            Ok(())
        };
        let queues = vec![Arc::new(1), Arc::new(3), Arc::new(7)];
        let odd = confirm_problems(&files, beside, queues, is_odd, renew).unwrap();
        (odd.into_iter().map(|queue| *queue).collect(), looks.get())
    }

    #[test]
    fn beside_a_writer_an_odd_queue_is_looked_at_again() {
        assert_eq!(odd_ones(true), (vec![7], 3 + SETTLE_TRIES));
        assert_eq!(odd_ones(false), (vec![3, 7], 0));
    }
}
