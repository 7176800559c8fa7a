package org.mqstore.interop;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import io.openmessaging.storage.dledger.store.DLedgerStore;
import java.io.File;
import java.io.IOException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.function.BooleanSupplier;
import java.util.function.LongSupplier;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.remoting.protocol.DataVersion;
import org.apache.rocketmq.remoting.protocol.body.TopicConfigSerializeWrapper;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.RocksDBMessageStore;
import org.apache.rocketmq.store.config.BrokerRole;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.dledger.DLedgerCommitLog;
import org.apache.rocketmq.store.exception.ConsumeQueueException;
import org.apache.rocketmq.store.ha.autoswitch.AutoSwitchHAService;
import org.apache.rocketmq.store.queue.ConsumeQueueStore;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** One RocketMQ store on a directory, opened as a broker opens it, but without a broker. */
final class OpenStore {
    /** The differences of every test store from a production broker, unless the test sets other values. */
    private static final Map<String, String> TEST_DEFAULTS = Map.ofEntries(
        Map.entry("haListenPort", "0"),
        // The cleaner must delete nothing during a test.
        Map.entry("fileReservedTime", "100000"),
        Map.entry("diskMaxUsedSpaceRatio", "95"),
        Map.entry("cleanFileForciblyEnable", "false"),
        // Pauses of a busy machine must not make the store refuse a put.
        Map.entry("osPageCacheBusyTimeOutMills", "60000"),
        // Whole queues in few calls.
        Map.entry("maxTransferBytesOnMessageInMemory", "67108864"),
        Map.entry("maxTransferCountOnMessageInMemory", "4096"),
        Map.entry("maxTransferBytesOnMessageInDisk", "67108864"),
        Map.entry("maxTransferCountOnMessageInDisk", "4096"),
        Map.entry("maxMsgsNumBatch", "100000"),
        Map.entry("maxHashSlotNum", "5000"),
        Map.entry("maxIndexNum", "20000"));

    /** Broker id of a slave in controller mode. */
    private static final long SLAVE_ID = 2;

    private final DefaultMessageStore store;
    private final Tier tier;
    private final JsonObject tiered;
    private final int epoch;
    private final ConcurrentMap<String, TopicConfig> topics = new ConcurrentHashMap<>();

    /**
     * Prepares a store. {@link #load} then reads the directory.
     *
     * @param args {@code path}, {@code config} (names as in MessageStoreConfig), {@code topics} (name to
     *     {@code queues} and {@code attributes}), {@code write_topics} (also write config/topics.json as a broker does),
     *     {@code tiered} (a tiered store around it, see {@link Tier}), {@code epoch} (of a broker in controller mode)
     */
    private OpenStore(JsonObject args) throws IOException {
        String path = args.get("path").getAsString();
        MessageStoreConfig config = config(path, args.getAsJsonObject("config"));
        if (args.has("topics")) {
            args.getAsJsonObject("topics").entrySet().forEach(entry -> topics.put(entry.getKey(), topic(entry)));
        }
        if (args.has("write_topics") && args.get("write_topics").getAsBoolean()) {
            writeTopics(path);
        }
        BrokerConfig broker = new BrokerConfig();
        broker.setBrokerName("interop");
        broker.setBrokerIP1("127.0.0.1");
        boolean slave = config.getBrokerRole() == BrokerRole.SLAVE;
        broker.setBrokerId(slave ? MixAll.FIRST_SLAVE_ID : MixAll.MASTER_ID);
        epoch = args.has("epoch") ? args.get("epoch").getAsInt() : 0;
        if (epoch > 0) {
            broker.setEnableControllerMode(true);
            broker.setBrokerId(slave ? SLAVE_ID : MixAll.FIRST_BROKER_CONTROLLER_ID);
        }
        BrokerStatsManager stats = new BrokerStatsManager(broker);
        store = config.isEnableRocksDBStore()
            ? new RocksDBMessageStore(config, stats, null, broker, topics)
            : new DefaultMessageStore(config, stats, null, broker, topics);
        tiered = args.has("tiered") ? args.getAsJsonObject("tiered") : null;
        tier = tiered == null ? null : new Tier(store, broker, tiered);
    }

    /** The store with everything around it, which is loaded, started and shut down. */
    MessageStore outer() {
        return tier == null ? store : tier.store();
    }

