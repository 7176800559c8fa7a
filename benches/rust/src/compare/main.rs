//! Measures mqstore and the machine's own limits, for `make bench-compare`.
//!
//! One JSON specification a line on standard input, one JSON line with the result for each; what a
//! specification holds is described in `benches/compare/README.md`, and the Java driver reads the
//! same ones. A measurement's store lies in a folder that the caller made and removes.
//!
//! ```text
//! append     ours         some threads append, the time from the first to the last is taken
//! open       ours         an open is timed, then some messages follow; the caller may kill us then
//! open_loop  ours, bare   messages at a fixed rate; latencies count from when each was due
//! fill       ours         makes the store that the following ones use, with a key of its own for each message
//! derive     ours         an open of a store without queues and index, until they are there again
//! rebuild    ours         queues, index and checkpoint made anew, durable
//! dispatch   ours, bare   queues and index from the log alone, into a folder of their own
//! read       ours         messages found in order, at random, by key
//! visible    ours, bare   the time from an append until its message is read
//! queues     ours         a store of very many queues, from its first message to its second open
//! compact    ours, bare   a compaction topic is filled, then compacted, which is timed
//! feed       ours         the same, and the appends are timed as well
//! table      ours         makes a compacted topic, for who loads it
//! limit      map, sync    one copy and the checksums into a map; written and synced records
//! ```

mod compacting;
mod deriving;
mod finding;
mod latency;
mod limits;
mod open_loop;
mod ours;
mod scale;
mod spec;
mod verifying;

use std::io::{self, BufRead, Write};

use serde_json::{Value, json};
use spec::Spec;

/// What went wrong, in words; a benchmark has no use for more.
type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let result = run(&line?).unwrap_or_else(|failure| json!({ "error": failure.to_string() }));
        writeln!(out, "{result}")?;
        out.flush()?;
    }
    Ok(())
}

fn run(line: &str) -> Result<Value, Failure> {
    let spec: Spec = serde_json::from_str(line)?;
    match (spec.op.as_str(), spec.side.as_str()) {
        ("version", _) => Ok(json!({ "version": env!("CARGO_PKG_VERSION") })),
        ("append", "ours") => ours::append(&spec),
        ("open", "ours") => ours::open(&spec),
        ("open_loop", "ours") => open_loop::ours(&spec),
        ("open_loop", "bare") => open_loop::bare(&spec),
        ("fill", "ours") => finding::fill(&spec),
        ("derive", "ours") => deriving::open(&spec),
        ("rebuild", "ours") => deriving::rebuild(&spec),
        ("verify", "ours") => verifying::verify(&spec),
        ("verify", "bare") => verifying::bare(&spec),
        ("dispatch", "ours") => deriving::dispatch(&spec),
        ("dispatch", "bare") => deriving::bare(&spec),
        ("read", "ours") => finding::read(&spec),
        ("visible", "ours") => finding::visible(&spec),
        ("visible", "bare") if spec.pattern == "read" => finding::bare_visible(&spec),
        ("visible", "bare") => finding::bare_wake(&spec),
        ("queues", "ours") => scale::queues(&spec),
        ("compact", "ours") => compacting::ours(&spec),
        ("compact", "bare") => compacting::bare(&spec),
        ("feed", "ours") => compacting::feed(&spec),
        ("table", "ours") => compacting::table(&spec),
        ("limit", "map") => limits::map(&spec),
        ("limit", "sync") => limits::sync(&spec),
        (op, side) => Err(format!("unknown measurement {op} of {side}").into()),
    }
}
