//! Writes of many processes as one step, ended at any call or with any call failing: each staged message is in the log
//! once, and a step that is noted as done is there after a loss of power.

use std::collections::BTreeMap;

use mqstore_base::error::StoreError;
use mqstore_base::message::{NewMessage, encode_properties};
use mqstore_base::options::{Durability, OpenMode};
use mqstore_engine::{
    StagedBlock, StagedFile, StagedFileWriter, StagedStep, Store, job_in_progress, prepare_stage, was_done,
};
use mqstore_format::Host;
use mqstore_io::Vfs;
use mqstore_io::sim::Fault;

use crate::check::abandon;
use crate::explore::{Violation, guarded};
use crate::moments::{End, Ends};
use crate::states::{Limits, Rng, State};
use crate::workload::{World, explain, root, tiny};

const LIMITS: Limits = Limits { all_up_to: 2, singles: 4, random: 2, cuts: 1 };
const TOPIC: &str = "rows";

/// A named job, and two batches of a query: name, batch, and the numbers of its messages.
const STEPS: [(&str, Option<i64>, std::ops::Range<usize>); 3] =
    [("nightly", None, 0..7), ("query", Some(0), 7..11), ("query", Some(1), 11..15)];

/// Stages the messages of a step, as two tasks do, in blocks of two messages.
fn stage(world: &World, number: usize, job: &str) -> Result<StagedStep, StoreError> {
    let (name, batch, numbers) = STEPS[number].clone();
    let mut files = Vec::new();
    let all: Vec<usize> = numbers.collect();
    for (task, some) in all.chunks(4).enumerate() {
        let file = format!("0/{task}.run");
        let mut writer = StagedFileWriter::create(&world.files(), job, &file)?;
        for pair in some.chunks(2) {
            let mut block = StagedBlock::new(1 << 16);
            for number in pair {
                let (key, body) =
                    (format!("{job}-{number}"), format!("row {number} {}", "x".repeat(number * 40)));
                let properties = encode_properties([], None, Some(&key), [])?;
                let message = NewMessage {
                    topic: TOPIC,
                    body: body.as_bytes(),
                    properties: &properties,
                    unique_key: Some(&key),
                    ..NewMessage::default()
                };
                block.push(&message)?;
            }
            writer.push(&block.finish())?;
        }
        files.push(StagedFile { file, rows: some.len() as u64, bytes: writer.finish()? });
    }
    Ok(StagedStep { job: job.to_owned(), name: name.to_owned(), batch, record: true, files })
}

/// Ends the step in progress, if there is one; at most `blocks` blocks of it.
fn resume(store: &Store, blocks: usize) -> Result<(), StoreError> {
    let host = Host { ip: [127, 0, 0, 1].into(), port: 0 };
    let Some(mut step) = store.system_appends().resume_staged(host)? else { return Ok(()) };
    for _ in 0..blocks {
        if step.next_block()?.is_none() {
            break;
        }
    }
    Ok(())
}

/// A driver: prepares the folder, lets tasks stage, ends an earlier step, and does its own unless it was done.
fn drive(world: &World, store: &Store, number: usize, job: &str) -> Result<(), StoreError> {
    let files = world.files();
    prepare_stage(&files, &format!("token of {job}"))?;
    let step = stage(world, number, job)?;
    resume(store, usize::MAX)?;
    if !was_done(&files, &step.name, step.batch)? {
        store.system_appends().begin_staged(step)?;
        resume(store, usize::MAX)?;
    }
    Ok(())
}

/// Appends messages of another program, which nothing syncs.
fn beside(store: &Store, count: usize) -> Result<(), StoreError> {
    for number in 0..count {
        let body = vec![b'o'; 30 + 70 * number];
        store.append(&NewMessage {
            topic: "other",
            body: &body,
            queue_id: Some(0),
            ..NewMessage::default()
        })?;
    }
    Ok(())
}

