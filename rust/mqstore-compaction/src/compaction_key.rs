//! The key by which a record is compacted.
//!
//! Source: `CompactionLog#getOffsetMap`, `#shouldRetainMsg`.

use std::borrow::Cow;

use mqstore_format::RecordView;
use mqstore_format::properties::KEYS;

/// Returns the key by which a record is compacted: its complete KEYS text, `None` if that is blank.
pub(crate) fn compaction_key<'a>(record: &RecordView<'a>) -> Option<Cow<'a, str>> {
    // Text that is not UTF-8 is decoded as in Java, with replacement characters.
    let keys = match record.keys() {
        Some(keys) => Cow::Borrowed(keys),
        None => String::from_utf8_lossy(record.properties.get_raw(KEYS)?),
    };
    (!keys.chars().all(is_java_whitespace)).then_some(keys)
}

/// Same as `Character#isWhitespace`: Unicode spaces except the non-breaking ones, and a few control characters.
fn is_java_whitespace(character: char) -> bool {
    match character {
        '\t'..='\r' | '\u{1c}'..='\u{1f}' => true,
        '\u{85}' | '\u{a0}' | '\u{2007}' | '\u{202f}' => false,
        _ => character.is_whitespace(),
    }
}

#[cfg(test)]
mod tests {
    use super::is_java_whitespace;

    #[test]
    fn blank_is_what_java_calls_blank() {
        for blank in [' ', '\t', '\u{b}', '\u{1c}', '\u{2028}', '\u{3000}', '\u{1680}'] {
            assert!(is_java_whitespace(blank), "{blank:?}");
        }
        for other in ['a', '\u{a0}', '\u{2007}', '\u{202f}', '\u{85}', '\u{200b}', '\0'] {
            assert!(!is_java_whitespace(other), "{other:?}");
        }
    }
}
