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
 * The messages of one thread: a key, a tag, a property and a new unique id each.
 *
 * <p>One object serves again once the store has encoded it, and the text of the properties that do not change is made
 * once: the loop that is measured pays for the id, the time and putting the text together, as mqstore's does.
 */
final class Messages {
    private final MessageExtBrokerInner message = new MessageExtBrokerInner();
    private final String before;

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
        String fixed = MessageDecoder.messageProperties2String(message.getProperties());
        String separator = String.valueOf(MessageDecoder.PROPERTY_SEPARATOR);
        before = (fixed.endsWith(separator) ? fixed : fixed + separator)
            + MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX + MessageDecoder.NAME_VALUE_SEPARATOR;
    }

    /** The next message; the one before is no longer used by anybody. */
    MessageExtBrokerInner next() {
        message.setBornTimestamp(System.currentTimeMillis());
        message.setPropertiesString(before + MessageClientIDSetter.createUniqID() + MessageDecoder.PROPERTY_SEPARATOR);
        return message;
    }
}
