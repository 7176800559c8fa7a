//! The problems that verification finds, and its report.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use mqstore_base::store_files::foreign_file;
use serde::{Deserialize, Serialize};

/// One damage that verification found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Its kind, a stable word such as `record_damaged`.
    pub kind: &'static str,
    /// The file or folder.
    pub path: PathBuf,
    /// The byte offset in it, if the problem has one.
    pub offset: Option<u64>,
    /// The damage in words, with the values found and expected.
    pub detail: String,
    /// The effect on readers of messages.
    pub consequence: &'static str,
    /// What a repair does about it.
    pub repair: &'static str,
}

/// The result of [`crate::verify`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Whether no problem was found.
    pub ok: bool,
    /// Number of complete records in the log.
    pub messages: u64,
    /// Bytes of these records.
    pub bytes: u64,
    /// The problems, in the order of the checks; at most [`VerifyReport::LIMIT`].
    pub problems: Vec<Problem>,
    /// Number of problems beyond the limit.
    pub more: u64,
    /// Findings that are no damage: files that other programs left in the folders of the store, and the end of the log
    /// after a stop of the writer.
    pub notes: Vec<String>,
}

impl VerifyReport {
    /// Keeps the problems that `earlier` also has, with the same kind and place.
    pub(crate) fn confirming(mut self, earlier: &Self) -> Self {
        let place = |problem: &Problem| (problem.kind, problem.path.clone(), problem.offset);
        let known: HashSet<_> = earlier.problems.iter().map(place).collect();
        self.problems.retain(|problem| known.contains(&place(problem)));
        self.ok = self.problems.is_empty() && self.more == 0;
        self
    }

    /// Maximum number of problems in the list; further ones are only counted.
    pub const LIMIT: usize = if cfg!(test) { 30 } else { 10_000 };

    /// Adds a file that does not belong where it is: a note if another program left it, a problem of `kind` otherwise.
    pub(crate) fn add_stray(&mut self, kind: ProblemKind, path: &Path, reason: &str) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        match foreign_file(name) {
            Some(origin) => self.notes.push(format!(
                "{}: a file of {origin}, ignored; RocketMQ may not start with it: remove it",
                path.display()
            )),
            None => self.add(kind, path, None, reason),
        }
    }

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
        let (kind, consequence, repair) = kind.texts();
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

/// A problem before it is in a report, in a form that a file can hold.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Finding {
    pub kind: ProblemKind,
    pub path: PathBuf,
    pub offset: Option<u64>,
    pub detail: String,
}

/// Kinds of problems.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum ProblemKind {
    SegmentStray,
    SegmentMisnamed,
    SegmentGap,
    RecordDamaged,
    RecordUnsummed,
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
    CompactionFacts,
    CompactionPositions,
    ConfigDamaged,
    LossReportDamaged,
    MetaDamaged,
    DelayLevelsDamaged,
    ConsumerOffsetAhead,
    DelayOffsetAhead,
    DecisionDangling,
    DecisionTwice,
    TimerWheel,
    TimerLog,
    TimerCheckpoint,
    RaftHeader,
    RaftIndexWrong,
    RaftIndexMissing,
    RaftCheckpointAhead,
    TieredFileStray,
    TieredFileGap,
    TieredEntryDangling,
}

