package org.mqstore.interop;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.store.AppendMessageResult;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.ha.autoswitch.BrokerMetadata;

/**
 * The interactive driver: one JSON command on each line of standard input, answers by {@link Wire}.
 *
 * <pre>
 *   open   store path config topics write_topics start tiered
 *                                                           load and start a store under a name of the caller's
 *   put    store messages|file flush_each                   a row for each put with its result
 *   await  store                                            until dispatch has caught up
 *   upload store                                            copy all messages to its tiered store
 *   leader store                                            whether it is the leader of its DLedger group
 *   lead   store                                            continue the queues as its new leader
 *   follow store master                                     copy the log of another store as its slave
 *   clean  store hours                                      delete segments older than these hours
 *   read   store [topic queue_id from]                      rows of all queues, or of one
 *   log    store                                            rows of all records in log order
 *   pull   store topic queue_id offset most                 one pull
 *   keys   store queries         times  store queries       look-ups
 *   close  stores                                           clean shutdown, several at the same time
 *   leave                                                   shutdown of all stores, without waiting for it
 *   logs                                                    captured WARN and ERROR lines since the last open or logs
 *   client command ...                                      the official client, see {@link Client}
 *   filters cases                                           SQL92 expressions, see {@link Filters}
 *   halt                                                    end at once, without any shutdown
 * </pre>
 *
 * <p>The end of standard input halts as well, so that no store outlives the test that opened it.
 */
public final class Driver {
    private final Map<String, OpenStore> stores = new HashMap<>();
    private final Client client = new Client();
    private final Wire wire = new Wire();
    private final Filters filters = new Filters(wire);

    private Driver() {
    }

    /** Starts the driver; no arguments. */
    public static void main(String[] args) throws IOException {
        new Driver().serve();
    }

