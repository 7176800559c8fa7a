//! Measures mqstore and the machine's own limits, for `make bench-compare`.
//!
//! Reads one JSON specification on each line of standard input and prints one JSON line with its result.
//! `benches/compare/README.md` describes the specifications, which the Java driver reads too. The store of a
//! measurement is in a folder that the caller creates and removes.
//!
//! ```text
//! append     ours         some threads append; times the whole from the first to the last
//! open       ours         times an open; some messages follow; then the caller may kill the process
//! open_loop  ours, bare   messages at a fixed rate; latencies count from their due time
//! fill       ours         makes the store for the following operations, with a different key for each message
//! derive     ours         an open of a store without queues and index, until they exist again
//! rebuild    ours         queues, index and checkpoint rebuilt, durable
//! dispatch   ours, bare   queues and index from the log alone, into a separate folder
//! read       ours         finds messages in order, at random, by key
//! visible    ours, bare   the time from an append until its message is read
//! queues     ours         a store of very many queues, from its first message to its second open
//! compact    ours, bare   fills a compaction topic, then compacts it; only the compaction is timed
//! feed       ours         fills a compaction topic and its compaction files; the appends are timed
//! table      ours         makes a compacted topic for a program that loads it
//! limit      map, sync    one copy and the checksums into a map; or written and synced records
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

/// An error as text. A benchmark needs no more.
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