impl ProblemKind {
    fn texts(self) -> (&'static str, &'static str, &'static str) {
        let rebuild = "build the queues again from the log: mqstore rebuild DIR";
        let reindex = "build the index again from the log: mqstore rebuild DIR";
        match self {
            Self::SegmentStray => (
                "segment_stray",
                "RocketMQ does not start, and no program reads the records of this file",
                "move the file away",
            ),
            Self::SegmentMisnamed => (
                "segment_misnamed",
                "RocketMQ does not start, or its queues point to places without records",
                "give the segment the name that its records require",
            ),
            Self::SegmentGap => (
                "segment_gap",
                "the records of the missing segments are lost",
                "keep the segments on both sides",
            ),
            Self::RecordDamaged => (
                "record_damaged",
                "the records in this range cannot be read; the records after it can",
                "move the range to lost+found and continue after it; if only the name of the checksum is damaged, \
                 restore the name",
            ),
            Self::RecordUnsummed => (
                "record_checksum_missing",
                "damage in this record's header and properties cannot be detected; the damage that took its checksum \
                 may have changed them",
                "nothing: the body is intact, and the rest of the record cannot be checked",
            ),
            Self::TornTail => (
                "torn_tail",
                "the record that was being written when the writer stopped is lost",
                "truncate the tail, after a copy",
            ),
            Self::TimeBack => (
                "store_time_back",
                "a search by time may start too early or too late here, and retention uses the wrong time",
                "nothing: the record is complete except for its time",
            ),
            Self::QueueStray => {
                ("queue_stray", "RocketMQ may not start, and no program reads this file", rebuild)
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
                ("queue_entry_dangling", "consumers of RocketMQ find no message at this offset", rebuild)
            }
            Self::QueueExtensionWrong => (
                "queue_extension_wrong",
                "RocketMQ's tag filters may deliver this message wrongly, or skip it wrongly",
                rebuild,
            ),
            Self::QueueBehind => {
                ("queue_behind", "consumers of RocketMQ do not see the queue's newest messages yet", rebuild)
            }
            Self::QueueOffsetRefused => (
                "queue_offset_refused",
                "consumers do not see this message; you can read it by its log offset and by key",
                "nothing: the record is complete except for its queue offset",
            ),
            Self::QueueOffsetWrong => (
                "queue_offset_wrong",
                "consumers get this message at the offset of another message, and may miss the other message",
                "give the record the offset that is free at its place, if only one is free",
            ),
            Self::QueueGap => (
                "queue_gap",
                "no message has these offsets",
                "nothing: the log has no messages for these offsets",
            ),
            Self::IndexStray => (
                "index_stray",
                "RocketMQ may misread the file; mqstore looks up keys in the log instead",
                reindex,
            ),
            Self::IndexMissing => ("index_missing", "RocketMQ finds no message by key", reindex),
            Self::IndexAnswer => ("index_answer", "RocketMQ does not find this message by its key", reindex),
            Self::IndexChain => {
                ("index_chain", "RocketMQ does not find some messages by their keys", reindex)
            }
            Self::IndexHeader => {
                ("index_header", "RocketMQ adds entries at a place that is not the end of the index", reindex)
            }
            Self::IndexTime => {
                ("index_time", "RocketMQ does not find some messages by key and time", reindex)
            }
            Self::CheckpointAhead => (
                "checkpoint_ahead",
                "after a crash, RocketMQ may skip records that its queues do not have",
                "write the checkpoint again: mqstore rebuild DIR",
            ),
            _ => self.describe_broker_files(),
        }
    }

