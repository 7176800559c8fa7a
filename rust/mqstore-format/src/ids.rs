//! Message ids.
//!
//! ```text
//! offset message id   address (4|16) port (4) physical offset (8)                 32 or 56 hex digits
//! unique key          address (4|16) pid (2) salt (4) month ms (4) counter (2)    32 or 56 hex digits
//! ```
//!
//! Both are upper-case hex. The first names a place in a log, the second is made by the producer and means
//! nothing to the store; RocketMQ's client reads the time out of it to narrow a search. Source:
//! `MessageDecoder#createMessageId`, `#decodeMessageId`, `MessageClientIDSetter`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU16, Ordering};

use crate::bytes::field;
use crate::error::FormatError;
use crate::record::Host;

/// The most bytes an id stands for.
const MAX_ID_BYTES: usize = 28;
const HEX: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F'];

/// The id of the record at `physical_offset` of the store at `host`: 32 hex digits, 56 for IPv6.
pub fn offset_message_id(host: &Host, physical_offset: i64) -> String {
    let mut bytes = Vec::with_capacity(MAX_ID_BYTES);
    host.append_to(&mut bytes);
    bytes.extend_from_slice(&physical_offset.to_be_bytes());
    let mut text = String::with_capacity(2 * bytes.len());
    push_hex(&mut text, &bytes);
    text
}

/// Reads an offset message id back; either case of hex digits is accepted. The offset may be negative: an
/// id is any text somebody sends.
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

fn push_hex(out: &mut String, bytes: &[u8]) {
    let digit = |nibble: u8| HEX.get(usize::from(nibble)).copied().unwrap_or('0');
    for byte in bytes {
        out.push(digit(byte >> 4));
        out.push(digit(byte & 0xf));
    }
}

fn parse_hex(text: &str) -> Option<Vec<u8>> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    if pairs.len() > MAX_ID_BYTES {
        return None;
    }
    let nibble = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    pairs.iter().map(|[high, low]| Some(nibble(*high)? << 4 | nibble(*low)?)).collect()
}

/// Makes unique keys for one process, as RocketMQ's client does.
///
/// Unique among processes by address, process id and `salt`; within one by the time and a 16-bit counter:
/// 65,536 keys a millisecond, from any number of threads, without a lock. The time starts over each month,
/// the counter does not, as in the reference.
#[derive(Debug)]
pub struct UniqueKeyGenerator {
    prefix: String,
    utc_offset_ms: i64,
    counter: AtomicU16,
}

impl UniqueKeyGenerator {
    /// A generator for this address and process. `salt` tells apart what shares both (two containers with
    /// one address, two stores in one process); any random number will do.
    pub fn new(ip: IpAddr, pid: u32, salt: u32) -> Self {
        let mut prefix = String::with_capacity(44);
        match ip {
            IpAddr::V4(ip) => push_hex(&mut prefix, &ip.octets()),
            IpAddr::V6(ip) => push_hex(&mut prefix, &ip.octets()),
        }
        push_hex(&mut prefix, &(pid as u16).to_be_bytes());
        push_hex(&mut prefix, &salt.to_be_bytes());
        Self { prefix, utc_offset_ms: 0, counter: AtomicU16::new(0) }
    }

    /// Counts months in local time, `utc_offset_ms` east of UTC, as RocketMQ's client expects when it reads
    /// the time out of a key. Default 0.
    #[must_use]
    pub fn with_utc_offset_ms(mut self, utc_offset_ms: i64) -> Self {
        self.utc_offset_ms = utc_offset_ms;
        self
    }

    /// The next key; `now_ms` is the time in epoch milliseconds. 32 hex digits, 56 for an IPv6 address.
    pub fn next(&self, now_ms: i64) -> String {
        let mut key = String::with_capacity(self.prefix.len() + 12);
        self.next_into(now_ms, &mut key);
        key
    }

    /// Appends the next key to `out`; allocates only if `out` has no room for it.
    pub fn next_into(&self, now_ms: i64, out: &mut String) {
        let count = self.counter.fetch_add(1, Ordering::Relaxed);
        let in_month_ms = ms_in_month(now_ms.saturating_add(self.utc_offset_ms));
        out.push_str(&self.prefix);
        push_hex(out, &in_month_ms.to_be_bytes());
        push_hex(out, &count.to_be_bytes());
    }
}

/// Milliseconds since the first of the month, in the time zone of `time_ms`; less than 2^32 always.
///
/// The day of the month from the day number, by the usual reckoning with years that begin in March, so that
/// the leap day is the last of a year: eras of 400 years have 146,097 days.
fn ms_in_month(time_ms: i64) -> u32 {
    const DAY_MS: i64 = 86_400_000;
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
        assert_eq!(generator.next(now_ms), "0A000007109218B4AAC20012D6870003");
    }

    #[test]
    fn a_local_month_starts_at_local_midnight() {
        let new = || UniqueKeyGenerator::new(Ipv4Addr::LOCALHOST.into(), 1, 2);
        let hour_ms = 3_600_000;
        let start_ms = 1_698_796_800_000; // 2023-11-01T00:00:00Z
        let east = new().with_utc_offset_ms(8 * hour_ms);
        assert_eq!(&east.next(start_ms - 8 * hour_ms)[20..28], "00000000");
        assert_eq!(&new().next(start_ms)[20..28], "00000000");
        assert_eq!(new().next(start_ms - 1)[20..28], format!("{:08X}", 31u32 * 86_400_000 - 1));
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
                .map(|_| scope.spawn(|| (0..1000).map(|_| generator.next(5)).collect::<Vec<_>>()))
                .collect();
            workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
        });
        assert!(keys.iter().all(|key| key.len() == 56));
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), 4000);
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
            prop_assert_eq!(generator.next(now).len(), 32);
        }
    }
}
