//! Compares the three compressions with other implementations, with limits and with damage.

use std::io::{Read, Write};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::testing::hex;

const ALL: [Compression; 3] = [Compression::Zlib, Compression::Lz4, Compression::Zstd];

fn is_too_large(result: &Result<Vec<u8>, FormatError>) -> bool {
    matches!(result, Err(FormatError::TooLarge { what: "decompressed body", .. }))
}

#[test]
fn bodies_come_back_at_every_size_and_level() {
    for size in [0, 1, 100, 5_000, 300_000] {
        let body: Vec<u8> = (0..size).map(|n: u32| (n % 251 * (n / 1000)) as u8).collect();
        for kind in ALL {
            for level in [i32::MIN, 0, 1, 5, 9, 100] {
                let packed = compress(kind, &body, level).unwrap();
                assert_eq!(decompress(kind, &packed, body.len()).unwrap(), body, "{kind:?} {size}");
                if size > 0 {
                    assert!(is_too_large(&decompress(kind, &packed, body.len() - 1)), "{kind:?} {size}");
                    assert!(is_too_large(&decompress(kind, &packed, 0)), "{kind:?} {size}");
                    assert!(
                        decompress(kind, &packed[..packed.len() - 1], body.len()).is_err(),
                        "{kind:?} {size}"
                    );
                }
            }
        }
    }
}

#[test]
fn bombs_stop_at_the_limit() {
    let zeros = vec![0; 64 << 20];
    for kind in ALL {
        let bomb = compress(kind, &zeros, 9).unwrap();
        assert!(bomb.len() < 512 << 10);
        assert!(is_too_large(&decompress(kind, &bomb, 1 << 20)), "{kind:?}");
        assert_eq!(decompress(kind, &bomb, 64 << 20).unwrap().len(), 64 << 20);
    }
}

#[test]
fn nothing_is_no_compressed_body() {
    // As in Java, no bytes are an empty body in the two formats that need no end.
    assert_eq!(decompress(Compression::Zlib, b"", 10), Ok(vec![]));
    assert_eq!(decompress(Compression::Zstd, b"", 10), Ok(vec![]));
    assert!(matches!(decompress(Compression::Lz4, b"", 10), Err(FormatError::Compression { .. })));
    for kind in ALL {
        assert!(matches!(decompress(kind, b"garbage", 10), Err(FormatError::Compression { .. })), "{kind:?}");
    }
}

/// Bodies compressed by RocketMQ's Java classes: `ZlibCompressor`, `Lz4Compressor`, `ZstdCompressor`.
#[test]
fn bodies_of_java_writers() {
    let body = b"Hello RocketMQ, Hello RocketMQ, Hello RocketMQ";
    let java = [(Compression::Zlib, JAVA_ZLIB), (Compression::Lz4, JAVA_LZ4), (Compression::Zstd, JAVA_ZSTD)];
    for (kind, packed) in java {
        assert_eq!(decompress(kind, &hex(packed), 1000).unwrap(), body, "{kind:?}");
    }
}

const JAVA_ZLIB: &str = "785ef348cdc9c95708ca4fce4e2df10dd451f0c0cb070075650fe7";
const JAVA_LZ4: &str = "04224d186070731b000000ff0148656c6c6f20526f636b65744d512c20100006506b65744d5100000000";
const JAVA_ZSTD: &str = "28b52ffd0058b400008048656c6c6f20526f636b65744d512c200100469c4b010000";

#[test]
fn bytes_behind_a_zlib_stream_are_ignored() {
    let mut packed = compress(Compression::Zlib, b"body", 5).unwrap();
    packed.extend(b"behind");
    assert_eq!(decompress(Compression::Zlib, &packed, 4).unwrap(), b"body");
}

#[test]
fn zstd_streams_without_a_size_are_read() {
    let body = b"stream ".repeat(10_000);
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
    encoder.write_all(&body).unwrap();
    let packed = encoder.finish().unwrap();
    assert_eq!(zstd_safe::get_frame_content_size(&packed).unwrap(), None);
    assert_eq!(decompress(Compression::Zstd, &packed, body.len()).unwrap(), body);
    assert!(is_too_large(&decompress(Compression::Zstd, &packed, body.len() - 1)));
}

