//! Reclaims of space that stop at any call: each segment is the old file or the new one. A loss of power takes back no
//! rewrite that a reclaim has reported.

use std::collections::BTreeMap;
use std::sync::Arc;

use mqstore_base::message::{NewMessage, encode_properties};
use mqstore_base::options::{Durability, OpenMode, StoreOptions};
use mqstore_base::topic_floors::TopicRetention;
use mqstore_compaction::JobControl;
use mqstore_engine::{ReclaimRequest, Store};
use mqstore_io::{SimVfs, Vfs};

use crate::crashes::must_hold;
use crate::explore::{Violation, guarded};
use crate::states::{Limits, Rng, State, states};
use crate::workload::{World, explain, root, tiny};

const LIMITS: Limits = Limits { all_up_to: 2, singles: 6, random: 2, cuts: 1 };

/// The topic that loses its oldest messages, one that is deleted, and one that keeps all.
const TOPICS: [&str; 3] = ["hidden", "gone", "live"];

/// Number of messages of each topic.
const COUNT: i64 = 24;

fn options(durability: Durability) -> StoreOptions {
    StoreOptions { segment_bytes: 32 << 10, queue_file_entries: 4, index_entries: 64, ..tiny(durability) }
}

fn body(topic: &str, number: i64, len: usize) -> Vec<u8> {
    let mut body = format!("{topic} {number} ").into_bytes();
    body.resize(len, number as u8 + 1);
    body
}

/// A store with hidden messages, and the bodies of the messages that stay, by topic and queue offset.
fn filled(world: &World, options: &StoreOptions, rng: &mut Rng) -> Result<(Store, Kept), String> {
    let store = world.open(OpenMode::Create, options).map_err(explain)?;
    for topic in TOPICS {
        store.create_topic(topic, 1, &[]).map_err(explain)?;
    }
    let mut left = TOPICS.map(|topic| (topic, 0));
    let mut kept = Kept::new();
    while left.iter().any(|(_, number)| *number < COUNT) {
        let (topic, number) = &mut left[rng.below(3) as usize];
        if *number == COUNT {
            continue;
        }
        let body = body(topic, *number, 20 + rng.below(6000) as usize);
        let properties = encode_properties(["k"], None, None, []).map_err(explain)?;
        let message = NewMessage {
            topic,
            body: &body,
            properties: &properties,
            queue_id: Some(0),
            ..NewMessage::default()
        };
        store.append(&message).map_err(explain)?;
        if *topic == "live" || *topic == "hidden" && *number >= 20 {
            kept.insert(((*topic).to_owned(), *number), body);
        }
        *number += 1;
    }
    let limits = TopicRetention { max_messages: Some(4), ..TopicRetention::default() };
    store.retention().set("hidden", limits).map_err(explain)?;
    store.expire(false, &mut || Ok(())).map_err(explain)?;
    store.remove_topic("gone").map_err(explain)?;
    store.flush().map_err(explain)?;
    Ok((store, kept))
}

type Kept = BTreeMap<(String, i64), Vec<u8>>;

/// Returns the contents of the segments, by name.
fn segments(vfs: &SimVfs) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let folder = root().join("commitlog");
    let mut found = BTreeMap::new();
    for entry in vfs.list(&folder).map_err(explain)? {
        let bytes = vfs.read_file(&folder.join(&entry.name), 1 << 20).map_err(explain)?;
        found.insert(entry.name.to_string_lossy().into_owned(), bytes);
    }
    Ok(found)
}

fn expect(vfs: SimVfs, options: &StoreOptions, kept: &Kept) -> Result<(), String> {
    let store = World::on(vfs).open(OpenMode::ReadWrite, options).map_err(explain)?;
    let mut found = Kept::new();
    for topic in ["hidden", "live"] {
        let mut cursor = store.read(topic, 0, None, None, None).map_err(explain)?;
        for record in cursor.next_batch(usize::MAX).map_err(explain)? {
            let body = record.view().map_err(explain)?.body.to_vec();
            found.insert((topic.to_owned(), record.queue_offset), body);
        }
    }
    store.close().map_err(explain)?;
    if &found == kept { Ok(()) } else { Err(format!("{} messages instead of {}", found.len(), kept.len())) }
}

/// Reclaims space in one store, and checks all stops. Returns the number of disks.
fn one(seed: u64, durability: Durability, stop: &dyn Fn() -> bool) -> Result<u64, String> {
    let (options, mut rng) = (options(durability), Rng::new(seed));
    let world = World::new(false);
    let (store, kept) = filled(&world, &options, &mut rng)?;
    let old = segments(&world.vfs)?;
    let begin = world.vfs.operations();
    world.vfs.freeze_at_each(begin..begin + 5000);
    let erase = ["hidden", "gone"].map(str::to_owned).into();
    let request = ReclaimRequest { erase, ..ReclaimRequest::default() };
    let done = store.reclaim(&request, &Arc::new(JobControl::default())).map_err(explain)?;
    if done.segments.len() < 2 {
        return Err(format!("only {} segments were rewritten", done.segments.len()));
    }
    let new = segments(&world.vfs)?;
    let mut moments = world.vfs.take_all_frozen();
    let end = world.vfs.operations();
    moments.push((end, State::kill().image(&world.vfs)?.vfs));
    let mut tried = 0;
    // The end, where everything must be durable, first.
    for (call, moment) in moments.into_iter().rev() {
        let is_over = call == end;
        let source = if is_over { &world.vfs } else { &moment };
        for state in states(source, LIMITS, &mut rng) {
            if stop() {
                return Ok(tried);
            }
            let told = |what: String| format!("stopped before call {call} of {end}, {state}: {what}");
            let image = state.image(source)?;
            tried += 1;
            for (name, bytes) in segments(&image.vfs)? {
                let is_new = new.get(&name).is_some_and(|new| *new == bytes);
                let is_old = old.get(&name).is_some_and(|old| *old == bytes);
                if !is_new && (is_over || !is_old) {
                    let which = if is_old { "the old file" } else { "neither the old file nor the new one" };
                    return Err(told(format!("segment {name} is {which}")));
                }
            }
            if tried % 8 == 0 {
                expect(image.vfs, &options, &kept).map_err(told)?;
            }
        }
    }
    store.close().map_err(explain)?;
    expect(State::kill().image(&world.vfs)?.vfs, &options, &kept)?;
    Ok(tried)
}

/// Reclaims the space of stores from random runs until it is asked to stop.
pub(crate) fn hunt(seeds: u64, stop: &dyn Fn() -> bool) -> Result<u64, Violation> {
    let mut tried = 0;
    for seed in 0..seeds {
        for durability in [Durability::Async, Durability::Sync, Durability::Manual] {
            tried += guarded(|| one(seed, durability, stop)).map_err(|what| Violation {
                replay: format!("reclaiming-{seed}"),
                what: format!("reclaiming with {durability:?}: {what}"),
            })?;
            if stop() {
                return Ok(tried);
            }
        }
    }
    Ok(tried)
}

#[test]
fn a_reclaim_can_be_ended() {
    let tried = must_hold(hunt(if crate::crashes::soak() { 40 } else { 2 }, &|| false));
    println!("reclaiming: {tried} states");
    assert!(tried > 500, "{tried} states");
}
