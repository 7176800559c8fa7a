//! Settings of topics and groups for exports and imports, as JSON texts by name.

use std::collections::BTreeMap;

use mqstore::error::StoreError;
use mqstore::format::FormatError;
use mqstore::format::delays::pending::is_system_topic;
use mqstore::format::json::{SubscriptionGroup, TopicConfig};
use mqstore::store::{GroupOffsets, StoreSettings};
use pyo3::prelude::*;

use crate::error::to_py;
use crate::runtime::{delivered, detached};
use crate::store::NativeStore;
use crate::store::folder::StoreFolder;

/// The groups of RocketMQ's own consumers start with this.
const SYSTEM_GROUP_PREFIX: &str = "CID_RMQ_SYS_";

/// JSON texts by name.
type Texts = BTreeMap<String, String>;

/// Returns the settings of the directory's topics and groups that an export contains, as JSON by name. With `topics`,
/// these topics and the groups with offsets in them.
#[pyfunction]
fn export_settings(
    py: Python<'_>,
    path: &Bound<'_, PyAny>,
    topics: Option<Vec<String>>,
) -> PyResult<(Texts, Texts)> {
    let folder = StoreFolder::of(path)?;
    let named = |name: &str| topics.as_ref().is_none_or(|topics| topics.iter().any(|topic| topic == name));
    let wanted = |name: &str| named(name) && !is_system_topic(name);
    let (mut settings, offsets) = detached(py, || {
        folder.read_log(|store| {
            let offsets = if topics.is_some() { store.group_table()?.offsets()? } else { Vec::new() };
            Ok::<_, StoreError>((store.settings().all()?, offsets))
        })
    })?;
    settings.keep_valid();
    let consumes = |group: &str| {
        topics.is_none() || offsets.iter().any(|offsets| offsets.group == group && wanted(&offsets.topic))
    };
    let listed = settings.topics.iter().filter(|topic| wanted(&topic.name));
    let topics_found = listed.map(|topic| (topic.name.clone(), topic.to_text(&topic.name))).collect();
    let listed =
        settings.groups.iter().filter(|it| !it.name.starts_with(SYSTEM_GROUP_PREFIX) && consumes(&it.name));
    let groups = listed.map(|group| (group.name.clone(), group.to_text(&group.name))).collect();
    Ok((topics_found, groups))
}

/// Returns a file of `config/` as JSON text; see `Inspection::config_json` of the engine.
#[pyfunction]
fn config_json(py: Python<'_>, store: PyRef<'_, NativeStore>, name: &str) -> PyResult<Option<String>> {
    let store = store.core()?;
    detached(py, || store.inspection().config_json(name))
}

/// Returns the saved offsets of a group by topic and queue.
#[pyfunction]
fn saved_offsets(
    py: Python<'_>,
    store: PyRef<'_, NativeStore>,
    group: &str,
) -> PyResult<Vec<((String, i32), i64)>> {
    let store = store.core()?;
    let found = detached(py, || store.group_table()?.saved_offsets(&mut Vec::new()))?;
    let found = found.into_iter().filter(|offsets| offsets.group == group);
    let rows = found.flat_map(|GroupOffsets { topic, queues, .. }| {
        queues.into_iter().map(move |queue| ((topic.clone(), queue.queue_id), queue.offset))
    });
    Ok(rows.collect())
}

fn parsed(topics: &Texts, groups: &Texts) -> Result<StoreSettings, StoreError> {
    let bad = |name: &str, error: &FormatError| StoreError::InvalidMessage {
        reason: format!("settings of {name}: {error}"),
    };
    let topic = |(name, text): (&String, &String)| {
        let config = TopicConfig::parse(name, text.as_bytes()).map_err(|error| bad(name, &error))?;
        Ok(TopicConfig { name: name.clone(), ..config })
    };
    let group = |(name, text): (&String, &String)| {
        let config = SubscriptionGroup::parse(name, text.as_bytes()).map_err(|error| bad(name, &error))?;
        Ok(SubscriptionGroup { name: name.clone(), ..config })
    };
    let settings = StoreSettings {
        topics: topics.iter().map(topic).collect::<Result<_, StoreError>>()?,
        groups: groups.iter().map(group).collect::<Result<_, StoreError>>()?,
    };
    settings.check().map(|()| settings)
}

/// Returns whether a store or a broker writes the topic for itself.
#[pyfunction(name = "is_system_topic")]
fn is_own_topic(topic: &str) -> bool {
    is_system_topic(topic)
}

/// Checks settings from a file.
#[pyfunction]
fn check_settings(topics: Texts, groups: Texts) -> PyResult<()> {
    parsed(&topics, &groups).map(drop).map_err(to_py)
}

/// Creates the topics that the store does not have. Returns their names. Quotas and permissions are set later, by
/// `adopt_settings`.
#[pyfunction]
fn make_topics(store: &Bound<'_, NativeStore>, topics: Texts) -> PyResult<Vec<String>> {
    let verbs = store.get().verbs()?;
    parsed(&topics, &Texts::new()).map_err(to_py)?;
    delivered(store.py(), || verbs.make_topics(topics.into_iter().collect()))
}

/// Gives the topics all their settings, and creates the groups that the store does not have.
#[pyfunction]
fn adopt_settings(store: &Bound<'_, NativeStore>, topics: Texts, groups: Texts) -> PyResult<()> {
    let verbs = store.get().verbs()?;
    parsed(&topics, &groups).map_err(to_py)?;
    delivered(store.py(), || verbs.adopt_settings(topics.into_iter().collect(), groups.into_iter().collect()))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(export_settings, module)?)?;
    module.add_function(wrap_pyfunction!(config_json, module)?)?;
    module.add_function(wrap_pyfunction!(saved_offsets, module)?)?;
    module.add_function(wrap_pyfunction!(is_own_topic, module)?)?;
    module.add_function(wrap_pyfunction!(check_settings, module)?)?;
    module.add_function(wrap_pyfunction!(make_topics, module)?)?;
    module.add_function(wrap_pyfunction!(adopt_settings, module)?)?;
    Ok(())
}
