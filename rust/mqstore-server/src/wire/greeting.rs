//! The greeting: the first payload in each direction of a connection, with number 0.
//!
//! The client speaks first. The versions are a range each; the owner takes the highest that both know. The fixed begin
//! of the payload never changes, so that every version can read why another one refuses it:
//!
//! ```text
//! magic "mqst" (4) | lowest version (2) | highest version (2) | postcard of [`Hello`] or [`Welcome`]
//! ```

use mqstore::error::StoreError;
use serde::{Deserialize, Serialize};

const MAGIC: [u8; 4] = *b"mqst";
/// The versions of the protocol that this library knows.
pub const VERSIONS: (u16, u16) = (1, 1);

/// What a client says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The client: a random number that stays over all its connections.
    pub client: u128,
    /// Number of the connection; each later one of the client has a higher number. An owner can see them in another order.
    pub connection: u64,
    /// Its process id.
    pub pid: u32,
    /// Version of its library.
    pub library: String,
}

/// What the owner answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Process id of the owner.
    pub pid: u32,
    /// Version of its library.
    pub library: String,
    /// The open of the store: a random number that each owner has anew.
    pub generation: u64,
    /// The options of the store, in the form of the binding.
    pub options: String,
}

/// Encodes a greeting.
pub fn encode(text: &impl Serialize) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&VERSIONS.0.to_be_bytes());
    out.extend_from_slice(&VERSIONS.1.to_be_bytes());
    // A vector takes any length, so this cannot fail.
    postcard::to_extend(text, out).unwrap_or_default()
}

/// Decodes the greeting of a peer of version `library`, which is in the error if the versions do not fit.
///
/// # Errors
/// `Unsupported` for another program, or for a version that this library does not know.
pub fn decode<T: for<'a> Deserialize<'a>>(payload: &[u8]) -> Result<T, StoreError> {
    let unsupported = |reason: String| StoreError::Unsupported { path: "mqstore/socket".into(), reason };
    let parts = payload.split_first_chunk::<4>().filter(|(magic, _)| **magic == MAGIC);
    let parts = parts.and_then(|(_, rest)| rest.split_first_chunk::<4>());
    let Some((versions, rest)) = parts else {
        return Err(unsupported("the other process is not mqstore".to_owned()));
    };
    let [a, b, c, d] = *versions;
    let (lowest, highest) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    if lowest > VERSIONS.1 || highest < VERSIONS.0 {
        return Err(unsupported(format!(
            "the other process speaks version {lowest} to {highest} of the protocol for shared stores, and this one \
             {} to {}: use the same version of mqstore in all processes",
            VERSIONS.0, VERSIONS.1
        )));
    }
    postcard::from_bytes(rest)
        .map_err(|_| unsupported("the greeting of the other process is damaged".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello { client: 5, connection: 1, pid: 7, library: "0.1.0".to_owned() }
    }

    #[test]
    fn a_greeting_is_read_back() {
        assert_eq!(decode::<Hello>(&encode(&hello())).unwrap(), hello());
    }

    #[test]
    fn other_programs_and_versions_are_refused_with_the_reason() {
        let good = encode(&hello());
        let mut newer = good.clone();
        newer[4..8].copy_from_slice(&[0, 9, 0, 12]);
        let text = |bytes: &[u8]| decode::<Hello>(bytes).unwrap_err().to_string();
        assert!(text(&newer).contains("speaks version 9 to 12"), "{}", text(&newer));
        assert!(text(b"GET / HTTP/1.1").contains("is not mqstore"));
        for end in 0..good.len() {
            assert!(decode::<Hello>(&good[..end]).is_err(), "{end}");
        }
    }
}
