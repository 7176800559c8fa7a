//! Names of files and folders in a store directory.
//!
//! The name of a segment is the offset of its first byte in twenty digits. The name of an index file is the local time
//! in seventeen digits, from year to millisecond. Source: `UtilAll#offset2FileName`, `#timeMillisToHumanString`,
//! `StorePathConfigHelper`.

use crate::error::FormatError;

/// Commit log segments.
pub const COMMITLOG_DIR: &str = "commitlog";
/// Consume queues: `<topic>/<queue id>/<segment>`.
pub const CONSUMEQUEUE_DIR: &str = "consumequeue";
/// Extensions of consume queues, in the same form.
pub const CONSUMEQUEUE_EXT_DIR: &str = "consumequeue_ext";
/// Batch queues, in the same form.
pub const BATCHCONSUMEQUEUE_DIR: &str = "batchconsumequeue";
/// Index files.
pub const INDEX_DIR: &str = "index";
/// See [`crate::Checkpoint`].
pub const CHECKPOINT_FILE: &str = "checkpoint";
/// Exists while a store is open for writing, and after a crash.
pub const ABORT_FILE: &str = "abort";
/// Locked by the writer.
pub const LOCK_FILE: &str = "lock";
/// Content of [`LOCK_FILE`].
pub const LOCK_FILE_CONTENT: &[u8] = b"lock";
/// JSON side files.
pub const CONFIG_DIR: &str = "config";
/// See [`crate::json::TopicTable`].
pub const TOPICS_FILE: &str = "topics.json";
/// See [`crate::json::ConsumerOffsets`].
pub const CONSUMER_OFFSET_FILE: &str = "consumerOffset.json";
/// See [`crate::json::DelayOffsets`].
pub const DELAY_OFFSET_FILE: &str = "delayOffset.json";
/// See [`crate::json::SubscriptionGroups`].
pub const SUBSCRIPTION_GROUP_FILE: &str = "subscriptionGroup.json";
/// Suffix of the previous version of a JSON side file.
pub const BACKUP_SUFFIX: &str = ".bak";
/// Compaction topics.
pub const COMPACTION_DIR: &str = "compaction";
/// Logs of compaction topics, below [`COMPACTION_DIR`].
pub const COMPACTION_LOG_DIR: &str = "compactionLog";
/// Sparse queues of compaction topics, below [`COMPACTION_DIR`].
pub const COMPACTION_CQ_DIR: &str = "compactionCq";
/// Output of a running compaction, below a queue's folder.
pub const COMPACTING_DIR: &str = "compacting";
/// Output of a replica's start, below a queue's folder.
pub const REPLICATING_DIR: &str = "replicating";
/// See [`crate::json::CompactionPositions`], below [`COMPACTION_DIR`].
pub const COMPACTION_POSITION_FILE: &str = "position-checkpoint";
/// Timer log segments.
pub const TIMERLOG_DIR: &str = "timerlog";
/// Timer wheel.
pub const TIMERWHEEL_FILE: &str = "timerwheel";
/// See [`crate::delays::timer::TimerCheckpoint`], below [`CONFIG_DIR`].
pub const TIMERCHECK_FILE: &str = "timercheck";
/// Database of RocketMQ 5.5, which this crate does not read.
pub const ROCKSDBSTORE_DIR: &str = "rocksdbstore";

/// Digits of a segment's name.
const OFFSET_DIGITS: usize = 20;
/// Digits of an index file's name.
const TIME_DIGITS: usize = 17;

/// Returns the name of the segment that starts at `offset`: twenty digits.
pub fn offset_file_name(offset: u64) -> String {
    format!("{offset:020}")
}

/// Returns the offset in a segment's name: exactly twenty ASCII digits, at most the largest `i64`.
pub fn parse_offset_file_name(name: &str) -> Option<u64> {
    let well_formed = name.len() == OFFSET_DIGITS && name.bytes().all(|byte| byte.is_ascii_digit());
    if !well_formed {
        return None;
    }
    name.parse::<i64>().ok().map(i64::unsigned_abs)
}

/// Parses a queue's folder name: a number that Java's `Integer.parseInt` reads and prints in the same form.
pub fn parse_queue_dir_name(name: &str) -> Option<i32> {
    let id: i32 = name.parse().ok()?;
    (id >= 0 && id.to_string() == name).then_some(id)
}

/// The local time in the name of an index file.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IndexFileTime {
    /// 0 to 9999.
    pub year: u16,
    /// 1 to 12.
    pub month: u8,
    /// 1 to the last day of the month.
    pub day: u8,
    /// 0 to 23.
    pub hour: u8,
    /// 0 to 59.
    pub minute: u8,
    /// 0 to 59.
    pub second: u8,
    /// 0 to 999.
    pub millis: u16,
}

impl IndexFileTime {
    /// Returns the time one millisecond later: the next free name if the clock stands still or was set back.
    #[must_use]
    pub fn successor(self) -> Self {
        let Self { year, month, day, hour, minute, second, millis } = self;
        if millis < 999 {
            Self { millis: millis + 1, ..self }
        } else if second < 59 {
            Self { second: second + 1, millis: 0, ..self }
        } else if minute < 59 {
            Self { minute: minute + 1, second: 0, millis: 0, ..self }
        } else if hour < 23 {
            Self { hour: hour + 1, minute: 0, second: 0, millis: 0, ..self }
        } else {
            let (year, month, day) = match (month, day) {
                _ if day < days_in_month(year, month) => (year, month, day + 1),
                (..=11, _) => (year, month + 1, 1),
                _ => (year.saturating_add(1), 1, 1),
            };
            Self { year, month, day, hour: 0, minute: 0, second: 0, millis: 0 }
        }
    }

