//! A distributed check gives the report of one process, for all splits of the log and kinds of damage.

use std::path::PathBuf;
use std::sync::LazyLock;

use mqstore_io::{Access, FileKind};
use proptest::prelude::*;

use crate::distributed::{PlannedCut, StepAnswer, VerifyPlan, VerifyStep, assemble, plan, plan_at, run_step};
use crate::verify::VerifyReport;
use mqstore_base::store_files::StoreFiles;
use mqstore_compaction::Document;
use mqstore_engine::testing::*;

/// A job's folder next to the store.
fn job(world: &World) -> PathBuf {
    let beside = |number: u32| world.path.with_file_name(format!("job-{number}"));
    let job = (0..1000).map(beside).find(|job| world.vfs.stat(job).is_err()).unwrap();
    world.vfs.create_dir_all(&job).unwrap();
    job
}

/// Runs each step of a plan twice, and returns the answers of one run.
fn answers(files: &StoreFiles, options: &StoreOptions, plan: &VerifyPlan, job: &Path) -> Vec<StepAnswer> {
    let steps = plan.steps();
    let run = |(number, step): (usize, &VerifyStep)| {
        let step = VerifyStep::from_json(step.to_json().unwrap()).unwrap();
        let attempt = |time: usize| {
            let folder = job.join(format!("task-{number}-{time}"));
            let mut told = 0;
            let answer = run_step(files, options, &step, &folder, &mut |progress| {
                assert!(progress.done_bytes >= told && progress.done_bytes <= progress.total_bytes);
                told = progress.done_bytes;
                Ok(())
            });
            answer.unwrap()
        };
        let answer = attempt(number % 2);
        attempt(1 - number % 2);
        StepAnswer::from_json(answer.to_json().unwrap()).unwrap()
    };
    steps.iter().enumerate().map(run).collect()
}

fn put_together(
    files: &StoreFiles,
    options: &StoreOptions,
    plan: &VerifyPlan,
    job: &Path,
) -> Result<VerifyReport, StoreError> {
    let plan = VerifyPlan::from_json(plan.to_json().unwrap()).unwrap();
    assemble(files, options, &plan, &answers(files, options, &plan, job), &mut |_| Ok(()))
}

/// Returns the result of a check by about this number of workers, or by one process if it is not distributed.
pub(crate) fn verified(
    world: &World,
    options: &StoreOptions,
    parts: u32,
) -> Result<VerifyReport, StoreError> {
    let (files, job) = (world.files(), job(world));
    let cut = PlannedCut { parts, stretch_bytes: 8 << 10, from_bytes: 0 };
    match plan(&files, options, cut, &job, &job.join("plan"))? {
        Some(plan) => put_together(&files, options, &plan, &job),
        None => crate::verify::verify(&files, options, &mut |_| Ok(())),
    }
}

#[test]
fn a_writer_goes_on_meanwhile() {
    let (world, _, clock) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    store.create_topic("orders", 2, &[]).unwrap();
    store.create_topic("batched", 1, &[("queue.type".to_owned(), "BatchCQ".to_owned())]).unwrap();
    let fill = |numbers: std::ops::Range<i32>| {
        for number in numbers {
            put(&store, "orders", number % 2, &[b'x'; 300], &format!("k{number}"));
            put(&store, "batched", 0, &[b'y'; 200], &format!("k{number}"));
            clock.advance(std::time::Duration::from_millis(700));
        }
    };
    fill(0..100);
    let wanted = crate::verify::verify(&world.files(), &small(), &mut |_| Ok(())).unwrap();
    assert_eq!((&wanted.problems[..], wanted.messages), (&[][..], 200));
    let (files, job) = (world.files(), job(&world));
    let cut = PlannedCut { parts: 7, stretch_bytes: 8 << 10, from_bytes: 0 };
    let plan = plan(&files, &small(), cut, &job, &job.join("plan")).unwrap().unwrap();
    fill(100..200);
    let answers = answers(&files, &small(), &plan, &job);
    fill(200..300);
    let found = assemble(&files, &small(), &plan, &answers, &mut |_| Ok(())).unwrap();
    assert_eq!(found, wanted);
    store.close().unwrap();
}

