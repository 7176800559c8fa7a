//! The documents of jobs as JSON: steps and answers that pass between processes, and records on disk.
//!
//! Owns [`Document`]: a type with serde's derives becomes a JSON object with a `"version"`. What arrives is untrusted:
//! [`Document::from_json`] refuses another version, a field that is missing or of the wrong type, and whatever
//! [`Document::validate`] does not accept. Bad input is an error that names the document, never a panic, and no length
//! read here is allocated.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use mqstore_base::error::StoreError;

/// The version of every document written here; another one is refused.
const VERSION: u64 = 1;

/// A value that is kept or sent as a JSON object with a version.
pub trait Document: Serialize + DeserializeOwned {
    /// Names the document in errors.
    const WHAT: &'static str;

    /// Checks what the types of the fields do not say.
    ///
    /// # Errors
    /// [`StoreError::InvalidOption`] and others that say which value cannot be.
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
    /// [`StoreError::InvalidOption`] that says what is missing or wrong, and the errors of [`Document::validate`].
    fn from_json(text: impl AsRef<[u8]>) -> Result<Self, StoreError> {
        #[derive(Deserialize)]
        struct Head {
            version: u64,
        }
        let text = text.as_ref();
        // The version comes first: the fields of another version say nothing.
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

/// A document that cannot be used.
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
