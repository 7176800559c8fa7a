//! Appends at a fixed rate, with the cause of each delay.
//!
//! Append `i` is due at `start + i / rate`, whether or not the store keeps up, and its latency counts from then. So a
//! pause counts for every append that is due in it. One thread makes all appends, and waits actively for each one. Each
//! append and each look at the clock is a step. `delays` finds the cause of each step that takes long.
//!
//! Across a crash: the appends are ordinary appends. A trace adds nothing to the work of an append. It reads the counts
//! of its thread and of the store while it waits and after a slow step.

mod delays;
mod latencies;

use std::hint::spin_loop;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mqstore_io::{Advice, Clock, MapAccess, Vfs};

use crate::store::Store;
use delays::Tracer;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::message::{NewMessage, encode_properties};
use mqstore_base::work_times::{WorkTimes, now_ns};

pub use delays::{AppendTrace, Cause, CauseTotal, SlowStep};
pub use latencies::Latencies;

/// Number of appends between two calls of `check`.
const CHECK_APPENDS: u64 = 1 << 14;

/// Bytes of the map that [`trace_copies`] fills again and again.
const MAP_BYTES: usize = 64 << 20;

/// What a trace does.
#[derive(Clone, Copy, Debug)]
pub struct TraceRequest<'a> {
    /// The topic of the messages.
    pub topic: &'a str,
    /// Bytes of each body.
    pub body_bytes: usize,
    /// Messages a second.
    pub rate: u64,
    /// Number of messages.
    pub messages: u64,
    /// A step that takes longer is slow, and an append that is later than this is late.
    pub slow: Duration,
    /// Maximum number of slow steps that the trace lists.
    pub listed: usize,
}

/// Called now and then; an error ends the trace with that error.
pub type TraceCheck<'a> = &'a mut dyn FnMut() -> Result<(), StoreError>;

impl Store {
    /// Appends at a fixed rate and returns how late the appends were, and why.
    pub fn trace_appends(
        &self,
        request: &TraceRequest<'_>,
        check: TraceCheck<'_>,
    ) -> Result<AppendTrace, StoreError> {
        let clock = self.clock();
        let body = vec![b'x'; request.body_bytes];
        let properties = encode_properties(["key"], None, None, [])?;
        let message = NewMessage {
            topic: request.topic,
            body: &body,
            properties: &properties,
            ..NewMessage::default()
        };
        let before = self.stats()?.appended_bytes;
        let tracer = Tracer::new(&**clock, &self.files().work_times, request.slow, request.listed);
        let mut trace = at_rate(&**clock, request, tracer, check, |_| self.append(&message).map(drop))?;
        trace.bytes = self.stats()?.appended_bytes - before;
        Ok(trace)
    }
}

/// Copies records of `record_bytes` into a prepared map of a new file at `path`, at the same rate: the delays of the
/// machine itself.
pub fn trace_copies(
    vfs: &dyn Vfs,
    clock: &Arc<dyn Clock>,
    path: &Path,
    record_bytes: usize,
    request: &TraceRequest<'_>,
    check: TraceCheck<'_>,
) -> Result<AppendTrace, StoreError> {
    let map = || {
        let file = vfs.create_new(path)?;
        file.allocate(MAP_BYTES as u64)?;
        let region = file.map(0, MAP_BYTES, MapAccess::ReadWrite)?;
        // The advice is optional; the fill below does the same.
        let _ = region.advise(0..MAP_BYTES, Advice::PopulateWrite);
        region.fill(0, MAP_BYTES, 1)?;
        Ok::<_, std::io::Error>(region)
    };
    let region = map().at(path, "preparing a map")?;
    let record = vec![b'x'; record_bytes];
    let places = (MAP_BYTES / record_bytes.max(1)).max(1) as u64;
    let copy = |number: u64| {
        let at = (number % places) as usize * record_bytes;
        region.write(at, &record).map_err(std::io::Error::from).at(path, "copying")
    };
    let times = WorkTimes::default();
    let tracer = Tracer::new(&**clock, &times, request.slow, request.listed);
    let mut trace = at_rate(&**clock, request, tracer, check, copy)?;
    trace.bytes = request.messages.saturating_mul(record_bytes as u64);
    Ok(trace)
}

/// Calls `append` for each message when it is due.
fn at_rate(
    clock: &dyn Clock,
    request: &TraceRequest<'_>,
    mut tracer: Tracer<'_>,
    check: TraceCheck<'_>,
    mut append: impl FnMut(u64) -> Result<(), StoreError>,
) -> Result<AppendTrace, StoreError> {
    let start_ns = now_ns(clock);
    let elapsed = || now_ns(clock) - start_ns;
    let mut now = elapsed();
    for number in 0..request.messages {
        if number % CHECK_APPENDS == 0 {
            check()?;
        }
        let due = number.saturating_mul(1_000_000_000) / request.rate.max(1);
        while now < due {
            if !tracer.renew(now, due) {
                spin_loop();
            }
            let next = elapsed();
            tracer.step(now, next);
            now = next;
        }
        append(number)?;
        let end = elapsed();
        tracer.step(now, end);
        tracer.appended(end.saturating_sub(due));
        now = end;
    }
    Ok(tracer.finish(now))
}

#[cfg(test)]
mod tests {
    use mqstore_io::{SimOptions, SimVfs};

    use super::*;
    use mqstore_base::options::{OpenMode, StoreOptions};

    const REQUEST: TraceRequest<'_> = TraceRequest {
        topic: "traced",
        body_bytes: 100,
        rate: 100_000,
        messages: 300,
        slow: Duration::from_secs(1),
        listed: 4,
    };

    #[test]
    fn every_append_of_a_trace_is_counted_and_stored() {
        let vfs: Arc<dyn Vfs> = Arc::new(SimVfs::new(SimOptions::default()));
        let clock: Arc<dyn Clock> = Arc::new(mqstore_io::SystemClock::new());
        let options = StoreOptions { segment_bytes: 1 << 20, ..StoreOptions::default() };
        let store = Store::open(vfs, clock, Path::new("/store"), OpenMode::Create, &options).unwrap();
        let mut checks = 0;
        let trace = store
            .trace_appends(&REQUEST, &mut || {
                checks += 1;
                Ok(())
            })
            .unwrap();
        assert_eq!((trace.messages, checks), (300, 1));
        assert_eq!(store.stats().unwrap().appends, 300);
        assert!(trace.bytes > 300 * 100 && trace.elapsed_ns >= 2_990_000, "{trace:?}");
        assert_eq!((trace.late, trace.listed.len(), trace.causes.len()), (0, 0, 0));
        store.close().unwrap();
    }

    #[test]
    fn an_error_of_the_check_ends_the_trace() {
        let vfs = SimVfs::new(SimOptions::default());
        let clock: Arc<dyn Clock> = Arc::new(mqstore_io::SystemClock::new());
        let path = Path::new("/bare");
        let stop = || StoreError::Closed { path: path.to_path_buf() };
        let ended = trace_copies(&vfs, &clock, path, 200, &REQUEST, &mut || Err(stop()));
        assert!(matches!(ended, Err(StoreError::Closed { .. })), "{ended:?}");
    }
}
