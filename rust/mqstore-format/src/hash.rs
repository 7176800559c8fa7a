//! The hashes and checksums of the format.
//!
//! | function | used for | RocketMQ |
//! | --- | --- | --- |
//! | [`java_hash`] | tags code, index key hash | `String#hashCode` |
//! | [`crc31`] | body CRC, record CRC, epoch file | `UtilAll#crc32` |
//! | [`tags_code`] | third field of a queue unit | `MessageExtBrokerInner#tagsString2tagsCode` |
//! | [`index_key_hash`], [`index_tag_hash`] | index entries and slots | `IndexFile#indexKeyHashMethod` |
//! | [`key_digest`] | key map of a compaction | `CompactionLog.OffsetMap` |
//!
//! Java hashes UTF-16 code units, so a character outside the basic plane counts twice. Nothing here
//! allocates.

use md5::{Digest, Md5};

/// The multiplier of Java's string hash.
const BASE: u32 = 31;
/// Powers 31^8 .. 31^1, wrapped: eight ASCII bytes are hashed in one step whose products do not wait for
/// each other.
const POWERS: [u32; 8] = [
    BASE.wrapping_pow(8),
    BASE.wrapping_pow(7),
    BASE.wrapping_pow(6),
    BASE.wrapping_pow(5),
    BASE.wrapping_pow(4),
    BASE.wrapping_pow(3),
    BASE.wrapping_pow(2),
    BASE,
];

/// Java's `String#hashCode`: `h = 31 * h + unit` over the UTF-16 units of `s`, wrapping.
pub fn java_hash(s: &str) -> i32 {
    extend_hash(0, s).cast_signed()
}

/// Continues a Java string hash with the units of `s`.
fn extend_hash(hash: u32, s: &str) -> u32 {
    if s.is_ascii() {
        extend_hash_ascii(hash, s.as_bytes())
    } else {
        s.encode_utf16().fold(hash, |h, unit| extend_hash_unit(h, u32::from(unit)))
    }
}

#[inline]
fn extend_hash_unit(hash: u32, unit: u32) -> u32 {
    hash.wrapping_mul(BASE).wrapping_add(unit)
}

fn extend_hash_ascii(mut hash: u32, bytes: &[u8]) -> u32 {
    let (chunks, rest) = bytes.as_chunks::<8>();
    let [highest, factors @ ..] = POWERS;
    for [units @ .., last] in chunks {
        let sum = units.iter().zip(factors).fold(u32::from(*last), |sum, (unit, factor)| {
            sum.wrapping_add(u32::from(*unit).wrapping_mul(factor))
        });
        hash = hash.wrapping_mul(highest).wrapping_add(sum);
    }
    rest.iter().fold(hash, |h, unit| extend_hash_unit(h, u32::from(*unit)))
}

/// CRC-32 (IEEE) with the top bit cleared, so that Java's signed `int` is never negative.
pub fn crc31(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes) & 0x7fff_ffff
}

/// [`crc31`] of bytes that come in pieces.
#[derive(Clone, Debug, Default)]
pub struct Crc31(crc32fast::Hasher);

impl Crc31 {
    /// The checksum of no bytes yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of everything added.
    pub fn finish(self) -> u32 {
        self.0.finalize() & 0x7fff_ffff
    }
}

/// The tags code of a queue unit: the Java hash of the whole tags text, sign-extended; 0 for no tags.
///
/// The multi-tags flag changes nothing: the text is hashed as it is.
pub fn tags_code(tags: &str) -> i64 {
    i64::from(java_hash(tags))
}

/// The hash of an index entry for `key` of `topic`: the absolute value of the Java hash of `topic#key`,
/// and 0 where that hash is the smallest integer (which has no absolute value).
pub fn index_key_hash(topic: &str, key: &str) -> i32 {
    let hash = extend_hash(extend_hash_unit(extend_hash(0, topic), u32::from(b'#')), key).cast_signed();
    hash.checked_abs().unwrap_or(0)
}

/// The hash of the index entry RocketMQ 5.5 adds for the tags of a record: that of the key `T#tags`.
pub fn index_tag_hash(topic: &str, tags: &str) -> i32 {
    let hash = extend_hash(extend_hash(extend_hash(0, topic), "#T#"), tags).cast_signed();
    hash.checked_abs().unwrap_or(0)
}

