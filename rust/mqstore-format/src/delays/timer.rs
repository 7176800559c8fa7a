//! The files of messages with a delivery time: wheel, timer log, checkpoint.
//!
//! A timer record is in queue 0 of [`TIMER_TOPIC`]. The wheel has a slot for each second. A slot points to the last of
//! its units in the timer log. Each unit points to the one before it in the same slot, and to its record in the commit
//! log.
//!
//! ```text
//! timerwheel           slots of 32 bytes: time 8 | first 8 | last 8 | count 4 | magic 4     by time modulo slots
//! timerlog/<20 digits> units of 52 bytes: size 4 | previous 8 | magic 4 | written 8 | delay 4
//!                                         | log offset 8 | size 4 | hash of the real topic 4 | reserved 8
//!                      a blank of 16 bytes ends a file: bytes left 4 | 0 8 | CBD43194
//! config/timercheck    56 of 4096 bytes: read time | log position | queue offset | the master's queue offset
//!                                        | state | time | counter, each 8
//! ```
//!
//! Source: `TimerWheel`, `Slot`, `TimerLog`, `TimerCheckpoint`, `TimerMessageStore`, `HookUtils#transformTimerMessage`.

use crate::bytes::put;

/// The topic of timer records, queue 0.
pub const TIMER_TOPIC: &str = "rmq_sys_wheel_timer";
/// Distance between two slots, in milliseconds (`timerPrecisionMs`).
pub const TIMER_PRECISION_MS: i64 = 1_000;
/// Slots of a wheel: twice seven days of seconds (`TIMER_WHEEL_TTL_DAY`).
pub const WHEEL_SLOTS: i64 = 2 * 7 * 86_400;
/// Byte length of a slot.
pub const SLOT_BYTES: usize = 32;
/// Byte length of the wheel file.
pub const WHEEL_BYTES: u64 = WHEEL_SLOTS as u64 * SLOT_BYTES as u64;
/// Byte length of a unit of the timer log.
pub const TIMER_UNIT_BYTES: usize = 52;
/// Byte length of the blank that ends a file of the timer log. At least this many bytes are free after the last unit.
pub const TIMER_BLANK_BYTES: usize = 16;
/// The magic number of a blank (`TimerLog#BLANK_MAGIC_CODE`).
pub const TIMER_BLANK_MAGIC: u32 = 0xCBD4_3194;
/// Default byte length of a file of the timer log (`mappedFileSizeTimerLog`). Existing files determine the real length.
pub const TIMER_LOG_FILE_BYTES: u64 = 100 << 20;
/// Byte length of `config/timercheck`.
pub const TIMER_CHECK_BYTES: usize = 4096;
/// Byte length of its used part.
pub const TIMER_CHECK_FIELD_BYTES: usize = 56;
/// Maximum wait of one round, in slots. A longer wait is put back into the wheel (`timerRollWindowSlot`).
pub const ROLL_WINDOW_SLOTS: i64 = 2 * 86_400;

/// Set in every unit.
const MAGIC: i32 = 1;
/// The record is not due yet when its slot is read, and is appended again.
const MAGIC_ROLL: i32 = 1 << 1;
/// The record cancels another one.
const MAGIC_DELETE: i32 = 1 << 2;

/// Returns the slot time (`TIMER_OUT_MS`) of a message that is due at `due_ms`: the last multiple of the precision
/// before it. A slot is read one precision after its time, so that no message is early.
pub const fn slot_time_ms(due_ms: i64) -> i64 {
    due_ms.saturating_sub(1).div_euclid(TIMER_PRECISION_MS).saturating_mul(TIMER_PRECISION_MS)
}

/// Returns the slot time of a record with `TIMER_OUT_MS` `out_ms` that was written at `write_ms`, and whether it is put
/// back from there. A wait longer than the window ends after the window, or after half of it if little would be left.
pub const fn roll(out_ms: i64, write_ms: i64) -> (i64, bool) {
    const WINDOW_MS: i64 = ROLL_WINDOW_SLOTS * TIMER_PRECISION_MS;
    const THIRD_MS: i64 = ROLL_WINDOW_SLOTS / 3 * TIMER_PRECISION_MS;
    const HALF_MS: i64 = ROLL_WINDOW_SLOTS / 2 * TIMER_PRECISION_MS;
    let excess = out_ms.saturating_sub(write_ms).saturating_sub(WINDOW_MS);
    if excess < 0 {
        (out_ms, false)
    } else if excess < THIRD_MS {
        (write_ms.saturating_add(HALF_MS), true)
    } else {
        (write_ms.saturating_add(WINDOW_MS), true)
    }
}

