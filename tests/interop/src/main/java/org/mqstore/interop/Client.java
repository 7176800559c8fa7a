package org.mqstore.interop;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.exception.RemotingException;
import org.apache.rocketmq.remoting.protocol.admin.TopicOffset;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * The official RocketMQ client against a broker of {@link BrokerProcess}; {@code action} chooses what it does.
 *
 * <pre>
 *   connect     namesrv broker seconds      wait until the broker is registered and has dispatched its log
 *   topics      topics {name: queues}       create or update, so that they have a route
 *   consume     topic seconds               every message from each queue's minimum to its maximum
 *   group       group topic count seconds   this many messages as a member of a group, until the broker has its offsets
 *   pop         group topic count ack invisible_ms seconds   pop this many messages and acknowledge the first ones
 *   refuse      group topic count seconds   refuse this many as a member of a group, until they are in its retry topic
 *   await       topic count seconds         wait until a topic has had this many messages
 *   produce     messages                    send each, transactions and batches too
 *   keys        topic key unique            query by key, or by unique id, through the broker
 *   brokers     broker                      register a broker, and count those of the name server
 *   mqadmin     name arguments              a command for static topics, see {@link Logic}
 *   logic_send  topic queue_id bodies       send to a logic queue
 *   logic_consume topic                     every message of all logic queues
 *   logic_commit topic count                commit the offset after so many messages of each logic queue
 *   disconnect
 * </pre>
 */
@SuppressWarnings("deprecation") // of the pull consumer, see consume
final class Client {
    private static final String GROUP = "mqstore_interop";
    private static final String CLUSTER = "interop";
    private static final int READ_AND_WRITE = 6;
    private static final int MOST_HITS = 64;
    private static final int PULL_MESSAGES = 32;
    private static final int PULL_ATTEMPTS = 10;
    private static final int PERSIST_MILLIS = 200;

    private String namesrv;
    private String broker;
    private DefaultMQAdminExt admin;
    private TransactionMQProducer producer;
    private DefaultMQPullConsumer consumer;

    /** Runs one action. */
    JsonObject run(JsonObject args, Wire wire) throws Exception {
        switch (args.get("action").getAsString()) {
            case "connect":
                return connect(args);
            case "topics":
                return topics(args.getAsJsonObject("topics"));
            case "consume":
                return consume(args, wire);
            case "group":
                return group(args, wire);
            case "pop":
                return pop(args, wire);
            case "refuse":
                return refuse(args);
            case "await":
                return await(args.get("topic").getAsString(), args.get("count").getAsLong(), deadline(args));
            case "produce":
                return produce(args.getAsJsonArray("messages"), wire);
            case "keys":
                return keys(args, wire);
            case "brokers":
                return brokers(args.get("broker").getAsString());
            case "mqadmin":
                return Logic.command(namesrv, args);
            case "logic_send":
                return Logic.send(producer, args, wire);
            case "logic_consume":
                return Logic.consume(consumer, args, wire);
            case "logic_commit":
                return Logic.commit(consumer, args, wire);
            case "disconnect":
                return disconnect();
            default:
                throw new IllegalArgumentException("unknown action " + args.get("action"));
        }
    }

