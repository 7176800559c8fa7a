//! The columns of rows that become messages: names, types, and the message of each row.
//!
//! Spark's write and `Store.append_arrow` use these rules. The check of a Spark schema, before any row exists, is in
//! `python/mqstore/spark/_write/stage.py`.

use arrow_array::{Array, RecordBatch};
use mqstore::append::check_target;
use mqstore::error::StoreError;
use mqstore::format::is_reserved;
use mqstore::format::properties::UNIQ_KEY;
use mqstore::message::push_properties;

use super::schema::is_scan_column;
use mqstore::arrow::{BytesValues, Numbers, TextLists, TextMaps, integers, times_ms};

/// The columns of a message. `value` is another name of `body`, and `key` one of `keys`.
const COLUMNS: &str =
    "body (or value), keys (or key), topic, tags, properties, queue_id, flag and born_timestamp";

/// A row that cannot become a message: the column, and the reason.
pub(crate) struct RefusedRow {
    pub(crate) column: &'static str,
    pub(crate) reason: String,
}

impl RefusedRow {
    pub(crate) fn new(column: &'static str, reason: impl Into<String>) -> Self {
        Self { column, reason: reason.into() }
    }

    /// Returns a function that blames `column` for an error.
    pub(crate) fn in_column(column: &'static str) -> impl Fn(StoreError) -> Self {
        move |error| Self { column, reason: error.to_string() }
    }

    fn because(column: &'static str) -> impl Fn(String) -> Self {
        move |reason| Self { column, reason }
    }

    fn null(column: &'static str) -> Self {
        Self::new(column, "it is null")
    }
}

/// The keys of each row.
enum KeyColumn<'a> {
    One(BytesValues<'a>),
    Several(TextLists<'a>),
}

/// The columns of a record batch that make messages.
pub(crate) struct MessageColumns<'a> {
    body: BytesValues<'a>,
    topic: Option<BytesValues<'a>>,
    keys: Option<KeyColumn<'a>>,
    tags: Option<BytesValues<'a>>,
    properties: Option<TextMaps<'a>>,
    queue_id: Option<Numbers<'a>>,
    flag: Option<Numbers<'a>>,
    born_timestamp: Option<Numbers<'a>>,
}

/// The message of one row, except its topic. Its property text is elsewhere.
pub(crate) struct RowMessage<'a> {
    pub(crate) body: &'a [u8],
    /// The unique key that the row gives.
    pub(crate) unique_key: Option<&'a str>,
    pub(crate) queue_id: Option<i32>,
    pub(crate) flag: i32,
    pub(crate) born_timestamp_ms: Option<i64>,
}

fn invalid(reason: String) -> StoreError {
    StoreError::InvalidMessage { reason }
}

/// Converts a column; an error names the types that it may have.
fn typed<'a, T>(
    name: &str,
    array: &'a dyn Array,
    types: &str,
    convert: impl FnOnce(&'a dyn Array) -> Option<T>,
) -> Result<T, StoreError> {
    convert(array).ok_or_else(|| invalid(format!("column {name} must be {types}, not {}", array.data_type())))
}

impl<'a> MessageColumns<'a> {
    /// Finds the columns by their names. Ignores columns of a scan that only a stored message has.
    ///
    /// # Errors
    /// [`StoreError::InvalidMessage`] for a missing, unknown or doubled column, and for a wrong type.
    pub(crate) fn of(batch: &'a RecordBatch) -> Result<Self, StoreError> {
        let (mut body, mut topic, mut keys, mut tags, mut properties) = (None, None, None, None, None);
        let (mut queue_id, mut flag, mut born_timestamp) = (None, None, None);
        for (field, array) in batch.schema_ref().fields().iter().zip(batch.columns()) {
            let (name, array) = (field.name().as_str(), array.as_ref());
            let again = match name {
                "body" | "value" => {
                    body.replace(typed(name, array, "binary or string", BytesValues::of)?).is_some()
                }
                "key" => keys.replace(typed(name, array, "binary or string", single_keys)?).is_some(),
                "keys" => {
                    keys.replace(typed(name, array, "a list of strings or a string", several_keys)?).is_some()
                }
                "topic" => topic.replace(typed(name, array, "string", BytesValues::text)?).is_some(),
                "tags" => tags.replace(typed(name, array, "string", BytesValues::text)?).is_some(),
                "properties" => properties
                    .replace(typed(name, array, "a map from string to string", TextMaps::of)?)
                    .is_some(),
                "queue_id" => queue_id.replace(typed(name, array, "an integer", integers)?).is_some(),
                "flag" => flag.replace(typed(name, array, "an integer", integers)?).is_some(),
                "born_timestamp" => {
                    let types = "a timestamp with a time zone, or integers of 64 bits in epoch milliseconds";
                    born_timestamp.replace(typed(name, array, types, times_ms)?).is_some()
                }
                name if is_scan_column(name) => false,
                name => {
                    return Err(invalid(format!("there is no column {name:?}; a message has {COLUMNS}")));
                }
            };
            if again {
                return Err(invalid(format!("give one column {name} only: a message has {COLUMNS}")));
            }
        }
        let body = body.ok_or_else(|| invalid("there is no column body (or value)".to_owned()))?;
        Ok(Self { body, topic, keys, tags, properties, queue_id, flag, born_timestamp })
    }

