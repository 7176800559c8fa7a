//! Delay levels: the number in the `DELAY` property of a message stands for a delay.
//!
//! A delayed record is in [`SCHEDULE_TOPIC`](crate::topic::SCHEDULE_TOPIC), queue level - 1. Its queue unit holds the
//! delivery time instead of a tags code. Source: `ScheduleMessageService#parseDelayLevel`,
//! `DefaultMessageStore#computeDeliverTimestamp`.

use std::fmt;

use crate::error::FormatError;

/// The default levels (`messageDelayLevel`), level 1 first.
pub const DEFAULT_DELAY_LEVELS: &str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h";
/// Delay of a level that is not in the table, in milliseconds.
const UNKNOWN_LEVEL_DELAY_MS: i64 = 1_000;

/// The table of delays, level 1 first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayLevels {
    delays_ms: Vec<i64>,
}

impl DelayLevels {
    /// Maximum number of levels in a store's table: each level has a queue.
    pub const MOST: i32 = 256;

    /// Parses a table in the form of a configuration: numbers with the units `s`, `m`, `h`, `d`, separated by single
    /// spaces.
    pub fn parse(text: &str) -> Result<Self, FormatError> {
        let bad = || FormatError::bad_name("a table of delay levels such as \"1s 5s 1m 2h\"", text);
        let parsed = |level: &str| {
            let unit_ms = match level.as_bytes().last()? {
                b's' => 1_000,
                b'm' => 60_000,
                b'h' => 3_600_000,
                b'd' => 86_400_000,
                _ => return None,
            };
            level.get(..level.len() - 1)?.parse::<i64>().ok().filter(|n| *n >= 0)?.checked_mul(unit_ms)
        };
        let delays_ms = text.split(' ').map(parsed).collect::<Option<Vec<_>>>().ok_or_else(bad)?;
        Ok(Self { delays_ms })
    }

    /// Returns the highest level, 18 by default.
    pub fn max_level(&self) -> i32 {
        i32::try_from(self.delays_ms.len()).unwrap_or(i32::MAX)
    }

    /// Returns the delay of a level in milliseconds, or `None` for levels below 1 and above the highest.
    pub fn delay_ms(&self, level: i32) -> Option<i64> {
        let at = usize::try_from(level).ok()?.checked_sub(1)?;
        self.delays_ms.get(at).copied()
    }

    /// Returns the delivery time of a record of this level, stored at `store_timestamp`, in epoch milliseconds. A level
    /// that is not in the table has a delay of one second.
    pub fn delivery_time(&self, level: i32, store_timestamp: i64) -> i64 {
        store_timestamp.wrapping_add(self.delay_ms(level).unwrap_or(UNKNOWN_LEVEL_DELAY_MS))
    }

    /// Returns the longest delay, in milliseconds.
    pub fn longest_ms(&self) -> i64 {
        self.delays_ms.iter().copied().max().unwrap_or(0)
    }

    /// Returns whether `code` can be the delivery time of a record stored at `store_timestamp`: in every table, it is a
    /// whole number of seconds later.
    pub const fn is_delivery_time(code: i64, store_timestamp: i64) -> bool {
        match code.checked_sub(store_timestamp) {
            Some(wait_ms) => wait_ms >= 0 && wait_ms % 1_000 == 0,
            None => false,
        }
    }

    /// Returns the queue of a level.
    pub const fn queue_id(level: i32) -> i32 {
        level.saturating_sub(1)
    }
}

impl Default for DelayLevels {
    /// Returns the levels of [`DEFAULT_DELAY_LEVELS`].
    fn default() -> Self {
        const S: i64 = 1_000;
        const M: i64 = 60 * S;
        const H: i64 = 60 * M;
        let minutes = [M, 2 * M, 3 * M, 4 * M, 5 * M, 6 * M, 7 * M, 8 * M, 9 * M, 10 * M, 20 * M, 30 * M];
        let delays_ms = [S, 5 * S, 10 * S, 30 * S].into_iter().chain(minutes).chain([H, 2 * H]).collect();
        Self { delays_ms }
    }
}

impl fmt::Display for DelayLevels {
    /// Writes the form that [`DelayLevels::parse`] reads, each delay in the largest unit that gives a whole number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, delay_ms) in self.delays_ms.iter().enumerate() {
            let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m")];
            let fits = |(unit_ms, _): &(i64, &str)| *delay_ms > 0 && delay_ms % unit_ms == 0;
            let (unit_ms, unit) = units.into_iter().find(fits).unwrap_or((1_000, "s"));
            let gap = if number == 0 { "" } else { " " };
            write!(f, "{gap}{}{unit}", delay_ms / unit_ms)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_default_table() {
        let levels = DelayLevels::parse(DEFAULT_DELAY_LEVELS).unwrap();
        assert_eq!(levels, DelayLevels::default());
        let expected = [
            1_000, 5_000, 10_000, 30_000, 60_000, 120_000, 180_000, 240_000, 300_000, 360_000, 420_000,
            480_000, 540_000, 600_000, 1_200_000, 1_800_000, 3_600_000, 7_200_000,
        ];
        assert_eq!(levels.delays_ms, expected);
        assert_eq!(levels.max_level(), 18);
        assert_eq!((levels.delay_ms(0), levels.delay_ms(-1), levels.delay_ms(19)), (None, None, None));
        assert_eq!(levels.delivery_time(3, 1_700_000_000_123), 1_700_000_010_123);
        assert_eq!(levels.delivery_time(99, 1_700_000_000_123), 1_700_000_001_123);
        assert_eq!(DelayLevels::queue_id(3), 2);
    }

    #[test]
    fn other_tables() {
        assert_eq!(DelayLevels::parse("2d").unwrap().delay_ms(1), Some(172_800_000));
        for bad in [
            "",
            " ",
            "1s  5s",
            "1",
            "s",
            "1x",
            "-1s",
            "1s 5é",
            "99999999999999999999s",
            "9223372036854775807d",
        ] {
            assert!(DelayLevels::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_table_is_written_as_it_is_read() {
        assert_eq!(DelayLevels::default().to_string(), DEFAULT_DELAY_LEVELS);
        for (text, written) in
            [("0s 60s 90s", "0s 1m 90s"), ("24h 7d 168h", "1d 7d 7d"), ("3600s 61m", "1h 61m")]
        {
            let levels = DelayLevels::parse(text).unwrap();
            assert_eq!(levels.to_string(), written);
            assert_eq!(DelayLevels::parse(written).unwrap(), levels);
        }
        assert_eq!(DelayLevels::parse("5s 1d 2m").unwrap().longest_ms(), 86_400_000);
    }

    #[test]
    fn what_can_be_a_time_of_delivery() {
        let at = 1_700_000_000_123;
        for wait_ms in [0, 1_000, 7_200_000, 86_400_000_000] {
            assert!(DelayLevels::is_delivery_time(at + wait_ms, at), "{wait_ms}");
        }
        for code in [at - 1_000, at + 1, at + 999, 0, 2_598_919, -1, i64::MIN] {
            assert!(!DelayLevels::is_delivery_time(code, at), "{code}");
        }
        assert!(!DelayLevels::is_delivery_time(i64::MAX, -1_000));
    }

    proptest! {
        #[test]
        fn any_text_is_a_table_or_an_error(text in "[0-9smhd é-]{0,40}", level in any::<i32>(), at in any::<i64>()) {
            if let Ok(levels) = DelayLevels::parse(&text) {
                let _ = levels.delivery_time(level, at);
                prop_assert_eq!(DelayLevels::parse(&levels.to_string()).unwrap(), levels);
            }
        }
    }
}
