//! Message ids.
//!
//! ```text
//! offset message id   address (4|16) port (4) physical offset (8)                 32 or 56 hex digits
//! unique key          address (4|16) pid (2) salt (4) month ms (4) counter (2)    32 or 56 hex digits
//! ```
//!
//! Both are upper-case hex. The first one is a position in a log. The producer creates the second one, and it has no
//! meaning for the store. RocketMQ's client reads the time from it to narrow a search. Source:
//! `MessageDecoder#createMessageId`, `#decodeMessageId`, `MessageClientIDSetter`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicI64, AtomicU16, Ordering};

use crate::bytes::{field, put};
use crate::error::FormatError;
use crate::host::Host;

/// Maximum number of bytes in an id.
const MAX_ID_BYTES: usize = 28;
const DAY_MS: i64 = 86_400_000;

/// Returns the two hex digits of a byte.
#[inline]
const fn hex(byte: u8) -> [u8; 2] {
    [digit(byte >> 4), digit(byte & 0xf)]
}

#[inline]
const fn digit(nibble: u8) -> u8 {
    if nibble < 10 { b'0' + nibble } else { b'A' - 10 + nibble }
}

/// Returns the id of the record at `physical_offset` of the store at `host`: 32 hex digits, 56 for IPv6.
pub fn offset_message_id(host: &Host, physical_offset: i64) -> String {
    let mut digits = Vec::with_capacity(2 * MAX_ID_BYTES);
    push_offset_message_id(host, physical_offset, &mut digits);
    digits.into_iter().map(char::from).collect()
}

/// Appends the digits of [`offset_message_id`] to `out`.
#[inline]
pub fn push_offset_message_id(host: &Host, physical_offset: i64, out: &mut Vec<u8>) {
    let mut bytes = [0; MAX_ID_BYTES];
    let end = host.put_at(&mut bytes, 0);
    put(&mut bytes, end, physical_offset.to_be_bytes());
    let mut digits = [[0; 2]; MAX_ID_BYTES];
    digits.iter_mut().zip(bytes).for_each(|(digits, byte)| *digits = hex(byte));
    out.extend_from_slice(digits.as_flattened().get(..2 * (end + 8)).unwrap_or_default());
}

/// Parses an offset message id, in upper or lower case. The offset may be negative, because an id is untrusted text.
pub fn parse_offset_message_id(id: &str) -> Result<(Host, i64), FormatError> {
    let bad = || FormatError::bad_name("an offset message id (32 or 56 hex digits)", id);
    let bytes = parse_hex(id).ok_or_else(bad)?;
    let ip = match bytes.len() {
        16 => IpAddr::V4(Ipv4Addr::from(field::<4>(&bytes, 0))),
        28 => IpAddr::V6(Ipv6Addr::from(field::<16>(&bytes, 0))),
        _ => return Err(bad()),
    };
    let tail = bytes.len() - 12;
    let port = i32::from_be_bytes(field(&bytes, tail));
    Ok((Host { ip, port }, i64::from_be_bytes(field(&bytes, tail + 4))))
}

fn parse_hex(text: &str) -> Option<Vec<u8>> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    if pairs.len() > MAX_ID_BYTES {
        return None;
    }
    let nibble = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    pairs.iter().map(|[high, low]| Some(nibble(*high)? << 4 | nibble(*low)?)).collect()
}

/// A unique key: 32 characters, 56 for an IPv6 address. It is stored inline, so that a new key allocates nothing.
#[derive(Clone, Copy)]
pub struct MadeKey {
    text: [u8; 2 * MAX_ID_BYTES],
    len: u8,
}

impl MadeKey {
    /// No characters.
    const EMPTY: Self = Self { text: [0; 2 * MAX_ID_BYTES], len: 0 };