    /** Its tiered store. */
    Tier tier() {
        return tier;
    }

    /** The store itself. */
    DefaultMessageStore store() {
        return store;
    }

    /**
     * Makes and loads a store in its own thread group, which every thread of the store inherits. So the lines in the
     * result are those of this store, and not of other open stores in this process.
     *
     * @param args as for the constructor, and {@code start} (true unless given)
     * @param result receives the result of {@link #load}
     */
    static OpenStore open(JsonObject args, JsonObject result) throws Exception {
        boolean start = !args.has("start") || args.get("start").getAsBoolean();
        FutureTask<OpenStore> opening = new FutureTask<>(() -> {
            OpenStore opened = new OpenStore(args);
            opened.load(start).entrySet().forEach(entry -> result.add(entry.getKey(), entry.getValue()));
            return opened;
        });
        ThreadGroup group = new ThreadGroup(args.get("store").getAsString());
        new Thread(group, opening, "open-" + group.getName()).start();
        try {
            return opening.get();
        } catch (ExecutionException e) {
            if (e.getCause() instanceof Exception cause) {
                throw cause;
            }
            throw e;
        }
    }

    /** Loads and recovers the store, and starts it if asked to. */
    private JsonObject load(boolean start) throws Exception {
        JsonObject result = new JsonObject();
        String root = store.getMessageStoreConfig().getStorePathRootDir();
        result.addProperty("was_clean", !new File(root, "abort").exists());
        LogCapture.drain();
        long begin = System.nanoTime();
        boolean loaded = outer().load();
        result.addProperty("loaded", loaded);
        if (loaded && tier != null) {
            tier.begin(tiered);
        }
        if (loaded && start) {
            outer().start();
            if (epoch > 0) {
                AutoSwitchHAService service = (AutoSwitchHAService) store.getHaService();
                if (isSlave()) {
                    service.changeToSlave("", epoch, SLAVE_ID);
                } else {
                    service.changeToMaster(epoch);
                    service.setSyncStateSet(Set.of(MixAll.FIRST_BROKER_CONTROLLER_ID));
                }
            }
            awaitLeader();
            // A slave in controller mode dispatches what its master has confirmed.
            if (epoch == 0 || !isSlave()) {
                awaitDispatch();
            }
        }
        result.addProperty("seconds", (System.nanoTime() - begin) / 1e9);
        result.addProperty("min_physical", store.getMinPhyOffset());
        result.addProperty("max_physical", store.getMaxPhyOffset());
        result.addProperty("ha_port", store.getMessageStoreConfig().getHaListenPort());
        result.add("logs", LogCapture.drain(Thread.currentThread().getThreadGroup()));
        return result;
    }

    /** Waits until a member of a DLedger group that elects itself is the leader. */
    private void awaitLeader() throws InterruptedException {
        if (!(store.getCommitLog() instanceof DLedgerCommitLog log)
            || log.getdLedgerServer().getMemberState().peerSize() != 1) {
            return;
        }
        await("the only member of the group is still not its leader", this::isLeader);
    }

    /** Tells whether this store is the leader of its DLedger group. */
    boolean isLeader() {
        return store.getCommitLog() instanceof DLedgerCommitLog log
            && log.getdLedgerServer().getMemberState().isLeader();
    }

    /**
     * Waits until this leader of a DLedger group has committed and dispatched its whole log, and then lets its queues
     * continue after it. In a broker, its handler of role changes does this before the broker accepts messages.
     */
    void lead() throws InterruptedException {
        DLedgerStore log = ((DLedgerCommitLog) store.getCommitLog()).getdLedgerServer().getDLedgerStore();
        await("the log of the new leader is not committed and dispatched", () -> isLeader()
            && log.getLedgerEndIndex() == log.getCommittedIndex() && store.dispatchBehindBytes() == 0);
        store.recoverTopicQueueTable();
    }

    /** Copies the log of {@code master} as its slave, until both logs end at the same offset. */
    void follow(OpenStore master) throws InterruptedException {
        String address = "127.0.0.1:" + master.store.getMessageStoreConfig().getHaListenPort();
        follow(address, () -> master.store.getMaxPhyOffset());
    }

