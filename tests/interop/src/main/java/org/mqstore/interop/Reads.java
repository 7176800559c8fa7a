package org.mqstore.interop;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.BoundaryType;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;

/** The reads of a RocketMQ store: whole queues, the whole log, keys, times, single pulls. */
final class Reads {
    private static final int PULL_MESSAGES = 1024;
    private static final int PULL_BYTES = 64 << 20;

    private final DefaultMessageStore store;
    private final Wire wire;

    Reads(DefaultMessageStore store, Wire wire) {
        this.store = store;
        this.wire = wire;
    }

    /** Every message of every queue: one row for each message with {@code entry_offset}, then one row for the queue. */
    JsonObject queues() throws IOException {
        long messages = 0;
        long queues = 0;
        Map<String, Map<Integer, ConsumeQueueInterface>> table = new TreeMap<>(store.getQueueStore().getConsumeQueueTable());
        for (Map.Entry<String, Map<Integer, ConsumeQueueInterface>> topic : table.entrySet()) {
            for (int queueId : new TreeMap<>(topic.getValue()).keySet()) {
                long min = store.getMinOffsetInQueue(topic.getKey(), queueId);
                messages += queue(topic.getKey(), queueId, Math.max(0, min));
                queues++;
            }
        }
        JsonObject result = new JsonObject();
        result.addProperty("messages", messages);
        result.addProperty("queues", queues);
        return result;
    }

    /** Every message of one queue from an offset on, then a row for the queue. */
    long queue(String topic, int queueId, long from) throws IOException {
        long messages = 0;
        long offset = from;
        GetMessageStatus status = GetMessageStatus.FOUND;
        while (status == GetMessageStatus.FOUND) {
            GetMessageResult result = get(topic, queueId, offset, PULL_MESSAGES);
            try {
                status = result.getStatus();
                messages += rows(result);
                offset = status == GetMessageStatus.FOUND ? result.getNextBeginOffset() : offset;
            } finally {
                result.release();
            }
        }
        JsonObject row = new JsonObject();
        row.addProperty("topic", topic);
        row.addProperty("queue_id", queueId);
        row.addProperty("min_offset", store.getMinOffsetInQueue(topic, queueId));
        row.addProperty("max_offset", maxOffset(topic, queueId));
        row.addProperty("next_offset", offset);
        row.addProperty("status", status.toString());
        row.addProperty("messages", messages);
        JsonObject outer = new JsonObject();
        outer.add("queue", row);
        wire.row(outer);
        return messages;
    }

    /** One pull, as a consumer makes it: rows, and the status and offsets as the result. */
    JsonObject pull(String topic, int queueId, long offset, int most) throws IOException {
        GetMessageResult result = get(topic, queueId, offset, most);
        try {
            rows(result);
            JsonObject answer = new JsonObject();
            answer.addProperty("status", result.getStatus().toString());
            answer.addProperty("next_offset", result.getNextBeginOffset());
            answer.addProperty("min_offset", result.getMinOffset());
            answer.addProperty("max_offset", result.getMaxOffset());
            return answer;
        } finally {
            result.release();
        }
    }

    /** Every record of the commit log in order, also records without a queue entry. */
    JsonObject log() throws IOException {
        long records = 0;
        long at = Math.max(0, store.getMinPhyOffset());
        int segment = store.getMessageStoreConfig().getMappedFileSizeCommitLog();
        while (at < store.getMaxPhyOffset()) {
            SelectMappedBufferResult part = store.getCommitLogData(at);
            if (part == null) {
                break;
            }
            try {
                ByteBuffer buffer = part.getByteBuffer();
                while (buffer.remaining() >= 8 && isRecord(buffer)) {
                    int size = buffer.getInt(buffer.position());
                    wire.row(message(buffer.slice(buffer.position(), size), -1));
                    buffer.position(buffer.position() + size);
                    records++;
                }
            } finally {
                part.release();
            }
            at = at - at % segment + segment;
        }
        JsonObject result = new JsonObject();
        result.addProperty("records", records);
        return result;
    }

    /** Key look-ups. Each of {@code queries} has topic, key, begin, end, most and optionally type ("T" = by tag). */
    JsonObject keys(JsonArray queries) throws IOException, ReflectiveOperationException {
        long hits = 0;
        for (JsonElement element : queries) {
            JsonArray found = key(element.getAsJsonObject());
            hits += found.size();
            JsonObject row = new JsonObject();
            row.add("offsets", found);
            wire.row(row);
        }
        JsonObject result = new JsonObject();
        result.addProperty("hits", hits);
        return result;
    }

    /** Time look-ups. Each of {@code queries} has topic, queue_id, time and boundary (LOWER or UPPER). */
    JsonObject times(JsonArray queries) {
        for (JsonElement element : queries) {
            JsonObject query = element.getAsJsonObject();
            JsonObject row = new JsonObject();
            row.addProperty("offset", store.getOffsetInQueueByTime(query.get("topic").getAsString(),
                query.get("queue_id").getAsInt(), query.get("time").getAsLong(),
                BoundaryType.valueOf(query.get("boundary").getAsString())));
            wire.row(row);
        }
        return new JsonObject();
    }

    private JsonArray key(JsonObject query) throws ReflectiveOperationException {
        String topic = query.get("topic").getAsString();
        String key = query.get("key").getAsString();
        int most = query.get("most").getAsInt();
        long begin = query.get("begin").getAsLong();
        long end = query.get("end").getAsLong();
        QueryMessageResult result = query.has("type")
            ? byType(topic, key, most, begin, end, query.get("type").getAsString())
            : store.queryMessage(topic, key, most, begin, end);
        JsonArray offsets = new JsonArray();
        try {
            for (ByteBuffer record : result.getMessageBufferList()) {
                offsets.add(record.getLong(record.position() + MessageDecoder.PHY_POS_POSITION));
            }
        } finally {
            result.release();
        }
        return offsets;
    }

    /** The look-up with an index type, which 5.3.3 does not have. */
    private QueryMessageResult byType(String topic, String key, int most, long begin, long end, String type)
        throws ReflectiveOperationException {
        return (QueryMessageResult) DefaultMessageStore.class
            .getMethod("queryMessage", String.class, String.class, int.class, long.class, long.class, String.class,
                String.class)
            .invoke(store, topic, key, most, begin, end, type, null);
    }

    private GetMessageResult get(String topic, int queueId, long offset, int most) {
        return store.getMessage("interop", topic, queueId, offset, most, PULL_BYTES, null);
    }

    private long maxOffset(String topic, int queueId) {
        ConsumeQueueInterface queue = store.getConsumeQueue(topic, queueId);
        return queue == null ? 0 : queue.getMaxOffsetInQueue();
    }

    private long rows(GetMessageResult result) throws IOException {
        List<ByteBuffer> records = result.getMessageBufferList();
        List<Long> entries = result.getMessageQueueOffset();
        for (int i = 0; i < records.size(); i++) {
            wire.row(message(records.get(i), entries.get(i)));
        }
        return records.size();
    }

    private static JsonObject message(ByteBuffer record, long entryOffset) throws IOException {
        JsonObject row = Rows.ofRecord(record);
        row.addProperty("entry_offset", entryOffset);
        JsonObject outer = new JsonObject();
        outer.add("message", row);
        return outer;
    }

    private static boolean isRecord(ByteBuffer buffer) {
        int magic = buffer.getInt(buffer.position() + 4);
        return magic == MessageDecoder.MESSAGE_MAGIC_CODE || magic == MessageDecoder.MESSAGE_MAGIC_CODE_V2;
    }
}