#[test]
fn steps_say_what_is_in_their_way() {
    let world = World { vfs: Arc::new(disk().kill().unwrap()), ..World::simulated().0 };
    let (files, job, options) = (world.files(), job(&world), small());
    let cut = PlannedCut { parts: 5, stretch_bytes: 8 << 10, from_bytes: 0 };
    let plan_in = |attempt: &str| plan(&files, &options, cut, &job, &job.join(attempt));
    let plan = plan_in("plan").unwrap().unwrap();
    assert!(matches!(plan_in("plan"), Err(StoreError::Io { .. })), "a folder has one attempt");
    assert!(matches!(plan_in(".hidden"), Err(StoreError::InvalidOption { .. })));
    assert!(matches!(plan_in("a/b"), Err(StoreError::InvalidOption { .. })));
    let steps = plan.steps();
    let ended = run_step(&files, &options, &steps[1], &job.join("ended"), &mut |_| {
        Err(StoreError::Busy { reason: "enough".to_owned() })
    });
    assert_eq!(ended.unwrap_err().to_string(), "enough");
    let answers = answers(&files, &options, &plan, &job);
    let mut nothing = |_| Ok(());
    let few = assemble(&files, &options, &plan, &answers[1..], &mut nothing);
    assert!(matches!(few, Err(StoreError::InvalidOption { .. })));
    let mut swapped = answers.clone();
    swapped.swap(0, 1);
    // Each file is complete but belongs to another range, so the log is walked again.
    let wanted = crate::verify::verify(&files, &options, &mut nothing).unwrap();
    assert_eq!(assemble(&files, &options, &plan, &swapped, &mut nothing).unwrap(), wanted);
    let path = job.join("task-1-1/found");
    let file = world.vfs.open(&path, Access::ReadWrite).unwrap();
    file.set_len(file.len().unwrap() - 1).unwrap();
    let cut = assemble(&files, &options, &plan, &answers, &mut nothing).unwrap_err().to_string();
    assert!(cut.contains("task-1-1/found") && cut.contains("run the job again"), "{cut}");
    for (text, what) in [("{", "not JSON"), ("{}", "missing field"), ("[]", "verification step")] {
        let error = VerifyStep::from_json(text).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
    let newer = steps[0].to_json().unwrap().replace("\"version\":1", "\"version\":2");
    assert!(VerifyStep::from_json(&newer).unwrap_err().to_string().contains("version 2"));
    world.vfs.remove_dir_all(&job).unwrap();
    let gone =
        run_step(&files, &options, &steps[0], &job.join("late"), &mut nothing).unwrap_err().to_string();
    assert!(gone.contains("under the same path"), "{gone}");
    let log = files_below(&*world.vfs, &files.commit_log());
    world.vfs.create_dir_all(&job).unwrap();
    world.vfs.remove_file(&log[0]).unwrap();
    let gone =
        run_step(&files, &options, &steps[0], &job.join("less"), &mut nothing).unwrap_err().to_string();
    assert!(gone.contains("was deleted meanwhile"), "{gone}");
}

/// Three hundred messages in five queues, over several segments, queue and index files; the content of the disk.
fn disk() -> &'static SimVfs {
    static DISK: LazyLock<SimVfs> = LazyLock::new(|| {
        let (world, vfs, clock) = World::simulated();
        let store = world.open(OpenMode::Create, &small()).unwrap();
        store.create_topic("orders", 4, &[]).unwrap();
        for number in 0..300 {
            let body = vec![b'a' + (number % 26) as u8; (number * 37 % 700) as usize];
            let topic = if number % 5 == 0 { "other" } else { "orders" };
            put(
                &store,
                topic,
                if topic == "other" { 0 } else { number % 4 },
                &body,
                &format!("k{}", number % 50),
            );
            clock.advance(std::time::Duration::from_millis(700));
        }
        store.close().unwrap();
        vfs.kill().unwrap()
    });
    &DISK
}

/// The files of a folder and of its subfolders.
fn files_below(vfs: &dyn Vfs, folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in vfs.list(folder).unwrap() {
        let path = folder.join(&entry.name);
        match entry.stat.kind {
            FileKind::Directory => found.extend(files_below(vfs, &path)),
            _ if entry.stat.len > 0 => found.push(path),
            _ => {}
        }
    }
    found.sort();
    found
}

/// One change of a file: the place in thousandths of its length, and the new bytes.
#[derive(Clone, Debug)]
enum Change {
    Bytes(u16, Vec<u8>),
    Bit(u16, u8),
    /// Copies bytes from one place to another.
    Copied(u16, u16, u16),
    Zeros(u16, u16),
    Cut(u16),
    Gone,
    /// Changes this byte in each unit of the queues, or in each 1300 bytes of the log, up to a number of changes.
    Many(bool, u64, usize),
}

