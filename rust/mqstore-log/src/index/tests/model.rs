//! Tests of the bytes of the files against a plain model of the format, and of the answers against a list.

use proptest::prelude::*;

use super::*;

/// A file filled by RocketMQ's rules, with one rule on each line.
struct ModelFile {
    bytes: Vec<u8>,
    header: IndexHeader,
    geometry: IndexGeometry,
}

impl ModelFile {
    fn new(geometry: IndexGeometry, before: Option<&Self>) -> Self {
        let mut header = IndexHeader { index_count: 1, ..IndexHeader::default() };
        if let Some(before) = before {
            header.begin_physical = before.header.end_physical;
            header.end_physical = before.header.end_physical;
            header.begin_timestamp = before.header.end_timestamp;
            header.end_timestamp = before.header.end_timestamp;
        }
        Self { bytes: vec![0; geometry.file_len() as usize], header, geometry }
    }

    fn put(&mut self, put: &NewEntry) -> bool {
        let count = self.header.index_count;
        if count >= self.geometry.entries as i32 {
            return false;
        }
        let slot = put.hash % self.geometry.slots as i32;
        let slot_at = 40 + 4 * slot as usize;
        let mut previous = i32::from_be_bytes(self.bytes[slot_at..slot_at + 4].try_into().unwrap());
        if previous <= 0 || previous > count {
            previous = 0;
        }
        let mut seconds = (put.store_timestamp - self.header.begin_timestamp) / 1000;
        if self.header.begin_timestamp <= 0 {
            seconds = 0;
        }
        seconds = seconds.clamp(0, i64::from(i32::MAX));
        let at = 40 + 4 * self.geometry.slots as usize + 20 * count as usize;
        self.bytes[at..at + 4].copy_from_slice(&put.hash.to_be_bytes());
        self.bytes[at + 4..at + 12].copy_from_slice(&put.physical_offset.to_be_bytes());
        self.bytes[at + 12..at + 16].copy_from_slice(&(seconds as i32).to_be_bytes());
        self.bytes[at + 16..at + 20].copy_from_slice(&previous.to_be_bytes());
        self.bytes[slot_at..slot_at + 4].copy_from_slice(&count.to_be_bytes());
        if count <= 1 {
            self.header.begin_physical = put.physical_offset;
            self.header.begin_timestamp = put.store_timestamp;
        }
        if previous == 0 {
            self.header.slot_count += 1;
        }
        self.header.index_count += 1;
        self.header.end_physical = put.physical_offset;
        self.header.end_timestamp = put.store_timestamp;
        self.bytes[..40].copy_from_slice(&self.header.encode());
        true
    }
}

fn model(geometry: IndexGeometry, puts: &[NewEntry]) -> Vec<Vec<u8>> {
    let mut files: Vec<ModelFile> = Vec::new();
    for put in puts {
        if files.last().is_some_and(|file| put.physical_offset < file.header.end_physical) {
            continue;
        }
        if !files.last_mut().is_some_and(|file| file.put(put)) {
            let mut file = ModelFile::new(geometry, files.last());
            assert!(file.put(put));
            files.push(file);
        }
    }
    files.into_iter().map(|file| file.bytes).collect()
}

fn puts() -> impl Strategy<Value = Vec<NewEntry>> {
    let hashes = prop_oneof![0..40_i32, Just(0), Just(i32::MAX), 0..=i32::MAX];
    // Mostly forward by some seconds; sometimes the clock was set.
    let steps = prop_oneof![8 => 0..4_000_i64, 1 => -100_000..100_000_i64, 1 => Just(9_000_000_000_000)];
    let put = (hashes, 0..3_i64, steps);
    (prop_oneof![Just(0_i64), Just(T)], proptest::collection::vec(put, 1..60)).prop_map(|(start, steps)| {
        let (mut physical, mut time) = (0, start);
        steps
            .into_iter()
            .map(|(hash, gap, step)| {
                physical += gap * 100;
                time = (time + step) % 20_000_000_000_000;
                NewEntry { hash, physical_offset: physical, store_timestamp: time, of_tags: false }
            })
            .collect()
    })
}

