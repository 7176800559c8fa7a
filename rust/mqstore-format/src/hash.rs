//! The hashes and checksums of the format.
//!
//! | function | used for | RocketMQ |
//! | --- | --- | --- |
//! | [`java_hash`] | tags code, index key hash | `String#hashCode` |
//! | [`crc31`] | body CRC, record CRC, epoch file | `UtilAll#crc32` |
//! | [`crc32`] | our own metadata log | none |
//! | [`tags_code`] | third field of a queue unit | `MessageExtBrokerInner#tagsString2tagsCode` |
//! | [`index_key_hash`], [`index_tag_hash`], [`IndexHasher`] | index entries and slots | `IndexFile#indexKeyHashMethod` |
//! | [`key_digest`] | key map of a compaction | `CompactionLog.OffsetMap` |
//!
//! Java hashes UTF-16 code units, so a character outside the basic plane counts twice. No function here allocates.

use md5::{Digest, Md5};

/// The multiplier of Java's string hash.
const BASE: u32 = 31;
/// Powers of the multiplier, wrapped: 31^0 to 31^8.
const POWERS: [u32; 9] = [
    1,
    BASE,
    BASE.wrapping_pow(2),
    BASE.wrapping_pow(3),
    BASE.wrapping_pow(4),
    BASE.wrapping_pow(5),
    BASE.wrapping_pow(6),
    BASE.wrapping_pow(7),
    BASE.wrapping_pow(8),
];
/// The top bit of each byte. ASCII bytes have it clear.
const TOP_BITS: u64 = 0x8080_8080_8080_8080;

/// Returns Java's `String#hashCode`: `h = 31 * h + unit` over the UTF-16 units of `s`, wrapping.
pub fn java_hash(s: &str) -> i32 {
    extend_hash(0, s).cast_signed()
}

/// Returns [`java_hash`] of untrusted bytes; `None` if they are not UTF-8.
#[inline]
pub(crate) fn java_hash_bytes(text: &[u8]) -> Option<i32> {
    extend_hash_bytes(0, text).map(u32::cast_signed)
}

/// Continues a Java string hash with the units of `s`.
fn extend_hash(hash: u32, s: &str) -> u32 {
    extend_hash_ascii(hash, s.as_bytes())
        .unwrap_or_else(|| s.encode_utf16().fold(hash, |h, unit| extend_hash_unit(h, u32::from(unit))))
}

/// Like [`extend_hash`]; `None` for bytes that are not UTF-8.
#[inline]
fn extend_hash_bytes(hash: u32, text: &[u8]) -> Option<u32> {
    extend_hash_ascii(hash, text)
        .or_else(|| std::str::from_utf8(text).ok().map(|text| extend_hash(hash, text)))
}

#[inline]
fn extend_hash_unit(hash: u32, unit: u32) -> u32 {
    hash.wrapping_mul(BASE).wrapping_add(unit)
}

/// Continues a hash, eight bytes in one step whose products do not depend on the step before. Returns `None` if a byte
/// is not ASCII.
#[inline]
fn extend_hash_ascii(mut hash: u32, bytes: &[u8]) -> Option<u32> {
    let [.., highest] = POWERS;
    let (chunks, rest) = bytes.as_chunks::<8>();
    let mut seen = 0;
    for chunk in chunks {
        let eight = u64::from_be_bytes(*chunk);
        seen |= eight;
        hash = hash.wrapping_mul(highest).wrapping_add(hash_of_eight(eight));
    }
    if let Some(power) = POWERS.get(rest.len()).filter(|_| !rest.is_empty()) {
        // Zeros before the rest change nothing.
        let eight = match bytes.last_chunk() {
            Some(last) => u64::from_be_bytes(*last) & (u64::MAX >> (64 - 8 * rest.len())),
            None => rest.iter().fold(0, |eight, byte| eight << 8 | u64::from(*byte)),
        };
        seen |= eight;
        hash = hash.wrapping_mul(*power).wrapping_add(hash_of_eight(eight));
    }
    (seen & TOP_BITS == 0).then_some(hash)
}

