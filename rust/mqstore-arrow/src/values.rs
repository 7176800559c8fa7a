//! Values of an Arrow column, whatever the type that a library uses for them.
//!
//! A text is `Utf8`, `LargeUtf8`, `Utf8View` or a dictionary of these; bytes likewise. A list has offsets of 32 or 64
//! bits. A column of nulls has no values.

use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Int8Type, Int16Type, Int32Type, Int64Type, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow_array::{
    Array, BinaryArray, BinaryViewArray, FixedSizeBinaryArray, GenericListArray, LargeBinaryArray,
    LargeStringArray, MapArray, OffsetSizeTrait, StringArray, StringViewArray,
};
use arrow_schema::{DataType, TimeUnit};

/// A column of bytes or text.
pub enum BytesValues<'a> {
    /// Only nulls.
    Null,
    /// `Binary`.
    Binary(&'a BinaryArray),
    /// `LargeBinary`.
    LargeBinary(&'a LargeBinaryArray),
    /// `BinaryView`.
    BinaryView(&'a BinaryViewArray),
    /// `FixedSizeBinary`.
    FixedBinary(&'a FixedSizeBinaryArray),
    /// `Utf8`.
    Text(&'a StringArray),
    /// `LargeUtf8`.
    LargeText(&'a LargeStringArray),
    /// `Utf8View`.
    TextView(&'a StringViewArray),
    /// A dictionary of one of these.
    Dictionary {
        /// The column, for its nulls.
        rows: &'a dyn Array,
        /// The number of the value of each row.
        keys: Vec<usize>,
        /// The values.
        values: Box<BytesValues<'a>>,
    },
}

impl<'a> BytesValues<'a> {
    /// Returns the column if it has bytes or text.
    pub fn of(array: &'a dyn Array) -> Option<Self> {
        Some(match array.data_type() {
            DataType::Null => Self::Null,
            DataType::Binary => Self::Binary(array.as_binary_opt()?),
            DataType::LargeBinary => Self::LargeBinary(array.as_binary_opt()?),
            DataType::BinaryView => Self::BinaryView(array.as_binary_view_opt()?),
            DataType::FixedSizeBinary(_) => Self::FixedBinary(array.as_fixed_size_binary_opt()?),
            DataType::Dictionary(..) => {
                let dictionary = array.as_any_dictionary_opt()?;
                let values = dictionary.values();
                if values.is_empty() {
                    return Some(Self::Null);
                }
                let values = Box::new(Self::of(values.as_ref())?);
                Self::Dictionary { rows: array, keys: dictionary.normalized_keys(), values }
            }
            _ => return Self::text(array),
        })
    }

    /// Returns the column if it has text.
    pub fn text(array: &'a dyn Array) -> Option<Self> {
        Some(match array.data_type() {
            DataType::Null => Self::Null,
            DataType::Utf8 => Self::Text(array.as_string_opt()?),
            DataType::LargeUtf8 => Self::LargeText(array.as_string_opt()?),
            DataType::Utf8View => Self::TextView(array.as_string_view_opt()?),
            DataType::Dictionary(_, values) => match **values {
                DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => return Self::of(array),
                _ => return None,
            },
            _ => return None,
        })
    }

    /// Returns the value of a row; `None` if it is null.
    pub fn get(&self, row: usize) -> Option<&'a [u8]> {
        fn value<'a, A: Array + ?Sized>(
            array: &'a A,
            row: usize,
            value: impl FnOnce(&'a A) -> &'a [u8],
        ) -> Option<&'a [u8]> {
            (!array.is_null(row)).then(|| value(array))
        }
        match self {
            Self::Null => None,
            Self::Binary(array) => value(*array, row, |array| array.value(row)),
            Self::LargeBinary(array) => value(*array, row, |array| array.value(row)),
            Self::BinaryView(array) => value(*array, row, |array| array.value(row)),
            Self::FixedBinary(array) => value(*array, row, |array| array.value(row)),
            Self::Text(array) => value(*array, row, |array| array.value(row).as_bytes()),
            Self::LargeText(array) => value(*array, row, |array| array.value(row).as_bytes()),
            Self::TextView(array) => value(*array, row, |array| array.value(row).as_bytes()),
            Self::Dictionary { rows, keys, values } => {
                if rows.is_null(row) {
                    None
                } else {
                    values.get(*keys.get(row)?)
                }
            }
        }
    }

    /// Returns the value of a row as text. The error is the reason why it is none.
    pub fn get_text(&self, row: usize) -> Result<Option<&'a str>, String> {
        let text =
            |bytes: &'a [u8]| std::str::from_utf8(bytes).map_err(|error| format!("it is not UTF-8: {error}"));
        self.get(row).map(text).transpose()
    }
}

/// Returns the bounds of each row's items; `None` for a null row.
type Spans<'a> = Box<dyn Fn(usize) -> Option<Range<usize>> + 'a>;

fn spans<'a, O: OffsetSizeTrait>(array: &'a dyn Array, offsets: &'a [O]) -> Spans<'a> {
    Box::new(move |row| {
        let (start, end) = (offsets.get(row)?, offsets.get(row + 1)?);
        (!array.is_null(row)).then(|| start.as_usize()..end.as_usize())
    })
}

fn list_spans<O: OffsetSizeTrait>(array: &GenericListArray<O>) -> (Spans<'_>, &dyn Array) {
    (spans(array, array.value_offsets()), array.values().as_ref())
}

fn of_list(array: &dyn Array) -> Option<(Spans<'_>, &dyn Array)> {
    match array.data_type() {
        DataType::List(_) => array.as_list_opt::<i32>().map(list_spans),
        DataType::LargeList(_) => array.as_list_opt::<i64>().map(list_spans),
        _ => None,
    }
}

/// A column of lists of text.
pub struct TextLists<'a> {
    spans: Spans<'a>,
    items: BytesValues<'a>,
}

impl<'a> TextLists<'a> {
    /// Returns the column if it has lists of text.
    pub fn of(array: &'a dyn Array) -> Option<Self> {
        let (spans, items) = of_list(array)?;
        Some(Self { spans, items: BytesValues::text(items)? })
    }

    /// Returns the items of a row; a null row has none.
    pub fn get(&self, row: usize) -> impl Iterator<Item = Result<Option<&'a str>, String>> {
        (self.spans)(row).unwrap_or(0..0).map(|item| self.items.get_text(item))
    }
}

/// A column of maps from text to text, or of lists of pairs of texts.
pub struct TextMaps<'a> {
    spans: Spans<'a>,
    names: BytesValues<'a>,
    values: BytesValues<'a>,
}

