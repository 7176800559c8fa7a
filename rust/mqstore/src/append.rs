//! Appends of many messages: the queue of appends that do not wait, staged blocks, copies, and traces of appends.

pub use mqstore_base::work_times::Work;
pub use mqstore_engine::{
    AppendQueue, AppendRequest, MessageOrigin, OwnedMessage, RefusedMessage, StagedBlock, check_copy,
    check_target, staged_messages,
};
pub use mqstore_engine::{AppendTrace, CauseTotal, SlowStep, TraceRequest, trace_copies};
