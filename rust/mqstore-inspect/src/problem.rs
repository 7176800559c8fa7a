//! What verification finds, as values.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// One thing that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Its class, a stable word such as `record_damaged`.
    pub kind: &'static str,
    /// The file or folder.
    pub path: PathBuf,
    /// The byte offset in it, where there is one.
    pub offset: Option<u64>,
    /// What is wrong.
    pub detail: String,
    /// What that means for somebody who reads messages.
    pub consequence: &'static str,
    /// What a repair would do about it.
    pub repair: &'static str,
}

/// The answer of [`crate::verify`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Whether nothing was found.
    pub ok: bool,
    /// Whole records in the log.
    pub messages: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// What was found, in the order of the checks; at most [`VerifyReport::LIMIT`].
    pub problems: Vec<Problem>,
    /// Problems beyond the limit.
    pub more: u64,
}

impl VerifyReport {
    /// Problems that are kept one by one; the rest is counted.
    pub const LIMIT: usize = if cfg!(test) { 30 } else { 10_000 };

    pub(crate) fn add(
        &mut self,
        kind: ProblemKind,
        path: &Path,
        offset: Option<u64>,
        detail: impl Into<String>,
    ) {
        if self.problems.len() >= Self::LIMIT {
            self.more += 1;
            return;
        }
        let (kind, consequence, repair) = kind.words();
        self.problems.push(Problem {
            kind,
            path: path.to_path_buf(),
            offset,
            detail: detail.into(),
            consequence,
            repair,
        });
    }
}

/// A problem on its way into a report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Finding {
    pub kind: ProblemKind,
    pub path: PathBuf,
    pub offset: Option<u64>,
    pub detail: String,
}

/// Classes of problems.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum ProblemKind {
    SegmentStray,
    SegmentMisnamed,
    SegmentGap,
    RecordDamaged,
    TornTail,
    TimeBack,
    QueueStray,
    QueueMissing,
    QueueEntryWrong,
    QueueEntryDangling,
    QueueExtensionWrong,
    QueueBehind,
    QueueOffsetRefused,
    QueueOffsetWrong,
    QueueGap,
    IndexStray,
    IndexMissing,
    IndexAnswer,
    IndexChain,
    IndexHeader,
    IndexTime,
    CheckpointAhead,
    CompactionDamaged,
    CompactionEntry,
    CompactionFile,
    ConfigDamaged,
    MetaDamaged,
    DelayLevelsDamaged,
    ConsumerOffsetAhead,
    DelayOffsetAhead,
    DecisionDangling,
    DecisionTwice,
    TimerWheel,
    TimerLog,
    TimerCheckpoint,
}

impl ProblemKind {
    fn words(self) -> (&'static str, &'static str, &'static str) {
        let rebuild = "make the queues anew from the log: mqstore rebuild DIR";
        let reindex = "make the index anew from the log: mqstore rebuild DIR";
        match self {
            Self::SegmentStray => (
                "segment_stray",
                "RocketMQ refuses to start; the file's records are not read",
                "move the file away",
            ),
            Self::SegmentMisnamed => (
                "segment_misnamed",
                "RocketMQ refuses to start, or finds no record where its queues say",
                "give the segment the name that its records say",
            ),
            Self::SegmentGap => (
                "segment_gap",
                "the records of the missing segments are gone",
                "keep what is there on both sides",
            ),
            Self::RecordDamaged => (
                "record_damaged",
                "the records in this stretch cannot be read; those behind it can",
                "set the stretch aside and go on behind it",
            ),
            Self::TornTail => (
                "torn_tail",
                "a record that was being written when the writer stopped is not there",
                "cut the tail off, after a copy",
            ),
            Self::TimeBack => (
                "store_time_back",
                "a search by time may begin too late or too early here, and retention counts from the wrong time",
                "nothing: the record is whole but for its time",
            ),
            Self::QueueStray => {
                ("queue_stray", "RocketMQ may refuse to start; the file is not read", rebuild)
            }
            Self::QueueMissing => {
                ("queue_missing", "consumers of RocketMQ do not see the queue's messages", rebuild)
            }
            Self::QueueEntryWrong => (
                "queue_entry_wrong",
                "consumers of RocketMQ get another message, or none, at this offset",
                rebuild,
            ),
            Self::QueueEntryDangling => {
                ("queue_entry_dangling", "consumers of RocketMQ are led to no message", rebuild)
            }
            Self::QueueExtensionWrong => (
                "queue_extension_wrong",
                "RocketMQ's tag filters let this message pass that should not, or keep it back",
                rebuild,
            ),
            Self::QueueBehind => {
                ("queue_behind", "consumers of RocketMQ do not see the queue's newest messages yet", rebuild)
            }
            Self::QueueOffsetRefused => (
                "queue_offset_refused",
                "consumers do not see this message; it is read by its place in the log and by key",
                "nothing: the record is whole but for its queue offset",
            ),
            Self::QueueOffsetWrong => (
                "queue_offset_wrong",
                "consumers get this message at a place of the queue that is another one's, and perhaps not that one",
                "give the record the offset that is free where it lies, if there is only one",
            ),
            Self::QueueGap => {
                ("queue_gap", "no message has these offsets", "nothing: the log has none for them")
            }
            Self::IndexStray => {
                ("index_stray", "RocketMQ may misread the file; look-ups walk the log", reindex)
            }
            Self::IndexMissing => ("index_missing", "RocketMQ finds no message by key", reindex),
            Self::IndexAnswer => ("index_answer", "RocketMQ does not find this message by its key", reindex),
            Self::IndexChain => {
                ("index_chain", "RocketMQ does not find some messages by their keys", reindex)
            }
            Self::IndexHeader => (
                "index_header",
                "RocketMQ goes on with the index at another place than where it ends",
                reindex,
            ),
            Self::IndexTime => {
                ("index_time", "RocketMQ does not find some messages by key and time", reindex)
            }
            Self::CheckpointAhead => (
                "checkpoint_ahead",
                "after a crash RocketMQ may skip records that its queues lack",
                "write the checkpoint anew: mqstore rebuild DIR",
            ),
            _ => self.describe_broker_files(),
        }
    }

