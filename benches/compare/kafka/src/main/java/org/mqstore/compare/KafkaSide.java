package org.mqstore.compare;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.SimpleRecord;
import org.apache.kafka.common.utils.AppInfoParser;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.CleanerConfig;
import org.apache.kafka.storage.internals.log.LogCleaner;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Measures Kafka's log and its cleaner. Like the other drivers, it reads one JSON specification on each line of
 * standard input and prints one JSON line with its result. There is no broker and no network: this program makes the
 * calls of a broker.
 *
 * <p>A message is a record with a key, a body and a header for tag and region. A call appends one batch with the number
 * of records of the specification. Nothing is compressed.
 */
public final class KafkaSide {
    private static final String TOPIC = "bench";
    /** The same as in RocketMQ's and mqstore's compaction logs. */
    private static final int TABLE_SEGMENT_BYTES = 100 << 20;
    private static final long PATIENCE_MS = 600_000;
    /** Records in a batch when the fill is not timed. */
    private static final int FILL_BATCH = 100;

    private final File folder;
    private final KafkaScheduler scheduler = new KafkaScheduler(1);
    private final LogDirFailureChannel failures = new LogDirFailureChannel(1);
    private final ConcurrentMap<TopicPartition, UnifiedLog> logs = new ConcurrentHashMap<>();
    private final byte[] body;
    private final Header[] headers;

    private KafkaSide(JsonObject spec, Map<String, Object> config) throws IOException {
        folder = new File(spec.get("path").getAsString());
        body = new byte[spec.get("body_bytes").getAsInt()];
        Arrays.fill(body, (byte) 'x');
        headers = new Header[] {header("TAGS", "paid"), header("region", "eu")};
        scheduler.startup();
        for (int number = 0; number < spec.get("queues").getAsInt(); number++) {
            TopicPartition partition = new TopicPartition(TOPIC, number);
            File place = new File(folder, partition.toString());
            if (!place.mkdirs()) {
                throw new IOException("cannot make " + place);
            }
            // Producers without ids leave no state that could expire.
            logs.put(partition, UnifiedLog.create(place, new LogConfig(config), 0, 0, scheduler, new BrokerTopicStats(),
                Time.SYSTEM, 900_000, new ProducerStateManagerConfig(86_400_000, false), 600_000, failures, true,
                Optional.empty()));
        }
    }

    private static Header header(String name, String value) {
        return new RecordHeader(name, value.getBytes(StandardCharsets.UTF_8));
    }

