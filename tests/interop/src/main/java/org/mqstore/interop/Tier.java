package org.mqstore.interop;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.nio.file.Path;
import java.util.Properties;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.logging.org.slf4j.LoggerFactory;
import org.apache.rocketmq.remoting.Configuration;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.plugin.MessageStorePluginContext;
import org.apache.rocketmq.tieredstore.MessageStoreConfig;
import org.apache.rocketmq.tieredstore.TieredMessageStore;
import org.apache.rocketmq.tieredstore.core.MessageStoreDispatcherImpl;
import org.apache.rocketmq.tieredstore.file.FlatMessageFile;
import org.apache.rocketmq.tieredstore.provider.PosixFileSegment;

/** RocketMQ's tiered store around a store, with the POSIX provider. */
final class Tier {
    private final TieredMessageStore store;
    private final MessageStoreDispatcherImpl dispatcher;

    /**
     * Prepares the tiered store.
     *
     * @param local the store whose messages are copied
     * @param broker its broker
     * @param wanted {@code config}: names as in the MessageStoreConfig of the tiered store
     */
    Tier(DefaultMessageStore local, BrokerConfig broker, JsonObject wanted) {
        Properties properties = new Properties();
        properties.put("tieredBackendServiceProvider", PosixFileSegment.class.getName());
        properties.put("storePathRootDir", local.getMessageStoreConfig().getStorePathRootDir());
        properties.put("brokerName", broker.getBrokerName());
        // Each commit has all messages. The default waits for 30 seconds.
        properties.put("tieredStoreGroupCommitTimeout", "0");
        properties.put("tieredStoreIndexFileMaxHashSlotNum", "1000");
        properties.put("tieredStoreIndexFileMaxIndexNum", "4000");
        wanted.getAsJsonObject("config").entrySet()
            .forEach(entry -> properties.put(entry.getKey(), entry.getValue().getAsString()));
        String conf = Path.of(local.getMessageStoreConfig().getStorePathRootDir(), "conf").toString();
        Configuration configuration =
            new Configuration(LoggerFactory.getLogger("interop"), conf, new MessageStoreConfig(), broker);
        configuration.registerConfig(properties);
        store = new TieredMessageStore(
            new MessageStorePluginContext(local.getMessageStoreConfig(), null, null, broker, configuration), local);
        dispatcher = new MessageStoreDispatcherImpl(store);
    }

    /** The store with both levels. */
    TieredMessageStore store() {
        return store;
    }

    /**
     * Sets the first offset of queues.
     *
     * @param wanted {@code starts}: rows of {@code topic}, {@code queue_id} and {@code offset}
     */
    void begin(JsonObject wanted) {
        if (!wanted.has("starts")) {
            return;
        }
        for (JsonElement element : wanted.getAsJsonArray("starts")) {
            JsonObject start = element.getAsJsonObject();
            MessageQueue queue = new MessageQueue(start.get("topic").getAsString(), store.getBrokerName(),
                start.get("queue_id").getAsInt());
            store.getFlatFileStore().computeIfAbsent(queue).initOffset(start.get("offset").getAsLong());
        }
    }

    /** Copies every message of the local store, and waits for the commits. */
    JsonObject upload() throws Exception {
        long deadline = System.nanoTime() + 60_000_000_000L;
        long messages = 0;
        for (FlatMessageFile file : store.getFlatFileStore().deepCopyFlatFileToList()) {
            MessageQueue queue = file.getMessageQueue();
            long end = store.getDefaultStore().getMaxOffsetInQueue(queue.getTopic(), queue.getQueueId());
            while (!file.isFlatFileInit() || file.getConsumeQueueCommitOffset() < end) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException(queue + " is committed up to " + file.getConsumeQueueCommitOffset()
                        + ", its end is " + end);
                }
                dispatcher.doScheduleDispatch(file, true).join();
                Thread.sleep(2);
            }
            messages += end - file.getConsumeQueueMinOffset();
        }
        JsonObject result = new JsonObject();
        result.addProperty("messages", messages);
        return result;
    }
}