/// Returns the Java hash of eight ASCII bytes, the first one on top. Neighbours are combined in pairs, pairs in fours,
/// and fours in one. Each sum fits in its half until the last one, which wraps. The result for other bytes has no
/// meaning.
#[inline]
fn hash_of_eight(eight: u64) -> u32 {
    const BYTES: u64 = 0x00ff_00ff_00ff_00ff;
    const PAIRS: u64 = 0x0000_ffff_0000_ffff;
    let [_, one, two, _, four, ..] = POWERS;
    let pairs = (eight >> 8 & BYTES).wrapping_mul(u64::from(one)).wrapping_add(eight & BYTES);
    let fours = (pairs >> 16 & PAIRS).wrapping_mul(u64::from(two)).wrapping_add(pairs & PAIRS);
    ((fours >> 32) as u32).wrapping_mul(four).wrapping_add(fours as u32)
}

/// Returns CRC-32 (IEEE) with the top bit cleared, so that Java's signed `int` is never negative.
pub fn crc31(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes) & 0x7fff_ffff
}

/// Returns CRC-32 (IEEE) with all bits, for files that no Java program reads.
pub fn crc32(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

/// [`crc31`] of bytes in several pieces.
#[derive(Clone, Debug, Default)]
pub struct Crc31(crc32fast::Hasher);

impl Crc31 {
    /// Starts a checksum without bytes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the checksum of all added bytes.
    pub fn finish(self) -> u32 {
        self.0.finalize() & 0x7fff_ffff
    }
}

/// Returns the tags code of a queue unit: the Java hash of the whole tags text, sign-extended; 0 for no tags.
///
/// The multi-tags flag has no effect: the text is hashed as a whole.
pub fn tags_code(tags: &str) -> i64 {
    i64::from(java_hash(tags))
}

/// Returns the hash of an index entry for `key` of `topic`: the absolute value of the Java hash of `topic#key`. If that
/// hash is the smallest integer, which has no absolute value, returns 0.
pub fn index_key_hash(topic: &str, key: &str) -> i32 {
    IndexHasher::new(topic).key(key)
}

/// Returns the hash of the index entry that RocketMQ 5.5 adds for the tags of a record: that of the key `T#tags`.
pub fn index_tag_hash(topic: &str, tags: &str) -> i32 {
    IndexHasher::new(topic).tags(tags)
}

/// Computes the hashes of index entries of one topic, and hashes its name only once.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct IndexHasher {
    /// The hash of `topic#`.
    topic: u32,
}

impl IndexHasher {
    /// Creates a hasher for entries of `topic`.
    pub fn new(topic: &str) -> Self {
        Self { topic: extend_hash_unit(extend_hash(0, topic), u32::from(b'#')) }
    }

    /// Returns [`index_key_hash`] of the topic and `key`.
    #[inline]
    pub fn key(self, key: &str) -> i32 {
        positive(extend_hash(self.topic, key))
    }

    /// Like [`Self::key`], for an untrusted key; `None` if it is not UTF-8.
    #[inline]
    pub fn key_bytes(self, key: &[u8]) -> Option<i32> {
        extend_hash_bytes(self.topic, key).map(positive)
    }

    /// Returns [`index_tag_hash`] of the topic and `tags`.
    pub fn tags(self, tags: &str) -> i32 {
        positive(extend_hash(extend_hash(self.topic, "T#"), tags))
    }
}

fn positive(hash: u32) -> i32 {
    hash.cast_signed().checked_abs().unwrap_or(0)
}

/// Returns the MD5 of the key's UTF-8 bytes, by which a compaction compares keys.
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

    /// Returns seven letters that change the hash of `prefix` to `wanted`: the missing sum, written in base 31.
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
                prop_assert_eq!(java_hash_bytes(text.as_bytes()), Some(plain));
            }
        }

        #[test]
        fn only_text_has_a_hash(bytes in proptest::collection::vec(prop_oneof![3 => 0u8..0x80, 1 => any::<u8>()], 0..20)) {
            let text = std::str::from_utf8(&bytes).ok();
            prop_assert_eq!(java_hash_bytes(&bytes), text.map(java_hash));
            let hasher = IndexHasher::new("orders");
            prop_assert_eq!(hasher.key_bytes(&bytes), text.map(|key| index_key_hash("orders", key)));
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