    /// Returns its characters.
    pub fn as_bytes(&self) -> &[u8] {
        self.text.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// Returns its characters.
    pub fn as_str(&self) -> &str {
        // The characters are hex digits.
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    /// Appends the hex digits of `bytes`.
    #[inline]
    fn push<const N: usize>(&mut self, bytes: [u8; N]) {
        for byte in bytes {
            put(&mut self.text, usize::from(self.len), hex(byte));
            self.len += 2;
        }
    }

    /// Writes `count` over the last digits.
    #[inline]
    fn replace_count(&mut self, count: u16) {
        self.len = self.len.saturating_sub(4);
        self.push(count.to_be_bytes());
    }
}

impl fmt::Debug for MadeKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), out)
    }
}

/// Counts that a thread takes at once, so that threads do not compete for the counter.
const BLOCK: u16 = 16;

/// Counts of one millisecond that a thread has taken and not used yet; see [`UniqueKeyGenerator::next_in`].
#[derive(Clone, Copy, Debug)]
pub struct KeyBlock {
    now_ms: i64,
    next: u16,
    left: u16,
    /// A key of the block. The others differ from it in the count only.
    key: MadeKey,
}

impl Default for KeyBlock {
    fn default() -> Self {
        Self { now_ms: 0, next: 0, left: 0, key: MadeKey::EMPTY }
    }
}

/// Creates unique keys for one process, as RocketMQ's client does.
///
/// Address, process id and `salt` make keys unique among processes. The time and a 16-bit counter make them unique in
/// one process: 65,536 keys per millisecond, from any number of threads, without a lock. As in the reference, the time
/// starts again each month, and the counter does not. A thread that needs many keys takes counts in blocks
/// ([`KeyBlock`]). Each such thread can waste almost one block per millisecond.
#[derive(Debug)]
pub struct UniqueKeyGenerator {
    prefix: MadeKey,
    utc_offset_ms: i64,
    counter: AtomicU16,
    /// The start of a month in local epoch milliseconds, usually of the current one.
    month_start_ms: AtomicI64,
}

impl UniqueKeyGenerator {
    /// Creates a generator for this address and process. `salt` distinguishes two generators with the same address and
    /// process id (two containers with one address, two stores in one process). Any random number is suitable.
    pub fn new(ip: IpAddr, pid: u32, salt: u32) -> Self {
        let mut prefix = MadeKey::EMPTY;
        match ip {
            IpAddr::V4(ip) => prefix.push(ip.octets()),
            IpAddr::V6(ip) => prefix.push(ip.octets()),
        }
        prefix.push((pid as u16).to_be_bytes());
        prefix.push(salt.to_be_bytes());
        let month_start_ms = AtomicI64::new(0);
        Self { prefix, utc_offset_ms: 0, counter: AtomicU16::new(0), month_start_ms }
    }

    /// Starts the counter at `count`. With a random start, the keys of two generators with the same salt rarely meet.
    /// Default 0.
    #[must_use]
    pub fn starting_at(self, count: u16) -> Self {
        Self { counter: AtomicU16::new(count), ..self }
    }

    /// Counts months in local time, `utc_offset_ms` east of UTC, as RocketMQ's client expects when it reads the time of
    /// a key. Default 0.
    #[must_use]
    pub fn with_utc_offset_ms(mut self, utc_offset_ms: i64) -> Self {
        self.utc_offset_ms = utc_offset_ms;
        self
    }

    /// Returns the next key. `now_ms` is the time in epoch milliseconds.
    #[inline]
    pub fn next(&self, now_ms: i64) -> MadeKey {
        self.key(self.counter.fetch_add(1, Ordering::Relaxed), now_ms)
    }

    /// Returns the next key, with a count of `block`, which belongs to this generator and one thread.
    #[inline]
    pub fn next_in(&self, block: &mut KeyBlock, now_ms: i64) -> MadeKey {
        // The counter may have wrapped since an earlier millisecond.
        if block.left == 0 || block.now_ms != now_ms {
            let next = self.counter.fetch_add(BLOCK, Ordering::Relaxed);
            *block = KeyBlock { now_ms, next, left: BLOCK, key: self.key(next, now_ms) };
        }
        block.key.replace_count(block.next);
        block.next = block.next.wrapping_add(1);
        block.left -= 1;
        block.key
    }

