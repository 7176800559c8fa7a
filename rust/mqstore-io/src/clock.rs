//! Time: the wall clock, the interval clock, sleeping and the local time zone.
//!
//! Store timestamps come from [`Clock::now_ms`], which can step back. Intervals and timeouts come from
//! [`Clock::monotonic`], which cannot. Only one place uses local time: RocketMQ names index files by it
//! (`UtilAll#timeMillisToHumanString`).

use std::fmt::Debug;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A moment in the wall time of a time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalTime {
    /// Year, as in 2024.
    pub year: i32,
    /// Month, 1 to 12.
    pub month: u32,
    /// Day of the month, 1 to 31.
    pub day: u32,
    /// Hour, 0 to 23.
    pub hour: u32,
    /// Minute, 0 to 59.
    pub minute: u32,
    /// Second, 0 to 59.
    pub second: u32,
    /// Millisecond, 0 to 999.
    pub millisecond: u32,
}

/// The source of time.
pub trait Clock: Send + Sync + Debug {
    /// Returns milliseconds since 1970-01-01 UTC. Can step back or jump.
    fn now_ms(&self) -> i64;

    /// Returns the time since a fixed moment. Never goes back.
    fn monotonic(&self) -> Duration;

    /// Sleeps for `duration`. A manual clock advances itself by `duration` and returns immediately.
    fn sleep(&self, duration: Duration);

    /// Returns whether a program sets the wall time, so that a wait for a time of day cannot become a wait for an
    /// interval.
    fn is_set_by_hand(&self) -> bool {
        false
    }

    /// Converts the moment `ms` (milliseconds since 1970-01-01 UTC) to the machine's time zone. A moment outside the
    /// years -9999 to 9999 becomes the nearest one inside.
    fn local_time(&self, ms: i64) -> LocalTime;

    /// Returns the offset of the machine's time zone from UTC at the moment `ms`, in milliseconds; positive east of
    /// UTC.
    fn utc_offset_ms(&self, ms: i64) -> i64;
}

/// The machine's clock and time zone (`TZ`, then `/etc/localtime`, else UTC).
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
    zone: jiff::tz::TimeZone,
}

impl SystemClock {
    /// Reads the time zone once. [`Clock::monotonic`] counts from this call.
    pub fn new() -> Self {
        let zone = jiff::tz::TimeZone::try_system().unwrap_or(jiff::tz::TimeZone::UTC);
        Self { start: Instant::now(), zone }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now_ms(&self) -> i64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        now.tv_sec * 1_000 + now.tv_nsec / 1_000_000
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }

    fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }

    fn local_time(&self, ms: i64) -> LocalTime {
        split(ms, &self.zone)
    }

    fn utc_offset_ms(&self, ms: i64) -> i64 {
        offset_ms(ms, &self.zone)
    }
}

/// A clock that a test or a simulation moves. Its time zone is UTC.
#[derive(Debug)]
pub struct ManualClock {
    now_ms: AtomicI64,
    monotonic_ns: AtomicU64,
}

impl ManualClock {
    /// Creates a clock that shows `now_ms` (milliseconds since 1970-01-01 UTC).
    pub fn new(now_ms: i64) -> Self {
        Self { now_ms: AtomicI64::new(now_ms), monotonic_ns: AtomicU64::new(0) }
    }

    /// Sets the wall clock, also back. Intervals do not change.
    pub fn set(&self, now_ms: i64) {
        self.now_ms.store(now_ms, Ordering::SeqCst);
    }

    /// Advances both clocks.
    pub fn advance(&self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let before = self.monotonic_ns.fetch_add(ns, Ordering::SeqCst);
        // Counts whole milliseconds of the sum, so that many short steps add up to the right wall time.
        let passed_ms = before.wrapping_add(ns) / 1_000_000 - before / 1_000_000;
        self.now_ms.fetch_add(passed_ms as i64, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_ms(&self) -> i64 {
        self.now_ms.load(Ordering::SeqCst)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.monotonic_ns.load(Ordering::SeqCst))
    }

    fn sleep(&self, duration: Duration) {
        self.advance(duration);
    }

    fn local_time(&self, ms: i64) -> LocalTime {
        split(ms, &jiff::tz::TimeZone::UTC)
    }

    fn utc_offset_ms(&self, ms: i64) -> i64 {
        offset_ms(ms, &jiff::tz::TimeZone::UTC)
    }
}

/// A clock whose wall time a program sets, while intervals and sleeps last as long as on the machine. For programs
/// under test, whose threads continue to run. Its time zone is the machine's.
#[derive(Debug)]
pub struct TestClock {
    now_ms: AtomicI64,
    machine: SystemClock,
}

impl TestClock {
    /// Creates a clock that shows `now_ms` (milliseconds since 1970-01-01 UTC).
    pub fn new(now_ms: i64) -> Self {
        Self { now_ms: AtomicI64::new(now_ms), machine: SystemClock::new() }
    }

    /// Sets the wall clock, also back.
    pub fn set(&self, now_ms: i64) {
        self.now_ms.store(now_ms, Ordering::SeqCst);
    }