    /// Of what a broker keeps beside log, queues and index.
    fn describe_broker_files(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::CompactionDamaged => (
                "compaction_damaged",
                "the compacted queue cannot be read here",
                "nothing: compact the topic again while the log has it, or restore it from another store",
            ),
            Self::CompactionEntry => (
                "compaction_entry_wrong",
                "RocketMQ answers with another message, or none, at this offset of the compacted queue; mqstore goes by the \
                 log",
                "nothing: compact the topic again while the log has it",
            ),
            Self::CompactionFile => (
                "compaction_file_changed",
                "bytes of this compacted file are not those that were written; messages in it may be others, or missing",
                "nothing: compact the topic again while the log has it, or restore it from another store",
            ),
            Self::ConfigDamaged => (
                "config_damaged",
                "RocketMQ takes the .bak beside it, or starts without topics, groups or offsets",
                "put the .bak in its place; without one, move it to lost+found",
            ),
            Self::ConsumerOffsetAhead => (
                "consumer_offset_ahead",
                "messages that get these offsets anew count as consumed by the group",
                "set the group back to the queue's end, after a copy of the file",
            ),
            Self::DelayLevelsDamaged => (
                "delay_levels_damaged",
                "the store is not opened for writing without its delay levels",
                "move it away: from then on RocketMQ's levels count, or those that the next open gives",
            ),
            Self::MetaDamaged => (
                "meta_damaged",
                "the store is not opened for writing, and later changes of topics, groups and offsets are not known",
                "set what follows aside, and go on with what comes before and what the JSON files have",
            ),
            Self::DelayOffsetAhead => (
                "delay_offset_ahead",
                "delayed messages that get these offsets anew may never be delivered",
                "set the level back to the queue's end, after a copy of the file",
            ),
            Self::DecisionDangling => (
                "decision_dangling",
                "a message of a transaction that gets this offset anew counts as decided, and is never delivered",
                "nothing: what it names is not there",
            ),
            Self::DecisionTwice => (
                "decision_twice",
                "this transaction was decided in two ways, and its messages may be in their topics or not",
                "nothing: look whether they are there as they should be",
            ),
            Self::TimerWheel => (
                "timer_wheel_wrong",
                "messages of this time slot may come late, or not at all",
                "nothing: move timerwheel and timerlog away, and the next open for writing makes them anew from their topic",
            ),
            Self::TimerLog => (
                "timer_log_damaged",
                "RocketMQ forgets what the timer log holds from here on, and reads its queue of timer messages again",
                "nothing: move timerwheel and timerlog away, and the next open for writing makes them anew from their topic",
            ),
            // Whatever `words` does not know is listed here.
            _ => (
                "timer_checkpoint_ahead",
                "RocketMQ may pass over timer messages that are put from here on",
                "nothing: RocketMQ goes by the timer log and the queue",
            ),
        }
    }
}
