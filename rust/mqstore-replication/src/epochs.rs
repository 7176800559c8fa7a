//! The epochs of a log: which master wrote from which log offset on.
//!
//! ```text
//! <root>/epochFileCheckpoint    number of epochs
//!                               CRC of the following lines
//!                               <epoch>-<start>      one line for each, in order
//! ```
//!
//! Two logs with the same start of an epoch are equal up to the end of this epoch in the shorter one. Across a crash:
//! the file is replaced in one step, before the first byte of a new epoch is in the log.
//!
//! Source: `EpochFileCache`, `CheckpointFile`.

use std::fmt::Write;

use mqstore_format::crc31;

/// Maximum number of epochs: the buffer of RocketMQ for a handshake has as many.
pub(crate) const MAX_EPOCHS: usize = 1000;

/// An epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// Its number.
    pub number: i32,
    /// Log offset of its first byte.
    pub start: u64,
}

/// The epochs of a log, ascending by number and by start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EpochTable(Vec<Epoch>);

impl EpochTable {
    /// Reads the file. Epochs after one that is not larger than its predecessor are dropped.
    ///
    /// # Errors
    /// A reason if the text is no such file, or if its checksum is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines();
        let mut number = |what: &str| -> Result<u32, String> {
            lines.next().and_then(|line| line.parse().ok()).ok_or_else(|| format!("it has no {what}"))
        };
        let (count, crc) = (number("number of epochs")?, number("checksum")?);
        let mut table = Self::default();
        let mut content = String::new();
        for line in lines {
            let parts = line.split_once('-');
            let epoch = parts.and_then(|(number, start)| {
                Some(Epoch { number: number.parse().ok()?, start: start.parse().ok()? })
            });
            table.note(epoch.ok_or_else(|| format!("{line:?} is no epoch"))?);
            content.push_str(line);
            content.push('\n');
        }
        // 0 means that RocketMQ compares nothing.
        if crc != 0 && crc != crc31(content.as_bytes()) {
            return Err("its checksum is wrong".to_owned());
        }
        if table.0.len() != count as usize {
            return Err(format!("it has {} epochs, not {count}", table.0.len()));
        }
        Ok(table)
    }

    /// Returns the text of the file.
    pub fn to_text(&self) -> String {
        let mut lines = String::new();
        for Epoch { number, start } in &self.0 {
            // A text takes each write.
            let _ = writeln!(lines, "{number}-{start}");
        }
        format!("{}\n{}\n{lines}", self.0.len(), crc31(lines.as_bytes()))
    }

    /// Returns the epochs.
    pub fn epochs(&self) -> &[Epoch] {
        &self.0
    }

    /// Adds an epoch, unless the last one is as large. Returns whether it did.
    pub fn note(&mut self, epoch: Epoch) -> bool {
        let is_newer =
            self.0.last().is_none_or(|last| last.number < epoch.number && last.start < epoch.start);
        if is_newer {
            if self.0.len() == MAX_EPOCHS {
                // The newest ones say where two logs part.
                self.0.remove(0);
            }
            self.0.push(epoch);
        }
        is_newer
    }

    /// Removes the epochs that begin at or after `end`: a log that ends there has no byte of them. Returns whether there
    /// were any.
    pub fn truncate(&mut self, end: u64) -> bool {
        let before = self.0.len();
        self.0.retain(|epoch| epoch.start < end);
        self.0.len() < before
    }

    /// Returns the log offset up to which this log, which ends at `end`, is equal to one that ends at `other_end` and has
    /// the epochs `other`; `None` if they have no epoch in common.
    ///
    /// RocketMQ can return an offset after the end of this log if its last epoch begins after it; this function never
    /// does.
    pub fn consistent_end(&self, end: u64, other: &[Epoch], other_end: u64) -> Option<u64> {
        let end_in = |next: Option<u64>, log_end: u64| next.map_or(log_end, |next| next.min(log_end));
        self.0.iter().enumerate().rev().find_map(|(at, epoch)| {
            let there = other.iter().position(|other| other == epoch)?;
            let own_end = end_in(self.0.get(at + 1).map(|next| next.start), end);
            let there_end = end_in(other.get(there + 1).map(|next| next.start), other_end);
            Some(own_end.min(there_end))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(epochs: &[(i32, u64)]) -> EpochTable {
        EpochTable(epochs.iter().map(|&(number, start)| Epoch { number, start }).collect())
    }

    /// The text is from a real broker.
    #[test]
    fn the_file() {
        let text = "4\n1289847730\n1-0\n2-40000\n3-70000\n4-100000\n";
        let epochs = table(&[(1, 0), (2, 40_000), (3, 70_000), (4, 100_000)]);
        assert_eq!(EpochTable::parse(text), Ok(epochs.clone()));
        assert_eq!(epochs.to_text(), text);
        assert!(EpochTable::parse(&text.replace("1289847730", "0")).is_ok());
        for (damaged, reason) in [
            (text.replace("4-100000", "4-100001"), "checksum is wrong"),
            (text.replace("4\n128", "5\n128"), "4 epochs, not 5"),
            (text.replace("2-40000", "x"), "no epoch"),
            (String::new(), "no number of epochs"),
            ("1\n".to_owned(), "no checksum"),
        ] {
            assert!(EpochTable::parse(&damaged).unwrap_err().contains(reason), "{damaged:?}");
        }
    }

    #[test]
    fn two_logs_agree_up_to_their_last_common_epoch() {
        let own = table(&[(1, 0), (2, 1000), (3, 1800)]);
        let master = table(&[(1, 0), (2, 1000), (4, 1500)]);
        assert_eq!(own.consistent_end(2500, master.epochs(), 2000), Some(1500));
        assert_eq!(own.consistent_end(1200, master.epochs(), 2000), Some(1200));
        assert_eq!(master.consistent_end(2000, own.epochs(), 2500), Some(1500));
        assert_eq!(own.consistent_end(2500, table(&[(1, 5)]).epochs(), 2000), None);
        assert_eq!(EpochTable::default().consistent_end(2500, master.epochs(), 2000), None);
    }

    /// The last epoch of this log begins after its end. RocketMQ returns 3000 here.
    #[test]
    fn no_log_is_equal_after_its_own_end() {
        let own = table(&[(1, 0), (2, 2000)]);
        let master = table(&[(1, 0), (2, 2000), (3, 3000)]);
        assert_eq!(own.consistent_end(1500, master.epochs(), 4000), Some(1500));
    }

    #[test]
    fn an_epoch_is_larger_than_the_one_before() {
        let mut epochs = table(&[(1, 0), (4, 100)]);
        assert!(!epochs.note(Epoch { number: 5, start: 100 }));
        assert!(!epochs.note(Epoch { number: 4, start: 200 }));
        assert!(epochs.note(Epoch { number: 5, start: 200 }));
        assert!(epochs.truncate(200) && !epochs.truncate(200));
        assert_eq!(epochs, table(&[(1, 0), (4, 100)]));
        for number in 5..3000 {
            assert!(epochs.note(Epoch { number, start: 1000 * u64::from(number.unsigned_abs()) }));
        }
        assert_eq!((epochs.epochs().len(), epochs.epochs()[0].number), (MAX_EPOCHS, 2000));
    }
}
