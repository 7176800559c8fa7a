package org.mqstore.interop;

import com.google.gson.JsonObject;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.AppendMessageResult;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.PutMessageStatus;

/** Puts equal messages for some seconds, for measurements: the pipe of the driver would take longer than a put. */
final class Load {
    private static final double NANOS = 1e9;
    private static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 10_911);

    private Load() {
    }

    /** Runs the threads. Returns the puts of a second, and the end of the last one. */
    static JsonObject run(DefaultMessageStore store, JsonObject args) throws Exception {
        int threads = args.get("threads").getAsInt();
        byte[] body = new byte[args.get("bytes").getAsInt()];
        long begun = System.nanoTime();
        long until = begun + (long) (args.get("seconds").getAsDouble() * NANOS);
        Callable<long[]> work = () -> puts(store, args.get("topic").getAsString(), body, until);
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        try {
            List<Future<long[]>> all = new ArrayList<>();
            for (int thread = 0; thread < threads; thread++) {
                all.add(pool.submit(work));
            }
            long count = 0;
            long end = 0;
            for (Future<long[]> one : all) {
                count += one.get()[0];
                end = Math.max(end, one.get()[1]);
            }
            JsonObject result = new JsonObject();
            result.addProperty("rate", count * NANOS / (System.nanoTime() - begun));
            result.addProperty("end", end);
            return result;
        } finally {
            pool.shutdown();
        }
    }

    private static long[] puts(DefaultMessageStore store, String topic, byte[] body, long until) throws Exception {
        long[] found = new long[2];
        while (System.nanoTime() < until) {
            PutMessageResult put = store.putMessage(message(topic, body));
            if (put.getPutMessageStatus() != PutMessageStatus.PUT_OK) {
                throw new IllegalStateException(put.getPutMessageStatus().toString());
            }
            AppendMessageResult appended = put.getAppendMessageResult();
            found[0]++;
            found[1] = appended.getWroteOffset() + appended.getWroteBytes();
        }
        return found;
    }

    private static MessageExtBrokerInner message(String topic, byte[] body) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(topic);
        message.setBody(body);
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(HOST);
        message.setStoreHost(HOST);
        MessageAccessor.setProperties(message, new HashMap<>());
        message.setPropertiesString("");
        return message;
    }
}
