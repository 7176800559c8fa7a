package org.mqstore.interop;

import com.google.gson.JsonObject;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.compression.CompressorFactory;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;

/**
 * Turns messages into rows with every field of a record. A body is given as length and MD5: of the stored bytes and, if
 * the sender compressed them, of the decompressed bytes.
 */
final class Rows {
    private Rows() {
    }

    /** Decodes one record as the store returned it, with RocketMQ's own decoder, and makes its row. */
    static JsonObject ofRecord(ByteBuffer record) throws IOException {
        MessageExt message = MessageDecoder.decode(record.duplicate(), true, false);
        if (message == null) {
            JsonObject row = new JsonObject();
            row.addProperty("undecodable", record.remaining());
            return row;
        }
        return ofMessage(message);
    }

    /** Makes the row of a decoded message. */
    static JsonObject ofMessage(MessageExt message) throws IOException {
        JsonObject row = new JsonObject();
        row.addProperty("topic", message.getTopic());
        row.addProperty("queue_id", message.getQueueId());
        row.addProperty("queue_offset", message.getQueueOffset());
        row.addProperty("commit_log_offset", message.getCommitLogOffset());
        row.addProperty("size", message.getStoreSize());
        row.addProperty("message_id", offsetId(message));
        row.addProperty("flag", message.getFlag());
        row.addProperty("sys_flag", message.getSysFlag());
        row.addProperty("born_timestamp", message.getBornTimestamp());
        row.addProperty("born_host", host(message.getBornHost()));
        row.addProperty("store_timestamp", message.getStoreTimestamp());
        row.addProperty("store_host", host(message.getStoreHost()));
        row.addProperty("reconsume_times", message.getReconsumeTimes());
        row.addProperty("prepared_transaction_offset", message.getPreparedTransactionOffset());
        row.addProperty("body_crc", message.getBodyCRC());
        addBody(row, message);
        addProperties(row, message);
        return row;
    }

    private static String offsetId(MessageExt message) {
        return message instanceof MessageClientExt client ? client.getOffsetMsgId() : message.getMsgId();
    }

    private static void addBody(JsonObject row, MessageExt message) throws IOException {
        byte[] stored = message.getBody() == null ? new byte[0] : message.getBody();
        byte[] plain = stored;
        if ((message.getSysFlag() & MessageSysFlag.COMPRESSED_FLAG) != 0 && stored.length > 0) {
            plain = CompressorFactory.getCompressor(MessageSysFlag.getCompressionType(message.getSysFlag()))
                .decompress(stored);
        }
        row.addProperty("stored_body_size", stored.length);
        row.addProperty("stored_body_md5", md5(stored));
        row.addProperty("body_size", plain.length);
        row.addProperty("body_md5", md5(plain));
    }

    private static void addProperties(JsonObject row, MessageExt message) {
        // Null if the record has none.
        Map<String, String> properties = new TreeMap<>();
        if (message.getProperties() != null) {
            properties.putAll(message.getProperties());
        }
        JsonObject shown = new JsonObject();
        properties.forEach(shown::addProperty);
        row.add("properties", shown);
        row.addProperty("keys", message.getKeys());
        row.addProperty("tags", message.getTags());
        row.addProperty("unique_id", properties.get(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX));
    }

    /** Address and port. An IPv6 address is in brackets, in Java's long form. */
    static String host(SocketAddress address) {
        InetSocketAddress host = (InetSocketAddress) address;
        String text = host.getAddress().getHostAddress();
        return (text.indexOf(':') >= 0 ? "[" + text + "]" : text) + ":" + host.getPort();
    }

    /** Lower-case hex of the MD5 of these bytes. */
    static String md5(byte[] bytes) {
        try {
            return HexFormat.of().formatHex(MessageDigest.getInstance("MD5").digest(bytes));
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException(e);
        }
    }
}