fn opened(world: &World) -> Result<Store, String> {
    world.open(OpenMode::ReadWrite, &tiny(Durability::Manual)).map_err(explain)
}

/// A store with the two topics.
fn begin() -> Result<World, String> {
    let world = World::new(false);
    let store = world.open(OpenMode::Create, &tiny(Durability::Manual)).map_err(explain)?;
    for topic in [TOPIC, "other"] {
        store.create_topic(topic, 1, &[]).map_err(explain)?;
    }
    store.close().map_err(explain)?;
    Ok(World::on(world.vfs.crash_as(false, &mut |_, forms| forms - 1).map_err(explain)?))
}

/// Does all steps. Returns the number of the call at which each was done.
fn session(world: &World) -> Result<Vec<u64>, String> {
    let store = opened(world)?;
    let mut done = Vec::new();
    for number in 0..STEPS.len() {
        beside(&store, 2).map_err(explain)?;
        drive(world, &store, number, &format!("job{number}")).map_err(explain)?;
        done.push(world.vfs.operations());
    }
    abandon(&store);
    Ok(done)
}

/// Every message of the steps up to `steps` is there once, and no other one.
fn complete(store: &Store, steps: usize) -> Result<(), String> {
    let mut found: BTreeMap<usize, usize> = BTreeMap::new();
    let mut cursor = store.log().scan(None).map_err(explain)?;
    for record in cursor.next_batch(usize::MAX).map_err(explain)? {
        let view = record.view().map_err(explain)?;
        if view.topic == TOPIC {
            let text = String::from_utf8_lossy(view.body);
            let number =
                text.split(' ').nth(1).and_then(|text| text.parse().ok()).ok_or("a body is damaged")?;
            *found.entry(number).or_default() += 1;
        }
    }
    let wanted: BTreeMap<usize, usize> =
        STEPS[..steps].iter().flat_map(|(.., numbers)| numbers.clone()).map(|number| (number, 1)).collect();
    if found == wanted { Ok(()) } else { Err(format!("the log has {found:?}, not each of {wanted:?} once")) }
}

fn check(end: &End<'_>, done: &[u64], rng: &mut Rng) -> Result<(), String> {
    let mut world = end.world()?;
    let least = done.iter().filter(|call| **call < end.call).count();
    let noted = noted(&world)?;
    if noted < least {
        return Err(format!("{least} steps were done, and {noted} are noted"));
    }
    continued(&mut world, noted, rng)
}

/// Returns the number of steps that are noted as done.
fn noted(world: &World) -> Result<usize, String> {
    let noted = STEPS.iter().map(|(name, batch, _)| was_done(&world.files(), name, *batch).map_err(explain));
    Ok(noted.collect::<Result<Vec<_>, _>>()?.into_iter().filter(|noted| *noted).count())
}

/// The next drivers do all steps; `noted` are done before. They can be ended, too.
fn continued(world: &mut World, noted: usize, rng: &mut Rng) -> Result<(), String> {
    let store = opened(world)?;
    if job_in_progress(&world.files()).map_err(explain)?.is_none() {
        complete(&store, noted)?;
    }
    if rng.chance(4) {
        beside(&store, 2).map_err(explain)?;
    }
    let mut last = store;
    if rng.chance(4) {
        resume(&last, 1 + rng.below(2) as usize).map_err(explain)?;
        let state = if rng.chance(4) { State::kill() } else { State::chance(rng) };
        let after = World::on(state.image(&world.vfs)?.vfs);
        abandon(&last);
        drop(last);
        *world = after;
        last = opened(world)?;
    }
    for number in 0..STEPS.len() {
        drive(world, &last, number, &format!("again{number}"))
            .map_err(|error| format!("step {number}: {error}"))?;
    }
    complete(&last, STEPS.len())?;
    let after = World::on(State::all_old().image(&world.vfs)?.vfs);
    abandon(&last);
    let noted = self::noted(&after)?;
    if noted < STEPS.len() {
        return Err(format!("after a loss of power, {noted} steps are noted"));
    }
    complete(&opened(&after)?, STEPS.len()).map_err(|what| format!("after a loss of power: {what}"))
}