fn change() -> impl Strategy<Value = Change> {
    let place = || 0_u16..1000;
    prop_oneof![
        2 => (place(), proptest::collection::vec(any::<u8>(), 1..40)).prop_map(|(at, bytes)| Change::Bytes(at, bytes)),
        3 => (place(), 0_u8..8).prop_map(|(at, bit)| Change::Bit(at, bit)),
        2 => (place(), place(), 1_u16..400).prop_map(|(from, to, len)| Change::Copied(from, to, len)),
        2 => (place(), 1_u16..4000).prop_map(|(at, len)| Change::Zeros(at, len)),
        1 => place().prop_map(Change::Cut),
        1 => Just(Change::Gone),
        1 => (any::<bool>(), 0_u64..20, 0_usize..300)
            .prop_map(|(of_log, byte, most)| Change::Many(of_log, byte, most)),
    ]
}

fn apply(vfs: &dyn Vfs, path: &Path, change: &Change) {
    let file = vfs.open(path, Access::ReadWrite).unwrap();
    let len = file.len().unwrap();
    let place = |thousandths: u16| len * u64::from(thousandths) / 1000;
    let write = |at: u64, bytes: &[u8]| {
        let room = (len - at).min(bytes.len() as u64) as usize;
        file.write_all_at(&bytes[..room], at).unwrap();
    };
    match change {
        Change::Bytes(at, bytes) => write(place(*at), bytes),
        Change::Bit(at, bit) => {
            let mut byte = [0];
            file.read_exact_at(&mut byte, place(*at)).unwrap();
            write(place(*at), &[byte[0] ^ 1 << bit]);
        }
        Change::Copied(from, to, bytes) => {
            let mut copied = vec![0; u64::from(*bytes).min(len - place(*from)) as usize];
            file.read_exact_at(&mut copied, place(*from)).unwrap();
            write(place(*to), &copied);
        }
        Change::Zeros(at, bytes) => write(place(*at), &vec![0; usize::from(*bytes)]),
        Change::Cut(at) => file.set_len(place(*at)).unwrap(),
        Change::Gone => vfs.remove_file(path).unwrap(),
        Change::Many(of_log, byte, most) => {
            let (folder, step) = if *of_log { ("commitlog", 1300) } else { ("consumequeue", 20) };
            let files = files_below(vfs, &Path::new("/data/store").join(folder));
            let places = files.into_iter().flat_map(|path| {
                let file = vfs.open(&path, Access::ReadWrite).unwrap();
                let steps = file.len().unwrap() / step;
                (0..steps).map(move |number| (Arc::clone(&file), number * step + byte))
            });
            for (file, at) in places.take(*most) {
                let mut found = [0];
                file.read_exact_at(&mut found, at).unwrap();
                file.write_all_at(&[found[0] ^ 1], at).unwrap();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_cuts_of_any_damage_give_the_same_report(
        changes in proptest::collection::vec((0_usize..1000, change()), 0..5),
        cuts in proptest::collection::vec(0_usize..1000, 1..12),
    ) {
        let vfs: Arc<dyn Vfs> = Arc::new(disk().kill().unwrap());
        let clock = Arc::new(ManualClock::new(1_700_000_900_000));
        let world = World { vfs, clock, path: "/data/store".into(), temporary_folder: None };
        for (number, change) in &changes {
            let there = files_below(&*world.vfs, &world.path);
            apply(&*world.vfs, &there[number % there.len()], change);
        }
        let (files, job) = (world.files(), job(&world));
        let whole = crate::verify::verify(&files, &small(), &mut |_| Ok(()));
        let cuts = |pieces: usize| cuts.iter().map(|cut| cut % pieces.max(1)).collect();
        let spread = plan_at(&files, &small(), cuts, &job, &job.join("plan"));
        match (whole, spread) {
            (Ok(whole), Ok(Some(plan))) => {
                prop_assert_eq!(put_together(&files, &small(), &plan, &job).unwrap(), whole);
            }
            (Err(whole), Err(spread)) => prop_assert_eq!(whole.to_string(), spread.to_string()),
            (Err(whole), Ok(Some(plan))) => {
                let steps = plan.steps();
                let failed = steps.iter().enumerate().find_map(|(number, step)| {
                    run_step(&files, &small(), step, &job.join(number.to_string()), &mut |_| Ok(())).err()
                });
                prop_assert_eq!(failed.map(|error| error.to_string()), Some(whole.to_string()));
            }
            (Ok(_), Ok(None)) => {}
            (whole, spread) => prop_assert!(false, "{whole:?}, {spread:?}"),
        }
    }
}
