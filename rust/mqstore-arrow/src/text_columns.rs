//! Builders of text columns, and of columns of lists and maps of text.

use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray, ListArray, MapArray, StringArray, StructArray};
use arrow_buffer::{Buffer, NullBuffer, NullBufferBuilder, OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields};
use mqstore_format::Properties;
use mqstore_format::properties::{KEYS, TAGS, UNIQ_KEY};

use crate::buffer_pool::BufferPool;

/// Takes a list and leaves one with the capacity for a similar batch.
pub fn taken<T>(list: &mut Vec<T>) -> Vec<T> {
    let room = list.len() + list.len() / 8;
    std::mem::replace(list, Vec::with_capacity(room))
}

/// Returns the end offset of a value.
fn ends(bytes: &[u8]) -> i32 {
    // A batch ends long before this limit: see `BatchBuilder::has_room`.
    i32::try_from(bytes.len()).unwrap_or(i32::MAX)
}

/// Returns the offsets of the values: one more than there are values.
fn offsets(ends: &mut Vec<i32>) -> Result<OffsetBuffer<i32>, ArrowError> {
    let mut all = Vec::with_capacity(ends.len() + 1);
    all.push(0);
    all.append(ends);
    if all.is_sorted() {
        return Ok(OffsetBuffer::new(ScalarBuffer::from(all)));
    }
    Err(ArrowError::InvalidArgumentError("a batch is too large for its offsets".to_owned()))
}

/// A column of byte strings.
#[derive(Default)]
pub struct BytesColumn {
    ends: Vec<i32>,
    values: Vec<u8>,
    pool: Option<Arc<BufferPool>>,
    /// Created at the first null.
    nulls: Option<NullBufferBuilder>,
}

impl BytesColumn {
    /// Creates a column that keeps its values in memory of `pool`.
    pub fn pooled(pool: &Arc<BufferPool>) -> Self {
        Self { pool: Some(Arc::clone(pool)), ..Self::default() }
    }

    fn taken_values(&mut self) -> Buffer {
        match &self.pool {
            Some(pool) => pool.share(&mut self.values),
            None => Buffer::from_vec(taken(&mut self.values)),
        }
    }

    /// Adds a value.
    #[inline]
    pub fn push(&mut self, value: &[u8]) {
        self.values.extend_from_slice(value);
        self.end();
    }

    /// Adds a value, or a null.
    #[inline]
    pub fn push_option(&mut self, value: Option<&[u8]>) {
        if let Some(value) = value {
            self.push(value);
        } else {
            self.push_null();
        }
    }

    fn push_null(&mut self) {
        let rows = self.ends.len();
        let nulls = self.nulls.get_or_insert_with(|| {
            let mut nulls = NullBufferBuilder::new(2 * rows);
            nulls.append_n_non_nulls(rows);
            nulls
        });
        nulls.append_null();
        self.ends.push(ends(&self.values));
    }

    /// Ends a value that was appended to [`Self::values`].
    #[inline]
    pub fn end(&mut self) {
        self.ends.push(ends(&self.values));
        if let Some(nulls) = &mut self.nulls {
            nulls.append_non_null();
        }
    }

    /// Returns the bytes of all values.
    pub fn values(&mut self) -> &mut Vec<u8> {
        &mut self.values
    }

    fn rows(&self) -> usize {
        self.ends.len()
    }

    /// Removes the values from row `rows` on. None of them is null.
    fn cut(&mut self, rows: usize, bytes: usize) {
        self.ends.truncate(rows);
        self.values.truncate(bytes);
    }

    fn value(&self, row: usize) -> &[u8] {
        let end = |row: usize| self.ends.get(row).map_or(0, |end| *end as usize);
        let start = row.checked_sub(1).map_or(0, end);
        self.values.get(start..end(row)).unwrap_or_default()
    }

    fn nulls(&mut self) -> Option<NullBuffer> {
        self.nulls.take().and_then(NullBufferBuilder::build)
    }

    /// Returns the values as text, and begins again.
    ///
    /// # Errors
    /// They are too many bytes for a column.
    pub fn text(&mut self) -> Result<StringArray, ArrowError> {
        let offsets = offsets(&mut self.ends)?;
        let nulls = self.nulls();
        StringArray::try_new(offsets, self.taken_values(), nulls)
    }

    /// Returns the values as bytes, and begins again.
    ///
    /// # Errors
    /// As for [`Self::text`].
    pub fn binary(&mut self) -> Result<BinaryArray, ArrowError> {
        let offsets = offsets(&mut self.ends)?;
        let nulls = self.nulls();
        BinaryArray::try_new(offsets, self.taken_values(), nulls)
    }
}

/// The columns of properties, filled in one walk over them.
#[derive(Default)]
pub struct PropertyColumns {
    /// Unique ids.
    pub unique_id: Option<BytesColumn>,
    /// Tags.
    pub tags: Option<BytesColumn>,
    /// Keys.
    pub keys: Option<KeyListColumn>,
    /// All properties.
    pub map: Option<MapColumn>,
}

impl PropertyColumns {
    /// Whether no column is wanted.
    pub fn is_empty(&self) -> bool {
        self.unique_id.is_none() && self.tags.is_none() && self.keys.is_none() && self.map.is_none()
    }