    fn key(&self, count: u16, now_ms: i64) -> MadeKey {
        let mut key = self.prefix;
        key.push(self.ms_in_month(now_ms.saturating_add(self.utc_offset_ms)).to_be_bytes());
        key.push(count.to_be_bytes());
        key
    }

    /// Returns [`ms_in_month`], with a cached start of the month. Computes it again 28 days after that start, because
    /// each month has at least 28 days.
    #[inline]
    fn ms_in_month(&self, time_ms: i64) -> u32 {
        let since_ms = time_ms.wrapping_sub(self.month_start_ms.load(Ordering::Relaxed));
        if (0..28 * DAY_MS).contains(&since_ms) {
            return since_ms as u32;
        }
        let in_month_ms = ms_in_month(time_ms);
        self.month_start_ms.store(time_ms.wrapping_sub(i64::from(in_month_ms)), Ordering::Relaxed);
        in_month_ms
    }
}

/// Returns milliseconds since the first of the month, in the time zone of `time_ms`; always less than 2^32.
///
/// Computes the day of the month from the day number, with years that begin in March, so that the leap day is the last
/// day of a year. An era of 400 years has 146,097 days.
fn ms_in_month(time_ms: i64) -> u32 {
    // Days from 0000-03-01 to 1970-01-01.
    let days = time_ms.div_euclid(DAY_MS) + 719_468;
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month + 2) / 5;
    (day_of_month * DAY_MS + time_ms.rem_euclid(DAY_MS)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn offset_ids_of_the_specified_examples() {
        let v4 = Host::new([127, 0, 0, 1], 10911);
        assert_eq!(offset_message_id(&v4, 1024), "7F00000100002A9F0000000000000400");
        let v6 = Host::new(Ipv6Addr::LOCALHOST, 10911);
        let id = offset_message_id(&v6, 1024);
        assert_eq!(id, "0000000000000000000000000000000100002A9F0000000000000400");
        assert_eq!(parse_offset_message_id(&id), Ok((v6, 1024)));
        assert_eq!(parse_offset_message_id("7f00000100002a9f0000000000000400"), Ok((v4, 1024)));
    }

    #[test]
    fn texts_that_are_no_offset_ids() {
        let long = "0".repeat(1 << 20);
        let too_short = "7F00000100002A9F00000000000004";
        let uneven = "7F00000100002A9F000000000000040";
        for bad in
            ["", "7F", too_short, uneven, "7F00000100002A9F000000000000040G", "é".repeat(16).as_str(), &long]
        {
            assert!(matches!(parse_offset_message_id(bad), Err(FormatError::BadName { .. })), "{bad:.40}");
        }
    }

    #[test]
    fn unique_key_of_the_specified_example() {
        let generator = UniqueKeyGenerator::new(Ipv4Addr::new(10, 0, 0, 7).into(), 4242, 0x18b4_aac2);
        // 2023-11-01T00:00:00Z and 1,234,567 ms.
        let now_ms = 1_698_796_800_000 + 1_234_567;
        for _ in 0..3 {
            generator.next(now_ms);
        }
        assert_eq!(generator.next(now_ms).as_str(), "0A000007109218B4AAC20012D6870003");
    }

    #[test]
    fn a_local_month_starts_at_local_midnight() {
        let new = || UniqueKeyGenerator::new(Ipv4Addr::LOCALHOST.into(), 1, 2);
        let hour_ms = 3_600_000;
        let start_ms = 1_698_796_800_000; // 2023-11-01T00:00:00Z
        let east = new().with_utc_offset_ms(8 * hour_ms);
        assert_eq!(&east.next(start_ms - 8 * hour_ms).as_str()[20..28], "00000000");
        assert_eq!(&new().next(start_ms).as_str()[20..28], "00000000");
        assert_eq!(new().next(start_ms - 1).as_str()[20..28], format!("{:08X}", 31u32 * 86_400_000 - 1));
    }

    #[test]
    fn month_lengths() {
        let day_ms = 86_400_000i64;
        // 2024-02-29, 2024-03-01, 2100-02-28 and the day after, 1969-12-31, 1970-01-01.
        for (day, of_month) in [(19_782, 28), (19_783, 0), (47_540, 27), (47_541, 0), (-1, 30), (0, 0)] {
            assert_eq!(i64::from(ms_in_month(day * day_ms)), of_month * day_ms, "day {day}");
        }
    }

    #[test]
    fn keys_of_many_threads_differ() {
        let generator = UniqueKeyGenerator::new(Ipv6Addr::LOCALHOST.into(), 7, 9);
        let keys: Vec<String> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        (0..1000).map(|_| generator.next(5).as_str().to_owned()).collect::<Vec<_>>()
                    })
                })
                .collect();
            workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
        });
        assert!(keys.iter().all(|key| key.len() == 56));
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), 4000);
    }

    #[test]
    fn a_block_has_the_keys_of_its_counts() {
        for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            // The counter wraps in the first block, and the time changes in a later one.
            let new = || UniqueKeyGenerator::new(ip, 1, 2).starting_at(0xfff8);
            let (single, blocks, mut block) = (new(), new(), KeyBlock::default());
            for (now_ms, keys) in [(7, 2 * BLOCK + 3), (8, 1)] {
                for _ in 0..keys {
                    assert_eq!(blocks.next_in(&mut block, now_ms).as_str(), single.next(now_ms).as_str());
                }
                // The rest of a block is wasted when the time changes.
                for _ in keys % BLOCK..BLOCK {
                    single.next(now_ms);
                }
            }
        }
    }

    #[test]
    fn keys_by_the_block_differ_too() {
        let generator = UniqueKeyGenerator::new(Ipv4Addr::LOCALHOST.into(), 1, 2);
        let keys: Vec<String> = std::thread::scope(|scope| {
            let generator = &generator;
            let draw = move || {
                let mut block = KeyBlock::default();
                // More rounds than counts, each in a separate millisecond.
                (0..40)
                    .flat_map(|now_ms| (0..500).map(move |_| now_ms))
                    .map(move |now_ms| generator.next_in(&mut block, now_ms).as_str().to_owned())
                    .collect::<Vec<_>>()
            };
            let workers: Vec<_> = (0..4).map(|_| scope.spawn(draw)).collect();
            workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
        });
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), 80_000);
    }

    proptest! {
        #[test]
        fn offset_ids_come_back(v6 in any::<bool>(), address in any::<u128>(), port in any::<i32>(), at in any::<i64>()) {
            let ip = if v6 { IpAddr::from(address.to_be_bytes()) } else { IpAddr::from((address as u32).to_be_bytes()) };
            let host = Host { ip, port };
            let id = offset_message_id(&host, at);
            prop_assert_eq!(parse_offset_message_id(&id), Ok((host, at)));
            prop_assert_eq!(parse_offset_message_id(&id.to_lowercase()), Ok((host, at)));
        }

        #[test]
        fn any_text_is_an_id_or_an_error(text in ".{0,60}") {
            let _ = parse_offset_message_id(&text);
        }

        #[test]
        fn any_time_makes_a_key(now in any::<i64>(), offset in any::<i64>()) {
            let generator = UniqueKeyGenerator::new(Ipv4Addr::LOCALHOST.into(), 1, 2).with_utc_offset_ms(offset);
            prop_assert_eq!(generator.next(now).as_str().len(), 32);
        }

        #[test]
        fn a_kept_month_changes_no_key(times in prop::collection::vec(-5_000_000_000i64..5_000_000_000, 1..20)) {
            let kept = UniqueKeyGenerator::new(Ipv4Addr::LOCALHOST.into(), 1, 2);
            for time_ms in times {
                prop_assert_eq!(kept.ms_in_month(time_ms), ms_in_month(time_ms));
            }
        }
    }
}
