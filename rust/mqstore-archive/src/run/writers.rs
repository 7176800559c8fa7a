//! Threads that write ranges of the log at the same time, as many as the memory allows.

use std::collections::VecDeque;

use mqstore_base::error::StoreError;
use mqstore_io::sync::{Condvar, Mutex, with_helpers};

use super::ranges::SLICE;
use crate::records::LogRange;

/// Writes a range.
type Write<'a> = &'a (dyn Fn(&LogRange) -> Result<(), StoreError> + Sync);

#[derive(Default)]
struct State {
    waiting: VecDeque<LogRange>,
    /// Ranges that threads write now.
    busy: usize,
    is_over: bool,
    /// The first error.
    failed: Option<StoreError>,
}

/// Ranges that wait, and the threads that write them.
pub(super) struct Writers<'a> {
    state: Mutex<State>,
    changed: Condvar,
    write: Write<'a>,
}

/// Calls `main`, which adds ranges, while up to `count` threads write them.
pub(super) fn with_writers(
    count: u32,
    write: Write<'_>,
    main: impl FnOnce(&Writers<'_>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let writers = Writers { state: Mutex::default(), changed: Condvar::new(), write };
    with_helpers(count, "mq-archive", &|| writers.help(), || {
        let end = End(&writers);
        let outcome = main(end.0);
        drop(end);
        outcome
    })
}

/// Ends the threads, also after a panic.
struct End<'a, 'b>(&'a Writers<'b>);

impl Drop for End<'_, '_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.is_over = true;
        state.waiting.clear();
        self.0.changed.notify_all();
    }
}

/// One range in the hands of a thread.
struct Busy<'a, 'b>(&'a Writers<'b>);

impl Drop for Busy<'_, '_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.busy -= 1;
        if std::thread::panicking() {
            let reason = "a thread of the run has ended; report this as a bug of mqstore".to_owned();
            state.failed.get_or_insert(StoreError::Busy { reason });
        }
        self.0.changed.notify_all();
    }
}

impl Writers<'_> {
    fn help(&self) {
        let mut state = self.state.lock();
        while !state.is_over {
            match state.waiting.pop_front() {
                Some(range) => {
                    state.busy += 1;
                    drop(state);
                    self.write(range);
                    state = self.state.lock();
                }
                None => self.changed.wait(&mut state),
            }
        }
    }

    fn write(&self, range: LogRange) {
        let busy = Busy(self);
        let outcome = (self.write)(&range);
        drop(range);
        if let Err(error) = outcome {
            self.state.lock().failed.get_or_insert(error);
        }
        drop(busy);
    }

    /// Adds a range, as soon as fewer than `most` wait or are written.
    pub(super) fn add(
        &self,
        range: LogRange,
        most: usize,
        carry_on: &mut dyn FnMut() -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        self.wait(most.saturating_sub(1), carry_on)?;
        self.state.lock().waiting.push_back(range);
        self.changed.notify_all();
        Ok(())
    }

    /// Waits until at most `left` ranges wait or are written. Returns the error of a thread.
    pub(super) fn wait(
        &self,
        left: usize,
        carry_on: &mut dyn FnMut() -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        loop {
            carry_on()?;
            let mut state = self.state.lock();
            if let Some(error) = state.failed.take() {
                return Err(error);
            }
            if state.waiting.len() + state.busy <= left {
                return Ok(());
            }
            // Perhaps no thread could be started.
            if state.busy == 0
                && let Some(range) = state.waiting.pop_front()
            {
                state.busy += 1;
                drop(state);
                self.write(range);
                continue;
            }
            self.changed.wait_for(&mut state, SLICE);
        }
    }
}