fn geometries() -> impl Strategy<Value = IndexGeometry> {
    (1..12_u32, 2..20_u32).prop_map(|(slots, entries)| IndexGeometry { slots, entries })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn files_are_those_of_the_rules(puts in puts(), geometry in geometries(), cuts in proptest::collection::vec(0..60_usize, 0..5)) {
        let world = World::new(&SimVfs::default());
        let mut done = 0;
        let mut cuts = cuts;
        cuts.sort_unstable();
        for cut in cuts.into_iter().chain([usize::MAX]) {
            let cut = cut.min(puts.len());
            // A new process that knows the geometry writes each part.
            let set = IndexSet::load(&world.files, Some(geometry), TINY, Access::ReadWrite).unwrap();
            set.put(&puts[done..cut]).unwrap();
            done = cut;
        }
        let files: Vec<_> = world.contents().into_iter().map(|file| file.1).collect();
        prop_assert_eq!(files, model(geometry, &puts));
        prop_assert!(world.sim.violations().is_empty());
    }

    #[test]
    fn every_record_in_the_range_is_a_candidate(
        puts in puts(),
        geometry in geometries(),
        (from, to) in (0..20_000_000_000_000_i64, 0..20_000_000_000_000_i64),
        near in any::<proptest::sample::Index>(),
    ) {
        let world = World::new(&SimVfs::default());
        let set = IndexSet::load(&world.files, None, geometry, Access::ReadWrite).unwrap();
        set.put(&puts).unwrap();
        let close = near.get(&puts).store_timestamp;
        for hash in puts.iter().map(|put| put.hash) {
            let mut expected: Vec<i64> =
                puts.iter().rev().filter(|put| put.hash == hash).map(|put| put.physical_offset).collect();
            expected.dedup();
            let found = set.candidates(hash, i64::MIN, i64::MAX).unwrap();
            prop_assert_eq!(found, Candidates { offsets: expected.clone(), damaged: None });
            for (begin, end) in [(from.min(to), from.max(to)), (close, close), (close - 1500, close + 700)] {
                let found = set.candidates(hash, begin, end).unwrap().offsets;
                for put in puts.iter().filter(|put| put.hash == hash) {
                    if (begin..=end).contains(&put.store_timestamp) {
                        prop_assert!(found.contains(&put.physical_offset));
                    }
                }
                prop_assert!(found.iter().all(|offset| expected.contains(offset)));
            }
        }
    }

    #[test]
    fn many_at_once_are_put_as_one_by_one(
        hashes in proptest::collection::vec((0..700_i32, 0..2_i64), 1..400),
        geometry in (1..90_u32, 2..300_u32).prop_map(|(slots, entries)| IndexGeometry { slots, entries }),
        back in any::<proptest::sample::Index>(),
    ) {
        let mut at = 0;
        let mut puts: Vec<_> = hashes
            .into_iter()
            .map(|(hash, gap)| {
                at += gap * 100;
                NewEntry { hash, physical_offset: at, store_timestamp: T + at * 7, of_tags: false }
            })
            .collect();
        // An entry that comes too late for its place is skipped by both.
        puts.insert(back.index(puts.len()), NewEntry { hash: 1, physical_offset: at / 2, store_timestamp: T, of_tags: false });
        let [together, single] = [World::new(&SimVfs::default()), World::new(&SimVfs::default())];
        let open = |world: &World| IndexSet::load(&world.files, None, geometry, Access::ReadWrite).unwrap();
        open(&together).put(&puts).unwrap();
        let set = open(&single);
        for put in &puts {
            set.put(&[*put]).unwrap();
        }
        prop_assert_eq!(together.contents(), single.contents());
        let files: Vec<_> = together.contents().into_iter().map(|file| file.1).collect();
        prop_assert_eq!(files, model(geometry, &puts));
    }
}
