//! The SYSFLAG field of a record.
//!
//! ```text
//! bit   0  body compressed              bit   6  client must split the inner batch
//! bit   1  more than one tag            bit   7  inner batch
//! bits 2-3 transaction type             bits 8-10 compression: 0 and 3 zlib, 1 LZ4, 2 zstd
//! bit   4  born host is IPv6            others   unchanged
//! bit   5  store host is IPv6
//! ```
//!
//! Source: `MessageSysFlag`, `CompressionType#findByValue`.

/// The compression of a body.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Compression {
    /// zlib (RFC 1950); number 3, and 0 from writers that know no other.
    Zlib,
    /// LZ4 frame; number 1.
    Lz4,
    /// Zstandard; number 2.
    Zstd,
}

impl Compression {
    /// All compressions.
    pub const ALL: [Self; 3] = [Self::Lz4, Self::Zstd, Self::Zlib];

    /// Returns the name used in messages: `zlib`, `lz4`, `zstd`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Zlib => "zlib",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }

    /// Returns the number in bits 8-10 of a flag.
    const fn number(self) -> i32 {
        match self {
            Self::Lz4 => 1,
            Self::Zstd => 2,
            Self::Zlib => 3,
        }
    }
}

/// The role of a record in a transaction.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum TransactionType {
    /// An ordinary record.
    None,
    /// A half message, hidden from readers. Current brokers store it as an ordinary record of a system topic.
    Prepared,
    /// The final record of a committed transaction.
    Commit,
    /// The mark of a rolled back transaction.
    Rollback,
}

/// The SYSFLAG bits of a record. Unknown bits are kept.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SysFlag(pub i32);

impl SysFlag {
    const COMPRESSED: i32 = 0x1;
    const MULTI_TAGS: i32 = 0x2;
    const TRANSACTION: i32 = 0xc;
    const BORN_HOST_V6: i32 = 0x10;
    const STORE_HOST_V6: i32 = 0x20;
    const NEEDS_UNWRAP: i32 = 0x40;
    const INNER_BATCH: i32 = 0x80;
    const COMPRESSION: i32 = 0x700;

    const fn has(self, bit: i32) -> bool {
        self.0 & bit != 0
    }

    const fn with(self, mask: i32, bits: i32) -> Self {
        Self(self.0 & !mask | bits)
    }

    const fn with_bit(self, bit: i32, on: bool) -> Self {
        self.with(bit, if on { bit } else { 0 })
    }

    /// Returns whether the stored body is compressed.
    pub const fn compressed(self) -> bool {
        self.has(Self::COMPRESSED)
    }

    /// Returns the compression in bits 8-10, whether or not the body is [`compressed`](Self::compressed). `None` for
    /// the numbers 4 to 7, which no writer uses and RocketMQ refuses.
    pub const fn compression(self) -> Option<Compression> {
        match (self.0 & Self::COMPRESSION) >> 8 {
            0 | 3 => Some(Compression::Zlib),
            1 => Some(Compression::Lz4),
            2 => Some(Compression::Zstd),
            _ => None,
        }
    }

    /// Returns the flag of a body that is compressed by `kind`.
    #[must_use]
    pub const fn of_compressed(kind: Compression) -> Self {
        Self(Self::COMPRESSED | kind.number() << 8)
    }

    /// Returns only the bits for the body's compression.
    #[must_use]
    pub const fn compression_only(self) -> Self {
        Self(self.0 & (Self::COMPRESSED | Self::COMPRESSION))
    }

    /// Returns the transaction type, bits 2-3.
    pub const fn transaction(self) -> TransactionType {
        match self.0 & Self::TRANSACTION {
            0x4 => TransactionType::Prepared,
            0x8 => TransactionType::Commit,
            0xc => TransactionType::Rollback,
            _ => TransactionType::None,
        }
    }

    /// Returns whether the born host has 20 bytes instead of 8.
    pub const fn born_host_v6(self) -> bool {
        self.has(Self::BORN_HOST_V6)
    }

    /// Returns whether the store host has 20 bytes instead of 8.
    pub const fn store_host_v6(self) -> bool {
        self.has(Self::STORE_HOST_V6)
    }

    /// Returns whether the body is a batch of several messages in a batch queue.
    pub const fn inner_batch(self) -> bool {
        self.has(Self::INNER_BATCH)
    }

    /// Returns whether the sender set several tags. It has no effect: the whole tags text is hashed.
    pub const fn multi_tags(self) -> bool {
        self.has(Self::MULTI_TAGS)
    }

