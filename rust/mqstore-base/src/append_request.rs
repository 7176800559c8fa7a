//! Appends that another thread makes, with messages that own their parts.

use mqstore_format::SysFlag;

use crate::body_compression::{BodyCompression, CompressedBodies, CompressedBody};
use crate::error::StoreError;
use crate::message::{Appended, NewMessage};

/// A message that owns its parts; for the fields see [`NewMessage`].
pub struct OwnedMessage {
    /// The body in its stored form, in any container.
    pub body: Box<dyn AsRef<[u8]> + Send + Sync>,
    /// How the body is compressed.
    pub sys_flag: SysFlag,
    /// The properties in RocketMQ's text form.
    pub properties: Vec<u8>,
    /// The unique key, if the caller gives one.
    pub unique_key: Option<String>,
    /// The flag of the application.
    pub flag: i32,
    /// When the message was made, in epoch milliseconds.
    pub born_timestamp_ms: Option<i64>,
}

/// The messages of one call.
pub struct AppendRequest {
    /// The topic of all messages.
    pub topic: String,
    /// Their queue; with `None`, the store uses the queues of the topic in turn.
    pub queue_id: Option<i32>,
    /// Whether the result must wait for a sync that covers the messages, whatever the durability mode of the store.
    pub durable: bool,
    /// Whether the result must wait for the copies of the messages, whatever the option of the store.
    pub replicated: bool,
    /// Whether the messages are appended by `Store::append_many`; else there is one message.
    pub many: bool,
    /// How the bodies are compressed before the append, in the thread that appends; `None` if they have their stored
    /// form.
    pub compression: Option<BodyCompression>,
    /// The messages.
    pub messages: Vec<OwnedMessage>,
}

/// Receives the result of appends, in the thread that waits for them: it must be short and must not panic.
pub type AppendDone = Box<dyn FnOnce(Result<Vec<Appended>, StoreError>) + Send>;

impl OwnedMessage {
    /// Returns the body in its stored form.
    pub fn body_bytes(&self) -> &[u8] {
        (*self.body).as_ref()
    }

    /// Replaces the bodies of `messages` that are compressed.
    pub fn set_bodies(messages: &mut [Self], compressed: CompressedBodies) {
        for (index, CompressedBody { bytes, sys_flag }) in compressed.into_bodies() {
            if let Some(message) = messages.get_mut(index) {
                (message.body, message.sys_flag) = (Box::new(bytes), sys_flag);
            }
        }
    }
}

impl AppendRequest {
    /// Returns the messages in the form that the store appends.
    pub fn messages(&self) -> Vec<NewMessage<'_>> {
        let whole = self.messages.iter().map(|message| NewMessage {
            topic: &self.topic,
            body: message.body_bytes(),
            properties: &message.properties,
            unique_key: message.unique_key.as_deref(),
            queue_id: self.queue_id,
            flag: message.flag,
            born_timestamp_ms: message.born_timestamp_ms,
            durable: self.durable,
            sys_flag: message.sys_flag,
        });
        whole.collect()
    }

    /// Compresses the bodies that [`Self::compression`] covers.
    pub fn compress_bodies(&mut self) {
        let Some(rule) = self.compression.take() else { return };
        let compressed = rule.compress_all(self.messages.iter().map(OwnedMessage::body_bytes));
        OwnedMessage::set_bodies(&mut self.messages, compressed);
    }

    /// Returns the bytes of bodies and properties.
    pub fn bytes(&self) -> u64 {
        let bytes = |message: &OwnedMessage| (message.body_bytes().len() + message.properties.len()) as u64;
        self.messages.iter().map(bytes).fold(0, u64::saturating_add)
    }
}
