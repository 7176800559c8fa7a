//! The segments of a restored log: every byte in its place, no byte twice, and nothing is lost after the sync.

use std::path::Path;
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_format::{Host, MAGIC_BLANK, RecordSpec, RecordView, encode_blank};
use mqstore_io::{Access, SimOptions, SimVfs, Vfs};

use crate::RestoredLog;

const SEGMENT: u64 = 1000;

fn disk() -> SimVfs {
    let sim = SimVfs::new(SimOptions { by_hand: true, ..SimOptions::default() });
    sim.create_dir(Path::new("/log")).unwrap();
    sim.sync_dir(Path::new("/")).unwrap();
    sim
}

fn log(sim: &SimVfs) -> RestoredLog {
    let mut log = RestoredLog::new(Arc::new(sim.clone()), Path::new("/log"));
    log.add(2 * SEGMENT, SEGMENT).unwrap();
    log.add(SEGMENT, SEGMENT).unwrap();
    log
}

fn record(at: u64, body: usize) -> Vec<u8> {
    let host = Host::new([127, 0, 0, 1], 1);
    let mut bytes = Vec::new();
    RecordSpec { physical_offset: at.cast_signed(), ..RecordSpec::new("t", &vec![7; body], host, host) }
        .encode_into(&mut bytes)
        .unwrap();
    bytes
}

fn bytes(sim: &SimVfs, base: u64) -> Vec<u8> {
    let path = Path::new("/log").join(mqstore_format::offset_file_name(base));
    sim.read_file(&path, 1 << 20).unwrap()
}

#[test]
fn records_in_any_order_make_the_segment_and_its_filler() {
    let sim = disk();
    let mut log = log(&sim);
    let (first, second) = (record(SEGMENT, 300), record(SEGMENT + 392, 200));
    assert_eq!(first.len(), 392);
    log.write(SEGMENT + 392, &second).unwrap();
    assert_eq!(log.complete(SEGMENT, 2 * SEGMENT, None).unwrap(), [(SEGMENT, 392)]);
    log.write(SEGMENT, &first).unwrap();
    assert_eq!(log.complete(SEGMENT, 2 * SEGMENT, None).unwrap(), []);
    let mut wanted = [first, second].concat();
    let rest = SEGMENT as u32 - wanted.len() as u32;
    wanted.extend_from_slice(&encode_blank(rest));
    wanted.resize(SEGMENT as usize, 0);
    log.sync().unwrap();
    // A power loss after the sync loses nothing.
    for seed in 0..8 {
        assert_eq!(bytes(&sim.crash(seed).unwrap(), SEGMENT), wanted, "power loss {seed}");
    }
    assert!(sim.open(Path::new("/log/00000000000000001000"), Access::Read).is_ok());
}

#[test]
fn records_that_are_left_out_become_placeholders() {
    let sim = disk();
    let mut log = log(&sim);
    log.write(SEGMENT + 200, &record(SEGMENT + 200, 100)).unwrap();
    assert_eq!(log.complete(SEGMENT, 3 * SEGMENT, Some(99)).unwrap(), []);
    let segment = bytes(&sim, SEGMENT);
    let placeholder = RecordView::decode(&segment).unwrap();
    assert!(placeholder.is_placeholder());
    assert_eq!((placeholder.size, placeholder.physical_offset, placeholder.store_timestamp), (200, 1000, 99));
    assert!(!RecordView::decode(&segment[200..]).unwrap().is_placeholder());
    assert_eq!(segment[396..400], MAGIC_BLANK.to_be_bytes());
    // Without any record, the segment is one filler.
    assert_eq!(bytes(&sim, 2 * SEGMENT)[..8], encode_blank(1000));
}

#[test]
fn bytes_twice_or_outside_are_refused() {
    let sim = disk();
    let mut log = log(&sim);
    log.write(SEGMENT + 100, &[1; 100]).unwrap();
    log.write(2 * SEGMENT - 50, &[1; 100]).unwrap();
    for (at, length) in [(150, 10), (0, 101), (199, 1), (950, 1), (1049, 20), (2000, 1), (1999, 2)] {
        let refused = log.write(SEGMENT + at, &vec![2; length]);
        assert!(matches!(refused, Err(StoreError::Corrupt { .. })), "{at} {length}");
    }
    assert!(log.write(0, &[1]).is_err());
    for (base, length) in [(SEGMENT + 1, 5), (500, 501), (3 * SEGMENT, 0), (u64::MAX - 5, 4)] {
        assert!(log.add(base, length).is_err(), "{base} {length}");
    }
    assert_eq!(log.complete(SEGMENT, 3 * SEGMENT, None).unwrap(), [(1000, 100), (1200, 750), (2050, 949)]);
}
