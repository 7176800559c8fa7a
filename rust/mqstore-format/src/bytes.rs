//! Checked big-endian reads: the only place where this crate converts untrusted bytes to integers.
//!
//! All integers of the format are big-endian and signed (Java's `ByteBuffer` order). [`Reader`] walks over a slice and
//! returns [`FormatError::Truncated`] at its end.

use crate::error::FormatError;

/// Defines the checked big-endian readers of fixed width.
macro_rules! big_endian {
    ($($name:ident: $type:ty, $width:literal;)*) => {$(
        #[doc = concat!("Returns the next ", $width, " bytes as `", stringify!($type), "`.")]
        #[inline]
        pub(crate) fn $name(&mut self) -> Result<$type, FormatError> {
            match self.rest.split_first_chunk::<$width>() {
                Some((head, rest)) => {
                    self.rest = rest;
                    Ok(<$type>::from_be_bytes(*head))
                }
                None => Err(self.truncated($width)),
            }
        }
    )*};
}

/// A position in a slice that only moves forward.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    /// Starts at the front of `bytes`. `what` names the value in errors.
    #[inline]
    pub(crate) fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { rest: bytes, what }
    }

    #[inline]
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[cold]
    fn truncated(&self, needed: usize) -> FormatError {
        FormatError::Truncated { what: self.what, needed, available: self.rest.len() }
    }

    big_endian! {
        i8: i8, 1;
        i16: i16, 2;
        i32: i32, 4;
        u32: u32, 4;
        i64: i64, 8;
    }

    /// Returns the next `N` bytes.
    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let Some((head, rest)) = self.rest.split_first_chunk::<N>() else { return Err(self.truncated(N)) };
        self.rest = rest;
        Ok(*head)
    }

    /// Returns the next `len` bytes, borrowed.
    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], FormatError> {
        let Some((head, rest)) = self.rest.split_at_checked(len) else { return Err(self.truncated(len)) };
        self.rest = rest;
        Ok(head)
    }

    /// Returns the next `len` bytes. `what` names the signed length field; its value must be between 0 and the bytes
    /// left.
    #[inline]
    pub(crate) fn take_length(&mut self, what: &'static str, len: i64) -> Result<&'a [u8], FormatError> {
        let fits = usize::try_from(len).ok().and_then(|len| self.rest.split_at_checked(len));
        let Some((head, rest)) = fits else {
            return Err(FormatError::BadLength { what, value: len, limit: self.rest.len() as i64 });
        };
        self.rest = rest;
        Ok(head)
    }
}

/// Big-endian numbers at the front of a longer slice, for files in which every damage has the same result: `None`.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(
    /// The bytes left.
    pub &'a [u8],
);

impl<'a> Fields<'a> {
    /// Returns the next `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }

    /// Returns the next `N` bytes.
    pub fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    /// Returns the next 4 bytes as a number.
    pub fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    /// Returns the next 8 bytes as a number.
    pub fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    /// Returns the next 8 bytes as a signed number.
    pub fn i64(&mut self) -> Option<i64> {
        self.take().map(i64::from_be_bytes)
    }
}

/// Returns `N` bytes of a fixed-size unit from position `at`. Positions are constants of the layouts. A position
/// outside the unit is a bug of this crate, and reads as zeros instead of a panic.
#[inline]
pub(crate) fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    if let Some(chunk) = bytes.get(at..).and_then(|rest| rest.first_chunk::<N>()) {
        *chunk
    } else {
        debug_assert!(false, "field at {at} outside of {} bytes", bytes.len());
        [0; N]
    }
}

/// Writes the bytes of a field of a fixed-size unit; the counterpart of [`field`].
#[inline]
pub(crate) fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    if let Some(chunk) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<N>()) {
        *chunk = value;
    } else {
        debug_assert!(false, "field at {at} outside of the unit");
    }
}