    /// Returns the flag with the compressed bit set to `on`. A reader clears it for a decompressed body.
    #[must_use]
    pub const fn with_compressed(self, on: bool) -> Self {
        self.with_bit(Self::COMPRESSED, on)
    }

    /// Returns the flag with this transaction type.
    #[must_use]
    pub const fn with_transaction(self, kind: TransactionType) -> Self {
        let bits = match kind {
            TransactionType::None => 0,
            TransactionType::Prepared => 0x4,
            TransactionType::Commit => 0x8,
            TransactionType::Rollback => 0xc,
        };
        self.with(Self::TRANSACTION, bits)
    }

    /// Returns the flag with the born host's address family.
    #[must_use]
    pub const fn with_born_host_v6(self, on: bool) -> Self {
        self.with_bit(Self::BORN_HOST_V6, on)
    }

    /// Returns the flag with the store host's address family.
    #[must_use]
    pub const fn with_store_host_v6(self, on: bool) -> Self {
        self.with_bit(Self::STORE_HOST_V6, on)
    }

    /// Returns the flag with the two bits of an inner batch set to `on`.
    #[must_use]
    pub const fn with_inner_batch(self, on: bool) -> Self {
        self.with_bit(Self::INNER_BATCH, on).with_bit(Self::NEEDS_UNWRAP, on)
    }

    /// Returns the flag with the multi-tags bit set to `on`.
    #[must_use]
    pub const fn with_multi_tags(self, on: bool) -> Self {
        self.with_bit(Self::MULTI_TAGS, on)
    }

    /// Returns the byte length of a born host with this flag.
    pub const fn born_host_bytes(self) -> usize {
        if self.born_host_v6() { 20 } else { 8 }
    }

    /// Returns the byte length of a store host with this flag.
    pub const fn store_host_bytes(self) -> usize {
        if self.store_host_v6() { 20 } else { 8 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_those_of_the_reference() {
        assert_eq!(SysFlag(0).compression(), Some(Compression::Zlib));
        assert_eq!(SysFlag(0x301).compression(), Some(Compression::Zlib));
        assert_eq!(SysFlag(0x101).compression(), Some(Compression::Lz4));
        assert_eq!(SysFlag(0x201).compression(), Some(Compression::Zstd));
        for number in 4..8 {
            assert_eq!(SysFlag(number << 8).compression(), None);
        }
        assert_eq!(SysFlag(0).transaction(), TransactionType::None);
        assert_eq!(SysFlag(4).transaction(), TransactionType::Prepared);
        assert_eq!(SysFlag(8).transaction(), TransactionType::Commit);
        assert_eq!(SysFlag(12).transaction(), TransactionType::Rollback);
        assert_eq!(SysFlag(0).with_inner_batch(true), SysFlag(0xc0));
        assert!(SysFlag(0xc0).inner_batch());
        assert_eq!(SysFlag(0).with_born_host_v6(true).with_store_host_v6(true), SysFlag(0x30));
        assert_eq!((SysFlag(0x30).born_host_bytes(), SysFlag(0).store_host_bytes()), (20, 8));
        assert!(SysFlag(0x2).multi_tags() && !SysFlag(0x1).multi_tags());
    }

    #[test]
    fn setters_are_undone_and_keep_the_other_bits() {
        let odd = SysFlag(i32::MIN | 0x4000_0000 | 0x1000);
        for (bits, kind) in
            [(0x101, Compression::Lz4), (0x201, Compression::Zstd), (0x301, Compression::Zlib)]
        {
            let set = SysFlag(odd.0 | bits);
            assert!(set.compressed());
            assert_eq!(set.compression(), Some(kind));
            assert_eq!(SysFlag::of_compressed(kind), SysFlag(bits));
            assert_eq!(set.with_compressed(false), SysFlag(set.0 & !1));
            assert_eq!(set.with_compressed(false).with_compressed(true), set);
        }
        for kind in [TransactionType::Prepared, TransactionType::Commit, TransactionType::Rollback] {
            let set = odd.with_transaction(kind);
            assert_eq!(set.transaction(), kind);
            assert_eq!(set.with_transaction(TransactionType::None), odd);
        }
        assert_eq!(odd.with_multi_tags(true).with_multi_tags(false), odd);
        assert_eq!(odd.with_inner_batch(true).with_inner_batch(false), odd);
    }
}