    fn is_a_time(&self) -> bool {
        let date = self.year <= 9999 && (1..=12).contains(&self.month);
        let day = (1..=days_in_month(self.year, self.month)).contains(&self.day);
        date && day && self.hour < 24 && self.minute < 60 && self.second < 60 && self.millis < 1000
    }
}

fn days_in_month(year: u16, month: u8) -> u8 {
    match month {
        2 if year.is_multiple_of(4) && !year.is_multiple_of(100)
            || month == 2 && year.is_multiple_of(400) =>
        {
            29
        }
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Returns the name of an index file created at this local time: `yyyyMMddHHmmssSSS`. Fails if the time is not valid.
pub fn index_file_name(time: &IndexFileTime) -> Result<String, FormatError> {
    let IndexFileTime { year, month, day, hour, minute, second, millis } = time;
    let name = format!("{year:04}{month:02}{day:02}{hour:02}{minute:02}{second:02}{millis:03}");
    if time.is_a_time() { Ok(name) } else { Err(FormatError::bad_name("a time", &name)) }
}

/// Returns the time in an index file's name; `None` unless it is seventeen digits that are a valid time.
pub fn parse_index_file_name(name: &str) -> Option<IndexFileTime> {
    if name.len() != TIME_DIGITS || !name.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number = |from: usize, to: usize| name.get(from..to)?.parse::<u16>().ok();
    let small = |from: usize| number(from, from + 2).and_then(|n| u8::try_from(n).ok());
    let time = IndexFileTime {
        year: number(0, 4)?,
        month: small(4)?,
        day: small(6)?,
        hour: small(8)?,
        minute: small(10)?,
        second: small(12)?,
        millis: number(14, 17)?,
    };
    time.is_a_time().then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn segment_names() {
        assert_eq!(offset_file_name(0), "00000000000000000000");
        assert_eq!(offset_file_name(1_073_741_824), "00000000001073741824");
        assert_eq!(offset_file_name(6_000_000), "00000000000006000000");
        assert_eq!(offset_file_name(u64::MAX).len(), 20);
        assert_eq!(parse_offset_file_name("09223372036854775807"), Some(i64::MAX as u64));
        for bad in ["", "0", "0000000000000000000a", "-0000000000000000001", "+0000000000000000001"] {
            assert_eq!(parse_offset_file_name(bad), None, "{bad}");
        }
        for bad in ["09223372036854775808", "99999999999999999999", "000000000000000000000", "٠٠٠٠٠٠٠٠٠٠"]
        {
            assert_eq!(parse_offset_file_name(bad), None, "{bad}");
        }
    }

    #[test]
    fn queue_folder_names() {
        assert_eq!(parse_queue_dir_name("0"), Some(0));
        assert_eq!(parse_queue_dir_name("2147483647"), Some(i32::MAX));
        for bad in ["", "-1", "+1", "01", "2147483648", "compacting"] {
            assert_eq!(parse_queue_dir_name(bad), None, "{bad}");
        }
    }

    #[test]
    fn index_names() {
        let time =
            IndexFileTime { year: 2023, month: 11, day: 14, hour: 22, minute: 13, second: 20, millis: 123 };
        assert_eq!(index_file_name(&time), Ok("20231114221320123".to_owned()));
        assert_eq!(parse_index_file_name("20231114221320123"), Some(time));
        for bad in ["", "20231114221320", "20230230000000000", "20231314221320123", "2023111424132012x"] {
            assert_eq!(parse_index_file_name(bad), None, "{bad}");
        }
        assert!(index_file_name(&IndexFileTime { month: 13, ..time }).is_err());
    }

    #[test]
    fn successors_carry() {
        for (name, next) in [
            ("20231114221320123", "20231114221320124"),
            ("20231114221320999", "20231114221321000"),
            ("20231114225959999", "20231114230000000"),
            ("20240228235959999", "20240229000000000"),
            ("20230228235959999", "20230301000000000"),
            ("20000229235959999", "20000301000000000"),
            ("21000228235959999", "21000301000000000"),
            ("20231231235959999", "20240101000000000"),
        ] {
            let time = parse_index_file_name(name).unwrap();
            assert_eq!(index_file_name(&time.successor()), Ok(next.to_owned()));
        }
    }

    proptest! {
        #[test]
        fn offsets_come_back(offset in 0..=i64::MAX as u64) {
            prop_assert_eq!(parse_offset_file_name(&offset_file_name(offset)), Some(offset));
        }

        #[test]
        fn any_text_is_a_name_or_not(text in "[0-9]{17,20}|.{0,24}") {
            let _ = parse_offset_file_name(&text);
            let _ = parse_queue_dir_name(&text);
            if let Some(time) = parse_index_file_name(&text) {
                prop_assert_eq!(index_file_name(&time), Ok(text));
                prop_assert!(time.successor() > time);
            }
        }
    }
}
