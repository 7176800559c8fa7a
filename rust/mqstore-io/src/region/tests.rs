use super::*;

fn filled(len: usize) -> Region {
    let region = Region::heap(len).unwrap();
    let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
    region.write(0, &bytes).unwrap();
    region
}

fn read_only(len: usize) -> Region {
    Region { writable: false, ..filled(len) }
}

#[test]
fn copies_in_and_out_within_bounds_only() {
    let region = filled(100);
    let mut out = [0; 3];
    region.read(97, &mut out).unwrap();
    assert_eq!(out, [97, 98, 99]);
    let outside = |at, len| Err(RegionError::OutOfBounds { at, len, region_len: 100 });
    assert_eq!(region.read(98, &mut out), outside(98, 3));
    assert_eq!(region.write(98, &[1, 2, 3]), outside(98, 3));
    assert_eq!(region.write(usize::MAX, &[1, 2]), outside(usize::MAX, 2));
    assert_eq!(region.fill(1, usize::MAX, 0), outside(1, usize::MAX));
    assert_eq!(region.store_u32_be_release(97, 0), outside(97, 4));
    assert_eq!(region.store_i64_be_release(93, 0), outside(93, 8));
    assert_eq!(region.load_u32_be_acquire(97).unwrap_err(), outside(97, 4).unwrap_err());
    assert_eq!(region.load_i64_be_acquire(93).unwrap_err(), outside(93, 8).unwrap_err());
    assert_eq!(region.view(50, 51).unwrap_err(), outside(50, 51).unwrap_err());
    assert_eq!(region.write(100, &[]), Ok(()));
    assert!(region.view(100, 0).unwrap().is_empty());
}

#[test]
fn ranges_of_flush_and_advice_are_checked() {
    let region = filled(10);
    region.flush(0..10).unwrap();
    region.advise(3..3, Advice::WillNeed).unwrap();
    region.lock_memory(0..1).unwrap();
    region.unlock_memory(0..1).unwrap();
    assert_eq!(region.flush(0..11).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    assert_eq!(region.advise(11..12, Advice::Random).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    #[expect(clippy::reversed_empty_ranges, reason = "a mistake of a caller")]
    let backwards = 9..2;
    region.flush(backwards).unwrap();
}

#[test]
fn a_number_is_raised_and_never_lowered() {
    let region = Region::heap(64).unwrap();
    std::thread::scope(|scope| {
        for first in 0..4 {
            let region = &region;
            scope.spawn(move || {
                (first..4_000).step_by(4).for_each(|value| region.raise_u64_be(8, value).unwrap());
            });
        }
    });
    assert_eq!(region.load_i64_be_acquire(8), Ok(3_999));
    region.raise_u64_be(8, 17).unwrap();
    assert_eq!(region.load_i64_be_acquire(8), Ok(3_999));
    assert_eq!(region.raise_u64_be(12, 1), Err(RegionError::NotAligned { at: 12 }));
    assert_eq!(region.raise_u64_be(64, 1), Err(RegionError::OutOfBounds { at: 64, len: 8, region_len: 64 }));
    assert_eq!(read_only(16).raise_u64_be(0, 1), Err(RegionError::ReadOnly));
}

#[test]
fn what_is_expected_changes_nothing_and_may_lie_outside() {
    let region = filled(100);
    region.expect_write(0, 100);
    region.expect_write(90, usize::MAX);
    region.expect_write(usize::MAX, 7);
    assert_eq!(&*region.view(0, 100).unwrap(), &*filled(100).view(0, 100).unwrap());
}

#[test]
fn a_read_only_region_refuses_writes() {
    let region = read_only(16);
    assert!(!region.is_writable());
    assert_eq!(region.write(0, &[1]), Err(RegionError::ReadOnly));
    assert_eq!(region.fill(0, 1, 0), Err(RegionError::ReadOnly));
    assert_eq!(region.store_u32_be_release(0, 1), Err(RegionError::ReadOnly));
    let error = region.advise(0..16, Advice::PopulateWrite).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    assert_eq!(&*region.view(1, 2).unwrap(), &[1, 2]);
}

#[test]
fn values_are_big_endian_at_any_alignment() {
    let region = Region::heap(64).unwrap();
    for at in 0..24 {
        region.write(at, &[1, 2, 3, 4]).unwrap();
        assert_eq!(region.load_u32_be_acquire(at).unwrap(), 0x0102_0304);
        region.store_u32_be_release(at, 0xDAA3_20A7).unwrap();
        assert_eq!(region.load_u32_be_acquire(at).unwrap(), 0xDAA3_20A7);
        assert_eq!(&*region.view(at, 4).unwrap(), &[0xDA, 0xA3, 0x20, 0xA7]);
        region.write(at, &(-2_i64).to_be_bytes()).unwrap();
        assert_eq!(region.load_i64_be_acquire(at).unwrap(), -2);
        region.store_i64_be_release(at, 0x0102_0304_0506_0708).unwrap();
        assert_eq!(region.load_i64_be_acquire(at).unwrap(), 0x0102_0304_0506_0708);
        assert_eq!(&*region.view(at, 8).unwrap(), &[1, 2, 3, 4, 5, 6, 7, 8]);
    }
}

#[test]
fn views_outlive_their_region_and_have_parts() {
    let region = filled(32);
    let view = region.view(4, 8).unwrap();
    let part = view.slice(2..5).unwrap();
    drop(region);
    let clone = part.clone();
    drop(view);
    assert_eq!(&*part, &[6, 7, 8]);
    assert_eq!(clone, part);
    assert_eq!(part.slice(0..4).unwrap_err(), RegionError::OutOfBounds { at: 0, len: 4, region_len: 3 });
    assert_eq!(part.slice(3..3).unwrap().len(), 0);
    assert_eq!(format!("{part:?}"), "RegionView(3 bytes)");
}

#[test]
fn a_view_of_owned_bytes() {
    let view = RegionView::from(vec![1, 2, 3]);
    assert_eq!(view.as_ref(), &[1, 2, 3]);
    assert_eq!(&*view.slice(1..3).unwrap(), &[2, 3]);
    assert!(RegionView::from(Vec::new()).is_empty());
}

#[test]
fn fill_sets_a_range() {
    let region = filled(8);
    region.fill(2, 3, 0).unwrap();
    assert_eq!(&*region.view(0, 8).unwrap(), &[0, 1, 0, 0, 0, 5, 6, 7]);
}

#[test]
fn heap_of_no_bytes_and_of_too_many() {
    assert!(Region::heap(0).unwrap().is_empty());
    assert_eq!(Region::heap(usize::MAX).unwrap_err().kind(), io::ErrorKind::OutOfMemory);
}

#[test]
fn threads_fill_disjoint_ranges_and_publish() {
    use std::sync::atomic::AtomicUsize;
    let region = Region::heap(64 * 64).unwrap();
    let published = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for part in 0..4_usize {
            let (region, published) = (&region, &published);
            scope.spawn(move || {
                for slot in (part..64).step_by(4) {
                    region.write(slot * 64, &[slot as u8; 64]).unwrap();
                    while published.load(Ordering::Acquire) != slot {
                        std::thread::yield_now();
                    }
                    published.store(slot + 1, Ordering::Release);
                }
            });
        }
        let mut seen = 0;
        while seen < 64 {
            let now = published.load(Ordering::Acquire);
            for slot in seen..now {
                assert_eq!(&*region.view(slot * 64, 64).unwrap(), &[slot as u8; 64]);
            }
            seen = now;
        }
    });
}