/// One slot of the wheel.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct TimerSlot {
    /// Its time divided by the precision: seconds.
    pub time: i64,
    /// The position of its first unit in the timer log; -1 if it has none.
    pub first: i64,
    /// The position of its last unit.
    pub last: i64,
    /// The number of its messages, as a hint; a cancellation subtracts one.
    pub count: i32,
    /// Unused.
    pub magic: i32,
}

impl TimerSlot {
    /// Returns the slot of the wheel for a time in units of the precision.
    pub const fn index(time: i64) -> i64 {
        time.rem_euclid(WHEEL_SLOTS)
    }

    /// Returns the slot's bytes.
    pub fn encode(&self) -> [u8; SLOT_BYTES] {
        let mut bytes = [0; SLOT_BYTES];
        put(&mut bytes, 0, self.time.to_be_bytes());
        put(&mut bytes, 8, self.first.to_be_bytes());
        put(&mut bytes, 16, self.last.to_be_bytes());
        put(&mut bytes, 24, self.count.to_be_bytes());
        put(&mut bytes, 28, self.magic.to_be_bytes());
        bytes
    }

    /// Decodes a slot; `None` for one that was never used.
    pub fn decode(bytes: &[u8; SLOT_BYTES]) -> Option<Self> {
        (*bytes != [0; SLOT_BYTES]).then(|| Self {
            time: long(bytes, 0),
            first: long(bytes, 8),
            last: long(bytes, 16),
            count: int(bytes, 24),
            magic: int(bytes, 28),
        })
    }
}

/// One unit of the timer log.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct TimerUnit {
    /// The position of the unit before it in the same slot; -1 if there is none.
    pub previous: i64,
    /// Whether the record is put back when its slot is read.
    pub rolls: bool,
    /// Whether the record cancels another one.
    pub deletes: bool,
    /// The time at which it was written, in epoch milliseconds.
    pub write_ms: i64,
    /// The difference between the slot's time and that time, in milliseconds.
    pub delay_ms: i32,
    /// Log offset of its record.
    pub physical_offset: i64,
    /// Byte length of the record.
    pub size: i32,
    /// The hash of the message's real topic.
    pub topic_hash: i32,
}

/// The entry at a position of the timer log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimerEntry {
    /// A unit.
    Unit(TimerUnit),
    /// The end of a file.
    Blank,
    /// Nothing was written.
    Empty,
    /// Neither, with the reason.
    Wrong(String),
}

impl TimerUnit {
    /// Returns the time of its slot, in epoch milliseconds.
    pub fn slot_ms(&self) -> i64 {
        self.write_ms.saturating_add(i64::from(self.delay_ms))
    }

    /// Returns the unit's bytes.
    pub fn encode(&self) -> [u8; TIMER_UNIT_BYTES] {
        let mut bytes = [0; TIMER_UNIT_BYTES];
        let rolls = if self.rolls { MAGIC_ROLL } else { 0 };
        let deletes = if self.deletes { MAGIC_DELETE } else { 0 };
        put(&mut bytes, 0, (TIMER_UNIT_BYTES as i32).to_be_bytes());
        put(&mut bytes, 4, self.previous.to_be_bytes());
        put(&mut bytes, 12, (MAGIC | rolls | deletes).to_be_bytes());
        put(&mut bytes, 16, self.write_ms.to_be_bytes());
        put(&mut bytes, 24, self.delay_ms.to_be_bytes());
        put(&mut bytes, 28, self.physical_offset.to_be_bytes());
        put(&mut bytes, 36, self.size.to_be_bytes());
        put(&mut bytes, 40, self.topic_hash.to_be_bytes());
        bytes
    }
}

