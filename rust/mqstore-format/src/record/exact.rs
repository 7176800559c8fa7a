//! Encodes a record from its fields as they are stored, for copies that must have the same bytes.
//!
//! [`RecordSpec`](super::RecordSpec) makes new records and derives their magic, their checksums and the flags of their
//! hosts. [`StoredFields`] takes all of these as they are.

use super::{Host, RecordView, Version};
use crate::error::FormatError;
use crate::sys_flag::SysFlag;

/// All fields of a stored record. Its lengths follow from its parts.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct StoredFields<'a> {
    /// The version of the magic.
    pub version: Version,
    /// BODYCRC.
    pub body_crc: u32,
    /// QUEUEID.
    pub queue_id: i32,
    /// FLAG.
    pub flag: i32,
    /// QUEUEOFFSET.
    pub queue_offset: i64,
    /// PHYSICALOFFSET.
    pub physical_offset: i64,
    /// SYSFLAG. Its bits must agree with the families of the hosts.
    pub sys_flag: SysFlag,
    /// BORNTIMESTAMP.
    pub born_timestamp: i64,
    /// BORNHOST.
    pub born_host: Host,
    /// STORETIMESTAMP.
    pub store_timestamp: i64,
    /// STOREHOST.
    pub store_host: Host,
    /// RECONSUMETIMES.
    pub reconsume_times: i32,
    /// PREPARED TRANSACTION OFFSET.
    pub prepared_transaction_offset: i64,
    /// BODY.
    pub body: &'a [u8],
    /// TOPIC.
    pub topic: &'a str,
    /// PROPERTIES.
    pub properties: &'a [u8],
}

impl<'a> From<&RecordView<'a>> for StoredFields<'a> {
    fn from(record: &RecordView<'a>) -> Self {
        Self {
            version: record.version,
            body_crc: record.body_crc,
            queue_id: record.queue_id,
            flag: record.flag,
            queue_offset: record.queue_offset,
            physical_offset: record.physical_offset,
            sys_flag: record.sys_flag,
            born_timestamp: record.born_timestamp,
            born_host: record.born_host,
            store_timestamp: record.store_timestamp,
            store_host: record.store_host,
            reconsume_times: record.reconsume_times,
            prepared_transaction_offset: record.prepared_transaction_offset,
            body: record.body,
            topic: record.topic,
            properties: record.properties.raw(),
        }
    }
}

impl StoredFields<'_> {
    /// Appends the record to `out` and returns its length. On error `out` is unchanged.
    ///
    /// # Errors
    /// [`FormatError::TooLarge`] if a part does not fit its length; [`FormatError::BadLength`] if the flag names another
    /// family of a host than the host has.
    pub fn encode_into(&self, out: &mut Vec<u8>) -> Result<usize, FormatError> {
        let topic = length("topic", self.topic.len(), self.version.most_topic_bytes())?;
        let properties = length("properties", self.properties.len(), i16::MAX as usize)?;
        let body = length("body", self.body.len(), i32::MAX as usize)?;
        self.check_hosts()?;
        let (born, store) = (self.born_host.encoded_len(), self.store_host.encoded_len());
        let fixed = 74 + born + store + self.version.topic_length_bytes();
        let total = fixed + self.topic.len() + self.properties.len();
        let total = length("record", total.saturating_add(self.body.len()), i32::MAX as usize)?;
        out.reserve(total as usize);
        out.extend_from_slice(&total.to_be_bytes());
        out.extend_from_slice(&self.version.magic().to_be_bytes());
        out.extend_from_slice(&self.body_crc.to_be_bytes());
        out.extend_from_slice(&self.queue_id.to_be_bytes());
        out.extend_from_slice(&self.flag.to_be_bytes());
        out.extend_from_slice(&self.queue_offset.to_be_bytes());
        out.extend_from_slice(&self.physical_offset.to_be_bytes());
        out.extend_from_slice(&self.sys_flag.0.to_be_bytes());
        out.extend_from_slice(&self.born_timestamp.to_be_bytes());
        self.born_host.append_to(out);
        out.extend_from_slice(&self.store_timestamp.to_be_bytes());
        self.store_host.append_to(out);
        out.extend_from_slice(&self.reconsume_times.to_be_bytes());
        out.extend_from_slice(&self.prepared_transaction_offset.to_be_bytes());
        out.extend_from_slice(&body.to_be_bytes());
        out.extend_from_slice(self.body);
        let topic = (topic as u16).to_be_bytes();
        out.extend_from_slice(match self.version {
            Version::V1 => &topic[1..],
            Version::V2 => &topic,
        });
        out.extend_from_slice(self.topic.as_bytes());
        out.extend_from_slice(&(properties as u16).to_be_bytes());
        out.extend_from_slice(self.properties);
        Ok(total as usize)
    }

    fn check_hosts(&self) -> Result<(), FormatError> {
        let flagged = [self.sys_flag.born_host_bytes(), self.sys_flag.store_host_bytes()];
        let own = [self.born_host.encoded_len(), self.store_host.encoded_len()];
        for (flagged, own) in flagged.into_iter().zip(own) {
            if flagged != own {
                return Err(FormatError::BadLength {
                    what: "host",
                    value: own as i64,
                    limit: flagged as i64,
                });
            }
        }
        Ok(())
    }
}

