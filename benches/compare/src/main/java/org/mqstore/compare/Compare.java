package org.mqstore.compare;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.common.MQVersion;

/**
 * Measures RocketMQ's store. Reads one JSON specification on each line of standard input and prints one JSON line with
 * its result.
 *
 * <p>benches/compare/README.md describes the specifications; the driver of mqstore reads the same ones. The JVM stays
 * for all measurements of a row, so that they run compiled code. The end of standard input ends it.
 */
public final class Compare {
    private Compare() {
    }

    /** Starts the driver; no arguments. */
    public static void main(String[] args) throws IOException {
        PrintStream out = System.out;
        // Output of a library must not come between the results.
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
        String op = spec.get("op").getAsString();
        switch (op) {
            case "version":
                JsonObject version = new JsonObject();
                version.addProperty("version", MQVersion.getVersionDesc(MQVersion.CURRENT_VERSION));
                version.addProperty("java", Runtime.version().toString());
                return version;
            case "append":
                return Appends.measure(spec);
            case "open":
                return Opens.measure(spec);
            case "derive":
                return Finds.derive(spec);
            case "read":
                return Finds.read(spec);
            case "compact":
                return Compactions.compact(spec);
            case "feed":
                return Compactions.feed(spec);
            default:
                throw new IllegalArgumentException("unknown operation " + op);
        }
    }
}
