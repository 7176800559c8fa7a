//! Messages with a unique key each, made before a request is sent, so that an owner finds those of an earlier try.

use std::ops::Range;

use mqstore::NewWork;
use mqstore::format::MadeKey;
use mqstore::format::properties::{UNIQ_KEY, push_property};
use mqstore::message::{Appended, NewMessage, UniqueKey};

use super::Inner;
use crate::wire::request::Message;
use crate::wire::response::Position;

/// The parts of a message that a request needs.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub(crate) body: &'a [u8],
    pub(crate) properties: &'a [u8],
    pub(crate) unique_key: Option<&'a str>,
    pub(crate) sys_flag: i32,
    pub(crate) flag: i32,
    pub(crate) born_timestamp_ms: Option<i64>,
}

impl<'a> From<&NewMessage<'a>> for Part<'a> {
    fn from(message: &NewMessage<'a>) -> Self {
        Self {
            body: message.body,
            properties: message.properties,
            unique_key: message.unique_key,
            sys_flag: message.sys_flag.0,
            flag: message.flag,
            born_timestamp_ms: message.born_timestamp_ms,
        }
    }
}

impl<'a> From<&NewWork<'a>> for Part<'a> {
    fn from(work: &NewWork<'a>) -> Self {
        Self {
            body: work.body,
            properties: work.properties,
            unique_key: work.unique_key,
            sys_flag: work.sys_flag.0,
            flag: work.flag,
            born_timestamp_ms: work.born_timestamp_ms,
        }
    }
}

/// A message, and its new key with the place of its properties if it had no key.
type KeyedPart<'a> = (Part<'a>, Option<(MadeKey, Range<usize>)>);

/// Messages of one request, each with its key.
pub(crate) struct Keyed<'a> {
    parts: Vec<KeyedPart<'a>>,
    /// The properties of those that got a key here.
    properties: Vec<u8>,
}

impl<'a> Keyed<'a> {
    /// Gives each message without a unique key a new one.
    pub(crate) fn new(inner: &Inner, parts: impl Iterator<Item = Part<'a>>) -> Self {
        let now_ms = inner.store().clock().now_ms();
        let (mut properties, mut own) = (Vec::new(), Vec::new());
        let parts = parts.map(|part| {
            if part.unique_key.is_some() {
                return (part, None);
            }
            let key = inner.keys.next(now_ms);
            let start = properties.len();
            own.clear();
            own.extend_from_slice(part.properties);
            push_property(&mut own, UNIQ_KEY, key.as_bytes());
            properties.extend_from_slice(&own);
            (part, Some((key, start..properties.len())))
        });
        let parts = parts.collect();
        Self { parts, properties }
    }

    /// Returns the messages for a request.
    pub(crate) fn messages(&self) -> Vec<Message<'_>> {
        self.parts
            .iter()
            .map(|(part, made)| Message {
                body: part.body,
                properties: match made {
                    Some((_, range)) => self.properties.get(range.clone()).unwrap_or_default(),
                    None => part.properties,
                },
                unique_key: match made {
                    Some((key, _)) => key.as_str(),
                    None => part.unique_key.unwrap_or_default(),
                },
                sys_flag: part.sys_flag,
                flag: part.flag,
                born_timestamp_ms: part.born_timestamp_ms,
            })
            .collect()
    }

    /// Returns the results, each with its key.
    pub(crate) fn results(&self, positions: Vec<Position>) -> Vec<Appended> {
        let with_key = |(position, (part, made)): (Position, &KeyedPart<'a>)| {
            let key = match made {
                Some((key, _)) => UniqueKey::Made(*key),
                None => UniqueKey::Given(part.unique_key.unwrap_or_default().into()),
            };
            position.appended(Some(key))
        };
        positions.into_iter().zip(&self.parts).map(with_key).collect()
    }
}
