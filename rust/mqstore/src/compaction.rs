//! Compaction of topics: the newest message of each key, in this process or as a job on several machines.

pub use mqstore_compaction::{
    CompactedQueue, CompactionOptions, CompactionReport, DistributedJob, Document, EncodedStep, JobControl,
    RestoreReport, Strategy, WeightedStep, WorkerInfo, compact, published_report,
};
pub use mqstore_engine::restore_compaction;
