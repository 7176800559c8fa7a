//! The order of the modules of each crate, which are the files and folders directly in its `src`.

use std::collections::BTreeSet;

use crate::rust_cycles::{Counted, imports};
use crate::tree::{Finding, Tree};

/// The modules of each crate, lowest line first. A module uses only those on the lines before its own, so modules on one
/// line do not know each other.
const ORDERS: &[(&str, &[&[&str]])] = &[
    (
        "mqstore-format",
        &[
            &["error", "hash", "sys_flag"],
            &["bytes", "delay_levels", "names", "properties", "topic"],
            &["checkpoint", "compression", "consume_queue", "dledger", "host", "index", "sql"],
            &["ids"],
            &["record"],
            &["batch", "transaction"],
            &["delays"],
            &["json"],
        ],
    ),
    (
        "mqstore-io",
        &[
            &["clock", "event_count", "open_files", "region", "switch"],
            &["read_pace", "sync"],
            &["pool", "vfs"],
            &["commit", "faults", "file_cache", "mapped_file", "os", "sim"],
            &["mapped_file_queue", "remote"],
            &["target"],
        ],
    ),
    (
        "mqstore-base",
        &[
            &["error", "events", "notes", "replica_acks", "text_map", "topic_floors", "wake_signal"],
            &["group_commit", "message", "progress", "retry", "strays"],
            &["body_compression"],
            &["append_request", "options"],
            &["store_files"],
            &["durable_mark", "live_page"],
        ],
    ),
    (
        "mqstore-log",
        &[&["checkpoint", "commit_log", "consume_queue", "index"], &["dispatch"], &["recovery"], &["flush"]],
    ),
    (
        "mqstore-meta",
        &[
            &["maintenance_timer", "progress"],
            &["record"],
            &["frame", "state"],
            &["json_files", "load", "tail"],
            &["log"],
            &["generation", "group_position", "json_export", "maintenance"],
        ],
    ),
    (
        "mqstore-compaction",
        &[
            &["compaction_key", "json"],
            &["files"],
            &["read"],
            &["deleted_topics", "job"],
            &["append", "local_job", "ranges"],
            &["distributed", "restore"],
        ],
    ),
    (
        "mqstore-inspect",
        &[
            &["copy", "hourly_rates", "loss_report", "problem", "raft_info", "rebuild", "restored_log"],
            &["tiered"],
            &["info", "verify"],
            &["distributed", "repair"],
            &["side_files"],
            &["snapshot"],
        ],
    ),
    (
        "mqstore-engine",
        &[
            &["engine"],
            &["read"],
            &["archive", "compact", "scan", "write"],
            &["retention", "staged"],
            &["reclaim", "topic_retention"],
            &["store"],
        ],
    ),
    (
        "mqstore-delivery",
        &[
            &["append_queue", "error", "queue_wait"],
            &["delay", "nonblocking", "queue_failures", "transactions"],
            &["broker_state", "export_rules", "pending", "unfinished", "unique_id"],
            &["groups", "pop_takeover"],
            &["work"],
            &["broker"],
        ],
    ),
    ("mqstore-arrow", &[&["buffer_pool", "values"], &["text_columns"]]),
    (
        "mqstore-archive",
        &[
            &["file", "layout"],
            &["records"],
            &["manifest"],
            &["place"],
            &["clean", "owner", "reader", "verify"],
            &["history", "rebuild", "restore", "run"],
        ],
    ),
    (
        "mqstore-backup",
        &[
            &["layout"],
            &["pieces"],
            &["manifest"],
            &["place", "source"],
            &["clean", "restore", "round", "verify"],
        ],
    ),
    (
        "mqstore-results",
        &[
            &["partial", "requests"],
            &["objects"],
            &["manifest"],
            &["upload"],
            &["clean", "fetch", "publication"],
        ],
    ),
    (
        "mqstore-transfer",
        &[&["append", "positions", "record_copy"], &["pass", "topic_copy"], &["store_copy"]],
    ),
    ("mqstore", &[&["append", "compaction", "delivery", "inspect", "io", "read", "store"]]),
    (
        "mqstore-replication",
        &[
            &["epochs", "metadata"],
            &["standby", "wire"],
            &["log"],
            &["master", "records"],
            &["copy", "replica", "replica_set"],
        ],
    ),
    (
        "mqstore-server",
        &[
            &["steps"],
            &["wire"],
            &["deadline"],
            &["service"],
            &["socket"],
            &["client", "tcp"],
            &["follow", "master"],
            &["share"],
        ],
    ),
    (
        "mqstore-python",
        &[
            &["error"],
            &["commits", "runtime"],
            &["convert"],
            &["arrow", "target", "testing"],
            &["store"],
            &["scan"],
            &["archive", "backup", "follow", "results"],
            &["delivery"],
            &["event_loop"],
        ],
    ),
];

/// A module uses only modules on the lines before its own. A re-export is a use.
pub(crate) fn modules_use_only_lower_ones(tree: &Tree) -> Vec<Finding> {
    let crates: BTreeSet<&str> =
        tree.below("rust/", ".rs").filter_map(|(path, _)| path.split('/').nth(1)).collect();
    let mut found = Vec::new();
    for name in crates {
        match ORDERS.iter().find(|(other, _)| *other == name) {
            Some((_, order)) => found.extend(upward_uses(tree, name, order)),
            None => found.push(Finding::new(&format!("rust/{name}"), 1, "no order of its modules in ORDERS")),
        }
    }
    found
}

fn upward_uses(tree: &Tree, name: &str, order: &[&[&str]]) -> Vec<Finding> {
    let folder = format!("rust/{name}/src/");
    let line_of = |module: &str| order.iter().position(|line| line.contains(&module));
    let mut found = Vec::new();
    // The rule about cycles reports files that cannot be parsed.
    let (graph, _) = imports(tree, &folder, Counted::All);
    for (path, imports) in graph {
        let own = module_of(path, &folder);
        if own == "lib" {
            continue;
        }
        let Some(line) = line_of(own) else {
            found.push(Finding::new(
                path,
                1,
                format!("{own} has no place in the order of {name}: see ORDERS"),
            ));
            continue;
        };
        for (other, (at, names)) in imports {
            let target = module_of(other, &folder);
            if target != own && line_of(target).is_none_or(|lower| lower >= line) {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let what = format!("{own} must not use {target} ({}): see ORDERS", names.join(", "));
                found.push(Finding::new(path, at, what));
            }
        }
    }
    found
}

/// The module directly below the root to which a file belongs.
fn module_of<'a>(path: &'a str, folder: &str) -> &'a str {
    let inside = path.strip_prefix(folder).unwrap_or(path);
    inside.split('/').next().unwrap_or(inside).trim_end_matches(".rs")
}
