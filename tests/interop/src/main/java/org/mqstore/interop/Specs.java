package org.mqstore.interop;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.UnknownHostException;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.compression.CompressorFactory;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;

/**
 * Builds messages from JSON specifications.
 *
 * <pre>
 *   topic, queue_id         where to
 *   body                    base64, or: size and seed (see {@link #generatedBody})
 *   properties              in this order, KEYS, TAGS and UNIQ_KEY among them
 *   flag, sys_flag, reconsume_times, prepared_transaction_offset, born_timestamp
 *   born_host, store_host   [address text, port]
 *   compress                ZLIB, LZ4 or ZSTD: the body is compressed and the system flag says so
 *   batch                   specifications of items: one put of several records
 *   inner_batch             specifications of items: one record that holds them all
 * </pre>
 */
final class Specs {
    private static final int COMPRESSION_LEVEL = 5;
    private static final int BLOCK_DIGESTS = 32;

    private Specs() {
    }

    /** Tells whether this is a batch of several records, for the batch call. */
    static boolean isBatch(JsonObject spec) {
        return spec.has("batch");
    }

    /** Makes the message of a specification that is not a batch. */
    static MessageExtBrokerInner message(JsonObject spec) throws IOException {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        fill(message, spec);
        if (spec.has("inner_batch")) {
            List<Message> items = items(spec.getAsJsonArray("inner_batch"), message.getTopic());
            message.setBody(MessageDecoder.encodeMessages(items));
            message.setSysFlag(message.getSysFlag() | MessageSysFlag.INNER_BATCH_FLAG | MessageSysFlag.NEED_UNWRAP_FLAG);
            MessageAccessor.putProperty(message, MessageConst.PROPERTY_INNER_NUM, Integer.toString(items.size()));
            message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        }
        return message;
    }

    /** Makes the batch of a specification with items. */
    static MessageExtBatch batch(JsonObject spec) throws IOException {
        MessageExtBatch batch = new MessageExtBatch();
        fill(batch, spec);
        batch.setBody(MessageDecoder.encodeMessages(items(spec.getAsJsonArray("batch"), batch.getTopic())));
        return batch;
    }

    private static List<Message> items(JsonArray specs, String topic) {
        List<Message> items = new ArrayList<>(specs.size());
        for (JsonElement element : specs) {
            items.add(clientMessage(element.getAsJsonObject(), topic));
        }
        return items;
    }

    /** Makes a message as an application gives it to the client: body, flag and properties only. */
    static Message clientMessage(JsonObject spec, String topic) {
        Message message = new Message(topic, body(spec));
        message.setFlag(number(spec, "flag", 0));
        MessageAccessor.setProperties(message, properties(spec));
        return message;
    }

    private static void fill(MessageExtBrokerInner message, JsonObject spec) throws IOException {
        message.setTopic(spec.get("topic").getAsString());
        message.setQueueId(number(spec, "queue_id", 0));
        message.setFlag(number(spec, "flag", 0));
        message.setSysFlag(number(spec, "sys_flag", 0));
        message.setReconsumeTimes(number(spec, "reconsume_times", 0));
        message.setPreparedTransactionOffset(longNumber(spec, "prepared_transaction_offset", 0));
        message.setBornTimestamp(longNumber(spec, "born_timestamp", System.currentTimeMillis()));
        message.setBornHost(host(spec, "born_host", 50_000));
        message.setStoreHost(host(spec, "store_host", 10_911));
        message.setBody(body(spec));
        if (spec.has("compress")) {
            CompressionType type = CompressionType.of(spec.get("compress").getAsString());
            message.setBody(CompressorFactory.getCompressor(type).compress(message.getBody(), COMPRESSION_LEVEL));
            message.setSysFlag(message.getSysFlag() | MessageSysFlag.COMPRESSED_FLAG | type.getCompressionFlag());
        }
        MessageAccessor.setProperties(message, properties(spec));
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        message.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(message.getTags()));
    }

    private static Map<String, String> properties(JsonObject spec) {
        Map<String, String> properties = new LinkedHashMap<>();
        if (spec.has("properties")) {
            spec.getAsJsonObject("properties").entrySet()
                .forEach(entry -> properties.put(entry.getKey(), entry.getValue().getAsString()));
        }
        return properties;
    }

    private static byte[] body(JsonObject spec) {
        if (spec.has("body")) {
            return Base64.getDecoder().decode(spec.get("body").getAsString());
        }
        return generatedBody(spec.get("seed").getAsString(), number(spec, "size", 0));
    }

    /** The first {@code size} bytes of the repeated block SHA-256("seed:0"), SHA-256("seed:1"), … "seed:31". */
    static byte[] generatedBody(String seed, int size) {
        byte[] block = new byte[BLOCK_DIGESTS * 32];
        try {
            MessageDigest digest = MessageDigest.getInstance("SHA-256");
            for (int i = 0; i < BLOCK_DIGESTS && i * 32 < size; i++) {
                byte[] part = digest.digest((seed + ":" + i).getBytes(StandardCharsets.UTF_8));
                System.arraycopy(part, 0, block, i * 32, 32);
            }
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException(e);
        }
        byte[] body = new byte[size];
        for (int at = 0; at < size; at += block.length) {
            System.arraycopy(block, 0, body, at, Math.min(block.length, size - at));
        }
        return body;
    }

    private static InetSocketAddress host(JsonObject spec, String name, int defaultPort) throws UnknownHostException {
        if (!spec.has(name)) {
            return new InetSocketAddress(InetAddress.getByAddress(new byte[] {127, 0, 0, 1}), defaultPort);
        }
        JsonArray host = spec.getAsJsonArray(name);
        return new InetSocketAddress(InetAddress.getByName(host.get(0).getAsString()), host.get(1).getAsInt());
    }

    private static int number(JsonObject spec, String name, int absent) {
        return spec.has(name) ? spec.get(name).getAsInt() : absent;
    }

    private static long longNumber(JsonObject spec, String name, long absent) {
        return spec.has(name) ? spec.get(name).getAsLong() : absent;
    }
}