    /// The texts for the files other than log, queues and index.
    fn describe_broker_files(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::CompactionDamaged => (
                "compaction_damaged",
                "the compacted queue cannot be read here",
                "nothing: compact the topic again while the log has its messages, or restore it from another store",
            ),
            Self::CompactionEntry => (
                "compaction_entry_wrong",
                "RocketMQ returns another message, or none, at this offset of the compacted queue; mqstore reads the \
                 log instead",
                "nothing: compact the topic again while the log has its messages",
            ),
            Self::CompactionFile => (
                "compaction_file_changed",
                "the bytes of this compacted file changed after they were written; messages in it may be wrong or \
                 missing",
                "nothing: compact the topic again while the log has its messages, or restore it from another store",
            ),
            Self::CompactionFacts => (
                "compaction_facts_damaged",
                "verify does not notice changed or missing compaction files, and the next compaction reads all of them",
                "nothing: the next compaction writes the file again, after a copy",
            ),
            Self::CompactionPositions => (
                "compaction_positions_damaged",
                "RocketMQ compacts the queues without a position again from the start of the log",
                "copy the file, and write the positions that parse",
            ),
            Self::ConfigDamaged => (
                "config_damaged",
                "RocketMQ reads the .bak file instead, or starts without topics, groups or offsets; mqstore reads every \
                 entry that parses",
                "copy the file, and write the entries that parse, with those of its .bak that it lacks",
            ),
            Self::LossReportDamaged => (
                "loss_report_damaged",
                "verify reports losses again that an earlier repair listed in the damaged lines",
                "copy the file, and write the lines that can be read",
            ),
            Self::ConsumerOffsetAhead => (
                "consumer_offset_ahead",
                "new messages that get these offsets count as consumed by the group",
                "set the group back to the queue's end, after a copy of the file",
            ),
            Self::DelayLevelsDamaged => (
                "delay_levels_damaged",
                "the store cannot be opened for writing without its delay levels",
                "move the file away: then RocketMQ's levels apply, or those of the next open",
            ),
            Self::MetaDamaged => (
                "meta_damaged",
                "the store cannot be opened for writing, and later changes of topics, groups and offsets are unknown",
                "move everything after the damage to lost+found, keep everything before it, and take the rest from \
                 the JSON files",
            ),
            Self::DelayOffsetAhead => (
                "delay_offset_ahead",
                "new delayed messages that get these offsets may never be delivered",
                "set the level back to the queue's end, after a copy of the file",
            ),
            Self::DecisionDangling => (
                "decision_dangling",
                "a new half message that gets this offset counts as decided, and is never delivered",
                "nothing: the half message that it names does not exist",
            ),
            Self::DecisionTwice => (
                "decision_twice",
                "this transaction has two different decisions; its messages may or may not be in their topics",
                "nothing: check whether the messages are in their topics",
            ),
            Self::TimerWheel => (
                "timer_wheel_wrong",
                "messages of this second may be delivered late, or never",
                "nothing: move timerwheel and timerlog away, and the next open for writing builds them again from \
                 their topic",
            ),
            Self::TimerLog => (
                "timer_log_damaged",
                "RocketMQ drops the rest of the timer log, and reads its queue of timer messages again",
                "nothing: move timerwheel and timerlog away, and the next open for writing builds them again from \
                 their topic",
            ),
            Self::TimerCheckpoint => (
                "timer_checkpoint_ahead",
                "RocketMQ may skip timer messages that are sent from now on",
                "nothing: RocketMQ uses the timer log and the queue",
            ),
            _ => self.describe_foreign_files(),
        }
    }

    /// The texts for directories that mqstore only reads: those of brokers with DLedger, and tiered stores.
    fn describe_foreign_files(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::RaftHeader => (
                "raft_header_wrong",
                "DLedger may end its log before this entry when it recovers; mqstore reads the record",
                "nothing: mqstore does not write this directory; copy its messages: mqstore export DIR OUT --to store",
            ),
            Self::RaftIndexWrong => (
                "raft_index_wrong",
                "none for readers: DLedger builds this index again from its entries, and mqstore does not use it",
                "nothing: mqstore does not write this directory",
            ),
            Self::RaftIndexMissing => (
                "raft_index_missing",
                "none for readers: DLedger builds this index again from its entries, and mqstore does not use it",
                "nothing: mqstore does not write this directory",
            ),
            Self::RaftCheckpointAhead => (
                "raft_checkpoint_ahead",
                "committed messages are missing at the end of the log",
                "nothing: another member of the group may have them",
            ),
            Self::TieredFileStray => (
                "tiered_file_stray",
                "no program reads the messages of this file",
                "nothing: give the file its name, or move it away",
            ),
            Self::TieredFileGap => (
                "tiered_file_gap",
                "the messages of missing log files are lost; those of missing files of units are found in the log",
                "nothing: bring the missing files back",
            ),
            // The last kind: a kind that no match lists would get its texts.
            _ => (
                "tiered_entry_dangling",
                "consumers of RocketMQ find no message at these offsets",
                "nothing: the records are missing",
            ),
        }
    }
}
