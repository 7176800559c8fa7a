//! `TestClock` and `TestFaults`: the machine that a program under test gets, for `mqstore.testing`.

use std::sync::Arc;
use std::time::Duration;

use mqstore_io::{Clock, FaultVfs, Faults, OsVfs, SystemClock, Vfs};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::convert::arguments::{duration, number};

/// A clock whose wall time is set by hand, while intervals pass as on the machine.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct TestClock(Arc<mqstore_io::TestClock>);

#[pymethods]
impl TestClock {
    #[new]
    fn new(now: i64) -> Self {
        Self(Arc::new(mqstore_io::TestClock::new(now)))
    }

    /// The time that it shows, in epoch milliseconds.
    fn now(&self) -> i64 {
        self.0.now_ms()
    }

    /// Shows this time from now on.
    fn set(&self, now: i64) {
        self.0.set(now);
    }

    /// Shows so many milliseconds more.
    fn advance(&self, milliseconds: i64) {
        self.0.advance(milliseconds);
    }
}

/// What goes wrong with the disk of the stores that were opened with it.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct TestFaults(Faults);

#[pymethods]
impl TestFaults {
    #[new]
    fn new() -> Self {
        Self(Faults::new())
    }

    /// The disk is full once so many bytes more were taken.
    fn fill_disk(&self, after_bytes: u64) {
        self.0.fill_disk(after_bytes);
    }

    /// So many syncs fail from now on; None is all of them.
    fn fail_syncs(&self, times: Option<u64>) {
        self.0.fail_syncs(times.unwrap_or(u64::MAX));
    }

    /// Every sync takes so much longer.
    fn slow_syncs(&self, seconds: &Bound<'_, PyAny>) -> PyResult<()> {
        let delay = duration("seconds", seconds)?;
        // A thread that sleeps for longer than that is not slow.
        if delay > MOST_DELAY {
            return Err(PyValueError::new_err("seconds must be no more than 3600"));
        }
        self.0.slow_syncs(delay);
        Ok(())
    }

    /// Nothing reaches the disk after so many changes more.
    fn crash(&self, after_writes: &Bound<'_, PyAny>) -> PyResult<()> {
        let changes = number("after_writes", after_writes)?;
        let negative = |_| PyValueError::new_err("after_writes must not be negative");
        self.0.crash(u64::try_from(changes).map_err(negative)?);
        Ok(())
    }

    /// Nothing goes wrong any more; what crashed stays so.
    fn clear(&self) {
        self.0.clear();
    }

    /// Whether a crash came, and no store was opened with these faults since.
    #[getter]
    fn crashed(&self) -> bool {
        self.0.crashed()
    }

    /// Changes that reached the disk: calls that change it, and writes to mapped files.
    #[getter]
    fn writes(&self) -> u64 {
        self.0.changes()
    }

    /// Syncs that succeeded.
    #[getter]
    fn syncs(&self) -> u64 {
        self.0.syncs()
    }
}

/// Whether RocketMQ, or a store, gives a property this name.
#[pyfunction]
pub(crate) fn is_reserved(name: &str) -> bool {
    mqstore_format::is_reserved(name)
}

const MOST_DELAY: Duration = Duration::from_secs(3600);

/// What a store stands on.
pub(crate) struct TestEnv {
    pub(crate) vfs: Arc<dyn Vfs>,
    pub(crate) clock: Arc<dyn Clock>,
    /// The same file system, where a test has faults.
    pub(crate) faulty: Option<FaultVfs>,
}

impl TestEnv {
    /// The real one, but for what a test brings.
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
