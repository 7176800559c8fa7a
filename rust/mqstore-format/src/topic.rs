//! Topic names: rules for new names and for stored names.
//!
//! Source: `TopicValidator#validateTopic`, `HookUtils#checkBeforePutMessage`.

use crate::error::FormatError;

/// Prefix of the topics with a group's messages for retry.
pub const RETRY_TOPIC_PREFIX: &str = "%RETRY%";
/// Prefix of the topics with a group's dead letters.
pub const DLQ_TOPIC_PREFIX: &str = "%DLQ%";
/// Prefix of RocketMQ's own topics.
pub const SYSTEM_TOPIC_PREFIX: &str = "rmq_sys_";
/// The topic of delayed records.
pub const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";
/// Topic of half messages, in queue 0.
pub const HALF_TOPIC: &str = "RMQ_SYS_TRANS_HALF_TOPIC";
/// Topic of op messages, which decide half messages, in queue 0.
pub const OP_TOPIC: &str = "RMQ_SYS_TRANS_OP_HALF_TOPIC";
/// Topic of half messages without a decision after the last check.
pub const CHECK_MAX_TIME_TOPIC: &str = "TRANS_CHECK_MAX_TIME_TOPIC";
/// Prefix of the names of light queues, whose units point to records of other topics.
pub const LIGHT_QUEUE_PREFIX: &str = "%LMQ%";
/// Maximum length of a topic name, in bytes.
pub const MAX_TOPIC_BYTES: usize = 127;
/// Maximum length of a name with one of the two prefixes, in bytes.
pub const MAX_PREFIXED_TOPIC_BYTES: usize = 255;

/// Checks the name of a topic for writing: `%`, `|`, letters, digits, `_` and `-`; at most 127 bytes, or 255 with the
/// prefix `%RETRY%` or `%DLQ%`.
pub fn validate_topic(name: &str) -> Result<(), FormatError> {
    let prefixed = name.starts_with(RETRY_TOPIC_PREFIX) || name.starts_with(DLQ_TOPIC_PREFIX);
    let limit = if prefixed { MAX_PREFIXED_TOPIC_BYTES } else { MAX_TOPIC_BYTES };
    if name.is_empty() {
        Err(FormatError::invalid_topic(name, "the name is empty"))
    } else if !name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'%' | b'|' | b'_' | b'-')) {
        Err(FormatError::invalid_topic(name, "only %, |, letters, digits, _ and - are allowed"))
    } else if name.len() > limit {
        Err(FormatError::invalid_topic(
            name,
            "the name is too long (127 bytes; 255 for retry and dead-letter topics)",
        ))
    } else {
        Ok(())
    }
}

/// Maximum length of a consumer group's name, in bytes.
pub const MAX_GROUP_BYTES: usize = 120;

/// Whether the store or a broker keeps its own state in the topic: delayed messages, transactions, settings. Source:
/// `TopicValidator#isSystemTopic`; topics of clients for tests are not in this list.
pub fn is_system_topic(name: &str) -> bool {
    let own = [SYSTEM_TOPIC_PREFIX, "RMQ_SYS_"];
    own.iter().any(|prefix| name.starts_with(prefix))
        || [SCHEDULE_TOPIC, CHECK_MAX_TIME_TOPIC, "TBW102", "OFFSET_MOVED_EVENT"].contains(&name)
}

/// Checks the name of a new consumer group: `%`, `|`, letters, digits, `_` and `-`; at most 120 bytes. Source:
/// `Validators#checkGroup`, and the limit of brokers.
pub fn validate_group(name: &str) -> Result<(), FormatError> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'%' | b'|' | b'_' | b'-');
    if !name.is_empty() && name.len() <= MAX_GROUP_BYTES && name.bytes().all(allowed) {
        return Ok(());
    }
    let what = "the name of a consumer group: 1 to 120 of %, |, letters, digits, _ and -";
    Err(FormatError::bad_name(what, name))
}