impl<'a> TextMaps<'a> {
    /// Returns the column if it has maps of text.
    pub fn of(array: &'a dyn Array) -> Option<Self> {
        if let Some(map) = array.as_map_opt() {
            let map: &'a MapArray = map;
            let (names, values) = (BytesValues::text(map.keys())?, BytesValues::text(map.values())?);
            return Some(Self { spans: spans(array, map.value_offsets()), names, values });
        }
        let (spans, items) = of_list(array)?;
        let [names, values] = items.as_struct_opt()?.columns() else { return None };
        Some(Self { spans, names: BytesValues::text(names)?, values: BytesValues::text(values)? })
    }

    /// Returns the pairs of a row that have a value; a null row has none.
    pub fn get(&self, row: usize) -> impl Iterator<Item = Result<(&'a str, &'a str), String>> {
        let pair = |item: usize| -> Result<Option<(&'a str, &'a str)>, String> {
            Ok(self.names.get_text(item)?.zip(self.values.get_text(item)?))
        };
        (self.spans)(row).unwrap_or(0..0).filter_map(move |item| pair(item).transpose())
    }
}

/// A column of numbers: returns the value of each row, `None` if it is null.
pub type Numbers<'a> = Box<dyn Fn(usize) -> Option<i64> + 'a>;

fn numbers<T: ArrowPrimitiveType>(
    array: &dyn Array,
    convert: impl Fn(T::Native) -> i64 + 'static,
) -> Option<Numbers<'_>> {
    let array = array.as_primitive_opt::<T>()?;
    Some(Box::new(move |row| (!array.is_null(row)).then(|| convert(array.value(row)))))
}

/// Returns the column if it has integers. A number that does not fit 64 bits becomes the largest one.
pub fn integers(array: &dyn Array) -> Option<Numbers<'_>> {
    match array.data_type() {
        DataType::Null => Some(Box::new(|_| None)),
        DataType::Int8 => numbers::<Int8Type>(array, i64::from),
        DataType::Int16 => numbers::<Int16Type>(array, i64::from),
        DataType::Int32 => numbers::<Int32Type>(array, i64::from),
        DataType::Int64 => numbers::<Int64Type>(array, |value| value),
        DataType::UInt8 => numbers::<UInt8Type>(array, i64::from),
        DataType::UInt16 => numbers::<UInt16Type>(array, i64::from),
        DataType::UInt32 => numbers::<UInt32Type>(array, i64::from),
        DataType::UInt64 => numbers::<UInt64Type>(array, |value| i64::try_from(value).unwrap_or(i64::MAX)),
        _ => None,
    }
}

/// Returns the column in epoch milliseconds if it has timestamps with a time zone, or integers of 64 bits.
pub fn times_ms(array: &dyn Array) -> Option<Numbers<'_>> {
    match array.data_type() {
        DataType::Null | DataType::Int64 => integers(array),
        DataType::Timestamp(unit, Some(_)) => match unit {
            TimeUnit::Second => numbers::<TimestampSecondType>(array, |value| value.saturating_mul(1000)),
            TimeUnit::Millisecond => numbers::<TimestampMillisecondType>(array, |value| value),
            TimeUnit::Microsecond => {
                numbers::<TimestampMicrosecondType>(array, |value| value.div_euclid(1000))
            }
            TimeUnit::Nanosecond => {
                numbers::<TimestampNanosecondType>(array, |value| value.div_euclid(1_000_000))
            }
        },
        _ => None,
    }
}