    /// Moves the wall clock by `ms`, forward or back.
    pub fn advance(&self, ms: i64) {
        self.now_ms.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn now_ms(&self) -> i64 {
        self.now_ms.load(Ordering::SeqCst)
    }

    fn monotonic(&self) -> Duration {
        self.machine.monotonic()
    }

    fn is_set_by_hand(&self) -> bool {
        true
    }

    fn sleep(&self, duration: Duration) {
        self.machine.sleep(duration);
    }

    fn local_time(&self, ms: i64) -> LocalTime {
        self.machine.local_time(ms)
    }

    fn utc_offset_ms(&self, ms: i64) -> i64 {
        self.machine.utc_offset_ms(ms)
    }
}

/// Returns a time in epoch milliseconds as text, in UTC and whole seconds.
pub fn utc_text(ms: i64) -> String {
    let moment = jiff::Timestamp::from_second(ms.div_euclid(1000));
    moment.map_or_else(|_| format!("{ms} ms"), |moment| moment.to_string())
}

fn offset_ms(ms: i64, zone: &jiff::tz::TimeZone) -> i64 {
    let moment = jiff::Timestamp::from_millisecond(ms);
    moment.map_or(0, |moment| i64::from(zone.to_offset(moment).seconds()) * 1000)
}

fn split(ms: i64, zone: &jiff::tz::TimeZone) -> LocalTime {
    let nearest = if ms < 0 { jiff::Timestamp::MIN } else { jiff::Timestamp::MAX };
    let time = jiff::Timestamp::from_millisecond(ms).unwrap_or(nearest);
    let time = zone.to_datetime(time);
    LocalTime {
        year: i32::from(time.year()),
        month: time.month().unsigned_abs().into(),
        day: time.day().unsigned_abs().into(),
        hour: time.hour().unsigned_abs().into(),
        minute: time.minute().unsigned_abs().into(),
        second: time.second().unsigned_abs().into(),
        millisecond: time.millisecond().unsigned_abs().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(time: LocalTime) -> [i64; 7] {
        [
            time.year.into(),
            time.month.into(),
            time.day.into(),
            time.hour.into(),
            time.minute.into(),
            time.second.into(),
            time.millisecond.into(),
        ]
    }

    /// Returns the zone `minutes` east of UTC.
    fn zone(minutes: i32) -> jiff::tz::TimeZone {
        jiff::tz::Offset::from_seconds(minutes * 60).unwrap().to_time_zone()
    }

    #[test]
    fn local_time_of_fixed_zones() {
        assert_eq!(parts(split(1_700_000_000_123, &zone(8 * 60))), [2023, 11, 15, 6, 13, 20, 123]);
        let clock = ManualClock::new(0);
        assert_eq!(parts(clock.local_time(1_700_000_000_123)), [2023, 11, 14, 22, 13, 20, 123]);
        assert_eq!(parts(clock.local_time(-1)), [1969, 12, 31, 23, 59, 59, 999]);
    }

    #[test]
    fn local_time_never_fails() {
        for zone in [zone(0), zone(-1439)] {
            assert!(split(i64::MAX, &zone).year >= 9999);
            assert!(split(i64::MIN, &zone).year <= -9999);
        }
        let _ = SystemClock::new().local_time(i64::MAX);
    }

    #[test]
    fn a_manual_clock_moves_when_told() {
        let clock = ManualClock::new(1_000);
        for _ in 0..4 {
            clock.sleep(Duration::from_micros(500));
        }
        assert_eq!((clock.now_ms(), clock.monotonic()), (1_002, Duration::from_millis(2)));
        clock.set(5);
        assert_eq!((clock.now_ms(), clock.monotonic()), (5, Duration::from_millis(2)));
    }

    #[test]
    fn a_test_clock_stands_still_while_intervals_pass() {
        let clock = TestClock::new(1_000);
        let began = clock.monotonic();
        clock.sleep(Duration::from_millis(2));
        assert!(clock.monotonic() >= began + Duration::from_millis(2));
        assert_eq!(clock.now_ms(), 1_000);
        clock.advance(500);
        assert_eq!(clock.now_ms(), 1_500);
        clock.set(-7);
        assert_eq!(clock.now_ms(), -7);
    }

    #[test]
    fn the_system_clock_runs() {
        let clock = SystemClock::new();
        let (wall, steady) = (clock.now_ms(), clock.monotonic());
        clock.sleep(Duration::from_millis(2));
        assert!(clock.now_ms() > 1_700_000_000_000 && clock.now_ms() >= wall - 1_000);
        assert!(clock.monotonic() >= steady + Duration::from_millis(2));
    }

    #[test]
    fn a_zone_east_of_utc_is_ahead_of_it() {
        assert_eq!(offset_ms(0, &zone(120)), 7_200_000);
        assert_eq!(offset_ms(1_700_000_000_000, &zone(-90)), -5_400_000);
        assert_eq!(ManualClock::new(0).utc_offset_ms(0), 0);
    }
}
