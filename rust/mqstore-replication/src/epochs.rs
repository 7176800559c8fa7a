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
use std::io::ErrorKind;
use std::path::PathBuf;

use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;
use mqstore_format::crc31;

/// Maximum number of epochs: the buffer of RocketMQ for a handshake has as many.
pub(crate) const MAX_EPOCHS: usize = 1000;

/// Maximum bytes of the file.
const MOST_BYTES: u64 = 1 << 20;

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

fn path_of(files: &StoreFiles) -> PathBuf {
    files.root.join("epochFileCheckpoint")
}

impl EpochTable {
    /// Reads the epochs of a store; none if it has no such file.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] for a damaged file; errors of the system.
    pub fn load(files: &StoreFiles) -> Result<Self, StoreError> {
        let path = path_of(files);
        match files.vfs.read_file(&path, MOST_BYTES) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::default()),
            text => {
                let text = text.at(&path, "reading the epochs")?;
                Self::parse(&String::from_utf8_lossy(&text))
                    .map_err(|reason| StoreError::corrupt(&path, 0, reason))
            }
        }
    }

    /// Stores the epochs of a store.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn save(&self, files: &StoreFiles) -> Result<(), StoreError> {
        files.replace_file(&path_of(files), self.to_text().as_bytes(), "writing the epochs")
    }

    /// Begins the epoch of a master whose log has `first` to `end`: `number`, or the next number, from its end on. A log
    /// without epochs gets one that covers all of it. Returns whether the table has changed.
    ///
    /// A power loss can cut the log to the begin of its last epoch, and a replica can have more of this epoch. So the epoch
    /// gets another number, too.
    ///
    /// # Errors
    /// The last number, if `number` is not larger: another master has written this log since.
    pub fn begin(&mut self, first: u64, end: u64, number: Option<i32>) -> Result<bool, i32> {
        let last = self.0.last().map(|last| last.number);
        if let (Some(last), Some(number)) = (last, number)
            && last >= number
        {
            return Err(last);
        }
        let is_cut = self.truncate(end.saturating_add(1));
        let Some(last) = last.filter(|_| !self.0.is_empty()) else {
            return Ok(self.note(Epoch { number: number.unwrap_or(1), start: first }));
        };
        if end == first && number.is_none() {
            return Ok(is_cut);
        }
        self.truncate(end);
        Ok(self.note(Epoch { number: number.unwrap_or(last.saturating_add(1)), start: end }) || is_cut)
    }

    /// Returns the epoch of the byte at `offset`, and the begin of the next one.
    pub(crate) fn at(&self, offset: u64) -> (Option<Epoch>, Option<u64>) {
        let next = self.0.partition_point(|epoch| epoch.start <= offset);
        let epoch = next.checked_sub(1).and_then(|at| self.0.get(at));
        (epoch.copied(), self.0.get(next).map(|next| next.start))
    }

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
    fn each_open_of_a_master_is_an_epoch() {
        let mut epochs = EpochTable::default();
        assert_eq!(epochs.begin(100, 500, None), Ok(true));
        assert_eq!(epochs.begin(100, 500, None), Ok(true));
        assert_eq!(epochs, table(&[(1, 100), (2, 500)]));
        // Its records were lost.
        assert_eq!(epochs.begin(100, 500, None), Ok(true));
        assert_eq!(epochs, table(&[(1, 100), (3, 500)]));
        // The number of a lock service.
        assert_eq!(epochs.begin(100, 600, Some(3)), Err(3));
        assert_eq!(epochs.begin(100, 600, Some(9)), Ok(true));
        assert_eq!(epochs, table(&[(1, 100), (3, 500), (9, 600)]));
        assert_eq!(epochs.begin(100, 400, None), Ok(true));
        assert_eq!(epochs, table(&[(1, 100), (10, 400)]));
        // An empty log, opened again and again.
        let mut empty = EpochTable::default();
        assert_eq!((empty.begin(0, 0, None), empty.begin(0, 0, None)), (Ok(true), Ok(false)));
        assert_eq!(empty, table(&[(1, 0)]));
        let at = |offset| epochs.at(offset);
        assert_eq!(at(99), (None, Some(100)));
        assert_eq!(at(399), (Some(Epoch { number: 1, start: 100 }), Some(400)));
        assert_eq!(at(400), (Some(Epoch { number: 10, start: 400 }), None));
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
