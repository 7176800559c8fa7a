package org.mqstore.compare;

import com.google.gson.JsonObject;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.kv.CompactionLog;
import org.apache.rocketmq.store.kv.CompactionStore;
import org.apache.rocketmq.store.logfile.MappedFile;

/**
 * RocketMQ's compaction: dispatch copies a topic into one log for each queue, and one run compacts the full files of
 * each queue. A broker starts such a run by its clock. Here several threads call it.
 */
final class Compactions {
    private final BenchStore bench;
    private final JsonObject spec;

    private Compactions(JsonObject spec) throws Exception {
        this.spec = spec;
        bench = new BenchStore(spec);
        bench.open();
    }

    /** From the first put until every message is in the compaction logs. */
    static JsonObject feed(JsonObject spec) throws Exception {
        Compactions run = new Compactions(spec);
        try {
            long begin = System.nanoTime();
            run.fill();
            double seconds = (System.nanoTime() - begin) / 1e9;
            return Finds.result(seconds, run.fed(), run.fed());
        } finally {
            run.close();
        }
    }

    /**
     * One run over each queue. Only messages in files of the run count, and the last file of a queue is never one of
     * them.
     */
    static JsonObject compact(JsonObject spec) throws Exception {
        Compactions run = new Compactions(spec);
        try {
            run.fill();
            List<CompactionLog> logs = run.logs();
            Method compaction = CompactionLog.class.getDeclaredMethod("doCompaction");
            compaction.setAccessible(true);
            ExecutorService threads = Executors.newFixedThreadPool(spec.get("threads").getAsInt());
            long begin = System.nanoTime();
            List<Future<?>> calls = new ArrayList<>();
            for (CompactionLog log : logs) {
                calls.add(threads.submit(() -> compaction.invoke(log)));
            }
            for (Future<?> call : calls) {
                call.get();
            }
            double seconds = (System.nanoTime() - begin) / 1e9;
            threads.shutdown();
            return Finds.result(seconds, run.compacted(), run.compacted());
        } finally {
            run.close();
        }
    }

    /** Puts the same messages as mqstore's driver, and waits until they are copied. */
    private void fill() throws Exception {
        Messages messages = new Messages(spec.get("body_bytes").getAsInt(), 0);
        long keys = spec.get("keys").getAsLong();
        int queues = spec.get("queues").getAsInt();
        long wanted = spec.get("messages").getAsLong();
        long place = 4711;
        for (long at = 0; at < wanted; at++) {
            place = Finds.next(place);
            long key = keys >= wanted ? at : (place >>> 33) % keys;
            MessageExtBrokerInner message = messages.next(Finds.key(key));
            message.setQueueId((int) (key % queues));
            PutMessageResult put = bench.store().putMessage(message);
            if (!put.isOk()) {
                throw new IllegalStateException("a message was refused: " + put.getPutMessageStatus());
            }
        }
        while (fed() < wanted) {
            Thread.sleep(1);
        }
    }

    /** Number of messages in the compaction logs. */
    private long fed() throws Exception {
        long sum = 0;
        for (CompactionLog log : logs()) {
            sum += log.getCQ().getMaxOffsetInQueue();
        }
        return sum;
    }

    /** Messages up to the last one that a run has read. Nothing has expired. */
    private long compacted() {
        long sum = 0;
        CompactionStore store = bench.store().getCompactionStore();
        for (int queue = 0; queue < spec.get("queues").getAsInt(); queue++) {
            sum += Math.max(0, store.getPositionMgr().getOffset(BenchStore.TOPIC, queue) + 1);
        }
        return sum;
    }

    private List<CompactionLog> logs() throws Exception {
        Field table = CompactionStore.class.getDeclaredField("compactionLogTable");
        table.setAccessible(true);
        List<CompactionLog> logs = new ArrayList<>();
        for (Object log : ((Map<?, ?>) table.get(bench.store().getCompactionStore())).values()) {
            logs.add((CompactionLog) log);
        }
        return logs;
    }

    /** Closes the store, and the maps that RocketMQ leaves open. */
    private void close() throws Exception {
        List<CompactionLog> logs = logs();
        bench.close();
        for (CompactionLog log : logs) {
            for (MappedFile file : log.getLog().getMappedFiles()) {
                file.shutdown(0);
            }
        }
    }
}
