//! The address of a host in a record: 4 or 16 address bytes, then the port in 4 bytes.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::bytes::{Reader, put};
use crate::error::FormatError;

/// An address and a port. The port is a signed 32-bit number in the file and here.
///
/// As text: `127.0.0.1:10911`, `[2001:db8::1]:10911`.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host {
    /// The address; its family determines the flag bits of the record.
    pub ip: IpAddr,
    /// The port.
    pub port: i32,
}

impl Host {
    /// Creates a host from its parts.
    pub fn new(ip: impl Into<IpAddr>, port: i32) -> Self {
        Self { ip: ip.into(), port }
    }

    /// Returns the byte length in a record: 8 or 20.
    pub const fn encoded_len(&self) -> usize {
        match self.ip {
            IpAddr::V4(_) => 8,
            IpAddr::V6(_) => 20,
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>, v6: bool) -> Result<Self, FormatError> {
        let ip = if v6 {
            IpAddr::V6(Ipv6Addr::from(reader.array::<16>()?))
        } else {
            IpAddr::V4(Ipv4Addr::from(reader.array::<4>()?))
        };
        Ok(Self { ip, port: reader.i32()? })
    }

    /// Writes the host at position `at` of `out` and returns the position after it.
    #[inline]
    pub(crate) fn put_at(&self, out: &mut [u8], at: usize) -> usize {
        match self.ip {
            IpAddr::V4(ip) => put(out, at, ip.octets()),
            IpAddr::V6(ip) => put(out, at, ip.octets()),
        }
        let end = at + self.encoded_len();
        put(out, end - 4, self.port.to_be_bytes());
        end
    }

    /// Returns the bytes of a host without decoding them.
    #[inline]
    pub(crate) fn skip<'a>(reader: &mut Reader<'a>, v6: bool) -> Result<&'a [u8], FormatError> {
        let start = reader.rest();
        reader.take(if v6 { 16 } else { 4 })?;
        reader.i32()?;
        Ok(start)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ip {
            IpAddr::V4(ip) => write!(f, "{ip}:{}", self.port),
            IpAddr::V6(ip) => write!(f, "[{ip}]:{}", self.port),
        }
    }
}

impl FromStr for Host {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        let parse = || {
            let (address, port) = text.rsplit_once(':')?;
            let ip = match address.strip_prefix('[') {
                Some(rest) => IpAddr::V6(rest.strip_suffix(']')?.parse().ok()?),
                None => IpAddr::V4(address.parse().ok()?),
            };
            Some(Self { ip, port: port.parse().ok()? })
        };
        parse().ok_or_else(|| FormatError::bad_name("a host of the form ip:port or [v6]:port", text))
    }
}
