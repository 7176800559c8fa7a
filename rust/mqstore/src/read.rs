//! Reads: cursors, topics that a program follows, tables of keys, scans.

pub use mqstore_engine::{
    Boundary, FloorWatch, FollowStep, LogCursor, LookupCursor, MergedCursor, PoppedQueue, QueueCursor,
    ReadBound, RecordBatch, TableLoad, TableRow, TableRows, TopicFollower, TopicRead,
};
pub use mqstore_engine::{
    MakeSink, Passed, RecordTest, Scan, ScanBatch, ScanOutput, ScanPlan, ScanRange, ScanRequest, ScanRow,
    ScanSink,
};