fn length(what: &'static str, value: usize, limit: usize) -> Result<u32, FormatError> {
    if value > limit {
        return Err(FormatError::TooLarge { what, value: value as u64, limit: limit as u64 });
    }
    Ok(value as u32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::RecordSpec;
    use super::*;

    fn any_host() -> impl Strategy<Value = Host> {
        prop_oneof![
            (any::<[u8; 4]>(), any::<i32>()).prop_map(|(ip, port)| Host::new(ip, port)),
            (any::<[u8; 16]>(), any::<i32>()).prop_map(|(ip, port)| Host::new(ip, port)),
        ]
    }

    proptest! {
        /// Every record, also one with a wrong checksum or with other flags, is encoded to the same bytes.
        #[test]
        fn a_decoded_record_is_encoded_to_the_same_bytes(
            topic in "[a-z]{0,300}",
            body in proptest::collection::vec(any::<u8>(), 0..200),
            properties in proptest::collection::vec(any::<u8>(), 0..90),
            hosts in (any_host(), any_host()),
            numbers in any::<[i32; 3]>(),
            longs in any::<[i64; 4]>(),
            checksum in any::<u32>(),
            forced in any::<bool>(),
        ) {
            let spec = RecordSpec {
                queue_id: numbers[0],
                flag: numbers[1],
                reconsume_times: numbers[2],
                queue_offset: longs[0],
                physical_offset: longs[1],
                born_timestamp: longs[2],
                store_timestamp: longs[3],
                properties: &properties,
                ..RecordSpec::new(&topic, &body, hosts.0, hosts.1)
            };
            let mut bytes = Vec::new();
            spec.encode_into(&mut bytes).unwrap();
            bytes[super::super::BODY_CRC_POSITION..][..4].copy_from_slice(&checksum.to_be_bytes());
            let record = RecordView::decode(&bytes).unwrap();
            let mut fields = StoredFields::from(&record);
            let mut again = vec![9];
            prop_assert_eq!(fields.encode_into(&mut again).unwrap(), bytes.len());
            prop_assert_eq!(&again[1..], &bytes[..]);
            // A short topic can be in a record of the second version.
            if forced {
                fields.version = Version::V2;
                let mut other = Vec::new();
                fields.encode_into(&mut other).unwrap();
                let other = RecordView::decode(&other).unwrap();
                prop_assert_eq!(StoredFields::from(&other), fields);
            }
            for host in [record.born_host, record.store_host] {
                prop_assert_eq!(host.to_string().parse::<Host>().unwrap(), host);
            }
        }
    }

    #[test]
    fn parts_that_do_not_fit_are_refused() {
        let host = Host::new([1, 2, 3, 4], 5);
        let mut bytes = Vec::new();
        RecordSpec::new("t", b"", host, host).encode_into(&mut bytes).unwrap();
        let fields = StoredFields::from(&RecordView::decode(&bytes).unwrap());
        let (long, many) = ("t".repeat(128), vec![0; 40_000]);
        for wrong in [
            StoredFields { topic: &long, ..fields },
            StoredFields { properties: &many, ..fields },
            StoredFields { sys_flag: fields.sys_flag.with_born_host_v6(true), ..fields },
        ] {
            let mut out = vec![7];
            assert!(wrong.encode_into(&mut out).is_err());
            assert_eq!(out, [7]);
        }
    }
}
