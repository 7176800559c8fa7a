package org.mqstore.compare;

import com.google.gson.JsonObject;
import java.io.File;
import java.nio.ByteBuffer;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;

/** Finds messages in an existing store: by queue in order, at random, by key. Also builds its queues and index. */
final class Finds {
    /** Messages that a consumer requests in one call. */
    private static final int AT_ONCE = 32;

    private final BenchStore bench;
    private final String pattern;
    private final boolean decode;
    /** A value that depends on every message, so that the JVM cannot skip one. */
    private long seen;

    private Finds(BenchStore bench, JsonObject spec) {
        this.bench = bench;
        pattern = spec.get("pattern").getAsString();
        decode = spec.get("decode").getAsBoolean();
    }

    /** Reads this many messages of the store. */
    static JsonObject read(JsonObject spec) throws Exception {
        BenchStore bench = new BenchStore(spec);
        bench.open();
        try {
            bench.awaitDispatch();
            Finds finds = new Finds(bench, spec);
            long all = Math.min(bench.messages(), spec.get("span").getAsLong());
            finds.pass(all, spec.get("warm_up").getAsLong());
            long wanted = spec.get("messages").getAsLong();
            long begin = System.nanoTime();
            long found = finds.pass(all, wanted);
            double seconds = (System.nanoTime() - begin) / 1e9;
            System.err.println("read, of so many bytes and more: " + finds.seen);
            return result(seconds, wanted, found);
        } finally {
            bench.close();
        }
    }

    /** Opens the store without queues and index, and waits until they exist again. */
    static JsonObject derive(JsonObject spec) throws Exception {
        // As after a crash, after which such a loss would be noticed.
        File abort = new File(spec.get("path").getAsString(), "abort");
        if (!abort.exists() && !abort.createNewFile()) {
            throw new IllegalStateException("the file abort cannot be made");
        }
        long begin = System.nanoTime();
        BenchStore bench = new BenchStore(spec);
        bench.open();
        bench.awaitDispatch();
        double seconds = (System.nanoTime() - begin) / 1e9;
        JsonObject result = result(seconds, bench.messages(), bench.messages());
        result.addProperty("taken_ms", seconds * 1e3);
        bench.close();
        return result;
    }

    static JsonObject result(double seconds, long messages, long found) {
        JsonObject result = new JsonObject();
        result.addProperty("seconds", seconds);
        result.addProperty("messages", messages);
        result.addProperty("stored", found);
        result.addProperty("refused", 0);
        return result;
    }

    private long pass(long all, long count) throws Exception {
        switch (pattern) {
            case "sequential":
                return sequential(count);
            case "random":
                return random(all, count);
            case "lookup":
                return lookup(all, count);
            default:
                throw new IllegalArgumentException("unknown way to read " + pattern);
        }
    }

    private long sequential(long count) {
        long offset = 0;
        while (offset < count) {
            int found = get(offset, AT_ONCE);
            if (found == 0) {
                break;
            }
            offset += found;
        }
        return Math.min(offset, count);
    }

    private long random(long all, long count) {
        long found = 0;
        long state = 4711;
        for (long i = 0; i < count; i++) {
            state = next(state);
            found += get((state >>> 33) % all, 1);
        }
        return found;
    }

    private int get(long offset, int most) {
        GetMessageResult result = bench.store().getMessage("bench", BenchStore.TOPIC, 0, offset, most, null);
        try {
            for (SelectMappedBufferResult each : result.getMessageMapedList()) {
                see(each.getByteBuffer());
            }
            return result.getMessageCount();
        } finally {
            result.release();
        }
    }

    private long lookup(long all, long count) {
        long found = 0;
        long state = 4711;
        for (long i = 0; i < count; i++) {
            state = next(state);
            String key = key((state >>> 33) % all);
            QueryMessageResult result = bench.store().queryMessage(BenchStore.TOPIC, key, AT_ONCE, 0, Long.MAX_VALUE);
            for (SelectMappedBufferResult each : result.getMessageMapedList()) {
                see(each.getByteBuffer());
            }
            // The result also contains messages of other keys with the same hash.
            found += result.getMessageMapedList().isEmpty() ? 0 : 1;
            result.release();
        }
        return found;
    }

    private void see(ByteBuffer record) {
        if (decode) {
            MessageExt message = MessageDecoder.decode(record);
            seen += message.getBody().length + message.getKeys().length();
        } else {
            seen += record.remaining();
        }
    }

    /** The same numbers as on mqstore's side. */
    static long next(long state) {
        return state * 6_364_136_223_846_793_005L + 1_442_695_040_888_963_407L;
    }

    /** The key that mqstore gave a message. {@code String.format} would cost more than the look-up. */
    static String key(long number) {
        StringBuilder key = new StringBuilder("order-00000000");
        String digits = Long.toString(number);
        key.replace(key.length() - digits.length(), key.length(), digits);
        return key.toString();
    }
}
