//! Reading the JSON of plans, tasks, results and job records.
//!
//! Owns one helper, [`Fields`], that takes the fields of an object by name and type and says which
//! one is missing or wrong. Plans travel through other processes and job records lie on disk, so
//! that both are untrusted: a field of the wrong type is an error, never a panic, and no length read
//! here is allocated.

use serde_json::{Map, Value};

use mqstore_base::error::StoreError;

/// The version of every document written here; another one is refused.
pub const VERSION: u64 = 1;

/// The fields of one JSON object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a> {
    what: &'static str,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// The fields of `value`, which has to be an object; `what` names the document in errors.
    pub(crate) fn of(what: &'static str, value: &'a Value) -> Result<Self, StoreError> {
        match value {
            Value::Object(map) => Ok(Self { what, map }),
            _ => Err(malformed(what, "is not a JSON object")),
        }
    }

    /// As [`Fields::of`], and requires this version's `"version"`.
    pub(crate) fn versioned(what: &'static str, value: &'a Value) -> Result<Self, StoreError> {
        let fields = Self::of(what, value)?;
        match fields.u64("version")? {
            VERSION => Ok(fields),
            other => Err(malformed(
                what,
                &format!(
                    "has version {other}; this is version {VERSION} of mqstore's jobs, use one version on all machines"
                ),
            )),
        }
    }

    fn wrong(&self, name: &str, expected: &str) -> StoreError {
        malformed(self.what, &format!("has no field {name:?} that is {expected}"))
    }

    /// A field that may be missing or null.
    pub(crate) fn optional(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    pub(crate) fn u64(&self, name: &str) -> Result<u64, StoreError> {
        self.map.get(name).and_then(Value::as_u64).ok_or_else(|| self.wrong(name, "a whole number from 0"))
    }

    pub(crate) fn i64(&self, name: &str) -> Result<i64, StoreError> {
        self.map.get(name).and_then(Value::as_i64).ok_or_else(|| self.wrong(name, "a whole number"))
    }

    pub(crate) fn i32(&self, name: &str) -> Result<i32, StoreError> {
        i32::try_from(self.i64(name)?).map_err(|_| self.wrong(name, "a 32-bit number"))
    }

    pub(crate) fn u32(&self, name: &str) -> Result<u32, StoreError> {
        u32::try_from(self.u64(name)?).map_err(|_| self.wrong(name, "a 32-bit number"))
    }

    pub(crate) fn flag(&self, name: &str) -> Result<bool, StoreError> {
        self.map.get(name).and_then(Value::as_bool).ok_or_else(|| self.wrong(name, "true or false"))
    }

    pub(crate) fn text(&self, name: &str) -> Result<&'a str, StoreError> {
        self.map.get(name).and_then(Value::as_str).ok_or_else(|| self.wrong(name, "a text"))
    }

    pub(crate) fn array(&self, name: &str) -> Result<&'a [Value], StoreError> {
        self.map
            .get(name)
            .and_then(Value::as_array)
            .map(Vec::as_slice)
            .ok_or_else(|| self.wrong(name, "a list"))
    }

    pub(crate) fn texts(&self, name: &str) -> Result<Vec<String>, StoreError> {
        self.array(name)?
            .iter()
            .map(|value| value.as_str().map(str::to_owned).ok_or_else(|| self.wrong(name, "a list of texts")))
            .collect()
    }

    /// Every name in the object.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'a str> {
        self.map.keys().map(String::as_str)
    }
}

/// Parses `text` as JSON; `what` names the document in errors.
pub fn parse(what: &'static str, text: &str) -> Result<Value, StoreError> {
    serde_json::from_str(text).map_err(|error| malformed(what, &format!("is not JSON: {error}")))
}

/// A document that cannot be used.
pub fn malformed(what: &'static str, reason: &str) -> StoreError {
    StoreError::InvalidOption { option: what, reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn wrong_fields_are_named() {
        let value = json!({"version": 1, "n": -1, "big": 1_i64 << 40, "t": 7, "list": [1]});
        let fields = Fields::versioned("task", &value).unwrap();
        for error in [
            fields.u64("n").unwrap_err(),
            fields.i32("big").unwrap_err(),
            fields.text("t").unwrap_err(),
            fields.texts("list").unwrap_err(),
            fields.flag("missing").unwrap_err(),
        ] {
            assert!(error.to_string().contains("has no field"), "{error}");
        }
    }

    #[test]
    fn other_versions_are_refused() {
        let error = Fields::versioned("task", &json!({"version": 2})).unwrap_err();
        assert!(error.to_string().contains("version 2"), "{error}");
        assert!(Fields::of("task", &json!([])).is_err());
        assert!(parse("task", "{").is_err());
    }
}
