//! All checks of an existing store, and a loop that only reads and computes checksums.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use mqstore::format::crc31;
use mqstore::inspect::StoreFiles;
use mqstore::io::{OsVfs, SystemClock};
use mqstore_log::commit_log::SegmentList;
use serde_json::{Value, json};

use crate::Failure;
use crate::spec::Spec;

/// Bytes that a thread of the bare loop takes and reads in one step.
const PIECE_BYTES: u64 = 4 << 20;
const READ_BYTES: usize = 256 << 10;

fn files(spec: &Spec) -> StoreFiles {
    StoreFiles::new(Arc::new(OsVfs::new()), Arc::new(SystemClock::new()), &spec.path)
}

/// All checks of a whole store.
pub(crate) fn verify(spec: &Spec) -> Result<Value, Failure> {
    let begin = Instant::now();
    let report = mqstore::inspect::verify(&files(spec), &spec.store_options()?, &mut |_| Ok(()))?;
    let seconds = begin.elapsed().as_secs_f64();
    if !report.ok {
        return Err(format!("not whole: {:?}", report.problems.first()).into());
    }
    Ok(result(report.messages, report.bytes, seconds))
}

/// The machine's limit: `threads` threads read the log by position, and checksum every byte once.
pub(crate) fn bare(spec: &Spec) -> Result<Value, Failure> {
    let list = SegmentList::load(&files(spec))?;
    let pieces: Vec<_> = (list.min_offset()..spec.log_end).step_by(PIECE_BYTES as usize).collect();
    let next = AtomicU64::new(0);
    let work = || {
        let mut buffer = vec![0; READ_BYTES];
        while let Some(start) = pieces.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
            let Some(segment) = list.find(*start) else { continue };
            let file = File::open(segment.path())?;
            let end = (start + PIECE_BYTES).min(spec.log_end).min(segment.end_offset());
            for at in (*start..end).step_by(READ_BYTES) {
                let read = file.read_at(&mut buffer, at - segment.base_offset())?;
                black_box(crc31(buffer.get(..read).unwrap_or_default()));
            }
        }
        Ok::<_, Failure>(())
    };
    let begin = Instant::now();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..spec.threads).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().map_err(|_| "a thread of the loop panicked")?)
    })?;
    Ok(result(spec.messages, spec.log_end - list.min_offset(), begin.elapsed().as_secs_f64()))
}

fn result(messages: u64, bytes: u64, seconds: f64) -> Value {
    json!({
        "seconds": seconds, "messages": messages, "stored": messages, "refused": 0,
        "gb_per_s": bytes as f64 / seconds / 1e9,
    })
}
