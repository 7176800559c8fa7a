//! Typed access to the members of parsed objects.
//!
//! It is as tolerant as RocketMQ's library: a number can be text, an integer can have a zero fraction, and `null` is
//! the same as absent. A member of any other wrong type is an error with the member's name.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::losses::{Losses, PartialTable};
use super::parse::{parse, parse_partial};
use crate::error::FormatError;

/// Integers by two keys.
pub(super) type NestedTable<K> = BTreeMap<String, BTreeMap<K, i64>>;

/// The members of an object that were not taken yet.
pub(super) struct Members(Map<String, Value>);

fn wrong(name: &str, wanted: &str) -> FormatError {
    FormatError::json(0, format!("{} is not {wanted}", crate::error::shortened(name)))
}

fn object(name: &str, value: Value) -> Result<Map<String, Value>, FormatError> {
    match value {
        Value::Object(map) => Ok(map),
        _ => Err(wrong(name, "an object")),
    }
}

pub(super) fn whole(name: &str, value: &Value) -> Result<i64, FormatError> {
    let number = match value {
        Value::Number(number) => number.as_i64().or_else(|| number.as_f64().and_then(whole_of_real)),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    number.ok_or_else(|| wrong(name, "an integer"))
}

fn whole_of_real(real: f64) -> Option<i64> {
    // 2^63 is not an i64. The comparison keeps the conversion exact.
    let in_range = real.fract() == 0.0 && real.abs() < 9_223_372_036_854_775_808.0;
    in_range.then_some(real as i64)
}

/// Parses the whole file as an object.
pub(super) fn parse_object(text: &[u8]) -> Result<Members, FormatError> {
    object("the text", parse(text)?).map(Members)
}

/// Reads every entry of the whole file that parses. `read` takes the entries from the members.
pub(super) fn parse_entries<T: Default>(
    text: &[u8],
    read: impl Fn(Members, &mut Losses) -> Result<T, FormatError>,
) -> PartialTable<T> {
    let error = match parse_object(text).and_then(|members| read(members, &mut Losses::strict())) {
        Ok(table) => return PartialTable { table, losses: Vec::new() },
        Err(error) => error,
    };
    let (members, mut losses) = parse_partial(text);
    let table = read(Members(members), &mut losses).unwrap_or_default();
    if losses.is_empty() {
        // Nothing of the table is lost, for example if a comment is not UTF-8.
        losses.add(0, &[], &error.to_string());
    }
    PartialTable { table, losses: losses.into_list() }
}

impl Members {
    pub(super) fn of(name: &str, value: Value) -> Result<Self, FormatError> {
        object(name, value).map(Self)
    }

    /// Takes a member; `null` counts as absent.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    pub(super) fn take_i64(&mut self, name: &str) -> Result<Option<i64>, FormatError> {
        self.take(name).map(|value| whole(name, &value)).transpose()
    }

    pub(super) fn take_i32(&mut self, name: &str) -> Result<Option<i32>, FormatError> {
        let value = self.take_i64(name)?;
        value.map(|n| i32::try_from(n).map_err(|_| wrong(name, "a 32-bit integer"))).transpose()
    }

    pub(super) fn take_bool(&mut self, name: &str) -> Result<Option<bool>, FormatError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(Value::String(text)) if text == "true" || text == "false" => Ok(Some(text == "true")),
            Some(_) => Err(wrong(name, "true or false")),
        }
    }

    pub(super) fn take_text(&mut self, name: &str) -> Result<Option<String>, FormatError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(Value::Number(number)) => Ok(Some(number.to_string())),
            Some(_) => Err(wrong(name, "text")),
        }
    }

    /// Takes a member that is an object with values of one type.
    pub(super) fn take_table<K: Ord, V>(
        &mut self,
        name: &str,
        entry: impl Fn(String, Value) -> Result<(K, V), FormatError>,
    ) -> Result<Option<BTreeMap<K, V>>, FormatError> {
        self.take_entries(name, &mut Losses::strict(), entry)
    }

    /// Takes a member that is an object with values of one type; `losses` gets the entries that do not parse.
    pub(super) fn take_entries<K: Ord, V>(
        &mut self,
        name: &str,
        losses: &mut Losses,
        entry: impl Fn(String, Value) -> Result<(K, V), FormatError>,
    ) -> Result<Option<BTreeMap<K, V>>, FormatError> {
        let Some(table) = self.take_object(name, losses)? else { return Ok(None) };
        let mut entries = BTreeMap::new();
        for (key, value) in table.into_iter().filter(|(_, value)| !value.is_null()) {
            if losses.is_damaged(&[name, &key]) {
                continue;
            }
            let parsed = entry(key.clone(), value);
            entries.extend(losses.keep(&[name, &key], parsed)?);
        }
        Ok(Some(entries))
    }

    /// Takes a member that is an object of objects with values of one type; `losses` gets the entries that do not
    /// parse.
    pub(super) fn take_nested<K: Ord>(
        &mut self,
        name: &str,
        losses: &mut Losses,
        entry: impl Fn(String, Value) -> Result<(K, i64), FormatError>,
    ) -> Result<Option<NestedTable<K>>, FormatError> {
        let Some(table) = self.take_object(name, losses)? else { return Ok(None) };
        let mut entries = BTreeMap::new();
        for (key, value) in table.into_iter().filter(|(_, value)| !value.is_null()) {
            let inner = object(&key, value);
            let Some(inner) = losses.keep(&[name, &key], inner)? else { continue };
            let mut numbers = BTreeMap::new();
            for (id, value) in inner.into_iter().filter(|(_, value)| !value.is_null()) {
                let parsed = entry(id.clone(), value);
                numbers.extend(losses.keep(&[name, &key, &id], parsed)?);
            }
            entries.insert(key, numbers);
        }
        Ok(Some(entries))
    }

    fn take_object(
        &mut self,
        name: &str,
        losses: &mut Losses,
    ) -> Result<Option<Map<String, Value>>, FormatError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        losses.keep(&[name], object(name, value))
    }

    /// Returns the members that were not taken.
    pub(super) fn rest(self) -> Map<String, Value> {
        self.0
    }
}

/// Converts an entry with an integer key and an integer value, such as queue id and offset.
#[expect(clippy::needless_pass_by_value, reason = "one signature for all kinds of entries")]
pub(super) fn numbered(key: String, value: Value) -> Result<(i32, i64), FormatError> {
    let id = key.trim().parse().map_err(|_| wrong(&key, "an integer key"))?;
    Ok((id, whole(&key, &value)?))
}

/// Converts an entry with an integer value.
#[expect(clippy::needless_pass_by_value, reason = "one signature for all kinds of entries")]
pub(super) fn counted(key: String, value: Value) -> Result<(String, i64), FormatError> {
    let number = whole(&key, &value)?;
    Ok((key, number))
}

/// Converts an entry with a text value.
pub(super) fn text(key: String, value: Value) -> Result<(String, String), FormatError> {
    match value {
        Value::String(text) => Ok((key, text)),
        _ => Err(wrong(&key, "text")),
    }
}

/// Adds the members of `older` that `members` lacks.
pub(super) fn add_members(members: &mut Map<String, Value>, older: Map<String, Value>) {
    for (name, value) in older {
        members.entry(name).or_insert(value);
    }
}