#[test]
fn frames_may_follow_each_other() {
    for kind in [Compression::Lz4, Compression::Zstd] {
        let two = [compress(kind, b"one ", 5).unwrap(), compress(kind, b"two", 5).unwrap()].concat();
        assert_eq!(decompress(kind, &two, 7).unwrap(), b"one two", "{kind:?}");
        assert!(is_too_large(&decompress(kind, &two, 6)), "{kind:?}");
    }
    let skippable = [hex("502a4d18 03000000 616263"), compress(Compression::Lz4, b"x", 5).unwrap()].concat();
    assert_eq!(decompress(Compression::Lz4, &skippable, 7).unwrap(), b"x");
}

fn frame_of_peer(body: &[u8], info: lz4_flex::frame::FrameInfo) -> Vec<u8> {
    let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(info, Vec::new());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn lz4_frames_of_every_kind_agree_with_another_implementation() {
    use lz4_flex::frame::{BlockMode, BlockSize, FrameInfo};
    let body: Vec<u8> = (0..400_000u32).map(|n| (n.wrapping_mul(n) >> 13) as u8 & 0x3f).collect();
    for size in [BlockSize::Max64KB, BlockSize::Max256KB, BlockSize::Max1MB, BlockSize::Max4MB] {
        for checksums in [false, true] {
            let info = FrameInfo::new()
                .block_size(size)
                .block_mode(BlockMode::Independent)
                .block_checksums(checksums)
                .content_checksum(checksums)
                .content_size(checksums.then_some(body.len() as u64));
            let packed = frame_of_peer(&body, info);
            assert_eq!(lz4_frame::decompress(&packed, body.len()).unwrap(), body, "{size:?}");
            assert!(is_too_large(&lz4_frame::decompress(&packed, body.len() - 1)));
            for at in [5, packed.len() / 2, packed.len() - 1] {
                let mut damaged = packed.clone();
                damaged[at] ^= 0x55;
                assert!(
                    !checksums || lz4_frame::decompress(&damaged, body.len()).is_err(),
                    "{size:?} at {at}"
                );
            }
        }
    }
    let linked = frame_of_peer(&body, FrameInfo::new().block_mode(BlockMode::Linked));
    assert!(matches!(lz4_frame::decompress(&linked, body.len()), Err(FormatError::Compression { .. })));
}

#[test]
fn lz4_frames_are_read_by_another_implementation() {
    for size in [0, 10, 100_000, (4 << 20) + 1] {
        let body: Vec<u8> = (0..size).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let packed = compress(Compression::Lz4, &body, 0).unwrap();
        assert_eq!(packed[..7], hex("04224d18 60 70 73"));
        let mut read = Vec::new();
        lz4_flex::frame::FrameDecoder::new(packed.as_slice()).read_to_end(&mut read).unwrap();
        assert_eq!(read, body);
    }
}

#[test]
fn xxh32_of_known_inputs() {
    assert_eq!(lz4_frame::xxh32(b""), 0x02cc_5d05);
    assert_eq!(lz4_frame::xxh32(b"abc"), 0x32d1_53ff);
    assert_eq!(lz4_frame::xxh32(b"Nobody inspects the spammish repetition"), 0xe229_3b2f);
}

proptest! {
    #[test]
    fn bodies_come_back(body in vec(prop_oneof![Just(b'a'), any::<u8>()], 0..2000), level in 0i32..12) {
        for kind in ALL {
            let packed = compress(kind, &body, level).unwrap();
            prop_assert_eq!(&decompress(kind, &packed, body.len()).unwrap(), &body);
        }
    }

    #[test]
    fn any_bytes_end_within_the_limit(bytes in vec(any::<u8>(), 0..200), limit in 0usize..4000) {
        for kind in ALL {
            if let Ok(body) = decompress(kind, &bytes, limit) {
                prop_assert!(body.len() <= limit);
            }
        }
    }

    #[test]
    fn any_damage_ends_within_the_limit(
        body in vec(0u8..4, 0..600), changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4), limit in 0usize..700,
    ) {
        for kind in ALL {
            let mut packed = compress(kind, &body, 5).unwrap();
            for (at, byte) in &changes {
                let at = at.index(packed.len());
                packed[at] = *byte;
            }
            if let Ok(opened) = decompress(kind, &packed, limit) {
                prop_assert!(opened.len() <= limit);
            }
        }
    }
}
