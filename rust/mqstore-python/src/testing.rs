//! `TestClock` and `TestFaults`: the simulated clock and disk of `mqstore.testing`.

use std::sync::Arc;
use std::time::Duration;

use mqstore::io::{Clock, FaultVfs, Faults, OsVfs, SystemClock, Vfs};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::convert::arguments::{duration, number};

/// A clock whose wall time a test sets. Intervals pass as on the machine.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct TestClock(Arc<mqstore::io::TestClock>);

#[pymethods]
impl TestClock {
    #[new]
    fn new(now: i64) -> Self {
        Self(Arc::new(mqstore::io::TestClock::new(now)))
    }

    /// Returns the wall time, in epoch milliseconds.
    fn now(&self) -> i64 {
        self.0.now_ms()
    }

    /// Sets the wall time, in epoch milliseconds.
    fn set(&self, now: i64) {
        self.0.set(now);
    }

    /// Adds milliseconds to the wall time.
    fn advance(&self, milliseconds: i64) {
        self.0.advance(milliseconds);
    }
}

/// Faults of the disk for the stores that are opened with this object.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct TestFaults(Faults);

#[pymethods]
impl TestFaults {
    #[new]
    fn new() -> Self {
        Self(Faults::new())
    }

    /// Makes the disk full after the next `after_bytes` bytes.
    fn fill_disk(&self, after_bytes: u64) {
        self.0.fill_disk(after_bytes);
    }

    /// Makes the next `times` syncs fail; None is all of them.
    fn fail_syncs(&self, times: Option<u64>) {
        self.0.fail_syncs(times.unwrap_or(u64::MAX));
    }

    /// Makes every sync take `seconds` longer.
    fn slow_syncs(&self, seconds: &Bound<'_, PyAny>) -> PyResult<()> {
        let delay = duration("seconds", seconds)?;
        // A longer sleep is a hang and not a slow disk.
        if delay > MOST_DELAY {
            return Err(PyValueError::new_err("seconds must be no more than 3600"));
        }
        self.0.slow_syncs(delay);
        Ok(())
    }

    /// Lets `after_writes` more changes reach the disk, and nothing after them.
    fn crash(&self, after_writes: &Bound<'_, PyAny>) -> PyResult<()> {
        let changes = number("after_writes", after_writes)?;
        let negative = |_| PyValueError::new_err("after_writes must not be negative");
        self.0.crash(u64::try_from(changes).map_err(negative)?);
        Ok(())
    }

    /// Ends all faults. A file system that crashed stays crashed.
    fn clear(&self) {
        self.0.clear();
    }

    /// Returns whether a crash happened and no store was opened with these faults since.
    #[getter]
    fn crashed(&self) -> bool {
        self.0.crashed()
    }

    /// Number of changes that reached the disk: calls that change it, and writes to mapped files.
    #[getter]
    fn writes(&self) -> u64 {
        self.0.changes()
    }

    /// Number of syncs that succeeded.
    #[getter]
    fn syncs(&self) -> u64 {
        self.0.syncs()
    }
}

/// Returns whether RocketMQ or mqstore uses this name for a property of its own.
#[pyfunction]
pub(crate) fn is_reserved(name: &str) -> bool {
    mqstore::format::is_reserved(name)
}

const MOST_DELAY: Duration = Duration::from_secs(3600);

/// The file system and the clock of a store.
pub(crate) struct TestEnv {
    pub(crate) vfs: Arc<dyn Vfs>,
    pub(crate) clock: Arc<dyn Clock>,
    /// The same file system, if a test injects faults.
    pub(crate) faulty: Option<FaultVfs>,
}

impl TestEnv {
    /// Returns the real file system and clock, with the replacements of a test.
    pub(crate) fn new(clock: Option<&TestClock>, faults: Option<&TestFaults>) -> Self {
        let os = Arc::new(OsVfs::new());
        let faulty = faults.map(|faults| FaultVfs::new(Arc::clone(&os) as Arc<dyn Vfs>, &faults.0));
        let vfs = match &faulty {
            Some(faulty) => Arc::new(faulty.clone()) as Arc<dyn Vfs>,
            None => os,
        };
        let clock = match clock {
            Some(clock) => Arc::clone(&clock.0) as Arc<dyn Clock>,
            None => Arc::new(SystemClock::new()),
        };
        Self { vfs, clock, faulty }
    }
}
