use super::closing::large;
use super::*;

/// A small random generator: each seed gives one history.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Checks that reads below the minimum are refused with the right minimum, and that all others return the right
/// record.
fn compare(bench: &Bench, store: &Store, placed: &[u64], dice: &mut Dice, history: &str) {
    let log_min = bench.segments().first().copied().unwrap_or(0);
    let min = placed.iter().take_while(|at| **at < log_min).count() as i64;
    let max = placed.len() as i64;
    if max == 0 {
        return;
    }
    assert_eq!(bounds(store), (min, max), "{history}");
    for _ in 0..8 {
        let offset = dice.below(max as u64 + 2) as i64;
        match store.read("t", 0, Some(offset), None, None) {
            Ok(mut cursor) => {
                assert!((min..=max).contains(&offset), "{offset} {history}");
                let batch = cursor.next_batch(1).unwrap();
                let found = batch.first().map(|record| (record.queue_offset, record.commit_log_offset));
                let wanted = placed.get(offset as usize).map(|at| (offset, *at));
                assert_eq!(found, wanted, "{history}");
            }
            Err(StoreError::OffsetOutOfRange { min_offset, max_offset, .. }) => {
                assert!(!(min..=max).contains(&offset), "{offset} {history}");
                assert_eq!((min_offset, max_offset), (min, max), "{history}");
            }
            Err(other) => panic!("{offset}: {other} {history}"),
        }
    }
}

fn append(store: &Store, count: u64, dice: &mut Dice, placed: &mut Vec<u64>) {
    for _ in 0..count {
        let body = vec![b'y'; dice.below(1500) as usize];
        let properties = encode_properties(["key"], None, None, []).unwrap();
        let message = message("t", Some(0), &body, &properties);
        placed.push(store.append(&message).unwrap().commit_log_offset);
    }
}

#[test]
fn any_history_agrees_with_the_model() {
    for seed in 0..80 {
        let mut dice = Dice(seed);
        let mut bench = Bench::new();
        let rules = if seed % 5 == 2 { large(aged(2)) } else { aged(2) };
        let options = StoreOptions {
            retention_bytes: (seed % 3 == 0).then_some(4 * SEGMENT),
            secure_wipe: seed % 4 == 1,
            queue_file_entries: 1 + (seed % 9) as u32,
            delete_when: if seed % 2 == 0 { "*" } else { "04;16" }.into(),
            ..rules
        };
        let mut store = bench.open(&options);
        let mut placed = Vec::new();
        let mut history = format!("seed {seed}:");
        let mut held = None;
        for _ in 0..40 {
            let action = dice.below(9);
            history.push_str(&[" ", &action.to_string()].concat());
            match action {
                0..=2 => append(&store, dice.below(12), &mut dice, &mut placed),
                3 => bench.hours(dice.below(4)),
                4 => rounds(&bench, &store, 3),
                5 => drop(expire(&store, dice.below(3) == 0)),
                6 => {
                    held = store.read("t", 0, None, None, None).ok().map(|mut cursor| {
                        let _ = cursor.next_batch(1);
                        cursor
                    });
                }
                7 => {
                    held = None;
                    store.close().unwrap();
                    store = bench.open(&options);
                }
                _ => {
                    held = None;
                    store.flush().unwrap();
                    let sim = bench.sim.crash(dice.below(1 << 20)).unwrap();
                    bench = bench.after(sim);
                    store = bench.open(&options);
                }
            }
            compare(&bench, &store, &placed, &mut dice, &history);
            if dice.below(4) == 0 {
                compare(&bench, &bench.read_only(), &placed, &mut dice, &history);
            }
        }
        drop(held);
        store.close().unwrap();
        assert_eq!(bench.sim.violations(), Vec::<String>::new(), "{history}");
    }
}
