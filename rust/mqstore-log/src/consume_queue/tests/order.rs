//! Tests that any order of writes gives the queue of the log order.

use proptest::prelude::*;

use super::*;

/// A run of units with consecutive offsets.
type Run = (i64, Vec<CqUnit>);

/// Generates runs like those of a log: offsets ascend, sometimes with a gap or a slot that is claimed twice.
fn runs() -> impl Strategy<Value = Vec<Run>> {
    let run = (prop_oneof![8 => Just(0_i64), 1 => -2_i64..0, 1 => 1_i64..12], 1_usize..9);
    (0_i64..30, proptest::collection::vec(run, 1..14)).prop_map(|(start, steps)| {
        let (mut next, mut record, mut runs) = (start, 0, Vec::<Run>::new());
        for (step, len) in steps {
            // The first record decides where the queue begins.
            let begin = runs.first().map_or(start, |(first, _)| *first);
            let first = (next + step).max(begin);
            let units = (0..len as i64).map(|n| unit(record + n)).collect();
            record += len as i64;
            next = next.max(first + len as i64);
            runs.push((first, units));
        }
        runs
    })
}

fn ends(runs: &[Run]) -> Vec<i64> {
    let mut end = 0;
    runs.iter()
        .map(|(first, units)| {
            end = end.max(first + units.len() as i64);
            end
        })
        .collect()
}

/// Writes the runs in `order`, and commits each one as soon as all runs before it are written.
fn dispatch(queue: &ConsumeQueue, runs: &[Run], order: &[usize]) {
    let ends = ends(runs);
    let mut done = vec![false; runs.len()];
    let mut committed = 0;
    for &index in order {
        let (first, units) = &runs[index];
        assert_eq!(queue.write(*first, units).unwrap().refused, 0);
        done[index] = true;
        while committed < runs.len() && done[committed] {
            queue.commit(ends[committed]).unwrap();
            committed += 1;
            assert_eq!(queue.max_offset(), ends[committed - 1]);
        }
    }
    assert_eq!(committed, runs.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_order_of_runs_gives_the_same_files(
        (runs, order) in runs().prop_flat_map(|runs| {
            let order: Vec<usize> = (0..runs.len()).collect();
            (Just(runs), Just(order).prop_shuffle())
        }),
        file_units in 1_u64..8,
    ) {
        let outcome = |order: &[usize]| {
            let sim = SimVfs::default();
            let files = sim_files(&sim);
            let set = QueueSet::load(&files, file_units * 20, Access::ReadWrite, &TopicFloors::default()).unwrap();
            let queue = queue(&set);
            dispatch(&queue, &runs, order);
            assert!(tree(&sim, &files.staging()).is_empty());
            (queue_tree(&files), bounds(&queue), read_all(&queue))
        };
        let in_order: Vec<usize> = (0..runs.len()).collect();
        prop_assert_eq!(outcome(&order), outcome(&in_order));
    }

    #[test]
    fn dispatching_again_after_a_kill_gives_the_same_files(
        (runs, order, cut) in runs().prop_flat_map(|runs| {
            let order: Vec<usize> = (0..runs.len()).collect();
            let len = runs.len();
            (Just(runs), Just(order).prop_shuffle(), 0..=len)
        }),
    ) {
        let sim = SimVfs::default();
        let files = sim_files(&sim);
        let in_order: Vec<usize> = (0..runs.len()).collect();
        let whole = open(&files, Access::ReadWrite);
        dispatch(&queue(&whole), &runs, &in_order);
        let expected = queue_tree(&files);
        // If a late record fills a gap of its queue, the check of the last units takes its place for damage.
        let ascends = read_all(&queue(&whole)).is_sorted_by_key(|unit| unit.physical_offset);

        let sim = SimVfs::default();
        let set = open(&sim_files(&sim), Access::ReadWrite);
        let unfinished = queue(&set);
        let (ends, mut done, mut committed) = (ends(&runs), vec![false; runs.len()], 0);
        for &index in &order[..cut] {
            unfinished.write(runs[index].0, &runs[index].1).unwrap();
            done[index] = true;
            while committed < runs.len() && done[committed] {
                unfinished.commit(ends[committed]).unwrap();
                committed += 1;
            }
        }
        let files = sim_files(&sim.kill().unwrap());
        let set = open(&files, Access::ReadWrite);
        let again = queue(&set);
        // Runs after the commit position may have left slots without a unit between them.
        let dispatched = runs.get(committed).map_or(u64::MAX, |(_, units)| units[0].physical_offset as u64);
        again.truncate(dispatched).unwrap();
        let damaged = again.damaged();
        prop_assert!(
            damaged.as_ref().is_none_or(|why| !ascends && why.ends_with("is not later in the log")),
            "{damaged:?}"
        );
        for (first, units) in &runs[committed..] {
            again.write(*first, units).unwrap();
            again.commit((first + units.len() as i64).max(again.max_offset())).unwrap();
        }
        prop_assert_eq!(queue_tree(&files), expected);
        prop_assert_eq!(again.max_offset(), *ends.last().unwrap());
    }
}

#[test]
fn threads_write_runs_while_others_read() {
    let sim = SimVfs::default();
    let set = open(&sim_files(&sim), Access::ReadWrite);
    let queue = queue(&set);
    let total = 600_i64;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..3)
            .map(|worker| {
                let queue = &queue;
                scope.spawn(move || {
                    for run in (worker..total / 6).step_by(3) {
                        queue.write(run * 6, &units(run * 6..run * 6 + 6)).unwrap();
                    }
                })
            })
            .collect();
        let reader = scope.spawn(|| {
            let mut out = Vec::new();
            while out.len() < total as usize {
                queue.read(out.len() as i64, 50, &mut out).unwrap();
            }
            out
        });
        for worker in workers {
            worker.join().unwrap();
        }
        for end in 1..=total {
            queue.commit(end).unwrap();
        }
        assert_eq!(reader.join().unwrap(), units(0..total));
    });
}
