//! The JSON form of latencies.

use serde_json::{Value, json};

pub(crate) use mqstore_engine::Latencies;

/// The quantiles that the report shows.
pub(crate) fn quantiles(latencies: &Latencies) -> Value {
    json!({
        "p50_ns": latencies.quantile(0.5),
        "p99_ns": latencies.quantile(0.99),
        "p999_ns": latencies.quantile(0.999),
        "p9999_ns": latencies.quantile(0.9999),
        "max_ns": latencies.max(),
    })
}