    /** Starts the driver; no arguments. */
    public static void main(String[] args) throws IOException {
        PrintStream out = System.out;
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonObject result;
            try {
                result = run(JsonParser.parseString(line).getAsJsonObject());
            } catch (Exception | LinkageError e) {
                e.printStackTrace();
                result = new JsonObject();
                result.addProperty("error", String.valueOf(e));
            }
            out.println(result);
            out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static JsonObject run(JsonObject spec) throws Exception {
        switch (spec.get("op").getAsString()) {
            case "version":
                JsonObject version = new JsonObject();
                version.addProperty("version", AppInfoParser.getVersion());
                return version;
            case "append":
                // A batch can have a thousand messages of 1 KiB, more than a broker accepts by default.
                KafkaSide appends = new KafkaSide(spec, Map.of("max.message.bytes", 16 << 20));
                try {
                    return appends.append(spec);
                } finally {
                    appends.close();
                }
            case "compact":
                KafkaSide table = new KafkaSide(spec, Map.of(
                    "cleanup.policy", "compact",
                    "segment.bytes", TABLE_SEGMENT_BYTES,
                    "min.cleanable.dirty.ratio", 0.01));
                try {
                    return table.compact(spec);
                } finally {
                    table.close();
                }
            default:
                throw new IllegalArgumentException("unknown operation " + spec.get("op"));
        }
    }

    /** Batches into the first partition. With the durability {@code sync}, each batch is synced before the next one. */
    private JsonObject append(JsonObject spec) throws IOException {
        UnifiedLog log = logs.get(new TopicPartition(TOPIC, 0));
        int batch = spec.get("batch").getAsInt();
        boolean synced = spec.get("durability").getAsString().equals("sync");
        byte[] key = "order-4711".getBytes(StandardCharsets.UTF_8);
        long warmUp = spec.get("warm_up").getAsLong() / batch;
        long calls = spec.get("messages").getAsLong() / batch;
        put(log, key, batch, warmUp, synced);
        long begin = System.nanoTime();
        put(log, key, batch, calls, synced);
        double seconds = (System.nanoTime() - begin) / 1e9;
        return result(seconds, calls * batch, log.logEndOffset() - warmUp * batch);
    }

    private void put(UnifiedLog log, byte[] key, int batch, long calls, boolean synced) throws IOException {
        SimpleRecord[] records = new SimpleRecord[batch];
        for (long call = 0; call < calls; call++) {
            long now = System.currentTimeMillis();
            for (int at = 0; at < batch; at++) {
                records[at] = new SimpleRecord(now, key, body, headers);
            }
            log.appendAsLeader(MemoryRecords.withRecords(Compression.NONE, records), 0);
            if (synced) {
                log.flush(false);
            }
        }
    }

    /**
     * Fills the topic, begins a segment that stays uncleaned, and waits until the cleaner has processed all earlier
     * ones.
     */
    private JsonObject compact(JsonObject spec) throws Exception {
        long messages = spec.get("messages").getAsLong();
        long keys = fill(spec, messages);
        for (UnifiedLog log : logs.values()) {
            log.roll();
            log.flush(true);
            log.updateHighWatermark(log.logEndOffset());
        }
        CleanerConfig usual = new CleanerConfig(true);
        CleanerConfig config = new CleanerConfig(spec.get("threads").getAsInt(), usual.dedupeBufferSize,
            usual.dedupeBufferLoadFactor, usual.ioBufferSize, usual.maxMessageSize, usual.maxIoBytesPerSecond,
            usual.backoffMs, true);
        LogCleaner cleaner = new LogCleaner(config, List.of(folder), logs, failures, Time.SYSTEM);
        long begin = System.nanoTime();
        cleaner.startup();
        boolean over = true;
        for (Map.Entry<TopicPartition, UnifiedLog> each : logs.entrySet()) {
            over &= cleaner.awaitCleaned(each.getKey(), each.getValue().activeSegment().baseOffset(), PATIENCE_MS);
        }
        double seconds = (System.nanoTime() - begin) / 1e9;
        cleaner.shutdown();
        long left = records();
        if (!over || left != keys) {
            throw new IllegalStateException("of " + keys + " keys " + left + " records are left");
        }
        return result(seconds, messages, messages);
    }

    /** Appends the same messages as the other drivers, and returns the number of keys used. */
    private long fill(JsonObject spec, long messages) throws IOException {
        long keys = spec.get("keys").getAsLong();
        int queues = spec.get("queues").getAsInt();
        boolean[] seen = new boolean[(int) keys];
        List<List<SimpleRecord>> waiting = new ArrayList<>();
        for (int queue = 0; queue < queues; queue++) {
            waiting.add(new ArrayList<>());
        }
        long place = 4711;
        for (long at = 0; at < messages; at++) {
            place = place * 6_364_136_223_846_793_005L + 1_442_695_040_888_963_407L;
            int key = (int) (keys >= messages ? at : (place >>> 33) % keys);
            seen[key] = true;
            byte[] name = String.format("order-%08d", key).getBytes(StandardCharsets.UTF_8);
            List<SimpleRecord> some = waiting.get(key % queues);
            some.add(new SimpleRecord(System.currentTimeMillis(), name, body, headers));
            if (some.size() == FILL_BATCH) {
                putAll(key % queues, some);
            }
        }
        for (int queue = 0; queue < queues; queue++) {
            putAll(queue, waiting.get(queue));
        }
        long found = 0;
        for (boolean one : seen) {
            found += one ? 1 : 0;
        }
        return found;
    }

    private void putAll(int queue, List<SimpleRecord> records) throws IOException {
        if (!records.isEmpty()) {
            SimpleRecord[] all = records.toArray(new SimpleRecord[0]);
            logs.get(new TopicPartition(TOPIC, queue)).appendAsLeader(MemoryRecords.withRecords(Compression.NONE, all), 0);
            records.clear();
        }
    }

    private long records() {
        long found = 0;
        for (UnifiedLog log : logs.values()) {
            for (LogSegment segment : log.logSegments()) {
                for (Record record : segment.log().records()) {
                    found += record.hasKey() ? 1 : 0;
                }
            }
        }
        return found;
    }

    private void close() throws Exception {
        for (UnifiedLog log : logs.values()) {
            log.close();
        }
        scheduler.shutdown();
    }

    private static JsonObject result(double seconds, long messages, long stored) {
        JsonObject result = new JsonObject();
        result.addProperty("seconds", seconds);
        result.addProperty("messages", messages);
        result.addProperty("stored", stored);
        result.addProperty("refused", 0);
        return result;
    }
}
