//! Reads that run again while another process makes and deletes files.
//!
//! A listing is older than the open of a file that it names: the writer may have removed the file in between, because
//! it expired, or because a recovery cut the queue. Such a read begins again with a new listing. A file that stays away
//! is an error.

use std::time::Duration;

use mqstore_io::Clock;

use crate::error::StoreError;

/// Number of tries after a file was missing: about 140 ms of sleep in total.
const GONE_TRIES: u32 = 20;

/// Sleep of a wait before its first check, and maximum sleep before a later one, while another process writes.
const FIRST_NAP: Duration = Duration::from_micros(100);
const LONGEST_NAP: Duration = Duration::from_millis(10);

/// Returns the sleep before check `round` (0 is the first) for new data of a writer in another process.
pub fn poll_interval(round: u32) -> Duration {
    FIRST_NAP.saturating_mul(1 << round.min(16)).min(LONGEST_NAP)
}

/// Returns the result of `look`. Runs it again if a file was missing that another process may have removed meanwhile,
/// a limited number of times. `look` must list the files again.
pub fn retry_if_gone<T>(
    clock: &dyn Clock,
    mut look: impl FnMut() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    for round in 0..GONE_TRIES {
        match look() {
            Err(error) if error.is_gone() => clock.sleep(poll_interval(round)),
            outcome => return outcome,
        }
    }
    look()
}

/// Returns the value of `outcome`; `None` if the file does not exist, for example because it expired meanwhile.
pub fn unless_gone<T>(outcome: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::Path;

    use mqstore_io::ManualClock;

    use super::*;

    fn gone() -> StoreError {
        StoreError::io(Path::new("/store/file"), "opening a file", io::ErrorKind::NotFound.into())
    }

    #[test]
    fn a_read_begins_again_while_files_vanish_and_gives_up_in_the_end() {
        let clock = ManualClock::new(0);
        let mut looks = 0;
        let found = retry_if_gone(&clock, || {
            looks += 1;
            if looks < 7 { Err(gone()) } else { Ok(looks) }
        });
        assert_eq!(found.unwrap(), 7);
        let lost = retry_if_gone(&clock, || Err::<(), _>(gone()));
        assert!(lost.unwrap_err().is_gone());
        assert!(clock.monotonic() < Duration::from_millis(200));
    }

    #[test]
    fn other_errors_are_not_tried_again() {
        let mut looks = 0;
        let outcome = retry_if_gone(&ManualClock::new(0), || {
            looks += 1;
            Err::<(), _>(StoreError::Busy { reason: String::new() })
        });
        assert!(matches!(outcome, Err(StoreError::Busy { .. })));
        assert_eq!(looks, 1);
    }
}
