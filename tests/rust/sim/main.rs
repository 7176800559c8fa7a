//! The crash simulator: runs of a store that stop at any moment, in any way that a disk allows.
//!
//! | module | owns |
//! |---|---|
//! | `workload` | the runs, and the model of their promises |
//! | `states` | the disks that a crash may leave |
//! | `contract` | the required bytes at any moment |
//! | `check` | the required state of a recovered store |
//! | `explore` | tries all cases, counts, replays |
//! | `moments` | one session, ended after each of its calls |
//! | `keeping` | topics, groups, offsets and progress |
//! | `reclaiming` | reclaims of space that are interrupted |
//! | `remaking` | recoveries that rebuild lost files, and are interrupted |
//! | `repairing` | repairs, copies and snapshots |
//! | `staging` | the steps of parallel writes |
//! | `committing` | files outside a store: exports, copied folders |
//! | `copying` | copies of topics from store to store, in several calls |
//! | `publishing` | results in folders and at targets that behave badly, and their fetches |
//! | `transactions` | transactions, all or nothing |
//! | `failing_calls` | what a caller sees if a system call fails |
//! | `timing` | delayed messages: none early, none lost, none twice |
//!
//! A failure prints `MQSIM=case:call:state:depth`. With this variable set, the suite checks only that state
//! and writes its disk to files. `MQSTORE_SOAK=1` makes all runs longer.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "what fails here fails the test")]
#![expect(clippy::print_stdout, reason = "each part says what it tried")]
#![expect(clippy::needless_pass_by_value, reason = "the text of a failure is handed on")]
#![expect(clippy::single_match_else, reason = "both outcomes of a call are worth a line")]

mod archiving;
mod backing_up;
mod check;
mod committing;
mod compacting;
mod contract;
mod copying;
mod crashes;
mod decay;
mod explore;
mod failing_calls;
mod faults;
mod feeding;
mod foreign;
mod keeping;
mod moments;
mod mutants;
mod publishing;
mod reclaiming;
mod remaking;
mod repairing;
mod staging;
mod states;
mod switches;
mod timing;
mod transactions;
mod workload;