impl TimerEntry {
    /// Decodes the entry at `own`, a position in the timer log.
    pub fn decode(bytes: &[u8; TIMER_UNIT_BYTES], own: i64) -> Self {
        let (size, magic) = (int(bytes, 0), int(bytes, 12));
        if *bytes == [0; TIMER_UNIT_BYTES] {
            return Self::Empty;
        }
        if magic as u32 == TIMER_BLANK_MAGIC {
            return Self::Blank;
        }
        if size != TIMER_UNIT_BYTES as i32 || magic & !0xF != 0 || magic & MAGIC == 0 {
            return Self::Wrong(format!("not a unit of a timer log: size {size}, magic {magic:#x}"));
        }
        let unit = TimerUnit {
            previous: long(bytes, 4),
            rolls: magic & MAGIC_ROLL != 0,
            deletes: magic & MAGIC_DELETE != 0,
            write_ms: long(bytes, 16),
            delay_ms: int(bytes, 24),
            physical_offset: long(bytes, 28),
            size: int(bytes, 36),
            topic_hash: int(bytes, 40),
        };
        if unit.previous < -1 || unit.previous >= own {
            let previous = unit.previous;
            return Self::Wrong(format!(
                "its previous unit at {previous} is not before its own position {own}"
            ));
        }
        if unit.physical_offset < 0 || unit.size <= 0 {
            let reason = format!("points to log offset {} ({} bytes)", unit.physical_offset, unit.size);
            return Self::Wrong(reason);
        }
        Self::Unit(unit)
    }
}

/// Encodes the blank that ends a file of the timer log with `left` bytes left.
pub fn encode_timer_blank(left: u32) -> [u8; TIMER_BLANK_BYTES] {
    let mut bytes = [0; TIMER_BLANK_BYTES];
    put(&mut bytes, 0, left.to_be_bytes());
    put(&mut bytes, 12, TIMER_BLANK_MAGIC.to_be_bytes());
    bytes
}

/// `config/timercheck`.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct TimerCheckpoint {
    /// All slots before this time, in epoch milliseconds, were read.
    pub last_read_time_ms: i64,
    /// The position up to which the timer log is synced.
    pub last_timer_log_flush_pos: i64,
    /// The offset of [`TIMER_TOPIC`] that enters the wheel next.
    pub last_timer_queue_offset: i64,
    /// The same offset of a replica's master. A broker uses the smaller one.
    pub master_timer_queue_offset: i64,
    /// `DataVersion` state.
    pub state_version: i64,
    /// `DataVersion` time, in epoch milliseconds.
    pub timestamp_ms: i64,
    /// `DataVersion` counter.
    pub counter: i64,
}

impl TimerCheckpoint {
    /// Returns the used bytes, to overwrite the front of an existing file.
    pub fn encode_fields(&self) -> [u8; TIMER_CHECK_FIELD_BYTES] {
        let values = [
            self.last_read_time_ms,
            self.last_timer_log_flush_pos,
            self.last_timer_queue_offset,
            self.master_timer_queue_offset,
            self.state_version,
            self.timestamp_ms,
            self.counter,
        ];
        let mut bytes = [0; TIMER_CHECK_FIELD_BYTES];
        for (at, value) in (0..).step_by(8).zip(values) {
            put(&mut bytes, at, value.to_be_bytes());
        }
        bytes
    }

    /// Reads a file of any length. Missing fields are 0.
    pub fn decode(bytes: &[u8]) -> Self {
        let mut values = [0; 7];
        for (value, stored) in values.iter_mut().zip(bytes.as_chunks().0) {
            *value = i64::from_be_bytes(*stored);
        }
        let [read_time, log_position, queue_offset, master_offset, state, time, counter] = values;
        Self {
            last_read_time_ms: read_time,
            last_timer_log_flush_pos: log_position,
            last_timer_queue_offset: queue_offset,
            master_timer_queue_offset: master_offset,
            state_version: state,
            timestamp_ms: time,
            counter,
        }
    }
}

fn long(bytes: &[u8], at: usize) -> i64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| i64::from_be_bytes(*bytes))
}