/// A step whose first block is damaged is given up, also for a machine that loses its power then.
fn given_up() -> Result<(), String> {
    let world = begin()?;
    let store = opened(&world)?;
    prepare_stage(&world.files(), "token").map_err(explain)?;
    let step = stage(&world, 0, "job").map_err(explain)?;
    let file = root().join("mqstore/spark/stage/job").join(&step.files[0].file);
    world.vfs.flip(&file, 40, 1).map_err(explain)?;
    store.system_appends().begin_staged(step).map_err(explain)?;
    let given_up = resume(&store, 1);
    let after = World::on(State::all_old().image(&world.vfs)?.vfs);
    abandon(&store);
    if !matches!(given_up, Err(StoreError::Corrupt { .. })) {
        return Err(format!("damaged rows give {given_up:?}"));
    }
    match job_in_progress(&after.files()).map_err(explain)? {
        None => complete(&opened(&after)?, 0),
        Some(_) => Err("a step that was given up came back".to_owned()),
    }
}

/// Ends the steps after each of their calls.
pub(crate) fn hunt(step: usize, stop: &dyn Fn() -> bool) -> Result<u64, Violation> {
    let ends = Ends { name: "staging", replay: "staging".to_owned(), limits: LIMITS, step, stop };
    ends.beside(given_up)?;
    let world = ends.beside(begin)?;
    ends.each(&world, session, |end, done, rng| check(end, done, rng))
}

/// Lets each call of the steps fail, once or from then on, and continues after a kill.
fn failing() -> Result<u64, String> {
    let begin = begin()?.vfs;
    let copy = || Ok::<_, String>(World::on(begin.kill().map_err(explain)?));
    let probe = copy()?;
    session(&probe)?;
    let calls = probe.vfs.operations();
    let mut tried = 0;
    for nth in 1..calls {
        for sticky in [false, true] {
            let world = copy()?;
            let store = opened(&world)?;
            let fault = Fault::nth(nth);
            world.vfs.inject(if sticky { fault.sticky() } else { fault });
            for number in 0..STEPS.len() {
                let done = drive(&world, &store, number, &format!("job{number}"));
                match done {
                    Ok(()) => {}
                    Err(StoreError::Corrupt { .. }) => {
                        return Err(format!("call {nth} fails, and this is called damage: {done:?}"));
                    }
                    // A job whose write has failed makes no further one.
                    Err(_) => break,
                }
            }
            let is_over = world.vfs.faults_fired() == 0;
            world.vfs.clear_faults();
            let mut after = World::on(world.vfs.kill().map_err(explain)?);
            abandon(&store);
            let noted = noted(&after)?;
            let mut rng = Rng::new(nth);
            continued(&mut after, noted, &mut rng)
                .map_err(|what| format!("call {nth} fails, {sticky}: {what}"))?;
            tried += 1;
            if is_over {
                return Ok(tried);
            }
        }
    }
    Ok(tried)
}

#[test]
fn a_step_is_appended_once() {
    let tried = crate::crashes::must_hold(hunt(crate::crashes::short_calls_step(), &|| false));
    println!("staging: {tried} states");
    assert!(tried > 500, "{tried} states");
}

#[test]
fn a_step_whose_calls_fail_is_appended_once() {
    let tried = guarded(failing).unwrap_or_else(|what| panic!("{what}"));
    println!("staging: {tried} failing calls");
    assert!(tried > 100, "{tried} failing calls");
}

#[test]
fn one_driver_makes_the_token() {
    let world = begin().unwrap();
    let tokens: Vec<String> =
        ["one", "two"].map(|new| prepare_stage(&world.files(), new).unwrap()).into_iter().collect();
    assert_eq!(tokens, ["one", "one"]);
    let folder = root().join("mqstore/spark/stage");
    assert_eq!(world.vfs.list(&folder).unwrap().len(), 1);
}
