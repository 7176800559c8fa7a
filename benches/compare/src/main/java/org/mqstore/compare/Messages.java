package org.mqstore.compare;

import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.UnknownHostException;
import java.util.Arrays;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;

/**
 * The messages of one thread, each with a key, a tag, a property and a new unique id.
 *
 * <p>One object is used again after the store has encoded it, and the text of the constant properties is made once. So
 * the measured loop pays for the id, the time and the assembly of the text, as mqstore's loop does.
 */
final class Messages {
    private final MessageExtBrokerInner message = new MessageExtBrokerInner();
    private final String before;
    private final String withoutKey;

    Messages(int bodyBytes, int queue) throws UnknownHostException {
        byte[] body = new byte[bodyBytes];
        Arrays.fill(body, (byte) 'x');
        InetAddress local = InetAddress.getByAddress(new byte[] {127, 0, 0, 1});
        message.setTopic(BenchStore.TOPIC);
        message.setQueueId(queue);
        message.setBody(body);
        message.setBornHost(new InetSocketAddress(local, 10_911));
        message.setStoreHost(new InetSocketAddress(local, 10_911));
        MessageAccessor.putProperty(message, "region", "eu");
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_KEYS, "order-4711");
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_TAGS, "paid");
        message.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(message.getTags()));
        MessageAccessor.clearProperty(message, MessageConst.PROPERTY_KEYS);
        withoutKey = ended(MessageDecoder.messageProperties2String(message.getProperties()));
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_KEYS, "order-4711");
        String fixed = MessageDecoder.messageProperties2String(message.getProperties());
        before = ended(fixed)
            + MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX + MessageDecoder.NAME_VALUE_SEPARATOR;
    }

    private static String ended(String properties) {
        String separator = String.valueOf(MessageDecoder.PROPERTY_SEPARATOR);
        return properties.endsWith(separator) ? properties : properties + separator;
    }

    /** As {@link #next()}, with another key. */
    MessageExtBrokerInner next(String key) {
        message.setBornTimestamp(System.currentTimeMillis());
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_KEYS, key);
        message.setPropertiesString(withoutKey + MessageConst.PROPERTY_KEYS + MessageDecoder.NAME_VALUE_SEPARATOR + key
            + MessageDecoder.PROPERTY_SEPARATOR + MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX
            + MessageDecoder.NAME_VALUE_SEPARATOR + MessageClientIDSetter.createUniqID()
            + MessageDecoder.PROPERTY_SEPARATOR);
        return message;
    }

    /** The next message. The one before must not be used any more. */
    MessageExtBrokerInner next() {
        message.setBornTimestamp(System.currentTimeMillis());
        message.setPropertiesString(before + MessageClientIDSetter.createUniqID() + MessageDecoder.PROPERTY_SEPARATOR);
        return message;
    }
}