    /** Copies the log of the master at {@code address} as its slave, until the copy has the log up to {@code end}. */
    void follow(String address, LongSupplier end) throws InterruptedException {
        store.updateHaMasterAddress(address);
        store.wakeupHAClient();
        await("the log of the slave is shorter than that of its master",
            () -> store.getMaxPhyOffset() >= end.getAsLong());
    }

    private boolean isSlave() {
        return store.getMessageStoreConfig().getBrokerRole() == BrokerRole.SLAVE;
    }

    /**
     * Deletes the segments that are older than {@code hours}, and then old queue and index files. In an open store,
     * timers do the same after a minute.
     */
    void clean(int hours) throws ReflectiveOperationException {
        store.getMessageStoreConfig().setFileReservedTime(hours);
        // Otherwise RocketMQ deletes at one hour of the day only.
        store.executeDeleteFilesManually();
        invoke(DefaultMessageStore.class, store, "cleanFilesPeriodically");
        try {
            invoke(DefaultMessageStore.class, store, "cleanQueueFilesPeriodically");
        } catch (NoSuchMethodException e) {
            // 5.5.0
            invoke(ConsumeQueueStore.class, store.getQueueStore(), "cleanQueueFilesPeriodically");
        }
    }

    private static void invoke(Class<?> owner, Object object, String name) throws ReflectiveOperationException {
        Method method = owner.getDeclaredMethod(name);
        method.setAccessible(true);
        method.invoke(object);
    }

    private static void await(String failure, BooleanSupplier condition) throws InterruptedException {
        long deadline = System.nanoTime() + 60_000_000_000L;
        while (!condition.getAsBoolean()) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException(failure);
            }
            Thread.sleep(5);
        }
    }

    /** Waits until every stored record has reached queues and index. */
    void awaitDispatch() throws InterruptedException {
        await("records are not dispatched", () -> store.dispatchBehindBytes() <= 0);
        if (store instanceof RocksDBMessageStore) {
            // In 5.5.0, dispatch is at its end when another thread (RocksGroupCommitService) has the units in memory.
            await("units are not in RocksDB", this::hasAllUnits);
        }
    }

    /** Tells whether each queue has the unit of the last message that was put to it. */
    private boolean hasAllUnits() {
        for (TopicConfig topic : topics.values()) {
            for (int queueId = 0; queueId < topic.getWriteQueueNums(); queueId++) {
                if (!hasLastUnit(topic.getTopicName(), queueId)) {
                    return false;
                }
            }
        }
        return true;
    }

    private boolean hasLastUnit(String topic, int queueId) {
        try {
            long end = store.getMaxOffsetInQueue(topic, queueId, false);
            return end == 0 || store.getConsumeQueue(topic, queueId).get(end - 1) != null;
        } catch (ConsumeQueueException e) {
            throw new IllegalStateException(e);
        }
    }

    private static MessageStoreConfig config(String path, JsonObject wanted) {
        Properties properties = new Properties();
        properties.putAll(TEST_DEFAULTS);
        if (wanted != null) {
            wanted.entrySet().forEach(entry -> properties.put(entry.getKey(), entry.getValue().getAsString()));
        }
        properties.put("storePathRootDir", path);
        properties.putIfAbsent("storePathCommitLog", path + File.separator + "commitlog");
        MessageStoreConfig config = new MessageStoreConfig();
        MixAll.properties2Object(properties, config);
        return config;
    }

    private static TopicConfig topic(Map.Entry<String, JsonElement> entry) {
        JsonObject wanted = entry.getValue().getAsJsonObject();
        int queues = wanted.get("queues").getAsInt();
        TopicConfig topic = new TopicConfig(entry.getKey(), queues, queues);
        Map<String, String> attributes = new HashMap<>();
        if (wanted.has("attributes")) {
            wanted.getAsJsonObject("attributes").entrySet()
                .forEach(attribute -> attributes.put(attribute.getKey(), attribute.getValue().getAsString()));
        }
        topic.setAttributes(attributes);
        return topic;
    }

    private void writeTopics(String path) throws IOException {
        TopicConfigSerializeWrapper table = new TopicConfigSerializeWrapper();
        table.setTopicConfigTable(topics);
        table.setDataVersion(new DataVersion());
        Path file = Path.of(path, "config", "topics.json");
        Files.createDirectories(file.getParent());
        Files.write(file, table.toJson(true).getBytes(StandardCharsets.UTF_8));
    }
}