/// Checks a name found in a record or a folder. Every valid folder name is allowed.
pub fn validate_stored_topic(name: &str) -> Result<(), FormatError> {
    let reason = match name {
        "" => "the name is empty",
        "." | ".." => "the name is a path",
        _ if name.len() > MAX_PREFIXED_TOPIC_BYTES => "the name is longer than 255 bytes",
        _ if name.bytes().any(|b| b == b'/' || b == 0) => "the name contains / or NUL",
        _ => return Ok(()),
    };
    Err(FormatError::invalid_topic(name, reason))
}

/// Returns the namespace in the name of a topic or a group: the part before its first `%`, after the prefix of a retry
/// or dead-letter topic. Source: `NamespaceUtil#getNamespaceFromResource`.
pub fn namespace_of(name: &str) -> Option<&str> {
    let without = |prefix| name.strip_prefix(prefix);
    let name = without(RETRY_TOPIC_PREFIX).or_else(|| without(DLQ_TOPIC_PREFIX)).unwrap_or(name);
    let (namespace, rest) = name.split_once('%')?;
    (!namespace.is_empty() && !rest.is_empty()).then_some(namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_stand_in_front() {
        for name in ["ns%t", "%RETRY%ns%g", "%DLQ%ns%g", "ns%a%b"] {
            assert_eq!(namespace_of(name), Some("ns"), "{name}");
        }
        for name in ["t", "%LMQ%x", "%RETRY%g", "%DLQ%g", "a%", "%a", "%", ""] {
            assert_eq!(namespace_of(name), None, "{name}");
        }
    }

    #[test]
    fn topics_with_state_of_the_store_are_system_topics() {
        for system in
            [HALF_TOPIC, OP_TOPIC, CHECK_MAX_TIME_TOPIC, SCHEDULE_TOPIC, "rmq_sys_wheel_timer", "TBW102"]
        {
            assert!(is_system_topic(system), "{system}");
        }
        for other in ["orders", "%RETRY%g", "%DLQ%g", "rmq_system", "%LMQ%x", ""] {
            assert!(!is_system_topic(other), "{other}");
        }
    }

    #[test]
    fn names_of_groups() {
        for good in ["g", "CID_RMQ_SYS_TRANS", "a|b-1", &"x".repeat(120)] {
            assert_eq!(validate_group(good), Ok(()), "{good}");
        }
        for bad in ["", "a b", "t@g", "g.1", &"x".repeat(121)] {
            assert!(validate_group(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_to_write() {
        for good in ["a", "TopicTest", "%RETRY%g", "a|b_c-9", "rmq_sys_wheel_timer"] {
            assert_eq!(validate_topic(good), Ok(()), "{good}");
        }
        for bad in ["", "a b", "a/b", "a.b", "中文", "a\u{1}", "a\n"] {
            assert!(matches!(validate_topic(bad), Err(FormatError::InvalidTopic { .. })), "{bad:?}");
        }
        assert!(validate_topic(&"a".repeat(127)).is_ok());
        assert!(validate_topic(&"a".repeat(128)).is_err());
        for prefix in [RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX] {
            assert!(validate_topic(&format!("{prefix}{}", "g".repeat(255 - prefix.len()))).is_ok());
            assert!(validate_topic(&format!("{prefix}{}", "g".repeat(256 - prefix.len()))).is_err());
        }
    }

    #[test]
    fn names_found_on_disk() {
        for good in ["a b", "%LMQ%x", "a%7", "...", "中文", &"x".repeat(240)] {
            assert_eq!(validate_stored_topic(good), Ok(()), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "/", "a\0", &"x".repeat(256)] {
            assert!(validate_stored_topic(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_error_quotes_no_megabytes() {
        let FormatError::InvalidTopic { topic, .. } = validate_topic(&"x".repeat(1 << 20)).unwrap_err()
        else {
            panic!("another error")
        };
        assert!(topic.len() < 200);
    }
}
