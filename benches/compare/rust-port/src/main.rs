//! The store of the Rust port of RocketMQ, as one driver of `benches/compare`.
//!
//! Reads one JSON specification on each line of standard input and prints one JSON line with its result. It
//! appends messages to the commit log one after the other, as the port's own benchmark does. A broker would
//! build queues and index; this driver does not.

use std::io::{self, BufRead, Write};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cheetah_string::CheetahString;
use dashmap::DashMap;
use rocketmq_model::common::config::TopicConfig;
use rocketmq_model::common::message::MessageTrait;
use rocketmq_model::common::message::message_ext::MessageExt;
use rocketmq_model::common::message::message_ext_broker_inner::MessageExtBrokerInner;
use rocketmq_model::common::message::message_single::Message;
use rocketmq_runtime::{ChildServiceContext, RuntimeConfig, RuntimeOwner};
use rocketmq_store::{
    BrokerReadStore, BrokerReplicationStore, BrokerStorePort, FlushDiskType, LocalFileMessageStore,
    MessageStoreConfig, PutMessageStatus, StoreRuntimeConfig,
};
use rocketmq_store_local::commit_log::append::micro_batch::MicroBatchPolicy;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const TOPIC: &str = "bench";

fn main() -> Result<(), Failure> {
    let runtime = Runtime::new()?;
    let owner = RuntimeOwner::plan(RuntimeConfig::server_default("compare"))?.build()?;
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let spec: Value = serde_json::from_str(&line?)?;
        let context = owner.root_context().component("compare");
        let result = run(&runtime, context, &spec).unwrap_or_else(|failure| json!({ "error": failure.to_string() }));
        writeln!(out, "{result}")?;
        out.flush()?;
    }
    std::process::exit(0)
}

fn run(runtime: &Runtime, context: ChildServiceContext, spec: &Value) -> Result<Value, Failure> {
    let number = |name: &str| spec[name].as_u64().ok_or_else(|| format!("no {name}"));
    if spec["op"] != "append" || number("threads")? != 1 || number("batch")? != 1 {
        return Err(format!("this side does not do {spec}").into());
    }
    let mut store = open(context, spec)?;
    let (messages, warm_up) = (number("messages")?, number("warm_up")?);
    let body = vec![b'x'; number("body_bytes")? as usize];
    let rest = Duration::from_millis(number("settle_ms")?);
    runtime.block_on(async {
        store.init().await?;
        if !store.load().await {
            return Err("the store does not load".into());
        }
        store.start().await?;
        put(&store, &body, 0, warm_up).await?;
        tokio::time::sleep(rest).await;
        let begin = Instant::now();
        put(&store, &body, warm_up, messages).await?;
        let seconds = begin.elapsed().as_secs_f64();
        let held = store.get_max_phy_offset() as u64;
        store.shutdown().await;
        // A broker would build its queues. Here every message was acknowledged, and the log is long enough.
        let stored = if held >= (messages + warm_up) * body.len() as u64 { messages } else { 0 };
        Ok(json!({ "seconds": seconds, "messages": messages, "stored": stored, "refused": 0 }))
    })
}

fn open(context: ChildServiceContext, spec: &Value) -> Result<LocalFileMessageStore, Failure> {
    let path = spec["path"].as_str().ok_or("no path")?;
    let config = MessageStoreConfig {
        store_path_root_dir: CheetahString::from(path),
        flush_disk_type: match spec["durability"].as_str() {
            Some("sync") => FlushDiskType::SyncFlush,
            _ => FlushDiskType::AsyncFlush,
        },
        ha_listen_port: 0,
        ..MessageStoreConfig::default()
    };
    let mut store = LocalFileMessageStore::new(
        Arc::new(config),
        MicroBatchPolicy::disabled(1).ok_or("no such policy")?,
        Arc::new(StoreRuntimeConfig::default()),
        Arc::new(DashMap::<CheetahString, Arc<TopicConfig>>::new()),
        None,
        false,
        context,
    )?
    .ok_or("this build of the port has no store of files")?;
    store.wire_owned_root_dependencies()?;
    Ok(store)
}

async fn put(store: &LocalFileMessageStore, body: &[u8], from: u64, count: u64) -> Result<(), Failure> {
    for number in from..from + count {
        let status = store.get_commit_log().put_message(message(body, number)).await.put_message_status();
        if status != PutMessageStatus::PutOk {
            return Err(format!("a message was refused: {status:?}").into());
        }
    }
    Ok(())
}

/// A key, a tag, a property and a unique id, as on the other sides.
fn message(body: &[u8], number: u64) -> MessageExtBrokerInner {
    let mut message = Message::builder().topic(CheetahString::from_static_str(TOPIC)).body(body.to_vec()).build_unchecked();
    message.set_tags(CheetahString::from_static_str("paid"));
    message.set_keys(CheetahString::from_static_str("order-4711"));
    let mut inner = MessageExtBrokerInner {
        message_ext_inner: MessageExt { message, ..Default::default() },
        ..Default::default()
    };
    inner.put_property(CheetahString::from_static_str("region"), CheetahString::from_static_str("eu"));
    let id = CheetahString::from(format!("7F00000100002A9F0000{number:012X}"));
    inner.put_property(CheetahString::from_static_str("UNIQ_KEY"), id);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64);
    inner.message_ext_inner.set_born_timestamp(now);
    inner
}
