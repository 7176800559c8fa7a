use std::path::Path;
use std::sync::Arc;

use mqstore_io::{ManualClock, SimVfs, Vfs};
use proptest::prelude::*;

use super::*;

fn files() -> StoreFiles {
    let vfs: Arc<dyn Vfs> = Arc::new(SimVfs::default());
    for folder in ["/store/commitlog", "/store/mqstore/tmp"] {
        vfs.create_dir_all(Path::new(folder)).unwrap();
    }
    StoreFiles::new(vfs, Arc::new(ManualClock::new(1)), Path::new("/store"))
}

fn table(text: &str) -> DelayLevels {
    DelayLevels::parse(text).unwrap()
}

fn shown(tables: &DelayTables) -> Vec<(u64, String)> {
    tables.rows().map(|(from, levels)| (from, levels.to_string())).collect()
}

fn row(from: u64, text: &str) -> (u64, String) {
    (from, text.to_owned())
}

#[test]
fn a_table_counts_from_where_the_log_ended_when_it_was_given() {
    let files = files();
    let (one, two) = (table("1m 2m"), table("1s"));
    let first = files.settle_delays(Some(&one), &(0..0), false).unwrap();
    assert_eq!(shown(&first), [row(0, "1m 2m")]);
    // No table is given: the stored table stays valid.
    assert_eq!(files.settle_delays(None, &(0..500), true).unwrap(), first);
    let second = files.settle_delays(Some(&two), &(0..900), true).unwrap();
    assert_eq!(shown(&second), [row(0, "1m 2m"), row(900, "1s")]);
    assert_eq!((second.at(899), second.at(900), second.latest()), (&one, &two, &two));
    // For a reader, the stored tables win.
    assert_eq!(files.delay_tables(Some(&table("7d"))).unwrap(), second);
    let third = files.settle_delays(Some(&one), &(0..2000), true).unwrap();
    assert_eq!(shown(&third), [row(0, "1m 2m"), row(900, "1s"), row(2000, "1m 2m")]);
    // A power loss removed the end of the log: the table begins at the new end.
    let cut = files.settle_delays(None, &(0..1500), true).unwrap();
    assert_eq!(shown(&cut), [row(0, "1m 2m"), row(900, "1s"), row(1500, "1m 2m")]);
    assert_eq!(files.delay_tables(None).unwrap(), cut);
    // The oldest part of the log expired.
    let later = files.settle_delays(None, &(1200..1600), true).unwrap();
    assert_eq!(shown(&later), [row(0, "1s"), row(1500, "1m 2m")]);
    let all = files.settle_delays(None, &(1500..1600), true).unwrap();
    assert_eq!(shown(&all), [row(0, "1m 2m")]);
}

#[test]
fn nothing_is_remembered_where_nobody_named_a_table() {
    let files = files();
    let there = || files.vfs.stat(&files.delay_levels_file()).is_ok();
    assert_eq!(files.settle_delays(None, &(0..70), true).unwrap(), DelayTables::default());
    files.settle_delays(Some(&DelayLevels::default()), &(0..70), true).unwrap();
    assert!(!there());
    // A log of ours was stored with RocketMQ's levels; of a broker's log only the caller knows the table.
    let ours = files.settle_delays(Some(&table("9s")), &(0..70), true).unwrap();
    assert_eq!(shown(&ours), [row(0, mqstore_format::DEFAULT_DELAY_LEVELS), row(70, "9s")]);
    assert!(there());
    files.vfs.remove_file(&files.delay_levels_file()).unwrap();
    assert_eq!(shown(&files.delay_tables(Some(&table("9s"))).unwrap()), [row(0, "9s")]);
    let broker = files.settle_delays(Some(&table("9s")), &(0..70), false).unwrap();
    assert_eq!(shown(&broker), [row(0, "9s")]);
}

#[test]
fn damage_is_told_unless_somebody_gives_a_table() {
    let files = files();
    files.settle_delays(Some(&table("5m 7m")), &(0..0), false).unwrap();
    let good = files.vfs.read_file(&files.delay_levels_file(), 1 << 20).unwrap();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 4;
        files.vfs.write_atomic(&files.delay_levels_file(), Path::new("/store/mqstore/tmp/x"), &bad).unwrap();
        let error = files.delay_tables(None).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. }), "{at}: {error}");
        assert!(files.settle_delays(None, &(0..9), true).is_err());
        assert_eq!(shown(&files.delay_tables(Some(&table("3s"))).unwrap()), [row(0, "3s")]);
    }
    assert_eq!(shown(&files.settle_delays(Some(&table("3s")), &(0..9), false).unwrap()), [row(0, "3s")]);
    assert_eq!(shown(&files.delay_tables(None).unwrap()), [row(0, "3s")]);
}

#[test]
fn a_message_waits_as_its_entry_says_unless_its_level_waits_less_long_by_now() {
    let rows = [(0, table("1h 1m 5s")), (100, table("1m 1h"))];
    let tables = DelayTables::of_rows(rows);
    let due = |level, offset, wait_ms: i64| tables.due_ms(level, offset, 1_000_000 + wait_ms) - 1_000_000;
    assert_eq!(due(1, 50, 3_600_000), 60_000, "shorter");
    assert_eq!(due(2, 50, 60_000), 60_000, "longer");
    assert_eq!(due(3, 50, 5_000), 5_000, "gone");
    assert_eq!(due(1, 100, 60_000), 60_000, "of this table");
    // A unit that another writer wrote with a table that is not known here.
    assert_eq!(due(2, 100, 86_400_000), 86_400_000);
}

proptest! {
    #[test]
    fn what_is_remembered_is_read_again(
        rows in proptest::collection::vec((0..5_000_u64, 1..9_u32), 0..12),
        log in (0..3_000_u64, 0..3_000_u64),
        asked in 0..6_000_u64,
    ) {
        let rows = rows.into_iter().scan(0, |from, (step, delay)| {
            let row = (*from, table(&format!("{delay}m")));
            *from += step;
            Some(row)
        });
        let tables = DelayTables::of_rows(rows);
        prop_assert_eq!(DelayTables::decode(&tables.encode()).unwrap(), tables.clone());
        let log = log.0..log.0 + log.1;
        let next = tables.going_on(None, &log);
        prop_assert_eq!(next.latest(), tables.latest());
        prop_assert_eq!(next.going_on(None, &log), next.clone());
        // Records that the log keeps keep their table.
        if log.contains(&asked) {
            prop_assert_eq!(next.at(asked), tables.at(asked));
        }
        prop_assert!(next.later.iter().all(|(from, _)| (log.start + 1..=log.end).contains(from)));
    }

    #[test]
    fn any_bytes_are_tables_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        let mut sealed = MAGIC.to_vec();
        sealed.extend_from_slice(&bytes);
        sealed.extend_from_slice(&crc31(&sealed).to_be_bytes());
        if let Some(tables) = DelayTables::decode(&sealed) {
            prop_assert_eq!(DelayTables::decode(&tables.encode()), Some(tables));
        }
    }
}
