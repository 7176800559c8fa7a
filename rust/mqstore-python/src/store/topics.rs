//! Changes and removals of topics, and namespaces.

use mqstore::format::json::TopicConfig;
use mqstore::store::TopicChange;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::convert::arguments::{count, duration};
use crate::error::InvalidOptionError;
use crate::runtime::{about_topic_verb, delivered, reading};
use crate::store::NativeStore;

pub(crate) fn given<T: TryFrom<i64>>(
    name: &'static str,
    value: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<T>> {
    value.map(|value| count(name, value)).transpose()
}

/// Changes a topic; `Store.update_topic`.
#[pyfunction]
pub(crate) fn update_topic(
    store: &Bound<'_, NativeStore>,
    topic: &str,
    read_queues: Option<&Bound<'_, PyAny>>,
    write_queues: Option<&Bound<'_, PyAny>>,
    perm: Option<&Bound<'_, PyAny>>,
    max_messages: Option<&Bound<'_, PyAny>>,
    expire_after: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let change = TopicChange {
        read_queues: given("read_queues", read_queues)?,
        write_queues: given("write_queues", write_queues)?,
        perm: given("perm", perm)?,
        max_messages: given("max_messages", max_messages)?,
        expire_after_ms: expire_after.map(|after| milliseconds("expire_after", after)).transpose()?,
    };
    let (core, verbs) = (store.get().core()?, store.get().verbs()?);
    about_topic_verb(store.py(), core, || verbs.change_topic(topic, change))
}

/// Converts the duration of the option `name` to milliseconds.
pub(crate) fn milliseconds(name: &'static str, value: &Bound<'_, PyAny>) -> PyResult<i64> {
    let after = duration(name, value)?;
    // To the nearest one: as a float, 0.29 seconds are a little less.
    let after_ms = i64::try_from((after.as_nanos() + 500_000) / 1_000_000).unwrap_or(i64::MAX);
    if after_ms == 0 && !after.is_zero() {
        let reason = format!("{} s is less than a millisecond", after.as_secs_f64());
        return Err(InvalidOptionError::new_err((name, reason)));
    }
    Ok(after_ms)
}

/// Returns the milliseconds after which a value of a table expires; `Table.expire_after`.
#[pyfunction]
pub(crate) fn expire_after_ms(store: &Bound<'_, NativeStore>, topic: &str) -> PyResult<Option<i64>> {
    let core = store.get().core()?;
    reading(store.py(), core, || core.catch_up().and_then(|()| core.expire_after_ms(topic)))
}

/// Returns the store time in milliseconds up to which the values of a table have expired.
#[pyfunction]
pub(crate) fn expired_to_ms(store: &Bound<'_, NativeStore>, topic: &str) -> PyResult<Option<i64>> {
    let core = store.get().core()?;
    reading(store.py(), core, || core.expired_to_ms(topic))
}

/// Returns the attributes of a new topic, including its quota and its expiry.
pub(crate) fn attributes(
    wanted: Option<&Bound<'_, PyAny>>,
    max_messages: Option<&Bound<'_, PyAny>>,
    expire_after: Option<&Bound<'_, PyAny>>,
) -> PyResult<Vec<(String, String)>> {
    static CHECK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let mut attributes = crate::convert::arguments::attributes(wanted)?;
    if let Some(wanted) = wanted {
        let check = CHECK.import(wanted.py(), "mqstore._admin.attributes", "check_attribute")?;
        for (name, value) in &attributes {
            check.call1((name, value))?;
        }
    }
    if let Some(most) = given::<u64>("max_messages", max_messages)?.filter(|most| *most != 0) {
        attributes.push((TopicConfig::MAX_MESSAGES.to_owned(), most.to_string()));
    }
    let after_ms = expire_after.map(|after| milliseconds("expire_after", after)).transpose()?;
    if let Some(after_ms) = after_ms.filter(|after_ms| *after_ms != 0) {
        attributes.push((TopicConfig::EXPIRE_AFTER.to_owned(), after_ms.to_string()));
    }
    Ok(attributes)
}

/// Returns the topics with a quota: name, quota and messages; `Store.quotas`.
#[pyfunction]
pub(crate) fn quotas(store: &Bound<'_, NativeStore>) -> PyResult<Vec<(String, u64, u64)>> {
    let core = store.get().core()?;
    let found = reading(store.py(), core, || core.settings().quotas())?;
    Ok(found.into_iter().map(|quota| (quota.topic, quota.max_messages, quota.messages)).collect())
}

/// Deletes a topic; `Store.delete_topic`.
#[pyfunction]
pub(crate) fn delete_topic(store: &Bound<'_, NativeStore>, topic: &str) -> PyResult<()> {
    let (core, verbs) = (store.get().core()?, store.get().verbs()?);
    about_topic_verb(store.py(), core, || verbs.remove_topic(topic))
}

/// Returns the namespaces, with the numbers of their topics and groups; `Store.namespaces`.
#[pyfunction]
pub(crate) fn namespaces(store: &Bound<'_, NativeStore>) -> PyResult<Vec<(String, u64, u64)>> {
    let core = store.get().core()?;
    let found = reading(store.py(), core, || core.namespaces().list())?;
    Ok(found.into_iter().map(|(name, info)| (name, info.topics, info.groups)).collect())
}

/// Deletes the topics and groups of a namespace, and returns their numbers; `Store.delete_namespace`.
#[pyfunction]
pub(crate) fn delete_namespace(store: &Bound<'_, NativeStore>, namespace: &str) -> PyResult<(u64, u64)> {
    let verbs = store.get().verbs()?;
    let removed = delivered(store.py(), || verbs.remove_namespace(namespace))?;
    Ok((removed.topics, removed.groups))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(update_topic, module)?)?;
    module.add_function(wrap_pyfunction!(expire_after_ms, module)?)?;
    module.add_function(wrap_pyfunction!(expired_to_ms, module)?)?;
    module.add_function(wrap_pyfunction!(quotas, module)?)?;
    module.add_function(wrap_pyfunction!(delete_topic, module)?)?;
    module.add_function(wrap_pyfunction!(namespaces, module)?)?;
    module.add_function(wrap_pyfunction!(delete_namespace, module)?)?;
    Ok(())
}
