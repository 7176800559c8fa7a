package org.mqstore.compare;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.File;
import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.exception.ConsumeQueueException;
import org.apache.rocketmq.store.logfile.MappedFile;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** A RocketMQ store in a folder of the benchmark, opened as a broker would. */
final class BenchStore {
    static final String TOPIC = "bench";

    /** Settings of every measured store that differ from the defaults. Only the CRC is on the path of a message. */
    private static final Map<String, String> ALWAYS = Map.of(
        // The record that mqstore writes: both checksums.
        "enabledAppendPropCRC", "true",
        "haListenPort", "0",
        // Nothing is deleted during the measurement, and a pause of the disk is no reason to refuse a put.
        "fileReservedTime", "100000",
        "diskMaxUsedSpaceRatio", "95",
        "cleanFileForciblyEnable", "false",
        "osPageCacheBusyTimeOutMills", "60000",
        "putMessageTimeout", "60000",
        "syncFlushTimeout", "60000");

    /** After this time, messages that are not in a queue count as lost. */
    private static final long PATIENCE_NANOS = 60_000_000_000L;

    private final DefaultMessageStore store;
    private final int queues;

    /** Prepares the store of {@code spec}: {@code path}, {@code queues}, {@code options}. */
    BenchStore(JsonObject spec) throws IOException {
        queues = spec.get("queues").getAsInt();
        BrokerConfig broker = new BrokerConfig();
        broker.setBrokerName("compare");
        broker.setBrokerIP1("127.0.0.1");
        ConcurrentMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        TopicConfig topic = new TopicConfig(TOPIC, queues, queues);
        if (isCompacted(spec)) {
            topic.setAttributes(Map.of("cleanup.policy", "COMPACTION"));
        }
        topics.put(TOPIC, topic);
        store = new DefaultMessageStore(config(spec), new BrokerStatsManager(broker), null, broker, topics);
    }

    private static boolean isCompacted(JsonObject spec) {
        return List.of("compact", "feed").contains(spec.get("op").getAsString());
    }

    DefaultMessageStore store() {
        return store;
    }

    /** Loads, recovers and starts the store. */
    void open() throws Exception {
        if (!store.load()) {
            throw new IllegalStateException("the store did not load");
        }
        store.start();
    }

    /** Waits until queues and index are built up to the end of the log. */
    void awaitDispatch() throws InterruptedException {
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(1);
        }
    }

    /**
     * Waits until queues and index are built and the queues hold this many messages. With pooled buffers, uncommitted
     * messages do not count as a lag, so the messages are counted as well.
     */
    void awaitMessages(long messages) throws InterruptedException, ConsumeQueueException {
        long deadline = System.nanoTime() + PATIENCE_NANOS;
        while (messages() < messages && System.nanoTime() < deadline) {
            Thread.sleep(1);
        }
        awaitDispatch();
    }

    /** Messages in all queues of the topic. */
    long messages() throws ConsumeQueueException {
        long sum = 0;
        for (int queue = 0; queue < queues; queue++) {
            sum += store.getMaxOffsetInQueue(TOPIC, queue);
        }
        return sum;
    }

    /** Closes the store and its maps. RocketMQ leaves the maps open, which keeps them in memory. */
    void close() {
        store.shutdown();
        for (MappedFile file : store.getCommitLog().getMappedFileQueue().getMappedFiles()) {
            file.shutdown(0);
        }
    }

    private static MessageStoreConfig config(JsonObject spec) {
        String path = spec.get("path").getAsString();
        Properties properties = new Properties();
        properties.putAll(ALWAYS);
        String durability = spec.get("durability").getAsString();
        properties.put("enableCompaction", String.valueOf(isCompacted(spec)));
        properties.put("flushDiskType", durability.equals("sync") ? "SYNC_FLUSH" : "ASYNC_FLUSH");
        if (durability.equals("pooled")) {
            properties.put("transientStorePoolEnable", "true");
        }
        for (Map.Entry<String, JsonElement> option : spec.getAsJsonObject("options").entrySet()) {
            properties.put(option.getKey(), option.getValue().getAsString());
        }
        properties.put("storePathRootDir", path);
        properties.put("storePathCommitLog", path + File.separator + "commitlog");
        MessageStoreConfig config = new MessageStoreConfig();
        MixAll.properties2Object(properties, config);
        return config;
    }
}