/// The MD5 of the key's UTF-8 bytes, by which a compaction tells keys apart.
pub fn key_digest(keys: &str) -> [u8; 16] {
    Md5::digest(keys.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn java_hash_of_the_specified_examples() {
        let examples: [(&str, i32); 8] = [
            ("", 0),
            ("a", 97),
            ("*", 42),
            ("TagA", 2_598_919),
            ("TagB", 2_598_920),
            ("order-created", -392_709_271),
            ("polygenelubricants", i32::MIN),
            ("中文", 646_394),
        ];
        for (text, hash) in examples {
            assert_eq!(java_hash(text), hash, "{text}");
            assert_eq!(tags_code(text), i64::from(hash), "{text}");
        }
        assert_eq!(
            tags_code("order-created").to_be_bytes(),
            [0xff, 0xff, 0xff, 0xff, 0xe8, 0x97, 0xbb, 0x69]
        );
    }

    #[test]
    fn characters_beyond_the_basic_plane_count_twice() {
        // U+1F600 is the pair D83D DE00.
        assert_eq!(java_hash("😀"), 0xd83d * 31 + 0xde00);
    }

    #[test]
    fn crc_drops_the_top_bit() {
        assert_eq!(crc31(b""), 0);
        assert_eq!(crc31(b"Hello"), 0x77d1_8982);
        let mut pieces = Crc31::new();
        pieces.update(b"He");
        pieces.update(b"llo");
        assert_eq!(pieces.finish(), 2_010_220_930);
    }

    #[test]
    fn index_hash_of_the_specified_examples() {
        assert_eq!(index_key_hash("TopicTest", "KeyA"), 1_656_937_756);
        assert_eq!(index_key_hash("TopicTest", "KeyB"), 1_656_937_755);
        assert_eq!(index_key_hash("TopicTest", "7F00000100002A139A5528E4F2AB0000"), 1_259_389_491);
    }

    /// Seven letters that bring the hash of `prefix` to `wanted`: the missing sum, written in base 31.
    fn suffix_for(prefix: &str, wanted: i32) -> String {
        let all_a = java_hash(&format!("{prefix}AAAAAAA"));
        let mut missing = wanted.wrapping_sub(all_a).cast_unsigned();
        let mut letters = [b'A'; 7];
        for letter in letters.iter_mut().rev() {
            *letter += (missing % BASE) as u8;
            missing /= BASE;
        }
        String::from_utf8(letters.to_vec()).unwrap()
    }

    #[test]
    fn an_index_hash_without_absolute_value_is_zero() {
        let key = suffix_for("TopicTest#", i32::MIN);
        assert_eq!(java_hash(&format!("TopicTest#{key}")), i32::MIN);
        assert_eq!(index_key_hash("TopicTest", &key), 0);
    }

    #[test]
    fn digest_of_the_specified_example() {
        let expected: [u8; 16] =
            [0xc2, 0xad, 0xd6, 0x94, 0xbf, 0x94, 0x2d, 0xc7, 0x7b, 0x37, 0x65, 0x92, 0xd9, 0xc8, 0x62, 0xcd];
        assert_eq!(key_digest("key1"), expected);
    }

    proptest! {
        #[test]
        fn hash_equals_the_definition(text in ".{0,40}", ascii in "[ -~]{0,80}") {
            for text in [text, ascii] {
                let plain = text.encode_utf16().fold(0i32, |h, u| h.wrapping_mul(31).wrapping_add(i32::from(u)));
                prop_assert_eq!(java_hash(&text), plain);
            }
        }

        #[test]
        fn index_hash_is_that_of_the_joined_text(topic in "[%|a-zA-Z0-9_-]{1,40}", key in ".{0,40}") {
            let joined = java_hash(&format!("{topic}#{key}"));
            let expected = if joined == i32::MIN { 0 } else { joined.abs() };
            prop_assert_eq!(index_key_hash(&topic, &key), expected);
            prop_assert_eq!(index_tag_hash(&topic, &key), index_key_hash(&topic, &format!("T#{key}")));
        }
    }
}