    /// Returns the size of a row's body in bytes.
    pub(crate) fn body_bytes(&self, row: usize) -> usize {
        self.body.get(row).map_or(0, <[u8]>::len)
    }

    /// Returns the topic that a row names.
    pub(crate) fn topic(&self, row: usize) -> Result<Option<&'a str>, RefusedRow> {
        let topic = self.topic.as_ref().map_or(Ok(None), |topic| topic.get_text(row));
        topic.map_err(RefusedRow::because("topic"))
    }

    /// Returns the message of a row for `topic`, and adds its property text to `text`. `make_key` makes the unique key
    /// of a row without one; without it, the text gets none.
    pub(crate) fn message<K: AsRef<str>>(
        &self,
        row: usize,
        topic: Option<&str>,
        text: &mut Vec<u8>,
        make_key: Option<impl FnOnce() -> K>,
    ) -> Result<(RowMessage<'a>, Option<K>), RefusedRow> {
        check_target(topic.ok_or_else(|| RefusedRow::null("topic"))?)
            .map_err(RefusedRow::in_column("topic"))?;
        let body = self.body.get(row).ok_or_else(|| RefusedRow::null("body"))?;
        let (own, unique_key) = self.own_properties(row)?;
        let made = if unique_key.is_none() { make_key.map(|make| make()) } else { None };
        let tags = self.tags.as_ref().map_or(Ok(None), |tags| tags.get_text(row));
        let tags = tags.map_err(RefusedRow::because("tags"))?.filter(|tags| !tags.is_empty());
        let (first, more) = self.row_keys(row)?;
        let keys = || first.into_iter().chain(more.iter().copied());
        let unique = unique_key.or(made.as_ref().map(AsRef::as_ref));
        push_properties(text, keys(), tags, unique, own.iter().copied()).map_err(|error| {
            // Learns which column is to blame.
            let column = if push_properties(&mut Vec::new(), keys(), None, None, []).is_err() {
                "keys"
            } else if push_properties(&mut Vec::new(), [], tags, None, []).is_err() {
                "tags"
            } else {
                "properties"
            };
            RefusedRow::in_column(column)(error)
        })?;
        let number = |column: &Option<Numbers<'_>>, name| {
            let value = column.as_ref().and_then(|column| column(row));
            let fit = |value| {
                i32::try_from(value)
                    .map_err(|_| RefusedRow::new(name, format!("{value} does not fit 32 bits")))
            };
            value.map(fit).transpose()
        };
        let message = RowMessage {
            body,
            unique_key,
            queue_id: number(&self.queue_id, "queue_id")?,
            flag: number(&self.flag, "flag")?.unwrap_or(0),
            born_timestamp_ms: self.born_timestamp.as_ref().and_then(|column| column(row)),
        };
        Ok((message, made))
    }

    /// Returns the keys of a row: the first one, and the others.
    fn row_keys(&self, row: usize) -> Result<(Option<&'a str>, Vec<&'a str>), RefusedRow> {
        let blame = RefusedRow::because("keys");
        match &self.keys {
            None => Ok((None, Vec::new())),
            Some(KeyColumn::One(keys)) => Ok((keys.get_text(row).map_err(blame)?, Vec::new())),
            Some(KeyColumn::Several(keys)) => {
                let mut found = keys.get(row).map(|key| {
                    key.and_then(|key| key.ok_or_else(|| "a key is null".to_owned())).map_err(&blame)
                });
                Ok((found.next().transpose()?, found.collect::<Result<_, _>>()?))
            }
        }
    }

    /// Returns the properties of the sender, and the unique key if it is one of them. A property without a value does
    /// not exist, and those that the store itself sets are left out.
    #[expect(clippy::type_complexity, reason = "two values of one walk")]
    fn own_properties(&self, row: usize) -> Result<(Vec<(&'a str, &'a str)>, Option<&'a str>), RefusedRow> {
        let (mut own, mut unique) = (Vec::new(), None);
        if let Some(properties) = &self.properties {
            for pair in properties.get(row) {
                let (name, value) = pair.map_err(RefusedRow::because("properties"))?;
                if name == UNIQ_KEY {
                    unique = Some(value);
                } else if !is_reserved(name) {
                    own.push((name, value));
                }
            }
        }
        Ok((own, unique))
    }
}

fn single_keys(array: &dyn Array) -> Option<KeyColumn<'_>> {
    BytesValues::of(array).map(KeyColumn::One)
}

fn several_keys(array: &dyn Array) -> Option<KeyColumn<'_>> {
    match TextLists::of(array) {
        Some(lists) => Some(KeyColumn::Several(lists)),
        None => BytesValues::text(array).map(KeyColumn::One),
    }
}
