//! The documents of jobs as JSON: steps and answers between processes, and records on disk.
//!
//! Owns [`Document`]: a type with serde's derives becomes a JSON object with a `"version"`. Input is untrusted.
//! [`Document::from_json`] refuses another version, a missing field, a field of the wrong type, and values that
//! [`Document::validate`] refuses. Bad input is an error that names the document, never a panic. No length in the input
//! leads to an allocation.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use mqstore_base::error::StoreError;

/// The version of all documents; other versions are refused.
const VERSION: u64 = 1;

/// A value that is stored or sent as a JSON object with a version.
pub trait Document: Serialize + DeserializeOwned {
    /// Name of the document in errors.
    const WHAT: &'static str;

    /// Checks the limits that the types of the fields do not enforce.
    ///
    /// # Errors
    /// [`StoreError::InvalidOption`] and others that name the invalid value.
    fn validate(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Encodes the document and its version.
    ///
    /// # Errors
    /// [`StoreError::InvalidOption`] for a path that is not UTF-8.
    fn to_json(&self) -> Result<String, StoreError> {
        #[derive(Serialize)]
        struct Versioned<'a, T> {
            version: u64,
            #[serde(flatten)]
            document: &'a T,
        }
        encode(Self::WHAT, &Versioned { version: VERSION, document: self })
    }

    /// Decodes and validates a document.
    ///
    /// # Errors
    /// [`StoreError::InvalidOption`] with the missing or wrong field, and the errors of [`Document::validate`].
    fn from_json(text: impl AsRef<[u8]>) -> Result<Self, StoreError> {
        #[derive(Deserialize)]
        struct Head {
            version: u64,
        }
        let text = text.as_ref();
        // Check the version first: another version may have other fields.
        let Head { version } = decode(Self::WHAT, text)?;
        if version != VERSION {
            let reason = format!(
                "has version {version}, not version {VERSION}; use one version of mqstore on all machines"
            );
            return Err(malformed(Self::WHAT, &reason));
        }
        let document: Self = decode(Self::WHAT, text)?;
        document.validate()?;
        Ok(document)
    }
}

/// Encodes a value without a version; `what` names it in errors.
pub(crate) fn encode(what: &'static str, value: &impl Serialize) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| malformed(what, &format!("cannot be written: {error}")))
}

/// Decodes a value; an error names the document and the path of the field.
pub(crate) fn decode<T: DeserializeOwned>(what: &'static str, text: &[u8]) -> Result<T, StoreError> {
    serde_path_to_error::deserialize(&mut serde_json::Deserializer::from_slice(text)).map_err(|error| {
        let kind = if error.inner().is_data() { "cannot be read" } else { "is not JSON" };
        malformed(what, &format!("{kind}: {error}"))
    })
}

/// The error for a document that cannot be used.
pub(crate) fn malformed(what: &'static str, reason: &str) -> StoreError {
    StoreError::InvalidOption { option: what, reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize, PartialEq, Serialize)]
    struct Sample {
        n: u64,
        small: i32,
        text: String,
        list: Vec<String>,
        #[serde(default)]
        flag: bool,
    }

    impl Document for Sample {
        const WHAT: &'static str = "sample";

        fn validate(&self) -> Result<(), StoreError> {
            if self.n == 0 { Err(malformed(Self::WHAT, "has no n")) } else { Ok(()) }
        }
    }

    fn error_of(text: &str) -> String {
        Sample::from_json(text).unwrap_err().to_string()
    }

    #[test]
    fn a_document_survives_json() {
        let sample = Sample { n: u64::MAX, small: -1, text: "\"".to_owned(), list: Vec::new(), flag: true };
        let text = sample.to_json().unwrap();
        assert!(text.starts_with(r#"{"version":1,"n":"#), "{text}");
        assert_eq!(Sample::from_json(text).unwrap(), sample);
    }

    #[test]
    fn wrong_fields_are_named() {
        let good = r#"{"version":1,"n":1,"small":-1,"text":"t","list":["x"],"later":[]}"#;
        assert!(!Sample::from_json(good).unwrap().flag);
        for (from, to, says) in [
            ("\"n\":1", "\"n\":-1", "-1"),
            ("\"n\":1", "\"n\":0", "has no n"),
            ("\"n\":1,", "", "`n`"),
            ("-1", "1099511627776", "1099511627776"),
            ("\"t\"", "7", "7"),
            ("[\"x\"]", "[1]", "1"),
            ("[]", "[],\"flag\":1", "1"),
        ] {
            let error = error_of(&good.replace(from, to));
            assert!(error.contains("sample") && error.contains(says), "{error}");
        }
    }

    #[test]
    fn other_versions_are_refused() {
        assert!(error_of(r#"{"version":2}"#).contains("version 2"));
        for text in ["", "{", "{}", "[]", "1", "\u{0}", r#"{"version":null}"#] {
            let error = error_of(text);
            assert!(error.contains("cannot be read") || error.contains("is not JSON"), "{error}");
        }
        assert!(Sample::from_json([0xff]).is_err());
    }
}
