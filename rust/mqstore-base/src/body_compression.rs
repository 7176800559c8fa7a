//! The rule by which an append compresses a body, as RocketMQ's clients do.
//!
//! A body that does not get smaller stays unchanged; RocketMQ stores the compressed form of it.
//!
//! Source: `DefaultMQProducerImpl#tryToCompressMessage`.

use std::borrow::Cow;

use mqstore_format::{Compression, DEFAULT_COMPRESSION_LEVEL, SysFlag, compress, unpack_limit};

use crate::message::NewMessage;

/// How an append compresses bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyCompression {
    /// The compression; `None` stores every body unchanged.
    pub kind: Option<Compression>,
    /// Bodies with fewer bytes are stored unchanged.
    pub over_bytes: u32,
    /// Bodies with more bytes are not compressed: the append refuses them, whatever their compressed size is.
    pub max_bytes: u32,
}

/// A compressed body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompressedBody {
    /// The bytes to store.
    pub bytes: Vec<u8>,
    /// The bits of the record's flag that say how to decompress them.
    pub sys_flag: SysFlag,
}

impl CompressedBody {
    /// Returns the bytes to store and their flag: of `compressed`, or `body` as given.
    #[inline]
    pub fn stored_form<'a>(compressed: Option<&'a Self>, body: &'a [u8]) -> (&'a [u8], SysFlag) {
        compressed.map_or((body, SysFlag(0)), |it| (&it.bytes, it.sys_flag))
    }
}

/// The compressed bodies of one call. The messages themselves do not change: a caller may append them again.
#[derive(Debug, Default)]
pub struct CompressedBodies {
    /// The index of each message with a compressed body, and that body.
    bodies: Vec<(usize, CompressedBody)>,
}

impl CompressedBodies {
    /// Returns the messages of the call in their stored form.
    pub fn apply<'a>(&'a self, messages: &'a [NewMessage<'a>]) -> Cow<'a, [NewMessage<'a>]> {
        if self.bodies.is_empty() {
            return Cow::Borrowed(messages);
        }
        let mut stored = messages.to_vec();
        for (index, CompressedBody { bytes, sys_flag }) in &self.bodies {
            if let Some(message) = stored.get_mut(*index) {
                (message.body, message.sys_flag) = (bytes, *sys_flag);
            }
        }
        Cow::Owned(stored)
    }

    /// Returns the index of each message with a compressed body, and that body.
    pub fn into_bodies(self) -> Vec<(usize, CompressedBody)> {
        self.bodies
    }
}

impl BodyCompression {
    /// Whether [`Self::compress`] has work for a body of `body_bytes`.
    #[inline]
    pub fn covers(&self, body_bytes: usize) -> bool {
        self.kind.is_some() && (self.over_bytes as usize..=self.max_bytes as usize).contains(&body_bytes)
    }

    /// Compresses `body` at the level of RocketMQ's clients. Returns `None` if it is stored unchanged: the rule does
    /// not cover it, it does not get smaller, or readers would refuse to decompress so much.
    pub fn compress(&self, body: &[u8]) -> Option<CompressedBody> {
        let kind = self.kind.filter(|_| self.covers(body.len()))?;
        // As in RocketMQ, a failure leaves the body uncompressed.
        let bytes = compress(kind, body, DEFAULT_COMPRESSION_LEVEL).ok()?;
        let gains = bytes.len() < body.len() && body.len() <= unpack_limit(bytes.len());
        gains.then(|| CompressedBody { bytes, sys_flag: SysFlag::of_compressed(kind) })
    }

    /// Compresses the bodies of one call, as [`Self::compress`] does.
    pub fn compress_all<'a>(&self, bodies: impl Iterator<Item = &'a [u8]>) -> CompressedBodies {
        if self.kind.is_none() {
            return CompressedBodies::default();
        }
        let compressed = bodies.enumerate().filter_map(|(index, body)| Some((index, self.compress(body)?)));
        CompressedBodies { bodies: compressed.collect() }
    }
}

#[cfg(test)]
mod tests {
    use mqstore_format::decompress;

    use super::*;

    fn rule(kind: Option<Compression>) -> BodyCompression {
        BodyCompression { kind, over_bytes: 100, max_bytes: 1000 }
    }

    #[test]
    fn a_body_within_the_bounds_is_compressed() {
        for kind in Compression::ALL {
            for length in [100, 1000] {
                let body = vec![b'x'; length];
                let packed = rule(Some(kind)).compress(&body).unwrap();
                assert!(packed.bytes.len() < length);
                assert_eq!(packed.sys_flag.compression(), Some(kind));
                assert_eq!(decompress(kind, &packed.bytes, length).unwrap(), body);
            }
            for length in [0, 99, 1001] {
                assert_eq!(rule(Some(kind)).compress(&vec![b'x'; length]), None, "{kind:?} {length}");
            }
        }
        assert_eq!(rule(None).compress(&[b'x'; 500]), None);
    }

    #[test]
    fn the_messages_of_a_call_share_no_compressed_body() {
        let (large, small) = (vec![b'x'; 500], b"small");
        let messages = [small, large.as_slice(), small].map(|body| NewMessage {
            topic: "t",
            body,
            ..NewMessage::default()
        });
        let bodies = || messages.iter().map(|message| message.body);
        let compressed = rule(Some(Compression::Zstd)).compress_all(bodies());
        let stored = compressed.apply(&messages);
        let flag = SysFlag::of_compressed(Compression::Zstd);
        assert_eq!(
            stored.iter().map(|message| message.sys_flag).collect::<Vec<_>>(),
            [SysFlag(0), flag, SysFlag(0)]
        );
        assert!(stored[1].body.len() < 100 && stored[1].topic == "t");
        assert_eq!((stored[0], stored[2]), (messages[0], messages[2]));
        // Without a compressed body, the messages are not copied.
        for rule in [rule(None), BodyCompression { over_bytes: 501, ..rule(Some(Compression::Zstd)) }] {
            let none = rule.compress_all(bodies());
            assert!(matches!(none.apply(&messages), Cow::Borrowed(_)));
        }
    }

    #[test]
    fn a_body_that_does_not_get_smaller_stays_unchanged() {
        let mut state = 1_u64;
        let noise: Vec<u8> = (0..500)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        for kind in Compression::ALL {
            assert_eq!(rule(Some(kind)).compress(&noise), None, "{kind:?}");
            assert_eq!(BodyCompression { over_bytes: 0, ..rule(Some(kind)) }.compress(b""), None);
        }
    }
}