    private JsonObject connect(JsonObject args) throws Exception {
        namesrv = args.get("namesrv").getAsString();
        broker = args.get("broker").getAsString();
        admin = new DefaultMQAdminExt(GROUP + "_admin");
        admin.setNamesrvAddr(namesrv);
        admin.setInstanceName(GROUP + "_admin_" + System.nanoTime());
        admin.setVipChannelEnabled(false);
        admin.start();
        long deadline = deadline(args);
        while (!ready()) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("the broker at " + broker + " did not get ready");
            }
            Thread.sleep(100);
        }
        startConsumer();
        startProducer();
        return new JsonObject();
    }

    /**
     * A broker registers by itself only after ten seconds or more. Any change of its permission registers it at once.
     */
    private boolean ready() {
        try {
            Properties change = new Properties();
            change.put("brokerPermission", Integer.toString(READ_AND_WRITE));
            admin.updateBrokerConfig(broker, change);
            String behind = admin.fetchBrokerRuntimeStats(broker).getTable().get("dispatchBehindBytes");
            return "0".equals(behind) && !admin.examineBrokerClusterInfo().getBrokerAddrTable().isEmpty();
        } catch (Exception e) {
            // In its first second, the broker answers these calls with errors.
            return false;
        }
    }

    private JsonObject brokers(String address) throws Exception {
        Properties change = new Properties();
        change.put("brokerPermission", Integer.toString(READ_AND_WRITE));
        admin.updateBrokerConfig(address, change);
        JsonObject result = new JsonObject();
        result.addProperty("brokers", admin.examineBrokerClusterInfo().getBrokerAddrTable().size());
        return result;
    }

    private void startConsumer() throws MQClientException {
        consumer = new DefaultMQPullConsumer(GROUP);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(GROUP + "_consumer_" + System.nanoTime());
        consumer.setVipChannelEnabled(false);
        consumer.start();
    }

    private void startProducer() throws MQClientException {
        producer = new TransactionMQProducer(GROUP);
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName(GROUP + "_producer_" + System.nanoTime());
        producer.setVipChannelEnabled(false);
        producer.setSendMsgTimeout(20_000);
        producer.setMaxMessageSize(8 << 20);
        producer.setTransactionListener(new Decided());
        producer.start();
    }

    private JsonObject topics(JsonObject wanted) throws Exception {
        for (Map.Entry<String, JsonElement> entry : wanted.entrySet()) {
            int queues = entry.getValue().getAsInt();
            admin.createAndUpdateTopicConfig(broker, new TopicConfig(entry.getKey(), queues, queues, READ_AND_WRITE));
        }
        return new JsonObject();
    }

    /**
     * Pulls every queue to its end, one pull after the other. The newer consumer fetches in the background. With it,
     * after assigning and seeking, ten messages of thousands were once missing, and twenty once came twice.
     */
    private JsonObject consume(JsonObject args, Wire wire) throws Exception {
        String topic = args.get("topic").getAsString();
        long deadline = deadline(args);
        long messages = 0;
        consumer.fetchSubscribeMessageQueues(topic);
        Map<MessageQueue, TopicOffset> queues = admin.examineTopicStats(topic).getOffsetTable();
        for (Map.Entry<MessageQueue, TopicOffset> queue : queues.entrySet()) {
            long offset = Math.max(0, queue.getValue().getMinOffset());
            while (offset < queue.getValue().getMaxOffset()) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException(queue.getKey() + " was consumed only up to " + offset);
                }
                PullResult pulled = pull(queue.getKey(), offset);
                if (pulled.getPullStatus() != PullStatus.FOUND) {
                    throw new IllegalStateException(queue.getKey() + " at " + offset + ": " + pulled);
                }
                for (MessageExt message : pulled.getMsgFoundList()) {
                    wire.row(row(message));
                    messages++;
                }
                offset = pulled.getNextBeginOffset();
            }
        }
        JsonObject result = new JsonObject();
        result.addProperty("messages", messages);
        result.addProperty("queues", queues.size());
        return result;
    }

    /** Joins a group, takes the unconsumed messages, and leaves when the broker knows that all are consumed. */
    private JsonObject group(JsonObject args, Wire wire) throws Exception {
        String topic = args.get("topic").getAsString();
        String group = args.get("group").getAsString();
        long deadline = deadline(args);
        Queue<MessageExt> taken = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer member = member(group);
        member.subscribe(topic, "*");
        member.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            taken.addAll(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        member.start();
        try {
            while (taken.size() < args.get("count").getAsInt() || behind(group, topic) != 0) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException(group + " has taken only " + taken.size() + " messages of " + topic);
                }
                Thread.sleep(100);
            }
        } finally {
            member.shutdown();
        }
        for (MessageExt message : taken) {
            wire.row(row(message));
        }
        JsonObject result = new JsonObject();
        result.addProperty("messages", taken.size());
        return result;
    }

    private DefaultMQPushConsumer member(String group) {
        DefaultMQPushConsumer member = new DefaultMQPushConsumer(group);
        member.setNamesrvAddr(namesrv);
        member.setInstanceName(GROUP + "_member_" + System.nanoTime());
        member.setVipChannelEnabled(false);
        member.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        member.setPersistConsumerOffsetInterval(PERSIST_MILLIS);
        return member;
    }

    private JsonObject pop(JsonObject args, Wire wire) throws Exception {
        MQClientAPIImpl api = producer.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl();
        List<MessageExt> popped = Takes.pop(api, broker, brokerName(), args);
        for (MessageExt message : popped) {
            wire.row(row(message));
        }
        JsonObject result = new JsonObject();
        result.addProperty("messages", popped.size());
        return result;
    }

    private JsonObject refuse(JsonObject args) throws Exception {
        String group = args.get("group").getAsString();
        CountDownLatch over = new CountDownLatch(1);
        DefaultMQPushConsumer member = Takes.refuse(member(group), args, over);
        try {
            return await(Takes.retryTopic(group), args.get("count").getAsLong(), deadline(args));
        } finally {
            // The messages that it holds are dropped by now, and its answer counts for nothing.
            member.shutdown();
            over.countDown();
        }
    }

    private JsonObject await(String topic, long count, long deadline) throws Exception {
        long there = 0;
        while (there < count) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException(topic + " has had only " + there + " messages");
            }
            Thread.sleep(100);
            try {
                there = admin.examineTopicStats(topic).getOffsetTable().values().stream()
                    .mapToLong(TopicOffset::getMaxOffset).sum();
            } catch (MQClientException e) {
                // The topic has no route yet.
                there = 0;
            }
        }
        return new JsonObject();
    }

    /** Number of unconsumed messages of a topic and group, as the broker knows it; -1 while it is unknown. */
    private long behind(String group, String topic) throws Exception {
        try {
            return admin.examineConsumeStats(group, topic).computeTotalDiff();
        } catch (MQClientException e) {
            // The broker does not know the group's member yet.
            return -1;
        }
    }

    private PullResult pull(MessageQueue queue, long offset) throws Exception {
        for (int attempt = 1;; attempt++) {
            try {
                return consumer.pull(queue, "*", offset, PULL_MESSAGES);
            } catch (RemotingException e) {
                // A new connection may be closed during a request. An application would try again, too.
                if (attempt == PULL_ATTEMPTS) {
                    throw e;
                }
                Thread.sleep(200);
            }
        }
    }

    private JsonObject produce(JsonArray specs, Wire wire) throws Exception {
        for (JsonElement element : specs) {
            JsonObject spec = element.getAsJsonObject();
            SendResult sent = send(spec, spec.get("topic").getAsString());
            JsonObject row = new JsonObject();
            row.addProperty("status", sent.getSendStatus().toString());
            row.addProperty("unique_id", sent.getMsgId());
            row.addProperty("message_id", sent.getOffsetMsgId());
            row.addProperty("topic", sent.getMessageQueue().getTopic());
            row.addProperty("queue_id", sent.getMessageQueue().getQueueId());
            row.addProperty("queue_offset", sent.getQueueOffset());
            wire.row(row);
        }
        JsonObject result = new JsonObject();
        result.addProperty("sends", specs.size());
        return result;
    }

    private SendResult send(JsonObject spec, String topic) throws Exception {
        MessageQueue queue = new MessageQueue(topic, brokerName(),
            spec.has("queue_id") ? spec.get("queue_id").getAsInt() : 0);
        if (spec.has("batch")) {
            List<Message> items = new ArrayList<>();
            spec.getAsJsonArray("batch").forEach(item -> items.add(Specs.clientMessage(item.getAsJsonObject(), topic)));
            return producer.send(items, queue);
        }
        Message message = Specs.clientMessage(spec, topic);
        if (spec.has("delay_level")) {
            message.setDelayTimeLevel(spec.get("delay_level").getAsInt());
        }
        if (spec.has("transaction")) {
            return producer.sendMessageInTransaction(message, spec.get("transaction").getAsString());
        }
        return ((DefaultMQProducer) producer).send(message, queue);
    }

    private String brokerName() throws Exception {
        return admin.examineBrokerClusterInfo().getBrokerAddrTable().keySet().iterator().next();
    }

    private JsonObject keys(JsonObject args, Wire wire) throws Exception {
        String topic = args.get("topic").getAsString();
        String key = args.get("key").getAsString();
        boolean unique = args.get("unique").getAsBoolean();
        // The client itself drops hits with other KEYS or another UNIQ_KEY.
        List<MessageExt> found = (unique
            ? admin.queryMessageByUniqKey(CLUSTER, topic, key, MOST_HITS, 0, Long.MAX_VALUE)
            : admin.queryMessage(topic, key, MOST_HITS, 0, Long.MAX_VALUE)).getMessageList();
        for (MessageExt message : found) {
            wire.row(row(message));
        }
        JsonObject result = new JsonObject();
        result.addProperty("messages", found.size());
        return result;
    }

    private JsonObject disconnect() {
        consumer.shutdown();
        producer.shutdown();
        admin.shutdown();
        return new JsonObject();
    }

    private static JsonObject row(MessageExt message) throws IOException {
        JsonObject outer = new JsonObject();
        outer.add("message", Rows.ofMessage(message));
        return outer;
    }

    static long deadline(JsonObject args) {
        return System.nanoTime() + args.get("seconds").getAsLong() * 1_000_000_000L;
    }

    /** Ends each transaction as its specification says, and answers a check as the message's property says. */
    private static final class Decided implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object decision) {
            return state((String) decision);
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return state(message.getUserProperty("when_checked"));
        }

        private static LocalTransactionState state(String decision) {
            if ("commit".equals(decision)) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
            return "rollback".equals(decision) ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW;
        }
    }
}
