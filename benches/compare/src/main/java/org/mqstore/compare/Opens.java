package org.mqstore.compare;

import com.google.gson.JsonObject;
import java.io.File;

/** Opens the store of a specification and measures the time. Then appends some messages, with or without a close. */
final class Opens {
    private Opens() {
    }

    static JsonObject measure(JsonObject spec) throws Exception {
        boolean clean = !new File(spec.get("path").getAsString(), "abort").exists();
        long begin = System.nanoTime();
        BenchStore bench = new BenchStore(spec);
        bench.open();
        double seconds = (System.nanoTime() - begin) / 1e9;
        JsonObject result = new JsonObject();
        result.addProperty("seconds", seconds);
        result.addProperty("was_clean", clean);
        result.addProperty("log_end", bench.store().getMaxPhyOffset());
        fill(bench, spec);
        result.addProperty("end_after", bench.store().getMaxPhyOffset());
        if (spec.get("close").getAsBoolean()) {
            bench.close();
        }
        return result;
    }

    private static void fill(BenchStore bench, JsonObject spec) throws Exception {
        Messages messages = new Messages(spec.get("body_bytes").getAsInt(), 0);
        long wanted = spec.get("messages").getAsLong();
        // From the view of the device, a kill can lose the unflushed messages.
        long unflushed = spec.get("unflushed").getAsLong();
        for (long i = 0; i < wanted; i++) {
            if (i == wanted - unflushed) {
                bench.awaitDispatch();
                bench.store().flush();
            }
            bench.store().putMessage(messages.next());
        }
        bench.awaitDispatch();
    }
}
