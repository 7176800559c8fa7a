//! The notes of a store for its user: warnings and log lines.
//!
//! Each part of a store tells them here, at any time and with any lock held. The program asks for them between its calls,
//! because a warning belongs to a line of the program. Across threads: each note is returned once.

use mqstore_io::sync::{Mutex, RwLock};

/// Maximum number of lines that wait. Later ones are lost if the program takes none.
const MAX_LINES: usize = 10_000;

/// The notes of one store, as the module describes them.
#[derive(Debug, Default)]
pub struct Notes {
    warnings: RwLock<Vec<String>>,
    lines: Mutex<Vec<String>>,
}

impl Notes {
    /// Adds a warning about the store, unless it exists already. Returns whether it is new.
    pub fn warn(&self, text: impl Into<String>) -> bool {
        let (text, mut warnings) = (text.into(), self.warnings.write());
        let is_new = !warnings.contains(&text);
        if is_new {
            warnings.push(text);
        }
        is_new
    }

    /// Returns the warnings from number `first` on; the first one has number 0.
    pub fn warnings(&self, first: usize) -> Vec<String> {
        self.warnings.read().get(first..).unwrap_or_default().to_vec()
    }

    /// Removes all warnings, after an attempt to open the store that is repeated.
    pub fn clear_warnings(&self) {
        self.warnings.write().clear();
    }

    /// Adds a line about the delivery of messages for the log of the program, unless the same line waits already.
    pub fn log(&self, line: String) {
        let mut lines = self.lines.lock();
        if lines.len() < MAX_LINES && !lines.contains(&line) {
            lines.push(line);
        }
    }

    /// Returns the lines since the last call.
    pub fn take_lines(&self) -> Vec<String> {
        std::mem::take(&mut self.lines.lock())
    }
}

/// Returns a time in its two largest units, rounded down, for people.
pub fn duration_text(ms: u64) -> String {
    const UNITS: [(u64, &str); 5] =
        [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms")];
    let mut left = ms;
    let mut parts = Vec::new();
    for (unit, name) in UNITS {
        let count = left / unit;
        left %= unit;
        if count > 0 {
            parts.push(format!("{count} {name}"));
        } else if !parts.is_empty() {
            break;
        }
        if parts.len() == 2 {
            break;
        }
    }
    if parts.is_empty() { "0 ms".to_owned() } else { parts.join(" ") }
}

/// Returns a number of bytes in its largest unit with one decimal, for people.
pub fn bytes_text(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_note_is_returned_once_and_lines_are_bounded() {
        let notes = Notes::default();
        assert!(notes.warn("one") && notes.warn("two") && !notes.warn("one"));
        assert_eq!(
            (notes.warnings(0), notes.warnings(1)),
            (vec!["one".into(), "two".into()], vec!["two".into()])
        );
        assert_eq!((notes.warnings(2), notes.warnings(3)), (Vec::new(), Vec::new()));
        for number in 0..2 * MAX_LINES {
            notes.log(format!("line {}", number / 2));
        }
        notes.log("late".into());
        assert_eq!(notes.take_lines().len(), MAX_LINES);
        notes.log("line 1".into());
        assert_eq!((notes.take_lines(), notes.take_lines()), (vec!["line 1".into()], Vec::new()));
    }

    #[test]
    fn bytes_have_their_largest_unit() {
        let cases = [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (115_657_933, "110.3 MiB")];
        for (bytes, text) in cases {
            assert_eq!(bytes_text(bytes), text);
        }
    }

    #[test]
    fn durations_have_two_units() {
        let cases = [
            (0, "0 ms"),
            (999, "999 ms"),
            (1000, "1 s"),
            (61_500, "1 min 1 s"),
            (21_600_000, "6 h"),
            (125_572_571, "1 d 10 h"),
            (86_400_001, "1 d"),
        ];
        for (ms, text) in cases {
            assert_eq!(duration_text(ms), text);
        }
    }
}