    /// Adds a row. As in `Properties::get`, the later of two entries with one name counts, and an entry that is not
    /// valid UTF-8 is skipped.
    #[inline]
    pub fn push(&mut self, properties: Properties<'_>) {
        const UNIQUE_NAME: &[u8] = UNIQ_KEY.as_bytes();
        const KEYS_NAME: &[u8] = KEYS.as_bytes();
        const TAGS_NAME: &[u8] = TAGS.as_bytes();
        let ascii = properties.raw().is_ascii();
        let valid = |bytes: &[u8]| ascii || std::str::from_utf8(bytes).is_ok();
        let (mut unique, mut keys, mut tags) = (None, None, None);
        if let Some(map) = &mut self.map {
            map.begin();
        }
        for (name, value) in properties.iter_raw() {
            match name {
                UNIQUE_NAME => unique = Some(value),
                KEYS_NAME => keys = Some(value),
                TAGS_NAME => tags = Some(value),
                _ => {}
            }
            if let Some(map) = &mut self.map
                && valid(name)
                && valid(value)
            {
                map.add(name, value);
            }
        }
        if let Some(map) = &mut self.map {
            map.end(properties);
        }
        if let Some(column) = &mut self.unique_id {
            column.push_option(unique.filter(|value| valid(value)));
        }
        if let Some(column) = &mut self.tags {
            column.push_option(tags.filter(|value| valid(value)));
        }
        if let Some(column) = &mut self.keys {
            column.push(keys.filter(|value| valid(value)).unwrap_or_default());
        }
    }
}

/// A column of lists of keys.
#[derive(Default)]
pub struct KeyListColumn {
    ends: Vec<i32>,
    keys: BytesColumn,
}

impl KeyListColumn {
    #[inline]
    fn push(&mut self, joined: &[u8]) {
        for key in joined.split(|byte| *byte == b' ').filter(|key| !key.is_empty()) {
            self.keys.push(key);
        }
        self.ends.push(i32::try_from(self.keys.rows()).unwrap_or(i32::MAX));
    }

    /// Returns the lists or maps, and begins again.
    ///
    /// # Errors
    /// They are too many bytes for a column.
    pub fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        let offsets = offsets(&mut self.ends)?;
        Ok(Arc::new(ListArray::try_new(key_field(), offsets, Arc::new(self.keys.text()?), None)?))
    }
}

/// A column of maps.
#[derive(Default)]
pub struct MapColumn {
    ends: Vec<i32>,
    names: BytesColumn,
    values: BytesColumn,
    /// Start of the row: entries, and bytes of both columns.
    row: (usize, usize, usize),
    /// Hash bits of the names in the row.
    marks: u64,
    doubled: bool,
}

impl MapColumn {
    fn begin(&mut self) {
        self.row = (self.names.rows(), self.names.values.len(), self.values.values.len());
        (self.marks, self.doubled) = (0, false);
    }

    #[inline]
    fn add(&mut self, name: &[u8], value: &[u8]) {
        let ends = usize::from(name.first().copied().unwrap_or(0))
            + 7 * usize::from(name.last().copied().unwrap_or(0));
        let mark = 1_u64 << ((name.len() + 5 * ends) % 64);
        // Names with the same bit may be equal. If they are, the row is built again.
        if self.marks & mark != 0 && !self.doubled {
            self.doubled = (self.row.0..self.names.rows()).any(|row| self.names.value(row) == name);
        }
        self.marks |= mark;
        self.names.push(name);
        self.values.push(value);
    }

    fn end(&mut self, properties: Properties<'_>) {
        if self.doubled {
            let (rows, name_bytes, value_bytes) = self.row;
            self.names.cut(rows, name_bytes);
            self.values.cut(rows, value_bytes);
            for (name, value) in last_of_each(properties) {
                self.names.push(name.as_bytes());
                self.values.push(value.as_bytes());
            }
        }
        self.ends.push(i32::try_from(self.names.rows()).unwrap_or(i32::MAX));
    }

    /// Returns the lists or maps, and begins again.
    ///
    /// # Errors
    /// They are too many bytes for a column.
    pub fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        let offsets = offsets(&mut self.ends)?;
        let (names, values) = (self.names.text()?, self.values.text()?);
        let entries = StructArray::try_new(entry_fields(), vec![Arc::new(names), Arc::new(values)], None)?;
        Ok(Arc::new(MapArray::try_new(entries_field(), offsets, entries, None, false)?))
    }
}

/// Returns the entries as a dict has them.
pub fn each_once(properties: Properties<'_>) -> Vec<(&str, &str)> {
    let found = properties.to_vec();
    let few = found.len() <= 16;
    let names = |from: usize| found.iter().skip(from).map(|(name, _)| name);
    let doubled = !few || names(0).enumerate().any(|(at, name)| names(at + 1).any(|other| other == name));
    if doubled { last_of_each(properties) } else { found }
}

/// Returns each name once, at its first position, with its last value.
#[cold]
fn last_of_each<'a>(properties: Properties<'a>) -> Vec<(&'a str, &'a str)> {
    let mut places = std::collections::HashMap::new();
    let mut found: Vec<(&'a str, &'a str)> = Vec::new();
    for (name, value) in properties.iter() {
        let place = *places.entry(name).or_insert(found.len());
        match found.get_mut(place) {
            Some((_, known)) => *known = value,
            None => found.push((name, value)),
        }
    }
    found
}

/// Returns the item field of the lists of `keys`.
pub fn key_field() -> FieldRef {
    Arc::new(Field::new("item", DataType::Utf8, true))
}

/// Returns the name and value fields of an entry of `properties`.
pub fn entry_fields() -> Fields {
    Fields::from(vec![Field::new("key", DataType::Utf8, false), Field::new("value", DataType::Utf8, true)])
}

/// Returns the entry field of the maps of `properties`.
pub fn entries_field() -> FieldRef {
    Arc::new(Field::new("entries", DataType::Struct(entry_fields()), false))
}