fn int(bytes: &[u8], at: usize) -> i32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| i32::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hash::java_hash;
    use crate::testing::hex;

    #[test]
    fn a_message_is_due_within_a_precision_of_its_slot() {
        assert_eq!(slot_time_ms(1_700_000_005_000), 1_700_000_004_000);
        assert_eq!(slot_time_ms(1_700_000_005_001), 1_700_000_005_000);
        assert_eq!(slot_time_ms(i64::MIN), i64::MIN);
    }

    #[test]
    fn who_waits_long_is_put_back_on_the_way() {
        const HOUR: i64 = 3_600_000;
        let write = 1_700_000_000_000;
        assert_eq!(roll(write + 48 * HOUR - 1000, write), (write + 48 * HOUR - 1000, false));
        assert_eq!(roll(write + 48 * HOUR, write), (write + 24 * HOUR, true));
        assert_eq!(roll(write + 63 * HOUR, write), (write + 24 * HOUR, true));
        assert_eq!(roll(write + 64 * HOUR, write), (write + 48 * HOUR, true));
        assert_eq!(roll(write + 71 * HOUR, write), (write + 48 * HOUR, true));
    }

    #[test]
    fn a_slot_as_rocketmq_writes_it() {
        let slot = TimerSlot { time: 1_700_000_005, first: 0, last: 52, count: 2, magic: 0 };
        let bytes = hex("000000006553f105 0000000000000000 0000000000000034 00000002 00000000");
        assert_eq!(slot.encode().as_slice(), bytes);
        assert_eq!(TimerSlot::decode(&slot.encode()), Some(slot));
        assert_eq!(TimerSlot::decode(&[0; 32]), None);
        assert_eq!(TimerSlot::index(1_700_000_005), 512_005);
        assert_eq!(WHEEL_BYTES, 38_707_200);
    }

    #[test]
    fn units_as_rocketmq_writes_them() {
        let first = TimerUnit {
            previous: -1,
            rolls: false,
            deletes: false,
            write_ms: 1_700_000_000_000,
            delay_ms: 5000,
            physical_offset: 123_456_789,
            size: 300,
            topic_hash: java_hash("t1"),
        };
        let second =
            TimerUnit { previous: 0, deletes: true, physical_offset: 123_457_089, size: 280, ..first };
        let bytes = hex(
            "00000034 ffffffffffffffff 00000001 0000018bcfe56800 00001388 00000000075bcd15 0000012c 00000e3d \
             0000000000000000",
        );
        assert_eq!(first.encode().as_slice(), bytes);
        let bytes = hex(
            "00000034 0000000000000000 00000005 0000018bcfe56800 00001388 00000000075bce41 00000118 00000e3d \
             0000000000000000",
        );
        assert_eq!(second.encode().as_slice(), bytes);
        assert_eq!(TimerEntry::decode(&second.encode(), 52), TimerEntry::Unit(second));
        assert!(matches!(TimerEntry::decode(&second.encode(), 0), TimerEntry::Wrong(_)));
        assert_eq!(second.slot_ms(), 1_700_000_005_000);
        assert_eq!(encode_timer_blank(68).as_slice(), hex("00000044 0000000000000000 cbd43194"));
        let mut end = [0; TIMER_UNIT_BYTES];
        end[..16].copy_from_slice(&encode_timer_blank(68));
        assert_eq!(TimerEntry::decode(&end, 104), TimerEntry::Blank);
        assert_eq!(TimerEntry::decode(&[0; 52], 104), TimerEntry::Empty);
    }

    #[test]
    fn a_checkpoint_as_rocketmq_writes_it() {
        let check = TimerCheckpoint {
            last_read_time_ms: 1_700_000_000_000,
            last_timer_log_flush_pos: 104,
            last_timer_queue_offset: 2,
            master_timer_queue_offset: 2,
            state_version: 0,
            timestamp_ms: 1_700_000_000_500,
            counter: 3,
        };
        let bytes = hex(
            "0000018bcfe56800 0000000000000068 0000000000000002 0000000000000002 0000000000000000 0000018bcfe569f4 \
             0000000000000003",
        );
        assert_eq!(check.encode_fields().as_slice(), bytes);
        assert_eq!(TimerCheckpoint::decode(&bytes), check);
        assert_eq!(TimerCheckpoint::decode(&[]), TimerCheckpoint::default());
    }

    proptest! {
        #[test]
        fn nothing_is_early_and_nothing_is_later_than_a_precision(due in 0..i64::MAX / 2, write in 0..i64::MAX / 2) {
            let out = slot_time_ms(due);
            prop_assert!(out < due && due <= out + TIMER_PRECISION_MS);
            let (slot, rolls) = roll(out, write);
            prop_assert!(slot <= out && (rolls || slot == out));
        }

        #[test]
        fn any_bytes_are_an_entry(bytes in any::<[u8; 32]>(), more in any::<[u8; 20]>(), own in any::<i64>()) {
            let mut unit = [0; 52];
            unit[..32].copy_from_slice(&bytes);
            unit[32..].copy_from_slice(&more);
            if let TimerEntry::Unit(found) = TimerEntry::decode(&unit, own) {
                prop_assert!(found.previous < own);
            }
            if let Some(slot) = TimerSlot::decode(&bytes) {
                prop_assert_eq!(slot.encode(), bytes);
            }
            let _ = TimerCheckpoint::decode(&unit);
        }
    }
}
