package org.mqstore.compare;

import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.PutMessageStatus;

/** Appends messages from some threads and measures the time. */
final class Appends {
    private static final int MOST_ATTEMPTS = 20;

    private final BenchStore bench;
    private final int bodyBytes;
    private final int queues;
    private final int inFlight;
    private final boolean timed;
    private final AtomicLong refused = new AtomicLong();
    private volatile int recordBytes;

    private Appends(BenchStore bench, JsonObject spec) {
        this.bench = bench;
        bodyBytes = spec.get("body_bytes").getAsInt();
        queues = spec.get("queues").getAsInt();
        inFlight = spec.get("batch").getAsInt();
        timed = spec.get("latency").getAsBoolean();
    }

    static JsonObject measure(JsonObject spec) throws Exception {
        BenchStore bench = new BenchStore(spec);
        bench.open();
        try {
            return new Appends(bench, spec).run(spec);
        } finally {
            bench.close();
        }
    }

    private JsonObject run(JsonObject spec) throws Exception {
        long messages = spec.get("messages").getAsLong();
        long warmUp = spec.get("warm_up").getAsLong();
        int threads = spec.get("threads").getAsInt();
        boolean drained = spec.get("until").getAsString().equals("drained");
        putFirst();
        long before = 1 + warmUp;
        put(0, warmUp, new Latencies());
        bench.awaitMessages(before);
        Thread.sleep(spec.get("settle_ms").getAsLong());

        ExecutorService pool = Executors.newFixedThreadPool(threads);
        long burst = spec.get("burst").getAsLong() == 0 ? messages : spec.get("burst").getAsLong();
        long nanos = 0;
        Latencies taken = new Latencies();
        for (long left = messages; left > 0; left -= burst) {
            nanos += burst(pool, threads, Math.min(left, burst), taken);
            Thread.sleep(spec.get("pause_ms").getAsLong());
        }
        if (drained) {
            long begin = System.nanoTime();
            bench.awaitMessages(before + messages);
            nanos += System.nanoTime() - begin;
        }
        double seconds = nanos / 1e9;
        pool.shutdown();
        bench.awaitMessages(before + messages);

        JsonObject result = new JsonObject();
        result.addProperty("seconds", seconds);
        result.addProperty("messages", messages);
        result.addProperty("stored", bench.messages() - before);
        result.addProperty("refused", refused.get());
        result.addProperty("record_bytes", recordBytes);
        if (timed) {
            result.add("latency", taken.toJson());
        }
        return result;
    }

    /** Appends one message. The creation and warm-up of its file may take longer than RocketMQ waits for it. */
    private void putFirst() throws Exception {
        Messages messages = new Messages(bodyBytes, 0);
        for (int attempt = 0; attempt < MOST_ATTEMPTS; attempt++) {
            if (bench.store().putMessage(messages.next()).getPutMessageStatus() == PutMessageStatus.PUT_OK) {
                return;
            }
        }
        throw new IllegalStateException("the store takes no message");
    }

    /** Appends this many messages from all threads. Returns the time from the first start to the last end. */
    private long burst(ExecutorService pool, int threads, long messages, Latencies taken) throws Exception {
        CyclicBarrier start = new CyclicBarrier(threads);
        AtomicLong first = new AtomicLong(Long.MAX_VALUE);
        AtomicLong last = new AtomicLong(Long.MIN_VALUE);
        List<Future<Latencies>> running = new ArrayList<>();
        for (int thread = 0; thread < threads; thread++) {
            int queue = thread % queues;
            long share = messages / threads + (thread < messages % threads ? 1 : 0);
            Callable<Latencies> work = () -> {
                Latencies own = new Latencies();
                start.await();
                first.accumulateAndGet(System.nanoTime(), Math::min);
                put(queue, share, own);
                last.accumulateAndGet(System.nanoTime(), Math::max);
                return own;
            };
            running.add(pool.submit(work));
        }
        for (Future<Latencies> each : running) {
            taken.add(each.get());
        }
        return last.get() - first.get();
    }

    private void put(int queue, long count, Latencies taken) throws Exception {
        if (inFlight > 1) {
            putInFlight(queue, count, taken);
            return;
        }
        Messages messages = new Messages(bodyBytes, queue);
        PutMessageResult last = null;
        for (long i = 0; i < count; i++) {
            long begin = timed ? System.nanoTime() : 0;
            last = bench.store().putMessage(messages.next());
            if (timed) {
                taken.record(System.nanoTime() - begin);
            }
            if (last.getPutMessageStatus() != PutMessageStatus.PUT_OK) {
                refused.incrementAndGet();
            }
        }
        if (last != null && last.getAppendMessageResult() != null) {
            recordBytes = last.getAppendMessageResult().getWroteBytes();
        }
    }

    /** Keeps as many messages in progress as the specification says. */
    private void putInFlight(int queue, long count, Latencies taken) throws Exception {
        Messages messages = new Messages(bodyBytes, queue);
        Semaphore window = new Semaphore(inFlight);
        AtomicLong failed = new AtomicLong();
        for (long i = 0; i < count; i++) {
            window.acquire();
            MessageExtBrokerInner message = messages.next();
            bench.store().asyncPutMessage(message).whenComplete((result, error) -> {
                if (error != null || result.getPutMessageStatus() != PutMessageStatus.PUT_OK) {
                    failed.incrementAndGet();
                } else {
                    recordBytes = result.getAppendMessageResult().getWroteBytes();
                }
                window.release();
            });
        }
        window.acquire(inFlight);
        refused.addAndGet(failed.get());
    }
}
