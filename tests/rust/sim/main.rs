//! The crash simulator: runs of a store that end at any moment, in any way that a disk allows.
//!
//! | module | owns |
//! |---|---|
//! | `workload` | the runs, and the model of what they were promised |
//! | `states` | which disks a crash may leave |
//! | `contract` | what bytes must be at any moment |
//! | `check` | what a recovered store must be |
//! | `explore` | going through all of it, counting, replay |
//! | `moments` | one session, ended behind each of its calls |
//! | `keeping` | topics, groups, offsets and progress |
//! | `remaking` | recoveries that make again what was lost, and are ended |
//! | `repairing` | repairs, copies and snapshots |
//! | `transactions` | transactions, all or nothing |
//! | `timing` | delayed messages: nothing early, nothing lost, nothing twice |
//!
//! A failure prints `MQSIM=case:call:state:depth`; with that in the environment the suite looks at this
//! one state again and leaves its disk as files. `MQSTORE_SOAK=1` makes everything longer.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "what fails here fails the test")]
#![expect(clippy::print_stdout, reason = "each part says what it tried")]
#![expect(clippy::needless_pass_by_value, reason = "the text of a failure is handed on")]
#![expect(clippy::single_match_else, reason = "both outcomes of a call are worth a line")]

mod check;
mod compacting;
mod contract;
mod crashes;
mod decay;
mod explore;
mod faults;
mod feeding;
mod foreign;
mod keeping;
mod moments;
mod mutants;
mod remaking;
mod repairing;
mod states;
mod switches;
mod timing;
mod transactions;
mod workload;