    private void serve() throws IOException {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8), 1 << 16);
        JsonObject ready = new JsonObject();
        ready.addProperty("version", MQVersion.getVersionDesc(MQVersion.CURRENT_VERSION));
        ready.addProperty("pid", ProcessHandle.current().pid());
        wire.done(ready);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonObject command = JsonParser.parseString(line).getAsJsonObject();
            wire.begin(command.get("id").getAsLong());
            try {
                wire.done(run(command));
            } catch (Exception | LinkageError e) {
                wire.failed(e);
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private JsonObject run(JsonObject args) throws Exception {
        String op = args.get("op").getAsString();
        switch (op) {
            case "open":
                return open(args);
            case "put":
                return put(args);
            case "load":
                return Load.run(store(args), args);
            case "await":
                stores.get(name(args)).awaitDispatch();
                return new JsonObject();
            case "upload":
                return stores.get(name(args)).tier().upload();
            case "leader":
                return leader(args);
            case "lead":
                stores.get(name(args)).lead();
                return new JsonObject();
            case "follow":
                if (args.has("address")) {
                    long end = args.get("end").getAsLong();
                    stores.get(name(args)).follow(args.get("address").getAsString(), () -> end);
                } else {
                    stores.get(name(args)).follow(stores.get(args.get("master").getAsString()));
                }
                return new JsonObject();
            case "clean":
                stores.get(name(args)).clean(args.get("hours").getAsInt());
                return new JsonObject();
            case "read":
                return read(args);
            case "log":
                return reads(args).log();
            case "pull":
                return reads(args).pull(args.get("topic").getAsString(), args.get("queue_id").getAsInt(),
                    args.get("offset").getAsLong(), args.get("most").getAsInt());
            case "keys":
                return reads(args).keys(args.getAsJsonArray("queries"));
            case "times":
                return reads(args).times(args.getAsJsonArray("queries"));
            case "close":
                return close(args.getAsJsonArray("stores"));
            case "leave":
                stores.forEach((name, opened) -> closer(name, opened).start());
                stores.clear();
                return new JsonObject();
            case "logs":
                return logs();
            case "client":
                return client.run(args, wire);
            case "identity":
                return identity(args.get("path").getAsString());
            case "filters":
                return filters.run(args.getAsJsonArray("cases"));
            case "halt":
                Runtime.getRuntime().halt(137);
                return null;
            default:
                throw new IllegalArgumentException("unknown command " + op);
        }
    }

    private JsonObject open(JsonObject args) throws Exception {
        JsonObject result = new JsonObject();
        stores.put(name(args), OpenStore.open(args, result));
        return result;
    }

    private JsonObject put(JsonObject args) throws IOException {
        DefaultMessageStore store = store(args);
        boolean flushEach = args.has("flush_each") && args.get("flush_each").getAsBoolean();
        long puts = 0;
        for (JsonObject spec : specs(args)) {
            wire.row(put(store, spec));
            if (flushEach) {
                wire.flush();
            }
            puts++;
        }
        JsonObject result = new JsonObject();
        result.addProperty("puts", puts);
        return result;
    }

    private static List<JsonObject> specs(JsonObject args) throws IOException {
        List<JsonObject> specs = new ArrayList<>();
        if (args.has("file")) {
            for (String line : Files.readAllLines(Path.of(args.get("file").getAsString()))) {
                specs.add(JsonParser.parseString(line).getAsJsonObject());
            }
        } else {
            args.getAsJsonArray("messages").forEach(spec -> specs.add(spec.getAsJsonObject()));
        }
        return specs;
    }

    private static JsonObject put(DefaultMessageStore store, JsonObject spec) throws IOException {
        PutMessageResult put = Specs.isBatch(spec) ? store.putMessages(Specs.batch(spec)) : store.putMessage(Specs.message(spec));
        JsonObject row = new JsonObject();
        row.addProperty("status", put.getPutMessageStatus().toString());
        AppendMessageResult appended = put.getAppendMessageResult();
        if (appended != null) {
            row.addProperty("commit_log_offset", appended.getWroteOffset());
            row.addProperty("size", appended.getWroteBytes());
            row.addProperty("message_id", appended.getMsgId());
            row.addProperty("store_timestamp", appended.getStoreTimestamp());
            row.addProperty("queue_offset", appended.getLogicsOffset());
            row.addProperty("messages", appended.getMsgNum());
        }
        return row;
    }

    private JsonObject leader(JsonObject args) {
        JsonObject result = new JsonObject();
        result.addProperty("leader", stores.get(name(args)).isLeader());
        return result;
    }

    private JsonObject read(JsonObject args) throws IOException {
        Reads reads = reads(args);
        if (!args.has("topic")) {
            return reads.queues();
        }
        JsonObject result = new JsonObject();
        result.addProperty("messages",
            reads.queue(args.get("topic").getAsString(), args.get("queue_id").getAsInt(), args.get("from").getAsLong()));
        return result;
    }

    /** Shuts stores down at the same time, because each shutdown sleeps three seconds. */
    private JsonObject close(JsonArray names) throws InterruptedException {
        List<Thread> closers = new ArrayList<>();
        for (JsonElement name : names) {
            Optional.ofNullable(stores.remove(name.getAsString())).ifPresent(opened -> {
                Thread closer = closer(name.getAsString(), opened);
                closer.start();
                closers.add(closer);
            });
        }
        for (Thread closer : closers) {
            closer.join();
        }
        JsonObject result = logs();
        result.addProperty("closed", closers.size());
        return result;
    }

    private static Thread closer(String name, OpenStore opened) {
        return new Thread(opened.outer()::shutdown, "close-" + name);
    }

    /** Reads the file with which a controller knows a broker. */
    private static JsonObject identity(String path) throws Exception {
        BrokerMetadata found = new BrokerMetadata(path);
        found.readFromFile();
        JsonObject answer = new JsonObject();
        answer.addProperty("cluster", found.getClusterName());
        answer.addProperty("broker", found.getBrokerName());
        answer.addProperty("broker_id", found.getBrokerId());
        return answer;
    }

    private static JsonObject logs() {
        JsonObject result = new JsonObject();
        result.add("logs", LogCapture.drain());
        return result;
    }

    private static String name(JsonObject args) {
        return args.get("store").getAsString();
    }

    private DefaultMessageStore store(JsonObject args) {
        return stores.get(name(args)).store();
    }

    private Reads reads(JsonObject args) {
        return new Reads(store(args), wire);
    }
}
